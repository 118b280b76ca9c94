// Q6_K: the low nibbles of codes in two's complement as in Q4_0. High pairs: two words, whose bits (x >> 2k) & 0x03030303 are
// those of elements 4k.. of a half. Signed scales of the halves, in bytes; an f16 factor of 256 elements.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_HIGH uvec2
#define FORMAT_READ_HIGH ReadPairs
#define FORMAT_SUPER
#define FORMAT_RUNS
#define SHARE_PATTERN 0x64206420u
#define SHARE_BIAS 1056.0
#include "include/unit.glsl"

// Returns the 6-bit codes of elements 4 * part .. 4 * part + 3 from their low nibbles and their high pairs.
uint six_bits(const uint low, const uint high, const uint part) {
    return (low & 0x0F0F0F0Fu) | (((high >> (2 * part)) & 0x03030303u) << 4);
}

Block unit_block(const Unit unit) {
    const uint scale = uint(unit.scale);
    Block block;
    block.other = 0.0;
    // Four times the value: the nibble in bits 2..5, the high pair in bits 6 and 7.
    const uvec2 h = unit.high;
    const uvec4 first = uvec4(h.x << 6, h.x << 4, h.x << 2, h.x) & 0xC0C0C0C0u;
    const uvec4 second = uvec4(h.y << 6, h.y << 4, h.y << 2, h.y) & 0xC0C0C0C0u;
    block.low = ((unit.codes << 2) & 0x3C3C3C3Cu) | first;
    block.high = ((unit.codes >> 2) & 0x3C3C3C3Cu) | second;
    const float super = unpackHalf2x16(unit.super).x * 0.25;
    block.scale = super * float(bitfieldExtract(int(scale), 0, 8));
    block.other = super * float(bitfieldExtract(int(scale), 8, 8));
    return block;
}

#ifdef DECODES_UNITS
// d * sc * (code - 32), the code in two's complement of 6 bits; the halves of a block have scales of their own.
void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const float super = unpackHalf2x16(unit.super).x;
    const float first = super * float(bitfieldExtract(int(unit.scale), 0, 8));
    const float second = super * float(bitfieldExtract(int(unit.scale), 8, 8));
    const uint flip = 0x00200020u;
    const float16_t bias = 1056.0hf;
    uvec2 parts[8];
    [[unroll]] for (uint part = 0; part < 4; part++) {
        const uint word = unit.codes[part];
        parts[part] = scaled_bytes(six_bits(word, unit.high.x, part), flip, bias, first, 0.0);
        parts[part + 4] = scaled_bytes(six_bits(word >> 4, unit.high.y, part), flip, bias, second, 0.0);
    }
    [[unroll]] for (uint part = 0; part < 4; part++) {
        halves[part] = uvec4(parts[2 * part], parts[2 * part + 1]);
    }
}
#endif

#ifdef DECODES_SHARES
#include "include/share.glsl"

// Returns the eight elements of a word: those of the first product, then those of the second.
uvec4 decode_word(const Share unit, const Magic magic, const UnitScale scale, const uint word) {
    const uint codes = component(unit.codes, word);
    const uint low = six_bits(codes, unit.high.x, word);
    const uint high = six_bits(codes >> 4, unit.high.y, word);
    return uvec4(share_bytes(low, magic.low, scale.xy), share_bytes(high, magic.low, scale.zw));
}
#endif
