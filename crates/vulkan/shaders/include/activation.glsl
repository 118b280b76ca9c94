// Activation functions. What has overflowed does not become a number again.

#include "numbers.glsl"

// Computes tanh with one exponential that cannot overflow; NaN for what is not finite.
float bounded_tanh(float x) {
    float e = exp(-2.0 * abs(x));
    return sign(x) * ((1.0 - e) / (1.0 + e)) + (is_number(x) ? 0.0 : NOT_A_NUMBER);
}

// GELU in its tanh form: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel, arXiv 1606.08415. As 0.5 (1 +
// tanh u) = 1 / (1 + exp(-2 u)), it is one exponential and one division; NaN stays NaN, and negative infinity becomes it.
float gelu(float x) {
    const float root = 0.7978845608028654;
    const float exponent = -2.0 * root * (x + 0.044715 * x * x * x);
    return exponent >= 80.0 && is_number(x) ? 0.0 : x / (1.0 + exp(exponent));
}
