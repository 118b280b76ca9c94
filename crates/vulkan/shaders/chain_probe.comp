#version 460
// One dispatch of a chain that is there to see whether chains work: each workgroup checks what all workgroups of the dispatch
// before wrote.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;

#include "include/chain.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t chain;
    // (groups) numbers of the dispatch before.
    uint64_t source;
    uint64_t target;
    // Set where a number is another.
    uint64_t wrong;
    uint turn;
    uint groups;
} push;

layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Numbers { uint at[]; };

void main() {
    chain_wait(push.chain);
    for (uint i = gl_LocalInvocationIndex; i < push.groups; i += gl_WorkGroupSize.x) {
        if (Numbers(push.source).at[i] != push.turn) Numbers(push.wrong).at[0] = 1u;
    }
    if (gl_LocalInvocationIndex == 0u) Numbers(push.target).at[gl_WorkGroupID.x] = push.turn + 1u;
    chain_signal(push.chain);
}
