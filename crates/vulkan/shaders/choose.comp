#version 460
// Between two steps of a series: chooses the token with each output row's largest logit, from what top.comp found in its chunks,
// and makes the frame that of a step with these tokens, one row for each sequence at its next position, or at the same one in a
// series of guesses. One workgroup.
//
// Bound: latency.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
// Chunks of a row.
layout(constant_id = 1) const uint CHUNKS = 1;
// Most rows.
layout(constant_id = 2) const uint ROWS = 1;
// Places for steps in what is chosen.
layout(constant_id = 3) const uint STEPS = 1;
// Bits of a slot in a row's record.
layout(constant_id = 4) const uint SLOT_BITS = 16;
// Positions from a row to the next one of its sequence.
layout(constant_id = 5) const uint ADVANCE = 1;

layout(push_constant, scalar) uniform Args {
    // (rows, chunks): the key of the largest logit and its token.
    uint64_t maxima;
    // The frame's header, and after it the rows.
    uint64_t frame;
    // Numbers of the rows whose logits are wanted.
    uint64_t outputs;
    uint64_t tiles;
    // Steps of the series that have ended, and those that follow the first.
    uint64_t series;
    // (STEPS, ROWS): the token, or 2^32 - 1 where the largest logit is not finite.
    uint64_t chosen;
} args;

// Keys of the infinities.
const uint LEAST = 0x007FFFFFu;
const uint MOST = 0xFF800000u;
const uint NONE = 0xFFFFFFFFu;

shared uvec4 next[ROWS];

void main() {
    uint rows = min(Words(args.frame).at[1], ROWS);
    uvec2 series = Pairs(args.series).at[0];
    for (uint row = gl_SubgroupID; row < rows; row += gl_NumSubgroups) {
        uint high = 0u;
        uint token = NONE;
        for (uint i = gl_SubgroupInvocationID; i < CHUNKS; i += gl_SubgroupSize) {
            uvec2 found = Pairs(args.maxima).at[row * CHUNKS + i];
            // Tokens ascend with chunks.
            if (found.x > high) {
                high = found.x;
                token = found.y;
            }
        }
        uint most = subgroupMax(high);
        token = subgroupMin(high == most ? token : NONE);
        if (subgroupElect()) {
            bool is_finite = most > LEAST && most < MOST;
            Words(args.chosen).at[min(series.x, STEPS - 1u) * ROWS + row] = is_finite ? token : NONE;
            uvec4 record = Quads(args.frame).at[1u + Words(args.outputs).at[row]];
            next[row] = uvec4(is_finite ? token : 0u, record.y + ADVANCE, record.z & ((1u << SLOT_BITS) - 1u), record.w);
        }
    }
    // All of what is read of the frame was read: rows move to the front.
    barrier();
    bool is_last = series.x >= series.y;
    for (uint row = gl_LocalInvocationID.x; row < rows && !is_last; row += gl_WorkGroupSize.x) {
        Quads(args.frame).at[1u + row] = next[row];
        Words(args.outputs).at[row] = row;
        Quads(args.tiles).at[row] = uvec4(row, 1u, 0u, 0u);
    }
    if (gl_LocalInvocationID.x == 0u) {
        if (!is_last) Quads(args.frame).at[0] = uvec4(rows);
        Words(args.series).at[0] = series.x + 1u;
    }
}
