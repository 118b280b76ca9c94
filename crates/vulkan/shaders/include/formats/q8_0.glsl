// Q8_0: signed bytes, elements 0..15 and 16..31 apart. An f16 scale.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_MORE
#define SHARE_PATTERN 0x64806480u
#define SHARE_BIAS 1152.0
#include "include/unit.glsl"

Block unit_block(const Unit unit) {
    const uint scale = uint(unit.scale);
    Block block;
    block.other = 0.0;
    block.low = unit.codes;
    block.high = unit.more;
    block.scale = unpackHalf2x16(scale).x;
    return block;
}

#ifdef DECODES_UNITS
// Decodes four signed bytes: 1024 + 128 + code has the bits below.
uvec2 byte_halves(const uint word, const f16vec2 scale) {
    const f16vec2 even = halves_of((word & 0x00FF00FFu) ^ 0x64806480u) - f16vec2(1152.0hf);
    const f16vec2 odd = halves_of(((word >> 8) & 0x00FF00FFu) ^ 0x64806480u) - f16vec2(1152.0hf);
    return uvec2(packFloat2x16(even * scale), packFloat2x16(odd * scale));
}

void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const f16vec2 scale = halves_of(unit.scale * 0x10001u);
    halves[0] = uvec4(byte_halves(unit.codes.x, scale), byte_halves(unit.codes.y, scale));
    halves[1] = uvec4(byte_halves(unit.codes.z, scale), byte_halves(unit.codes.w, scale));
    halves[2] = uvec4(byte_halves(unit.more.x, scale), byte_halves(unit.more.y, scale));
    halves[3] = uvec4(byte_halves(unit.more.z, scale), byte_halves(unit.more.w, scale));
}
#endif

#ifdef DECODES_SHARES
#include "include/share.glsl"

// Returns the eight elements of a word: those of the first product, then those of the second.
uvec4 decode_word(const Share unit, const Magic magic, const UnitScale scale, const uint word) {
    const uint codes = component(unit.codes, word);
    return uvec4(share_bytes(codes, magic.low, scale), share_bytes(component(unit.more, word), magic.low, scale));
}
#endif
