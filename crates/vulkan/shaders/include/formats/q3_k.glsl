// Q3_K: codes of three bits in two's complement: two words of pairs as the high ones of Q6_K, and a word of third bits as the
// fifth of Q5_K. Signed scales of the halves, in bytes; an f16 factor of 256 elements.
//
// At one row of activations it is bound by the bytes read, 14.5 for 32 elements: about 40 operations prepare the codes, 16 are
// dot products.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_PAIRS
#define FORMAT_HIGH uint
#define FORMAT_READ_HIGH ReadWords
#define FORMAT_SUPER
#define FORMAT_RUNS
#define FORMAT_SCALES scales_of_bytes
#define CODE_SPARE 5
#define SHARE_PATTERN 0x64046404u
#define SHARE_BIAS 1028.0
#define THIRD_BITS(high, word) (((word) < 2u ? (high) << (2u - (word)) : (high) >> ((word) - 2u)) & 0x04040404u)
#define WORD_LOW(unit, none, word) ((((unit).codes.x >> (2u * (word))) & 0x03030303u) | THIRD_BITS((unit).high, word))
#define WORD_HIGH(unit, none, word) ((((unit).codes.y >> (2u * (word))) & 0x03030303u) | THIRD_BITS((unit).high, (word) + 4u))

vec4 scales_of_bytes(const uint scale, const uint super) {
    const float factor = unpackHalf2x16(super).x;
    const float first = factor * float(bitfieldExtract(int(scale), 0, 8));
    const float second = factor * float(bitfieldExtract(int(scale), 8, 8));
    return vec4(first, 0.0, second, 0.0);
}

#include "include/codes.glsl"
