// The factors of norms. A sum of squares that is not finite makes the factor NaN instead of 0, which would make the row 0, and is
// noted: the eight bytes before the weights of a norm are the address of a word that the host reads (crates/vulkan/src/weights.rs).
// Before the include: memory.glsl.

#include "numbers.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer NormPlaces { uint64_t at[]; };

// Notes a sum that is not finite. `weights`: where the norm's are.
void norm_note(const uint64_t weights) {
    Words(NormPlaces(weights - 8ul).at[0]).at[0] = 1u;
}

// Returns 1 / sqrt(square + epsilon).
float norm_factor(const float square, const float epsilon, const uint64_t weights) {
    const bool is_finite = is_number(square);
    if (!is_finite) norm_note(weights);
    return is_finite ? inversesqrt(square + epsilon) : NOT_A_NUMBER;
}

// The same for a norm without weights, which is not noted.
float norm_factor(const float square, const float epsilon) {
    return is_number(square) ? inversesqrt(square + epsilon) : NOT_A_NUMBER;
}
