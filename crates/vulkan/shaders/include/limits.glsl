// Values between two limits, the least and the largest. NaN for what is not finite: it is found by its bits, because minima
// and maxima of some devices lose a NaN.

#include "numbers.glsl"

float within(const float value, const vec2 limits) {
    return is_number(value) ? clamp(value, limits.x, limits.y) : NOT_A_NUMBER;
}

vec4 within(const vec4 values, const vec2 limits) {
    return vec4(within(values.x, limits), within(values.y, limits), within(values.z, limits), within(values.w, limits));
}
