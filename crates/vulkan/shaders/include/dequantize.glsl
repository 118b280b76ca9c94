// Units of weights (formats.glsl) as halves, for the matrix units.
//
// A unit is decoded one step after it is loaded, so that the loads of the next step come before the products of this one.
//
// Decoding is exact except for the one rounding to f16. Codes become halves by being put into the mantissa of 1024, which is
// exact, and are multiplied by a scale that is itself an f16 (Q4_0, Q8_0), or in f32 if the scale is a product (Q4_K, Q6_K).
//
// If PERMUTED is 1, each four elements are in the order 0, 2, 1, 3, which masks of two 16-bit lanes produce without moves. The
// sum of a product does not depend on the order, so the operand is permuted in the same way (permute_halves).

#define PERMUTED (!FORMAT_IS_FLOAT)

// Vectors of eight halves that a unit becomes.
const uint UNIT_VECTORS = UNIT / 8u;

#if FORMAT == FORMAT_Q4_0
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
#elif FORMAT == FORMAT_Q8_0
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
#elif FORMAT == FORMAT_Q4_K || FORMAT == FORMAT_Q6_K
// Decodes four bytes: `flip` is XOR-ed into the codes, and `bias` is 1024 plus the excess of the flipped code over its value.
uvec2 scaled_bytes(const uint word, const uint flip, const float16_t bias, const float scale, const float offset) {
    const uint pattern = 0x64006400u | flip;
    const f16vec2 even = halves_of((word & 0x00FF00FFu) ^ pattern) - f16vec2(bias);
    const f16vec2 odd = halves_of(((word >> 8) & 0x00FF00FFu) ^ pattern) - f16vec2(bias);
    const vec2 first = fma(vec2(even), vec2(scale), vec2(-offset));
    const vec2 second = fma(vec2(odd), vec2(scale), vec2(-offset));
    return uvec2(packFloat2x16(f16vec2(first)), packFloat2x16(f16vec2(second)));
}

#if FORMAT == FORMAT_Q4_K
// d * sc * code - dmin * m.
void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const vec2 super = unpackHalf2x16(unit.super);
    const float scale = super.x * float(unit.scale & 0xFFu);
    const float offset = super.y * float(unit.scale >> 8);
    const float16_t bias = 1024.0hf;
    const uvec4 low = unit.codes & 0x0F0F0F0Fu;
    const uvec4 high = (unit.codes >> 4) & 0x0F0F0F0Fu;
    halves[0] = uvec4(scaled_bytes(low.x, 0, bias, scale, offset), scaled_bytes(low.y, 0, bias, scale, offset));
    halves[1] = uvec4(scaled_bytes(low.z, 0, bias, scale, offset), scaled_bytes(low.w, 0, bias, scale, offset));
    halves[2] = uvec4(scaled_bytes(high.x, 0, bias, scale, offset), scaled_bytes(high.y, 0, bias, scale, offset));
    halves[3] = uvec4(scaled_bytes(high.z, 0, bias, scale, offset), scaled_bytes(high.w, 0, bias, scale, offset));
}
#else
// Returns the 6-bit codes of elements 4 * part .. 4 * part + 3 from their low nibbles and their high pairs.
uint six_bits(const uint low, const uint high, const uint part) {
    return (low & 0x0F0F0F0Fu) | (((high >> (2 * part)) & 0x03030303u) << 4);
}

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
#elif FORMAT == FORMAT_F16
void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    halves[0] = unit.codes;
}
#elif FORMAT == FORMAT_BF16
// A bf16 is the upper half of an f32.
uint halves_of_brain(const uint word) {
    const vec2 values = vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xFFFF0000u));
    return packFloat2x16(f16vec2(values));
}

void decode_unit(const Unit unit, out uvec4 halves[UNIT_VECTORS]) {
    const uvec4 codes = unit.codes;
    halves[0] = uvec4(halves_of_brain(codes.x), halves_of_brain(codes.y), halves_of_brain(codes.z), halves_of_brain(codes.w));
}
#endif

// Returns eight halves of the operand in the order of the weights.
uvec4 permute_halves(const uvec4 words) {
#if PERMUTED
    return uvec4((words.x & 0xFFFFu) | (words.y << 16), (words.x >> 16) | (words.y & 0xFFFF0000u),
                 (words.z & 0xFFFFu) | (words.w << 16), (words.z >> 16) | (words.w & 0xFFFF0000u));
#else
    return words;
#endif
}
