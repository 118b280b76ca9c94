#version 460
// Work on single elements: one invocation each, a row of workgroups for each row of activations.
//
// Bound: bytes, 8 to 12 for an element.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/activation.glsl"

layout(local_size_x_id = 0) in;
// 0: output = gelu(first) * second, 1: output += first, 2: output = cap * tanh(output / cap),
// 3: output = row `picks[row]` of first.
layout(constant_id = 1) const uint MODE = 0;

layout(push_constant, scalar) uniform Args {
    uint64_t first;
    uint64_t second;
    uint64_t result;
    uint64_t rows;
    uint64_t picks;
    uint columns;
    float cap;
} args;

void main() {
    uint column = gl_GlobalInvocationID.x;
    uint row = gl_WorkGroupID.y;
    if (column >= args.columns || row >= Words(args.rows).at[0]) return;
    uint at = row * args.columns + column;
    float value;
    if (MODE == 0u) value = gelu(Floats(args.first).at[at]) * Floats(args.second).at[at];
    if (MODE == 1u) value = Floats(args.result).at[at] + Floats(args.first).at[at];
    if (MODE == 2u) value = args.cap * bounded_tanh(Floats(args.result).at[at] / args.cap);
    if (MODE == 3u) value = Floats(args.first).at[Words(args.picks).at[row] * args.columns + column];
    Floats(args.result).at[at] = value;
}
