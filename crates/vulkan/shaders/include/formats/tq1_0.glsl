// TQ1_0: digits to base 3, five of them a byte; an f16 factor of 256 elements: value d (q - 1).
//
// A unit is 32 elements in six and a half bytes: a word with elements 4 t + b in digit t of byte b, two bytes with elements 20 to
// 29, and the digits of elements 30 and 31 in half a byte that it shares with its neighbour. A unit of 256 elements would need no
// half bytes, but an invocation would hold eight blocks of the operand. A byte is a fraction of 256, and digit t the whole part of
// 3 (3^t b mod 256) / 256. Products and remainders of two bytes are computed in a word.
//
// At one row of activations of 32 elements 45 operations make the digits of the word, 40 the others, 16 are dot products: about
// 110. An H200 issues 43 while 7 bytes come from memory (uneven.glsl), so operations bound it, at most at 0.39 of its memory's
// speed; a Radeon 780M issues 162.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_WORDS
#define FORMAT_BYTES
#define FORMAT_HIGH uvec3
#define FORMAT_LOAD_HIGH load_digits
#define FORMAT_SUPER
#define FORMAT_MINIMUM
#define FORMAT_SCALE_BITS 0
#define FORMAT_SCALE(unit) 0u
#define FORMAT_SCALES factor_and_offset
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64006400u
#define SHARE_BIAS 1024.0
#define WORD_LOW(unit, none, word) digits((unit).codes, (unit).high, word)
#define WORD_HIGH(unit, none, word) digits((unit).codes, (unit).high, (word) + 4u)
// Of eight units: 16 bits each, then a byte of two units each. The third number is what the shared byte is multiplied by.
#define load_digits(high, at) \
    uvec3( \
        uint(ReadShorts(high).at[(at) / 8u * 10u + (at) % 8u]), uint(ReadBytes(high).at[(at) / 8u * 20u + 16u + (at) % 8u / 2u]), \
        ((at) & 1u) * 8u + 1u \
    )

vec4 factor_and_offset(const uint none, const uint super) {
    return unpackHalf2x16(super).xxxx;
}

// Returns digit `digit` of two fractions in the lower bytes of a word's halves, at bit 8 of these, above other bits.
uint digit_of_two(const uint two, const uint digit) {
    const uint power = digit == 0u ? 1u : digit == 1u ? 3u : digit == 2u ? 9u : digit == 3u ? 27u : 81u;
    return ((two * power) & 0x00FF00FFu) * 3u;
}

// Returns the digits of elements 4 * part.. in the bytes of a word.
uint digits(const uint codes, const uvec3 high, const uint part) {
    if (part < 5u) {
        const uint even = digit_of_two(codes & 0x00FF00FFu, part);
        const uint odd = digit_of_two((codes >> 8) & 0x00FF00FFu, part);
        return ((even >> 8) & 0x00030003u) | (odd & 0x03000300u);
    }
    const uint two = (high.x & 0xFFu) | ((high.x & 0xFF00u) << 8);
    const uint first = digit_of_two(two, 2u * part - 10u);
    if (part < 7u) return ((first >> 8) & 0x00030003u) | (digit_of_two(two, 2u * part - 9u) & 0x03000300u);
    const uint shared_byte = (high.y * high.z & 0xFFu) * 3u;
    return ((first >> 8) & 0x00030003u) | (shared_byte & 0x0300u) | (((shared_byte & 0xFFu) * 3u & 0x0300u) << 16);
}

#include "include/codes.glsl"
