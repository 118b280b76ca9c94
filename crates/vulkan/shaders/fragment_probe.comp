#version 460
// Finds out which elements of cooperative matrices an invocation holds. A left factor, a right factor and a sum are loaded
// whose elements are their places, row * columns + column, and each invocation stores its components in their order.
// crates/vulkan/src/kernels/matmul/probe.rs compares them with what matmul_fragment.comp relies on.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
// The product that the device does in one instruction.
layout(constant_id = 1) const uint TM = 16;
layout(constant_id = 2) const uint TN = 8;
layout(constant_id = 3) const uint TK = 16;

layout(push_constant, scalar) uniform Push {
    uint64_t result; // matrix, invocation, component; f32
    uint components; // room for the components of one invocation
} push;

// Large enough for every factor of 16 x 16 in halves and every sum of 16 x 16 in f32.
shared vec4 sums[64];
shared uvec4 halves[32];

void store(const uint matrix, const uint component, const float value) {
    const uint at = (matrix * gl_SubgroupSize + gl_SubgroupInvocationID) * push.components + component;
    if (component < push.components) Floats(push.result).at[at] = value;
}

void main() {
    for (uint i = gl_SubgroupInvocationID; i < 64; i += gl_SubgroupSize) {
        sums[i] = 4.0 * float(i) + vec4(0.0, 1.0, 2.0, 3.0);
    }
    for (uint i = gl_SubgroupInvocationID; i < 32; i += gl_SubgroupSize) {
        uvec4 words;
        for (uint word = 0; word < 4; word++) {
            const float first = float(8 * i + 2 * word);
            words[word] = packFloat2x16(f16vec2(first, first + 1.0));
        }
        halves[i] = words;
    }
    barrier();
    coopmat<float16_t, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> left;
    coopMatLoad(left, halves, 0, TK / 8, gl_CooperativeMatrixLayoutRowMajor);
    coopmat<float16_t, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> right;
    coopMatLoad(right, halves, 0, TN / 8, gl_CooperativeMatrixLayoutRowMajor);
    coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> sum;
    coopMatLoad(sum, sums, 0, TN / 4, gl_CooperativeMatrixLayoutRowMajor);
    for (uint i = 0; i < left.length(); i++) store(0, i, float(left[i]));
    for (uint i = 0; i < right.length(); i++) store(1, i, float(right[i]));
    for (uint i = 0; i < sum.length(); i++) store(2, i, sum[i]);
}
