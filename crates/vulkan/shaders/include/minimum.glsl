// Units of unsigned codes with a scale and a minimum in bytes and two f16 factors of 256 elements: value = d s code - dmin m.
// Before the include: the facts of the format with FORMAT_MINIMUM and FORMAT_SUPER, and WORD_LOW(unit, codes, word) and
// WORD_HIGH, the codes of the elements that word `word` of a unit has in its low and high nibbles, in the bytes of a word.
// CODES_LOW(unit) and CODES_HIGH are those of all words.

#define SHARE_PATTERN 0x64006400u
#define SHARE_BIAS 1024.0
#include "include/unit.glsl"

Block unit_block(const Unit unit) {
    const uint scale = uint(unit.scale);
    Block block;
    block.other = 0.0;
    block.low = CODES_LOW(unit);
    block.high = CODES_HIGH(unit);
    const vec2 super = unpackHalf2x16(unit.super);
    block.scale = super.x * float(scale & 0xFFu);
    block.other = super.y * float(scale >> 8);
    return block;
}

#ifdef DECODES_UNITS
void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const vec2 super = unpackHalf2x16(unit.super);
    const float scale = super.x * float(unit.scale & 0xFFu);
    const float offset = super.y * float(unit.scale >> 8);
    const float16_t bias = 1024.0hf;
    const uvec4 low = CODES_LOW(unit);
    const uvec4 high = CODES_HIGH(unit);
    halves[0] = uvec4(scaled_bytes(low.x, 0, bias, scale, offset), scaled_bytes(low.y, 0, bias, scale, offset));
    halves[1] = uvec4(scaled_bytes(low.z, 0, bias, scale, offset), scaled_bytes(low.w, 0, bias, scale, offset));
    halves[2] = uvec4(scaled_bytes(high.x, 0, bias, scale, offset), scaled_bytes(high.y, 0, bias, scale, offset));
    halves[3] = uvec4(scaled_bytes(high.z, 0, bias, scale, offset), scaled_bytes(high.w, 0, bias, scale, offset));
}
#endif

#ifdef DECODES_SHARES
#include "include/share.glsl"

// Returns the eight elements of a word: those of the first product, then those of the second.
uvec4 decode_word(const Share unit, const Magic magic, const UnitScale scale, const uint word) {
    const uint codes = component(unit.codes, word);
    const uint low = WORD_LOW(unit, codes, word);
    const uint high = WORD_HIGH(unit, codes, word);
    return uvec4(share_bytes(low, magic.low, scale.xy), share_bytes(high, magic.low, scale.zw));
}
#endif
