// The numbers of a draw, bit for bit those of backend/src/sampling/numbers.rs, which says what they are. `precise` keeps
// operations apart; the device has to round to the nearest.
#ifndef DRAW_GLSL
#define DRAW_GLSL

#extension GL_EXT_shader_explicit_arithmetic_types : require

// The exponent of the least weight.
const float LEAST = -40.0;
// Of all weights that are kept, the part that is 1.
const uint WHOLE = 1u << 24;

const float POWER[7] =
    float[](1.0, 0.693147, 0.2402299, 0.055482484, 0.00968117, 0.0012414922, 0.00021794662);
const float LOGARITHM[9] = float[](
    1.442695, -0.7213411, 0.48071092, -0.35855216, 0.2762054, -0.19832128, 0.114276275, -0.043440524, 0.0077674547
);
const float DELAY[9] = float[](
    1.442695, 0.7213356, 0.48149648, 0.3492022, 0.3975417, -0.33020902, 1.9008329, -2.5528483, 2.132221
);

float exponent_of(float logit, float largest, float scale) {
    precise float exponent = (logit - largest) * scale;
    return exponent > -1.4210855e-14 ? 0.0 : exponent;
}

uint64_t weight_of(float exponent) {
    const float below = -exponent;
    const uint whole = uint(below);
    precise float x = 1.0 - (below - float(whole));
    precise float power = 0.0;
    [[unroll]] for (int i = 6; i >= 0; --i) power = power * x + POWER[i];
    precise float mantissa = power * 8388608.0;
    return (uint64_t(uint(mantissa)) << 16) >> whole;
}

uint64_t part_of(uint64_t sum, uint share) {
    const uint64_t low = sum & 0xFFFFFFul;
    return max((sum >> 24) * uint64_t(share) + ((low * uint64_t(share)) >> 24), 1ul);
}

uint64_t bits_of(uint64_t key, uint id) {
    uint64_t z = key + (uint64_t(id) + 1ul) * 0x9E3779B97F4A7C15ul;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ul;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBul;
    return z ^ (z >> 31);
}

int leading_zeros(uint64_t bits) {
    const uint high = uint(bits >> 32);
    return high != 0u ? 31 - findMSB(high) : 63 - findMSB(uint(bits));
}

float fraction_of(uint64_t bits) {
    bits |= 1ul;
    const int zeros = leading_zeros(bits);
    const uint mantissa = uint((bits << zeros) >> 40);
    precise float fraction = float(mantissa) * uintBitsToFloat(uint(127 - 24 - zeros) << 23);
    return fraction;
}

float log2_of(float x) {
    const uint bits = floatBitsToUint(x);
    const int exponent = int(bits >> 23) - 127;
    precise float rest = uintBitsToFloat(bits & 0x7FFFFFu | 0x3F800000u) - 1.0;
    precise float sum = 0.0;
    [[unroll]] for (int i = 8; i >= 0; --i) sum = sum * rest + LOGARITHM[i];
    precise float result = float(exponent) + rest * sum;
    return result;
}

float gumbel_of(uint64_t bits) {
    float delay;
    if ((bits >> 63) == 0ul) {
        const float x = fraction_of(bits);
        precise float sum = 0.0;
        [[unroll]] for (int i = 8; i >= 0; --i) sum = sum * x + DELAY[i];
        precise float product = x * sum;
        delay = product;
    } else {
        delay = -log2_of(fraction_of(~bits));
    }
    return -log2_of(delay);
}

// What gumbel_of is never above.
float gumbel_most(uint64_t bits) {
    return float(leading_zeros(bits | 1ul)) + 1.0;
}

#endif
