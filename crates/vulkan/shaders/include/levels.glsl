// Nibbles that are numbers of sixteen levels. No instruction that GLSL reaches looks four of them up, and a table in memory or
// shared memory takes a load for each. So the levels are computed: a polynomial in f16, two at a time, whose last addition
// rounds to whole numbers, since halves from 1024 to 2048 have no fractions. Before the rounding it is within 0.47 of the
// level, however many of its products and sums are rounded on the way.

#define FORMAT_LEVELS
#define CODE_SPARE 0
#define CODE_HALVES(bits) levels(unpackFloat2x16(bits))
#define CODE_VALUES(bits, bias) less(CODE_HALVES(bits), f16vec2(bias))
#define WORD_LOW(unit, codes, word) ((codes) & 0x0F0F0F0Fu)
#define WORD_HIGH(unit, codes, word) (((codes) >> 4) & 0x0F0F0F0Fu)
// Levels come as halves with 5 * 256 added.
#define SHARE_BIAS 1280.0

// Subtracts. Compilers must not subtract from the last addend of the polynomial instead, which would no longer round.
f16vec2 less(const f16vec2 halves, const f16vec2 bias) {
    precise f16vec2 values = halves - bias;
    return values;
}
