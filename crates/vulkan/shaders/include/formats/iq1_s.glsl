// IQ1_S: a word of the low bytes of four codes; 16 bits: bits 8 to 10 of the codes, the scale s of three bits, and whether 1/8 is
// subtracted instead of added; an f16 factor of 256 elements. Value d (2 s + 1) (g + 1/8), g the level less 1.
//
// At one row of activations 4 loads and 20 operations find the points, 16 take levels from them, 16 are dot products, 15 others:
// about 67. An H200 issues 40 while 6.5 bytes come from memory (uneven.glsl), so that operations bound it, at most at 0.6 of its
// memory's speed; a Radeon 780M issues 150.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_TABLE
#define FORMAT_WORDS
#define FORMAT_HIGH uint
#define FORMAT_LOAD_HIGH(high, at) uint(ReadShorts(high).at[at])
#define FORMAT_SUPER
#define FORMAT_MINIMUM
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) ((unit).high >> 12)
#define FORMAT_SCALES scale_of_iq1_s
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64006400u
#define SHARE_BIAS 1024.0
#define WORD_LOW(unit, none, word) bytes_of_iq1_s((unit).codes, (unit).high, word)
#define WORD_HIGH(unit, none, word) bytes_of_iq1_s((unit).codes, (unit).high, (word) + 4u)
#include "include/codebook.glsl"

uint bytes_of_iq1_s(const uint codes, const uint high, const uint part) {
    const uint low = (codes >> (part / 2u * 8u)) & 0xFFu;
    return levels_of_eight(low | (((high << 8) >> (part / 2u * 3u)) & 0x700u), part % 2u);
}

vec4 scale_of_iq1_s(const uint scale, const uint super) {
    const float factor = unpackHalf2x16(super).x * float(2u * (scale & 7u) + 1u);
    return vec2(factor, factor * ((scale & 8u) != 0u ? 1.125 : 0.875)).xyxy;
}

#include "include/codes.glsl"
