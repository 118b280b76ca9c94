#version 460
// Work on single elements: one invocation each, a row of workgroups for each row of activations.
//
// Bound: bytes, 8 to 12 for an element.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/activation.glsl"
#include "include/limits.glsl"
#include "include/token.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
// 0: output = gelu(first) * second, 1: output += first, 2: output = cap * tanh(output / cap),
// 3: output = row `picks[row]` of first, 4: output = first * factor of the column,
// 5: output = the columns of first (`stride` of them) and then those of second, 6: output += bias of the column,
// 7: output = gelu(output), 8: output = mean of the `stride` rows of first from row `picks[row]` on, 9: output = the row of first
// that the row's token names, if it is a soft one, 10: output = first between cap and `high`.
layout(constant_id = 1) const uint MODE = 0;

layout(push_constant, scalar) uniform Args {
    uint64_t first;
    // With an address that may be in the middle of a row; for mode 4 the factors, for mode 6 the biases.
    uint64_t second;
    uint64_t result;
    uint64_t rows;
    // For mode 9 the step's frame.
    uint64_t picks;
    uint64_t chain;
    uint columns;
    // Elements from one row of second to the next; for mode 5 of first. For mode 8 the rows of a mean.
    uint stride;
    // For mode 10 the least value.
    float cap;
    float high;
} args;

void work_on_element(const uint column, const uint row) {
    const uint at = row * args.columns + column;
    float value;
    if (MODE == 0u) value = gelu(ActiveFloats(args.first).at[at]) * ActiveFloats(args.second).at[row * args.stride + column];
    if (MODE == 1u) value = ActiveFloats(args.result).at[at] + ActiveFloats(args.first).at[at];
    if (MODE == 2u) value = args.cap * bounded_tanh(ActiveFloats(args.result).at[at] / args.cap);
    if (MODE == 3u) value = ActiveFloats(args.first).at[Words(args.picks).at[row] * args.columns + column];
    if (MODE == 4u) value = ActiveFloats(args.first).at[at] * Floats(args.second).at[column];
    if (MODE == 5u) {
        if (column < args.stride) value = ActiveFloats(args.first).at[row * args.stride + column];
        else value = ActiveFloats(args.second).at[row * (args.columns - args.stride) + column - args.stride];
    }
    if (MODE == 6u) value = ActiveFloats(args.result).at[at] + Floats(args.second).at[column];
    if (MODE == 7u) value = gelu(ActiveFloats(args.result).at[at]);
    if (MODE == 8u) {
        const uint from = Words(args.picks).at[row];
        value = 0.0;
        for (uint i = 0u; i < args.stride; ++i) value += ActiveFloats(args.first).at[(from + i) * args.columns + column];
        value /= float(args.stride);
    }
    if (MODE == 9u) {
        const uint token = frame_token(args.picks, row);
        if (!token_is_soft(token)) return;
        value = ActiveFloats(args.first).at[soft_row(token) * args.columns + column];
    }
    if (MODE == 10u) {
        value = within(ActiveFloats(args.first).at[at], vec2(args.cap, args.high));
    }
    ActiveFloats(args.result).at[at] = value;
}

void main() {
    const uint column = gl_GlobalInvocationID.x;
    const uint row = gl_WorkGroupID.y;
    const bool exists = column < args.columns && row < Words(args.rows).at[0];
    chain_wait(args.chain);
    if (exists) work_on_element(column, row);
    chain_signal(args.chain);
}
