// IQ2_XXS: a word of four codes, and one of signs with the scale s where signs are left out; an f16 factor of 256 elements. Scale
// d (s + 1/2) / 4.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_TABLE
#define FORMAT_PAIRS
#define FORMAT_SUPER
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) spare_bits((unit).codes.y)
#define FORMAT_SCALES scale_of_iq2_xxs
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64806480u
#define SHARE_BIAS 1152.0
#define WORD_LOW(unit, none, word) bytes_of_iq2_xxs((unit).codes, word)
#define WORD_HIGH(unit, none, word) bytes_of_iq2_xxs((unit).codes, (word) + 4u)
#include "include/codebook.glsl"

uint bytes_of_iq2_xxs(const uvec2 codes, const uint part) {
    const uint levels = levels_of_eight((codes.x >> (part / 2u * 8u)) & 0xFFu, part % 2u);
    return with_signs(magnitudes_of_iq2(levels), even_signs(codes.y), part);
}

vec4 scale_of_iq2_xxs(const uint scale, const uint super) {
    return even_scale(unpackHalf2x16(super).x * (float(scale) * 0.25 + 0.125));
}

#include "include/codes.glsl"
