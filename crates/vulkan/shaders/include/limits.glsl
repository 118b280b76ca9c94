// Values between two limits, the least and the largest. A NaN stays one: it is found by its bits, because minima and maxima of some
// devices lose it.

float within(const float value, const vec2 limits) {
    const bool is_number = (floatBitsToUint(value) & 0x7FFFFFFFu) <= 0x7F800000u;
    return is_number ? clamp(value, limits.x, limits.y) : value;
}

vec4 within(const vec4 values, const vec2 limits) {
    return vec4(within(values.x, limits), within(values.y, limits), within(values.z, limits), within(values.w, limits));
}
