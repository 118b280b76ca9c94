// Whether values are numbers, by their bits: compilers may take every value for one.
#ifndef NUMBERS_GLSL
#define NUMBERS_GLSL

const float NOT_A_NUMBER = uintBitsToFloat(0x7FC00000u);

// Returns whether a value is neither infinite nor NaN.
bool is_number(const float value) {
    return (floatBitsToUint(value) & 0x7F800000u) != 0x7F800000u;
}

#endif
