// MXFP4: numbers of twice the E2M1 numbers. A byte e is the scale 2^(e - 128).

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_SCALE_BITS 8
#define FORMAT_SCALES scale_of_exponent
#include "include/e2m1.glsl"

vec4 scale_of_exponent(const uint scale, const uint none) {
    // The exponents of f32 are one higher; below them numbers lose their leading bit.
    const float both = uintBitsToFloat(scale < 2u ? 0x00200000u << scale : (scale - 1u) << 23);
    return vec4(both, 0.0, both, 0.0);
}

#include "include/codes.glsl"
