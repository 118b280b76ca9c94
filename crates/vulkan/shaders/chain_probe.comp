#version 460
// One dispatch of a chain that tests whether chains work: each invocation writes a number, and checks a number of another
// workgroup of the dispatch before.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;

#include "include/chain.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t chain;
    // (groups, invocations of a workgroup) numbers of the dispatch before.
    uint64_t source;
    uint64_t target;
    // Set if a number is wrong.
    uint64_t wrong;
    uint turn;
    uint groups;
} push;

// Returns what each invocation writes in a turn.
float number(const uint turn, const uint group, const uint invocation) {
    return float((turn * 7919u + group * 31u + invocation) % 65536u);
}

void main() {
    chain_wait(push.chain);
    const uint local = gl_WorkGroupSize.x;
    const uint invocation = gl_LocalInvocationIndex;
    if (push.turn > 0u) {
        const uint other = (gl_WorkGroupID.x + invocation * 37u + push.turn) % push.groups;
        const float found = ActiveFloats(push.source).at[other * local + invocation];
        if (found != number(push.turn - 1u, other, invocation)) Words(push.wrong).at[0] = 1u;
    }
    const uint place = gl_WorkGroupID.x * local + invocation;
    ActiveFloats(push.target).at[place] = number(push.turn, gl_WorkGroupID.x, invocation);
    chain_signal(push.chain);
}
