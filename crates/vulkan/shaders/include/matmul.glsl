// What the matrix-matrix kernels share: their arguments and where outputs go. After memory.glsl.

#extension GL_KHR_memory_scope_semantics : require

struct MatmulArgs {
    uint64_t codes;        // planes of the matrix (formats.glsl)
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint64_t operand;      // codes of the activations
    uint64_t operand_scales;
    uint64_t out0;         // f32, a row for each token; of a gated product in halves its codes
    uint64_t out1;         // of a gated product in halves a factor for each token
    uint64_t out2;
    uint64_t scratch;      // counters, all 0, and the parts of tiles that several workgroups share
    uint64_t chain;        // link of the chain, or 0
    uint features;         // outputs of a token
    uint columns;
    uint groups;           // of 128 columns in a row of the matrix
    uint tokens;           // rows of activations
    uint split1;           // first feature of out1; of a gated product the first row of `up`
    uint split2;           // first feature of out2
    uint whole;            // tiles that one workgroup makes; several share each of the others
    uint splits;           // how many
    uint aligned;          // 1: outputs can be stored by fours
    float unit;            // power of two that halves are counted in
};

// Outputs. Where shaders are in the terms of the Vulkan memory model, its barriers reach what is not private alone.
layout(buffer_reference, scalar, buffer_reference_align = 4) nonprivate buffer MatmulFloats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) nonprivate buffer MatmulVec4s { vec4 at[]; };
// Activations, which a dispatch of the same chain may have written.
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly nonprivate buffer MatmulFactors { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly nonprivate buffer MatmulHalves { uvec4 at[]; };

// Where the output of a feature and token is: segments lie in memory of their own, a row of each for each token.
uint64_t matmul_output(const MatmulArgs args, const uint feature, const uint token) {
    const bool second = feature >= args.split1;
    const bool third = feature >= args.split2;
    const uint64_t base = third ? args.out2 : second ? args.out1 : args.out0;
    const uint start = third ? args.split2 : second ? args.split1 : 0;
    const uint stride = (third ? args.features : second ? args.split2 : args.split1) - start;
    return base + 4 * uint64_t(token * stride + feature - start);
}

// Stores an output; nothing beyond the edges.
void matmul_store(const MatmulArgs args, const uint feature, const uint token, const float value) {
    if (feature < args.features && token < args.tokens) MatmulFloats(matmul_output(args, feature, token)).at[0] = value;
}

// Halves: what values are multiplied with, and where the first of a feature and token is. There are whole groups of features.
float matmul_inverse_unit(const MatmulArgs args) {
    return uintBitsToFloat(0x7F000000u - floatBitsToUint(args.unit));
}

uint64_t matmul_half(const MatmulArgs args, const uint feature, const uint token) {
    return args.out0 + 2 * uint64_t(token * args.features + feature);
}
