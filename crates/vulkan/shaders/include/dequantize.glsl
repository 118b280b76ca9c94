// Units of weights (formats.glsl) as halves, for the matrix units.
//
// A unit is decoded one step after it is loaded, so that the loads of the next step come before the products of this one.
//
// Decoding is exact except for the one rounding to f16. Codes become halves by being put into the mantissa of 1024, which is
// exact, and are multiplied by a scale that is itself an f16, or in f32 if the scale is a product (FORMAT_SUPER).
//
// The elements of a unit of codes come in the order of permute.glsl.

// Vectors of eight halves that a unit becomes.
const uint UNIT_VECTORS = UNIT / 8u;

// Decodes four bytes: `flip` is XOR-ed into the codes, and `bias` is 1024 plus the excess of the flipped code over its value.
uvec2 scaled_bytes(const uint word, const uint flip, const float16_t bias, const float scale, const float offset) {
    const uint pattern = 0x64006400u | flip;
    const f16vec2 even = CODE_VALUES((word & 0x00FF00FFu) ^ pattern, bias);
    const f16vec2 odd = CODE_VALUES(((word >> 8) & 0x00FF00FFu) ^ pattern, bias);
    const vec2 first = fma(vec2(even), vec2(scale), vec2(-offset));
    const vec2 second = fma(vec2(odd), vec2(scale), vec2(-offset));
    return uvec2(packFloat2x16(f16vec2(first)), packFloat2x16(f16vec2(second)));
}
