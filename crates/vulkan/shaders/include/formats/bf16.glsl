// BF16, the upper half of an f32: elements in order.

#define FORMAT_IS_FLOAT 1
#define FORMAT_UNIT 8u
#include "include/unit.glsl"

// Returns four elements of a unit from element 4 * part on.
vec4 unit_values(const Unit unit, const uint part) {
    const uvec2 two = part == 0u ? unit.codes.xy : unit.codes.zw;
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
}

// Returns four elements of a row from element `first` (a multiple of 4) on.
vec4 weight_values(const Planes planes, const uint row, const uint first) {
    const uvec2 two = ReadPairs(planes.codes).at[row * (planes.groups * 32u) + first / 4u];
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
}

#ifdef DECODES_UNITS
// A bf16 is the upper half of an f32.
uint halves_of_brain(const uint word) {
    const vec2 values = vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xFFFF0000u));
    return packFloat2x16(f16vec2(values));
}

void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const uvec4 codes = unit.codes;
    halves[0] = uvec4(halves_of_brain(codes.x), halves_of_brain(codes.y), halves_of_brain(codes.z), halves_of_brain(codes.w));
}
#endif
