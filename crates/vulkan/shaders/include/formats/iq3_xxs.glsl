// IQ3_XXS: two words of eight codes of four elements, and one of signs with the scale s where signs are left out; an f16 factor of
// 256 elements. Magnitudes 4, 12, 20, 28, 36, 44, 52 and 62; scale d (s + 1/2) / 2.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_TABLE
#define FORMAT_PAIRS
#define FORMAT_HIGH uint
#define FORMAT_READ_HIGH ReadWords
#define FORMAT_SUPER
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) spare_bits((unit).high)
#define FORMAT_SCALES scale_of_iq3_xxs
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64806480u
#define SHARE_BIAS 1152.0
#define WORD_LOW(unit, none, word) bytes_of_iq3_xxs((unit).codes.x >> (8u * (word)), (unit).high, word)
#define WORD_HIGH(unit, none, word) bytes_of_iq3_xxs((unit).codes.y >> (8u * (word)), (unit).high, (word) + 4u)
#include "include/codebook.glsl"

uint bytes_of_iq3_xxs(const uint code, const uint high, const uint part) {
    const uint levels = levels_of_four(code & 0xFFu);
    // Level 7 is two more than the others.
    const uint magnitudes = (levels << 3) + 0x04040404u + (((levels + 0x01010101u) >> 2) & 0x02020202u);
    return with_signs(magnitudes, even_signs(high), part);
}

vec4 scale_of_iq3_xxs(const uint scale, const uint super) {
    return even_scale(unpackHalf2x16(super).x * (float(scale) * 0.5 + 0.25));
}

#include "include/codes.glsl"
