#version 460
// The experts of each row, from the logits of its router (choice.glsl), one workgroup for each row.
//
// Bound: latency, mostly of the comparisons: EXPERTS^2 of them, one for each invocation in a few cycles; of more than
// CHOICE_MANY experts that of 32 barriers.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/memory.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 1;
layout(constant_id = 2) const uint USED = 1;
// Whether shares are multiplied by a factor of the expert.
layout(constant_id = 3) const uint FACTORS = 0;

#include "include/choice.glsl"

layout(push_constant, scalar) uniform Args {
    ChoiceArgs choice;
    uint _padding;
    uint64_t rows;
    uint64_t chain;
} args;

void main() {
    const uint row = gl_WorkGroupID.x;
    const bool exists = row < Words(args.rows).at[0];
    chain_wait(args.chain);
    if (exists) choose(args.choice, row);
    chain_signal(args.chain);
}
