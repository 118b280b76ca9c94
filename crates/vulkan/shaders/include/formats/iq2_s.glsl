// IQ2_S: a word of the low bytes of four codes, one of signs, a byte of bits 8 and 9 of the codes, and one of scales, a nibble for
// each half; an f16 factor of 256 elements.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_TABLE
#define FORMAT_PAIRS
#define FORMAT_HIGH uint
#define FORMAT_LOAD_HIGH(high, at) uint(ReadShorts(high).at[at])
#define FORMAT_SUPER
#define FORMAT_RUNS
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) ((unit).high >> 8)
#define FORMAT_SCALES scales_of_nibbles
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64806480u
#define SHARE_BIAS 1152.0
#define WORD_LOW(unit, none, word) bytes_of_iq2_s((unit).codes, (unit).high, word)
#define WORD_HIGH(unit, none, word) bytes_of_iq2_s((unit).codes, (unit).high, (word) + 4u)
#include "include/codebook.glsl"

uint bytes_of_iq2_s(const uvec2 codes, const uint high, const uint part) {
    const uint low = (codes.x >> (part / 2u * 8u)) & 0xFFu;
    const uint levels = levels_of_eight(low | (((high << 8) >> (part / 2u * 2u)) & 0x300u), part % 2u);
    return with_signs(magnitudes_of_iq2(levels), codes.y, part);
}

#include "include/codes.glsl"
