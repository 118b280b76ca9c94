// IQ3_S: two words of the low bytes of eight codes of four elements, a word of signs, a byte of bits 8 of the codes, and a nibble,
// the scale s; an f16 factor of 256 elements. Magnitudes 1, 3 to 15; scale d (2 s + 1).

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_TABLE
#define FORMAT_PAIRS
#define FORMAT_BYTES
#define FORMAT_HIGH uvec4
#define FORMAT_LOAD_HIGH load_signs
#define FORMAT_SUPER
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) (((unit).high.z >> (unit).high.w) & 15u)
#define FORMAT_SCALES scale_of_iq3_s
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64806480u
#define SHARE_BIAS 1152.0
#define WORD_LOW(unit, none, word) bytes_of_iq3_s((unit).codes.x >> (8u * (word)), (unit).high.xy, word)
#define WORD_HIGH(unit, none, word) bytes_of_iq3_s((unit).codes.y >> (8u * (word)), (unit).high.xy, (word) + 4u)
// Of eight units: 32 bytes of signs, 8 of bits of codes, 4 of scales. The fourth number is the place of the scale in its byte.
#define load_signs(high, at) \
    uvec4( \
        ReadWords(high).at[(at) / 8u * 11u + (at) % 8u], uint(ReadBytes(high).at[(at) / 8u * 44u + 32u + (at) % 8u]), \
        uint(ReadBytes(high).at[(at) / 8u * 44u + 40u + (at) % 8u / 2u]), ((at) & 1u) * 4u \
    )
#include "include/codebook.glsl"

uint bytes_of_iq3_s(const uint code, const uvec2 high, const uint part) {
    const uint levels = levels_of_four((code & 0xFFu) | (((high.y << 8) >> part) & 0x100u));
    return with_signs((levels << 1) | 0x01010101u, high.x, part);
}

vec4 scale_of_iq3_s(const uint scale, const uint super) {
    return even_scale(unpackHalf2x16(super).x * float(2u * scale + 1u));
}

#include "include/codes.glsl"
