// Q2_K: unsigned codes of two bits, as the high pairs of Q6_K. A byte for each half, scale and minimum in its nibbles; two f16
// factors of 256 elements.
//
// The operand has the sum of 32 elements. At one row of activations that of the first half takes 8 dot products, beside 16 for the
// codes and about 35 other operations. An H200 issues 65 while 10.5 bytes come from memory (132 multiprocessors x 128 lanes x
// 1.755 GHz, 4.8 TB/s), so that operations bound it as much as bytes; a Radeon 780M issues 243 (768 lanes x 2.7 GHz, 89.6 GB/s).

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_PAIRS
#define FORMAT_SUPER
#define FORMAT_RUNS
#define FORMAT_MINIMUM
#define FORMAT_SCALES scales_and_minima
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64006400u
#define SHARE_BIAS 1024.0
#define WORD_LOW(unit, none, word) (((unit).codes.x >> (2u * (word))) & 0x03030303u)
#define WORD_HIGH(unit, none, word) (((unit).codes.y >> (2u * (word))) & 0x03030303u)

vec4 scales_and_minima(const uint scale, const uint super) {
    const vec2 factors = unpackHalf2x16(super);
    return factors.xyxy * vec4(scale & 15u, (scale >> 4) & 15u, (scale >> 8) & 15u, (scale >> 12) & 15u);
}

#include "include/codes.glsl"
