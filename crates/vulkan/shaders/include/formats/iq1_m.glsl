// IQ1_M: a word of the low bytes of four codes; 16 bits: a nibble for each code, its bits 8 to 10 and whether 1/8 is subtracted
// instead of added. 64 bits of 256 elements: a scale s of three bits for each half of a unit, then an f16 factor. Value
// d (2 s + 1) (g + 1/8), g the level less 1.
//
// At one row of activations it takes 24 operations more than IQ1_S (the shift in the codes) and 8 more for the scales: about 100.
// An H200 issues 43 while 7 bytes come from memory, so that operations bound it, at most at 0.43 of its memory's speed; a Radeon
// 780M issues 162.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_TABLE
#define FORMAT_WORDS
#define FORMAT_HIGH uvec2
#define FORMAT_LOAD_HIGH(high, at) uvec2(uint(ReadShorts(high).at[at]), (at) % 8u * 6u)
#define FORMAT_SUPER
#define FORMAT_SUPER_PAIRS
#define FORMAT_RUNS
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) (unit).high.y
#define FORMAT_SCALES scales_of_iq1_m
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64806480u
#define SHARE_BIAS 1152.0
#define WORD_LOW(unit, none, word) bytes_of_iq1_m((unit).codes, (unit).high.x, word)
#define WORD_HIGH(unit, none, word) bytes_of_iq1_m((unit).codes, (unit).high.x, (word) + 4u)
#include "include/codebook.glsl"

// Returns 8 g + 1 or 8 g - 1 in signed bytes.
uint bytes_of_iq1_m(const uint codes, const uint high, const uint part) {
    const uint low = (codes >> (part / 2u * 8u)) & 0xFFu;
    const uint nibble = high >> (part / 2u * 4u);
    const uint levels = levels_of_eight(low | ((nibble & 7u) << 8), part % 2u);
    const uint less = (nibble & 8u) != 0u ? 0x09090909u : 0x07070707u;
    return (((levels << 3) | 0x80808080u) - less) ^ 0x80808080u;
}

vec4 scales_of_iq1_m(const uint place, const uvec2 super) {
    const uint both = uint(packUint2x32(super) >> place);
    const vec2 scales = unpackHalf2x16(super.y).y * (vec2(both & 7u, (both >> 3) & 7u) * 0.25 + 0.125);
    return vec4(scales.x, 0.0, scales.y, 0.0);
}

#include "include/codes.glsl"
