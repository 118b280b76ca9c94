// A scale and an addend of a unit, two f16 in a word: value = d code + m.

#define FORMAT_SCALE_BITS 32
#define FORMAT_MINIMUM
#define FORMAT_SCALES scale_and_minimum

vec4 scale_and_minimum(const uint scale, const uint none) {
    const vec2 pair = unpackHalf2x16(scale);
    return vec4(pair.x, -pair.y, pair.x, -pair.y);
}
