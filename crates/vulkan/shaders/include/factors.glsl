// Factors and sums of products on matrix units whose layout is known (crates/vulkan/src/kernels/matmul/probe.rs): lane 4 r + c
// of a subgroup holds four elements of rows r and r + 8 of a left factor, four of row r of a right one, and the sums of rows r
// and r + 8 with rows 2 c and 2 c + 1. Included after halves.glsl.

#define Left coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define Right coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define Sum coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

// Returns a left factor of what the lane holds of rows r and r + 8: four elements of each.
Left left_of(const uvec2 upper, const uvec2 lower) {
    Left left;
    const f16vec2 a = halves_of(upper.x);
    const f16vec2 b = halves_of(upper.y);
    const f16vec2 c = halves_of(lower.x);
    const f16vec2 d = halves_of(lower.y);
    left[0] = a.x;
    left[1] = a.y;
    left[2] = b.x;
    left[3] = b.y;
    left[4] = c.x;
    left[5] = c.y;
    left[6] = d.x;
    left[7] = d.y;
    return left;
}

Right right_of(const uint first, const uint second) {
    Right right;
    const f16vec2 a = halves_of(first);
    const f16vec2 b = halves_of(second);
    right[0] = a.x;
    right[1] = a.y;
    right[2] = b.x;
    right[3] = b.y;
    return right;
}

// Returns the sums of row r, then those of row r + 8.
vec4 values_of(const Sum sum) {
    return vec4(sum[0], sum[1], sum[2], sum[3]);
}
