#version 460
// Reads memory and does nothing with it, to measure how fast the device streams.
//
// Bound: the bytes, 64 for each invocation.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Args {
    uint64_t source;
    uint64_t result;
    // A value that no four words of the source have as their exclusive or.
    uint absent;
} args;

void main() {
    uint base = gl_WorkGroupID.x * gl_WorkGroupSize.x * 4u + gl_LocalInvocationID.x;
    uvec4 mixed = uvec4(0u);
    for (uint i = 0u; i < 4u; ++i) mixed ^= Quads(args.source).at[base + i * gl_WorkGroupSize.x];
    uint word = mixed.x ^ mixed.y ^ mixed.z ^ mixed.w;
    if (word == args.absent) Words(args.result).at[0] = word;
}
