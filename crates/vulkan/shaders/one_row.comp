#version 460
// The product of a quantised matrix with one row of activations, with the norms before it and the gate after it.
// crates/vulkan/src/kernels/one_row.rs says what bounds it.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/operand.glsl"
#include "include/norm.glsl"
#include "include/activation.glsl"
#include "include/formats.glsl"

layout(local_size_x_id = 0) in;
// Invocations of a team: whole subgroups.
layout(constant_id = 1) const uint LANES = 32;
// Blocks of 32 columns of an invocation.
layout(constant_id = 2) const uint SPAN = 1;
// Rows of the matrix in flight: 1, 2, 4 or 8.
layout(constant_id = 3) const uint BATCH = 4;
// Size of a subgroup, 8 or more.
layout(constant_id = 4) const uint SUBGROUP = 32;
// What is done to the activations first: 0 nothing, 1 a norm, 2 norm, addition, norm; 3 nothing, and they are interleaved.
layout(constant_id = 5) const uint PROLOGUE = 0;
// 1: gelu(gate) * up; 2: the same, interleaved; 3: gelu(product) times a row that is there.
layout(constant_id = 6) const uint GATED = 0;
// Pieces of 16 bytes of the activations in shared memory, 4 for each block: of all blocks if they are normed, else of as many
// as there is room for.
layout(constant_id = 7) const uint STAGED = 4;
// Pieces of four elements of the activations that are staged at a time for each invocation.
layout(constant_id = 8) const uint KEPT = 1;
// 1: teams take rows in turn, so that all go through the matrix side by side; 0: each has a contiguous run of rows.
layout(constant_id = 9) const uint TURNS = 0;
// Batches of rows in registers: 1, or 2 if one is loaded while the other is used.
layout(constant_id = 10) const uint BANKS = 1;

// Rows between two points at which the subgroups of a team meet.
const uint ROUND = 16u;
#include "include/chain.glsl"
#include "include/handed.glsl"
#include "include/one_row.glsl"

layout(push_constant, scalar) uniform Push {
    OneRowArgs args;
} push;

void main() {
    one_row(push.args, gl_WorkGroupID.x, gl_NumWorkGroups.x);
    handed_signal(push.args.chain);
}
