// Units of weights (formats.glsl) as an invocation holds them in a left factor of 16 x 16, without shared memory. Included
// after dequantize.glsl, whose roundings and order it shares: each four elements come as 0, 2, 1, 3.
//
// Word w of a unit's 16 bytes of codes holds elements 4w..4w+3 and 16+4w..19+4w (in Q8_0 each of two words): two products of
// 16 columns, of which an invocation has four in each row.
//
// Loaded values stay 32 bits wide: compilers pack two 16-bit values of a loop into one register, and wait for both to do so.

struct Share {
    uvec4 codes;
#if FORMAT == FORMAT_Q8_0
    uvec4 more;
#endif
#if FORMAT == FORMAT_Q6_K
    uvec2 high;
#endif
    uint scales; // of two neighbours
#if FORMAT_IS_K
    uint super;
#endif
};

Share load_share(const Planes planes, const uint row, const uint unit) {
    const uint at = row * (planes.groups * UNITS_OF_GROUP) + unit;
    Share loaded;
#if FORMAT == FORMAT_Q8_0
    const uint first = (at & ~3u) * 2u + (at & 3u);
    loaded.codes = ReadQuads(planes.codes).at[first];
    loaded.more = ReadQuads(planes.codes).at[first + 4u];
#else
    loaded.codes = ReadQuads(planes.codes).at[at];
#endif
#if FORMAT == FORMAT_Q6_K
    loaded.high = ReadPairs(planes.high).at[at];
#endif
    loaded.scales = ReadWords(planes.scales).at[at / 2u];
#if FORMAT_IS_K
    loaded.super = ReadWords(planes.supers).at[row * ((planes.groups + 1u) / 2u) + unit / 8u];
#endif
    return loaded;
}

// The values with which codes are XOR-ed to become halves. With them in registers of each lane, a mask and a XOR are one
// instruction; with known constants, or values that a subgroup shares, they would be two.
struct Magic {
    uint low;
    uint high;
    f16vec2 sixteenth;
};

// `zero` is 0. The compiler must not know that, nor that all lanes have the same value.
Magic magic_of(const uint zero) {
#if FORMAT == FORMAT_Q4_0
    return Magic(0x64086408u | zero, 0x64806480u | zero, halves_of(0x2C002C00u | zero));
#elif FORMAT == FORMAT_Q8_0
    return Magic(0x64806480u | zero, 0, f16vec2(0.0));
#elif FORMAT == FORMAT_Q4_K
    return Magic(0x64006400u | zero, 0, f16vec2(0.0));
#else
    return Magic(0x64206420u | zero, 0, f16vec2(0.0));
#endif
}

// A unit's scale, prepared for its words. For a K format: factor and addend of the unit's halves, for codes with 1024 and their
// XOR-ed bit added. The addend is exact to 2^-24 of 1056 steps, which is less than the rounding to f16.
#if FORMAT_IS_K
#define UnitScale vec4
#else
#define UnitScale f16vec2
#endif

// `odd`: whether the unit is the second of two neighbours.
UnitScale unit_scale(const Share unit, const bool odd) {
#if FORMAT_IS_K
    const int both = int(unit.scales >> (odd ? 16 : 0));
    const vec2 super = unpackHalf2x16(unit.super);
#if FORMAT == FORMAT_Q4_K
    const vec2 scale = super * vec2(float(both & 0xFF), float((both >> 8) & 0xFF));
    return vec4(scale.x, -1024.0 * scale.x - scale.y, scale.x, -1024.0 * scale.x - scale.y);
#else
    const vec2 scale = super.x * vec2(float(bitfieldExtract(both, 0, 8)), float(bitfieldExtract(both, 8, 8)));
    return vec4(scale.x, -1056.0 * scale.x, scale.y, -1056.0 * scale.y);
#endif
#else
    return halves_of(unit.scales >> (odd ? 16 : 0)).xx;
#endif
}

// Returns a component without an index: registers have none, and a compiler that sees one before it unrolls uses memory
// instead.
uint component(const uvec4 all, const uint index) {
    return index == 0 ? all.x : index == 1 ? all.y : index == 2 ? all.z : all.w;
}

// Decodes four codes in the bytes of a word.
uvec2 share_bytes(const uint word, const uint flip, const vec2 scale) {
    const f16vec2 even = halves_of((word & 0x00FF00FFu) ^ flip);
    const f16vec2 odd = halves_of(((word >> 8) & 0x00FF00FFu) ^ flip);
    const vec2 first = fma(vec2(even), vec2(scale.x), vec2(scale.y));
    const vec2 second = fma(vec2(odd), vec2(scale.x), vec2(scale.y));
    return uvec2(packFloat2x16(f16vec2(first)), packFloat2x16(f16vec2(second)));
}

uvec2 share_bytes(const uint word, const uint flip, const f16vec2 scale) {
    const f16vec2 even = halves_of((word & 0x00FF00FFu) ^ flip) - f16vec2(1152.0hf);
    const f16vec2 odd = halves_of(((word >> 8) & 0x00FF00FFu) ^ flip) - f16vec2(1152.0hf);
    return uvec2(packFloat2x16(even * scale), packFloat2x16(odd * scale));
}

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
#if FORMAT == FORMAT_Q4_0
    return share_nibbles(codes, magic, scale);
#elif FORMAT == FORMAT_Q8_0
    return uvec4(share_bytes(codes, magic.low, scale), share_bytes(component(unit.more, word), magic.low, scale));
#elif FORMAT == FORMAT_Q4_K
    const uint low = codes & 0x0F0F0F0Fu;
    const uint high = (codes >> 4) & 0x0F0F0F0Fu;
    return uvec4(share_bytes(low, magic.low, scale.xy), share_bytes(high, magic.low, scale.zw));
#elif FORMAT == FORMAT_Q6_K
    const uint low = six_bits(codes, unit.high.x, word);
    const uint high = six_bits(codes >> 4, unit.high.y, word);
    return uvec4(share_bytes(low, magic.low, scale.xy), share_bytes(high, magic.low, scale.zw));
#endif
}
