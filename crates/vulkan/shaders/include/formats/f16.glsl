// F16: elements in order.

#define FORMAT_IS_FLOAT 1
#define FORMAT_UNIT 8u
#define FORMAT_HALVES
#include "include/unit.glsl"

// Returns four elements of a unit from element 4 * part on.
vec4 unit_values(const Unit unit, const uint part) {
    const uvec2 two = part == 0u ? unit.codes.xy : unit.codes.zw;
    return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
}

// Returns four elements of a row from element `first` (a multiple of 4) on.
vec4 weight_values(const Planes planes, const uint row, const uint first) {
    const uvec2 two = ReadPairs(planes.codes).at[row * (planes.groups * 32u) + first / 4u];
    return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
}

#ifdef DECODES_UNITS
void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    halves[0] = unit.codes;
}
#endif
