// Q4_0: nibbles in two's complement, byte i of a unit: element i in the low one, element i + 16 in the high one. An f16 scale.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define SHARE_PATTERN 0x64086408u
#define SHARE_PATTERN_HIGH 0x64806480u
#define SHARE_BIAS 1032.0
#include "include/unit.glsl"

Block unit_block(const Unit unit) {
    const uint scale = uint(unit.scale);
    Block block;
    block.other = 0.0;
    // Nibbles in the upper half of a byte: 16 times the value.
    block.low = (unit.codes << 4) & 0xF0F0F0F0u;
    block.high = unit.codes & 0xF0F0F0F0u;
    block.scale = unpackHalf2x16(scale).x * 0.0625;
    return block;
}

#ifdef DECODES_UNITS
// Returns elements 0..3 of the low nibbles of four bytes; nibbles are two's complement, and 1024 + 8 + code has the bits below.
uvec2 low_nibbles(const uint word, const f16vec2 scale) {
    const f16vec2 even = halves_of((word & 0x000F000Fu) ^ 0x64086408u) - f16vec2(1032.0hf);
    const f16vec2 odd = halves_of(((word >> 8) & 0x000F000Fu) ^ 0x64086408u) - f16vec2(1032.0hf);
    return uvec2(packFloat2x16(even * scale), packFloat2x16(odd * scale));
}

// Does the same for the high nibbles, which stand for sixteen times as much.
uvec2 high_nibbles(const uint word, const f16vec2 scale) {
    const f16vec2 sixteenth = f16vec2(0.0625hf);
    const f16vec2 even = fma(halves_of((word & 0x00F000F0u) ^ 0x64806480u), sixteenth, f16vec2(-72.0hf));
    const f16vec2 odd = fma(halves_of(((word >> 8) & 0x00F000F0u) ^ 0x64806480u), sixteenth, f16vec2(-72.0hf));
    return uvec2(packFloat2x16(even * scale), packFloat2x16(odd * scale));
}

void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const f16vec2 scale = halves_of(unit.scale * 0x10001u);
    halves[0] = uvec4(low_nibbles(unit.codes.x, scale), low_nibbles(unit.codes.y, scale));
    halves[1] = uvec4(low_nibbles(unit.codes.z, scale), low_nibbles(unit.codes.w, scale));
    halves[2] = uvec4(high_nibbles(unit.codes.x, scale), high_nibbles(unit.codes.y, scale));
    halves[3] = uvec4(high_nibbles(unit.codes.z, scale), high_nibbles(unit.codes.w, scale));
}
#endif

#ifdef DECODES_SHARES
#include "include/share.glsl"

uvec4 share_nibbles(const uint word, const Magic magic, const f16vec2 scale) {
    const uint next = word >> 8;
    const f16vec2 a = halves_of((word & 0x000F000Fu) ^ magic.low) - f16vec2(1032.0hf);
    const f16vec2 b = halves_of((next & 0x000F000Fu) ^ magic.low) - f16vec2(1032.0hf);
    // The high nibbles stand for sixteen times as much.
    const f16vec2 c = fma(halves_of((word & 0x00F000F0u) ^ magic.high), magic.sixteenth, f16vec2(-72.0hf));
    const f16vec2 d = fma(halves_of((next & 0x00F000F0u) ^ magic.high), magic.sixteenth, f16vec2(-72.0hf));
    return uvec4(packFloat2x16(a * scale), packFloat2x16(b * scale), packFloat2x16(c * scale), packFloat2x16(d * scale));
}

// Returns the eight elements of a word: those of the first product, then those of the second.
uvec4 decode_word(const Share unit, const Magic magic, const UnitScale scale, const uint word) {
    const uint codes = component(unit.codes, word);
    return share_nibbles(codes, magic, scale);
}
#endif
