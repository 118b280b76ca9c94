// Units of codes of up to eight bits, or of numbers of levels. Before the include: the facts of the format, and
//   WORD_LOW(unit, codes, word)  the codes of elements 4 word.., in the bytes of a word; `codes` is that word of the unit's codes
//   WORD_HIGH(unit, codes, word) those of elements 16 + 4 word..
//   CODE_SPARE                   bits of a byte that codes leave, if they are in two's complement; otherwise 0
//   FORMAT_SCALES(scale, super)  what the scale stands for, in f32: scale and minimum of each half. Without it the scale is an
//                                f16, and products with codes are rounded once in f16, too.

#include "include/unit.glsl"

#ifdef FORMAT_SUPER
#define SUPER_OF(unit) (unit).super
#else
#define SUPER_OF(unit) 0u
#endif
#if defined FORMAT_PAIRS || defined FORMAT_WORDS
#define WORD_OF(codes, word) 0u
#else
#define WORD_OF(codes, word) codes[word]
#endif
#define WORDS(part, unit) uvec4(part(unit, WORD_OF((unit).codes, 0), 0u), part(unit, WORD_OF((unit).codes, 1), 1u), \
                                part(unit, WORD_OF((unit).codes, 2), 2u), part(unit, WORD_OF((unit).codes, 3), 3u))

#ifdef FORMAT_LEVELS
// Returns the levels of four codes as signed bytes: the low bytes of halves that are too large by a multiple of 256.
uint level_bytes(const uint word) {
    const uint even = packFloat2x16(CODE_HALVES((word & 0x00FF00FFu) ^ SHARE_PATTERN));
    const uint odd = packFloat2x16(CODE_HALVES(((word >> 8) & 0x00FF00FFu) ^ SHARE_PATTERN));
    return (even & 0x00FF00FFu) | ((odd << 8) & 0xFF00FF00u);
}

#define SIGNED_BYTES(words) uvec4(level_bytes((words).x), level_bytes((words).y), level_bytes((words).z), level_bytes((words).w))
#else
#define SIGNED_BYTES(words) ((words) << CODE_SPARE)
#endif

Block unit_block(const Unit unit) {
    const uvec4 low = WORDS(WORD_LOW, unit);
    const uvec4 high = WORDS(WORD_HIGH, unit);
    const float step = 1.0 / float(1 << CODE_SPARE);
    Block block;
    block.low = SIGNED_BYTES(low);
    block.high = SIGNED_BYTES(high);
#ifdef FORMAT_SCALES
    const vec4 scales = FORMAT_SCALES(SCALE_OF(unit), SUPER_OF(unit));
    block.scale = scales.x * step;
#ifdef FORMAT_RUNS
    block.other = scales.z * step;
#ifdef FORMAT_MINIMUM
    block.minima = scales.yw;
#endif
#else
    block.other = scales.y;
#endif
#else
    block.scale = unpackHalf2x16(uint(unit.scale)).x * step;
    block.other = 0.0;
#endif
    return block;
}

#ifdef DECODES_UNITS
#ifdef FORMAT_SCALES
#define SCALED_BYTES(word, scale) scaled_bytes(word, SHARE_PATTERN ^ 0x64006400u, float16_t(SHARE_BIAS), (scale).x, (scale).y)
#else
#define SCALED_BYTES(word, scale) scaled_halves(word, scale)

// Decodes four codes in the bytes of a word.
uvec2 scaled_halves(const uint word, const f16vec2 scale) {
    const f16vec2 even = CODE_VALUES((word & 0x00FF00FFu) ^ SHARE_PATTERN, SHARE_BIAS);
    const f16vec2 odd = CODE_VALUES(((word >> 8) & 0x00FF00FFu) ^ SHARE_PATTERN, SHARE_BIAS);
    return uvec2(packFloat2x16(even * scale), packFloat2x16(odd * scale));
}
#endif

void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const uvec4 low = WORDS(WORD_LOW, unit);
    const uvec4 high = WORDS(WORD_HIGH, unit);
#ifdef FORMAT_SCALES
    const vec4 scales = FORMAT_SCALES(SCALE_OF(unit), SUPER_OF(unit));
    const vec2 first = scales.xy;
    const vec2 second = scales.zw;
#else
    const f16vec2 first = halves_of(uint(unit.scale) * 0x10001u);
    const f16vec2 second = first;
#endif
    halves[0] = uvec4(SCALED_BYTES(low.x, first), SCALED_BYTES(low.y, first));
    halves[1] = uvec4(SCALED_BYTES(low.z, first), SCALED_BYTES(low.w, first));
    halves[2] = uvec4(SCALED_BYTES(high.x, second), SCALED_BYTES(high.y, second));
    halves[3] = uvec4(SCALED_BYTES(high.z, second), SCALED_BYTES(high.w, second));
}
#endif

#ifdef DECODES_SHARES
#include "include/share.glsl"

// Returns the eight elements of a word: those of the first product, then those of the second.
uvec4 decode_word(const Share unit, const Magic magic, const UnitScale scale, const uint word) {
#if defined FORMAT_PAIRS || defined FORMAT_WORDS
    const uint codes = 0u;
#else
    const uint codes = component(unit.codes, word);
#endif
    const uint low = WORD_LOW(unit, codes, word);
    const uint high = WORD_HIGH(unit, codes, word);
#ifdef FORMAT_SCALES
    return uvec4(share_bytes(low, magic.low, scale.xy), share_bytes(high, magic.low, scale.zw));
#else
    return uvec4(share_bytes(low, magic.low, scale), share_bytes(high, magic.low, scale));
#endif
}
#endif
