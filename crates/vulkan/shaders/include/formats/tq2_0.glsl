// TQ2_0: 1 - q of two bits in two's complement, as the codes of Q2_K; an f16 factor of 256 elements: value -d (1 - q).
//
// At one row of activations 16 operations unfold codes, 16 are dot products, 6 others: about 40. An H200 issues 52 while 8.5 bytes
// come from memory (uneven.glsl), a Radeon 780M 196.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_PAIRS
#define FORMAT_SUPER
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) 0u
#define FORMAT_SCALES negative_factor
#define CODE_SPARE 6
#define SHARE_PATTERN 0x64026402u
#define SHARE_BIAS 1026.0
#define WORD_LOW(unit, none, word) (((unit).codes.x >> (2u * (word))) & 0x03030303u)
#define WORD_HIGH(unit, none, word) (((unit).codes.y >> (2u * (word))) & 0x03030303u)

vec4 negative_factor(const uint none, const uint super) {
    const float factor = -unpackHalf2x16(super).x;
    return vec4(factor, 0.0, factor, 0.0);
}

#include "include/codes.glsl"
