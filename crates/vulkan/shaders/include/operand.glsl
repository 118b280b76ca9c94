// How a row of activations becomes the operand of a product; crates/vulkan/src/kernels/operand.rs draws the formats.

// The magnitude that a non-finite value has when the largest is searched for.
const float OPERAND_INFINITE = uintBitsToFloat(0x7F800000u);

float operand_magnitude(float value) {
    return isnan(value) ? OPERAND_INFINITE : abs(value);
}

float operand_magnitude(vec4 v) {
    // Magnitudes have the order of their bits, and those of a NaN are above those of infinity.
    const uvec4 bits = floatBitsToUint(v) & 0x7FFFFFFFu;
    return uintBitsToFloat(min(max(max(bits.x, bits.y), max(bits.z, bits.w)), 0x7F800000u));
}

// Returns 2^exponent for exponents of normal numbers.
float operand_power(int exponent) {
    return uintBitsToFloat(uint(exponent + 127) << 23);
}

// Returns the exponent of the factor that brings a row whose largest magnitude is `high` into [2^13, 2^14).
int operand_exponent(float high) {
    int exponent = int(floatBitsToUint(high) >> 23) - 127;
    return clamp(exponent, -100, 127) - 13;
}

// Returns four values in fixed point: 256 * high byte + low byte each. x: the high bytes, y: the low bytes. Magnitudes times
// `inverse` are at most 32512.
uvec2 operand_fixed(vec4 v, float inverse) {
    // Adding 1.5 * 2^23 leaves the rounded integer in the last bits of the mantissa; 128 more rounds the high byte, and puts
    // the low one off by 128.
    const uvec4 w = floatBitsToUint(fma(v, vec4(inverse), vec4(12583040.0)));
    const uint high = (w.x >> 8 & 0xFFu) | (w.y & 0xFF00u) | (w.z & 0xFF00u) << 8 | (w.w & 0xFF00u) << 16;
    const uint low = (w.x & 0xFFu) | (w.y & 0xFFu) << 8 | (w.z & 0xFFu) << 16 | w.w << 24;
    return uvec2(high, low ^ 0x80808080u);
}

// Returns the place of the first two of columns c..c + 3 of a row, c a multiple of 4, in an operand in fragment order with `groups`
// groups of columns, in pairs of halves; the other two lie two pairs further on (operand_in_order).
uint operand_fragment(const uint row, const uint c, const uint groups) {
    const uint product = (row / 64 * groups + c / 128) * 8 + c % 16 / 4 * 2 + c % 32 / 16;
    const uint lane = row % 8 * 4 + c % 128 / 32;
    return ((product * 4 + row % 64 / 16) * 32 + lane) * 4 + row / 8 % 2;
}

// Returns the place of one column, in halves.
uint operand_fragment_half(const uint row, const uint c, const uint groups) {
    return 2 * operand_fragment(row, c & ~3u, groups) + c % 2 * 4 + c % 4 / 2;
}

// Returns the place of columns c..c + 3 of a row, c a multiple of 4, in a split operand with `groups` groups of columns, in pieces
// of four halves; what these leave lies OPERAND_REST pieces further on.
const uint OPERAND_REST = 4u * 32u * 2u;

uint operand_split(const uint row, const uint c, const uint groups) {
    const uint product = (row / 64 * groups + c / 128) * 8 + c % 128 / 32 * 2 + c % 8 / 4;
    const uint lane = row % 8 * 4 + c % 32 / 8;
    return ((product * 8 + row % 64 / 16) * 32 + lane) * 2 + row / 8 % 2;
}

// Returns what four halves leave of their values. `zero` is 0, and the compiler must not know it: it takes a value that becomes a
// half and is read again for the value itself, and what is left for 0 (NVIDIA 580.159).
vec4 operand_rest(const vec4 values, const uvec2 halves, const uint zero) {
    return values - vec4(unpackHalf2x16(halves.x ^ zero), unpackHalf2x16(halves.y ^ zero));
}

// Returns four values as halves in fragment order: the first and the third, then the others.
uvec2 operand_in_order(const vec4 v) {
    return uvec2(packHalf2x16(v.xz), packHalf2x16(v.yw));
}
