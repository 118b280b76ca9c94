// F32: elements in order.

#define FORMAT_IS_FLOAT 1
#define FORMAT_UNIT 4u
#define FORMAT_SINGLES
#include "include/unit.glsl"

// Returns four elements of a unit from element 4 * part on.
vec4 unit_values(const Unit unit, const uint part) {
    return uintBitsToFloat(unit.codes);
}

// Returns four elements of a row from element `first` (a multiple of 4) on.
vec4 weight_values(const Planes planes, const uint row, const uint first) {
    return ReadVec4s(planes.codes).at[row * (planes.groups * 32u) + first / 4u];
}
