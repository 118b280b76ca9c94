#version 460
// Products of rows of activations with the matrices of their experts, up to 8 rows of one expert in one read of its matrix
// (matvec.glsl). A row of workgroups takes a group of entries: pairs of a row and the number of one of its experts in the row.
// crates/vulkan/src/kernels/experts/product.rs says what bounds it.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/norm.glsl"
#include "include/operand.glsl"
#include "include/activation.glsl"
#include "include/formats.glsl"

// As in matvec.comp, for an operand that is there.
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint LANES = 32;
layout(constant_id = 2) const uint ROWS = 2;
layout(constant_id = 3) const uint UNROLL = 2;
// Most entries of a group.
layout(constant_id = 4) const uint COLUMNS = 1;
layout(constant_id = 5) const uint SUBGROUP = 8;
layout(constant_id = 7) const uint GATED = 0;
layout(constant_id = 8) const uint OUTPUT = 1;
layout(constant_id = 11) const uint GATHERED = 0;
layout(constant_id = 12) const uint WHOLE = 1;
// Entries that share a row of the operand.
layout(constant_id = 15) const uint SHARED = 1;
// Whether the entries were sorted (experts_sort.comp); otherwise each is a group of its own.
layout(constant_id = 16) const uint SORTED = 0;
const uint STAGED = 0u;
const uint KEPT = 1u;
const uint AHEAD = 0u;
const uint CHAINED = 0u;

layout(push_constant, scalar) uniform Push {
    uint64_t codes;
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint64_t operand;
    uint64_t sums;
    uint64_t outputs[3];
    uint64_t groups;  // sorted groups; otherwise the number of each entry's expert, f32
    uint64_t entries; // of the groups; otherwise the address of the number of rows in the step
    uint rows;        // outputs of an entry
    uint columns;
    uint split;       // rows from those of the gate to those of `up`
    uint step;        // rows from one expert to the next
    uint experts;
    uint used;        // entries of a row of the step
} push;

uint expert_row;      // the first of the expert
uint expert_first;    // the group's first entry
uint expert_count;
uint expert_sources[COLUMNS];

// Returns an entry of the group, its last one for numbers beyond.
uint expert_entry(const uint c) {
    if (SORTED == 0u) return expert_first;
    return Words(push.entries).at[expert_first + min(c, expert_count - 1u)];
}

#define MATVEC_ROW(row) (expert_row + (row))
#define MATVEC_SOURCE(c) expert_sources[c]
#define MATVEC_TARGET(c) expert_entry(c)
#define MATVEC_HAS(c) ((c) < expert_count)

#include "include/chain.glsl"
#include "include/matvec.glsl"

void main() {
    uint expert;
    if (SORTED != 0u) {
        const uvec4 group = Quads(push.groups).at[gl_WorkGroupID.y];
        if (group.z == 0u) return;
        expert = group.x;
        expert_first = group.y;
        expert_count = group.z;
    } else {
        expert_first = gl_WorkGroupID.y;
        if (expert_first >= Words(push.entries).at[0] * push.used) return;
        expert_count = 1u;
        expert = uint(Floats(push.groups).at[expert_first]);
    }
    // Whatever the router left, the matrix of an expert is read.
    expert_row = min(expert, push.experts - 1u) * push.step;
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) expert_sources[c] = expert_entry(c) / SHARED;

    MatvecArgs args;
    args.codes = push.codes;
    args.high = push.high;
    args.scales = push.scales;
    args.supers = push.supers;
    args.operand = push.operand;
    args.sums = push.sums;
    args.out0 = push.outputs[0];
    args.out1 = push.outputs[1];
    args.out2 = push.outputs[2];
    args.rows = push.rows;
    args.columns = push.columns;
    args.split1 = push.split;
    args.split2 = push.rows;
    args.epsilon = 0.0;
    args.scale = 1.0;
    args.weight = args.added_weight = args.x_out = args.chain = 0ul;
    matvec(args, MATVEC_PLAIN, GATED != 0u, OUTPUT, gl_WorkGroupID.x, gl_NumWorkGroups.x);
}
