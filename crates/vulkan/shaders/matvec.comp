#version 460
// The product of a matrix with 1 to 8 rows of activations, with what comes before and after it at those widths: norms of the
// residual stream, the split of QKV, the gate. crates/vulkan/src/kernels/matvec.rs says what bounds each variant.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/operand.glsl"
#include "include/norm.glsl"
#include "include/activation.glsl"
#include "include/formats.glsl"

layout(local_size_x_id = 0) in;
// Invocations that share the rows of a team: 4 to the size of the workgroup, a power of two.
layout(constant_id = 1) const uint LANES = 32;
// Rows of the matrix for each team; even for a gated product, which takes half of them from each matrix.
layout(constant_id = 2) const uint ROWS = 2;
// Units of each row that an invocation has in flight.
layout(constant_id = 3) const uint UNROLL = 2;
// Rows of activations; 1 with a norm.
layout(constant_id = 4) const uint COLUMNS = 1;
// The least size of a subgroup, 8 or more: shared memory is laid out for it.
layout(constant_id = 5) const uint SUBGROUP = 8;
// What is done to the activations first: 0 nothing, 1 a norm, 2 norm, addition, norm.
layout(constant_id = 6) const uint PROLOGUE = 0;
// 1: gelu(gate) * up.
layout(constant_id = 7) const uint GATED = 0;
// For a gated product, 1: f32, 2: fixed point, 3: both.
layout(constant_id = 8) const uint OUTPUT = 1;
// Pieces of 16 bytes of the normed operand in shared memory: groups * 16 of a fixed-point one, groups * 32 of f32; else 0.
layout(constant_id = 9) const uint STAGED = 0;
// Pieces of four elements of the residual stream for each invocation.
layout(constant_id = 10) const uint KEPT = 1;
// Outputs of a tile for all rows of activations, if they become fixed point; else 0.
layout(constant_id = 11) const uint GATHERED = 0;
// Whether rows of f32 are multiples of four elements, so that they are read 16 bytes at a time.
layout(constant_id = 12) const uint WHOLE = 1;
// Whether the loads of a used unit are started before the next one is used.
layout(constant_id = 13) const uint AHEAD = 0;

// Whether the launch may be part of a chain: activations are then read past the caches of single cores.
layout(constant_id = 14) const uint CHAINED = 0;

#include "include/chain.glsl"
#include "include/matvec.glsl"

layout(push_constant, scalar) uniform Push {
    MatvecArgs args;
} push;

void main() {
    matvec(push.args, PROLOGUE, GATED != 0u, OUTPUT, gl_WorkGroupID.x, gl_NumWorkGroups.x);
    if (CHAINED != 0u) chain_signal(push.args.chain);
}
