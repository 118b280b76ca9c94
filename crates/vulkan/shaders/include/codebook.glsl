// Codes that stand for eight or four neighbours. A table has, for two codes together, the levels of points in the bytes of a word:
// of points of eight, elements 0..3 in bits 0 and 1 of a byte and elements 4..7 in bits 2 and 3, of points of four in bits 0 to 2;
// those of the odd code four bits higher. It lies in the place of the plane of scales: 512 bytes to 4 KB, which a nearest cache
// holds. With a byte for each element it would be four times as large (two times for points of four), to save 4 to 5 operations of
// four elements. As a constant of the shader it would take stores to memory in each invocation of a software device.
//
// Signs: bits (x >> k) & 0x01010101 are those of elements 4 k... Where the file leaves out every eighth sign, which makes the
// number of negative ones even, its place has a bit of something else: bits 25, 27, 29 and 31.
//
// Of 32 elements at one row of activations 4 loads and 16 operations find the points of eight (8 and 24 those of four), 16 take
// levels from them, 32 make these magnitudes of IQ2 (40 of IQ3_XXS, 8 of IQ3_S), 40 give them signs, 9 complete the signs, 16 are
// dot products and 10 others: 130 to 150. While 8.5 to 14 bytes come from memory an H200 issues 52 to 86 (uneven.glsl), so that
// operations bound these formats there, at most at 0.4 to 0.6 of its memory's speed; a Radeon 780M issues 196 to 324.

// Where the table is.
uint64_t table_address;

// Returns the levels of elements 4 * quad.. of a point of eight.
uint levels_of_eight(const uint code, const uint quad) {
    return (ReadWords(table_address).at[code >> 1] >> (4u * (code & 1u) + 2u * quad)) & 0x03030303u;
}

// Returns the levels of a point of four.
uint levels_of_four(const uint code) {
    return (ReadWords(table_address).at[code >> 1] >> (4u * (code & 1u))) & 0x07070707u;
}

// Returns the magnitudes 8, 25 and 43 of IQ2 formats for levels 0, 1 and 2.
uint magnitudes_of_iq2(const uint levels) {
    return levels * 17u + 0x08080808u + ((levels >> 1) & 0x01010101u);
}

// Returns magnitudes above 0 of elements 4 * part.. as signed bytes.
uint with_signs(const uint magnitudes, const uint signs, const uint part) {
    const uint ones = (signs >> part) & 0x01010101u;
    return (magnitudes ^ ((ones << 8) - ones)) + ones;
}

// Returns all signs of which every eighth is left out.
uint even_signs(const uint word) {
    const uint signs = word & 0x55FFFFFFu;
    uint parity = signs ^ (signs >> 16);
    parity ^= parity >> 8;
    parity ^= parity >> 1;
    return signs | ((parity & 0x55u) << 25);
}

// Returns the four bits at the places of signs that are left out.
uint spare_bits(const uint word) {
    uint bits = (word >> 25) & 0x55u;
    bits = (bits | (bits >> 1)) & 0x33u;
    return (bits | (bits >> 2)) & 15u;
}

// Returns the same scale for both halves.
vec4 even_scale(const float scale) {
    return vec4(scale, 0.0, scale, 0.0);
}

// Returns the scales of halves from two nibbles s: d (s + 1/2) / 4.
vec4 scales_of_nibbles(const uint both, const uint super) {
    const float factor = unpackHalf2x16(super).x;
    const vec2 scales = factor * (vec2(both & 15u, (both >> 4) & 15u) * 0.25 + 0.125);
    return vec4(scales.x, 0.0, scales.y, 0.0);
}
