// IQ2_XS: a word of the low bytes of four codes, and one of signs with their bits 8 where signs are left out. Scales of the halves
// in the nibbles of a byte; an f16 factor of 256 elements.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_TABLE
#define FORMAT_PAIRS
#define FORMAT_SUPER
#define FORMAT_RUNS
#define FORMAT_BYTES
#define FORMAT_HIGH uint
#define FORMAT_LOAD_HIGH(high, at) uint(ReadBytes(high).at[at])
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) (unit).high
#define FORMAT_SCALES scales_of_nibbles
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64806480u
#define SHARE_BIAS 1152.0
#define WORD_LOW(unit, none, word) bytes_of_iq2_xs((unit).codes, word)
#define WORD_HIGH(unit, none, word) bytes_of_iq2_xs((unit).codes, (word) + 4u)
#include "include/codebook.glsl"

uint bytes_of_iq2_xs(const uvec2 codes, const uint part) {
    const uint low = (codes.x >> (part / 2u * 8u)) & 0xFFu;
    const uint levels = levels_of_eight(low | ((codes.y >> (part / 2u * 2u + 17u)) & 0x100u), part % 2u);
    return with_signs(magnitudes_of_iq2(levels), even_signs(codes.y), part);
}

#include "include/codes.glsl"
