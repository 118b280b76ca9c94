// How a row of activations becomes the operand of a product; crates/vulkan/src/kernels/operand.rs draws the formats.

// What a non-finite value counts as when the largest is looked for.
const float OPERAND_INFINITE = uintBitsToFloat(0x7F800000u);

float operand_magnitude(float value) {
    return isnan(value) ? OPERAND_INFINITE : abs(value);
}

float operand_magnitude(vec4 v) {
    return max(max(operand_magnitude(v.x), operand_magnitude(v.y)), max(operand_magnitude(v.z), operand_magnitude(v.w)));
}

// 2^exponent for exponents of normal numbers.
float operand_power(int exponent) {
    return uintBitsToFloat(uint(exponent + 127) << 23);
}

// Exponent of the factor that brings a row whose largest magnitude is `high` into [2^13, 2^14).
int operand_exponent(float high) {
    int exponent = int(floatBitsToUint(high) >> 23) - 127;
    return clamp(exponent, -100, 127) - 13;
}

// Four values in fixed point: 256 * high byte + low byte each. x: the high bytes, y: the low bytes.
uvec2 operand_fixed(vec4 v, float inverse) {
    ivec4 whole = ivec4(clamp(roundEven(v * inverse), vec4(-32512.0), vec4(32512.0)));
    ivec4 high = (whole + 128) >> 8;
    ivec4 low = whole - (high << 8);
    uvec4 h = uvec4(high) & 0xFFu;
    uvec4 l = uvec4(low) & 0xFFu;
    return uvec2(h.x | h.y << 8 | h.z << 16 | h.w << 24, l.x | l.y << 8 | l.z << 16 | l.w << 24);
}
