#version 460
// One dispatch of a chain that tests whether chains work: each invocation writes a number, and checks a number of another
// workgroup of the dispatch before. They are passed on after a fence and a count, or handed on as they come, as the link
// says.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;

#include "include/chain.glsl"
#include "include/handed.glsl"

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

// Returns what each invocation writes in a turn. The lowest bits of its mantissa are 0; the first one is 0, which becomes
// subnormal with the bit.
float number(const uint turn, const uint group, const uint invocation) {
    return float((turn * 7919u + group * 31u + invocation) % 65536u);
}

void main() {
    handed_wait(push.chain);
    const uint local = gl_WorkGroupSize.x;
    const uint invocation = gl_LocalInvocationIndex;
    if (push.turn > 0u) {
        const uint other = (gl_WorkGroupID.x + invocation * 37u + push.turn) % push.groups;
        const bool takes = handed_flag(push.chain, HANDED_TAKES);
        uint found = floatBitsToUint(ActiveFloats(push.source).at[other * local + invocation]);
        for (uint looks = 0u; takes && (found & 1u) == 0u && handed_again(push.chain, looks); ++looks) {
            found = floatBitsToUint(HandedFloats(push.source).at[other * local + invocation]);
        }
        const uint expected = floatBitsToUint(number(push.turn - 1u, other, invocation)) | (takes ? 1u : 0u);
        if (found != expected) Words(push.wrong).at[0] = 1u;
    }
    const uint place = gl_WorkGroupID.x * local + invocation;
    ActiveFloats(push.target).at[place] = handed_on(push.chain, number(push.turn, gl_WorkGroupID.x, invocation));
    handed_signal(push.chain);
}
