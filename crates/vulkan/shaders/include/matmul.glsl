// What the matrix-matrix kernels share: their arguments and where outputs go. After memory.glsl.

#extension GL_KHR_memory_scope_semantics : require

struct MatmulArgs {
    uint64_t codes;        // planes of the matrix (formats.glsl)
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint64_t operand;      // codes of the activations
    uint64_t operand_scales;
    uint64_t out0;         // f32, a row for each token; for a gated product in halves the codes
#ifdef EXPERTS
    uint64_t sorted;       // groups of entries (experts_sort.comp)
    uint64_t entries;      // the entry of each place, whose row of out0 the results of the place are
#else
    uint64_t out1;         // for a gated product in halves, a factor for each token
    uint64_t out2;
#endif
    uint64_t scratch;      // counters, all 0, and the parts of tiles that several workgroups share
    uint64_t chain;        // link of the chain, or 0
    uint features;         // outputs of a token
    uint columns;
    uint groups;           // of 128 columns in a row of the matrix
    uint tokens;           // rows of activations; of experts places
    uint split1;           // first feature of out1; for a gated product the first row of `up`
    uint split2;           // first feature of out2
#ifdef EXPERTS
    uint step;             // rows of the matrix from one expert to the next
    uint experts;
#else
    uint whole;            // tiles that one workgroup makes; several share each of the others
    uint splits;           // how many workgroups share such a tile
#endif
    uint aligned;          // 1: outputs can be stored by fours
    float unit;            // power of two that halves are counted in
};

// Outputs. In shaders that use the terms of the Vulkan memory model, its barriers apply only to what is not private.
layout(buffer_reference, scalar, buffer_reference_align = 4) nonprivate buffer MatmulFloats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) nonprivate buffer MatmulVec4s { vec4 at[]; };
// Activations, which a dispatch of the same chain may have written.
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly nonprivate buffer MatmulFactors { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly nonprivate buffer MatmulHalves { uvec4 at[]; };

#ifdef EXPERTS
// A workgroup's group: entries of one expert, at neighbouring places. Its tile of tokens holds them all; what stands at places
// without an entry is multiplied and not stored.
uint expert_row;   // the first row of the expert
uint expert_first; // the first place
uint expert_end;   // the place after the last one

// Finds the workgroup's group. Returns false if there is none.
bool find_group(const MatmulArgs args) {
    const uvec4 group = Quads(args.sorted).at[gl_WorkGroupID.y];
    expert_row = min(group.x, args.experts - 1) * args.step;
    expert_first = group.y;
    expert_end = group.y + group.z;
    return group.z != 0;
}

// Returns the row for the results of a place, or one beyond all if it has no entry.
uint matmul_row(const MatmulArgs args, const uint place) {
    return place < expert_end ? Words(args.entries).at[place] : 0xFFFFFFFFu;
}

uint64_t matmul_output(const MatmulArgs args, const uint feature, const uint entry) {
    return args.out0 + 4 * uint64_t(entry * args.features + feature);
}
#else
uint matmul_row(const MatmulArgs args, const uint token) {
    return token;
}

// Returns where the output of a feature and token is: each segment has its own memory, with a row for each token.
uint64_t matmul_output(const MatmulArgs args, const uint feature, const uint token) {
    const bool second = feature >= args.split1;
    const bool third = feature >= args.split2;
    const uint64_t base = third ? args.out2 : second ? args.out1 : args.out0;
    const uint start = third ? args.split2 : second ? args.split1 : 0;
    const uint stride = (third ? args.features : second ? args.split2 : args.split1) - start;
    return base + 4 * uint64_t(token * stride + feature - start);
}
#endif

// Stores an output, unless it is beyond the edges.
void matmul_store(const MatmulArgs args, const uint feature, const uint token, const float value) {
    if (feature < args.features && token < args.tokens) MatmulFloats(matmul_output(args, feature, token)).at[0] = value;
}

// Halves: the factor on values, and the place of the first value of a feature and token. There are whole groups of features.
float matmul_inverse_unit(const MatmulArgs args) {
    return uintBitsToFloat(0x7F000000u - floatBitsToUint(args.unit));
}

uint64_t matmul_half(const MatmulArgs args, const uint feature, const uint token) {
    return args.out0 + 2 * uint64_t(token * args.features + feature);
}
