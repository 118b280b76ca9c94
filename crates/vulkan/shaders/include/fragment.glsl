// Units of weights (formats.glsl) as what an invocation holds of a left factor of 16 x 16, without shared memory. After
// dequantize.glsl, with whose roundings and order: each four elements come as 0, 2, 1, 3.
//
// Word w of a unit's 16 bytes of codes holds elements 4w..4w+3 and 16+4w..19+4w (in Q8_0 each of two words): two products of
// 16 columns, of which an invocation has four in each row.

// A unit's scale, ready for its words.
#if FORMAT_IS_K
// Scale and offset, or the scales of the halves.
#define UnitScale vec2
#else
#define UnitScale f16vec2
#endif

UnitScale unit_scale(const Unit unit) {
#if FORMAT == FORMAT_Q4_K
    const vec2 super = unpackHalf2x16(unit.super);
    return super * vec2(float(unit.scale & 0xFFu), float(unit.scale >> 8));
#elif FORMAT == FORMAT_Q6_K
    const int both = int(unit.scale);
    return unpackHalf2x16(unit.super).x * vec2(float(bitfieldExtract(both, 0, 8)), float(bitfieldExtract(both, 8, 8)));
#else
    return halves_of(unit.scale * 0x10001u);
#endif
}

// A component, without an index: registers have none, and a compiler that sees one before it unrolls takes memory instead.
uint component(const uvec4 all, const uint index) {
    return index == 0 ? all.x : index == 1 ? all.y : index == 2 ? all.z : all.w;
}

// The eight elements of a word: those of the first product, those of the second.
uvec4 decode_word(const Unit unit, const UnitScale scale, const uint word) {
    const uint codes = component(unit.codes, word);
#if FORMAT == FORMAT_Q4_0
    return uvec4(low_nibbles(codes, scale), high_nibbles(codes, scale));
#elif FORMAT == FORMAT_Q8_0
    return uvec4(byte_halves(codes, scale), byte_halves(component(unit.more, word), scale));
#elif FORMAT == FORMAT_Q4_K
    const uint low = codes & 0x0F0F0F0Fu;
    const uint high = (codes >> 4) & 0x0F0F0F0Fu;
    return uvec4(scaled_bytes(low, 0, 1024.0hf, scale.x, scale.y), scaled_bytes(high, 0, 1024.0hf, scale.x, scale.y));
#elif FORMAT == FORMAT_Q6_K
    const uint low = six_bits(codes, unit.high.x, word);
    const uint high = six_bits(codes >> 4, unit.high.y, word);
    const uint flip = 0x00200020u;
    return uvec4(scaled_bytes(low, flip, 1056.0hf, scale.x, 0.0), scaled_bytes(high, flip, 1056.0hf, scale.y, 0.0));
#endif
}
