#version 460
// Streams to which sources are added with coefficients of each row: one invocation for a column of all streams, a row of
// workgroups for each row of activations.
//
// Bound: the bytes of streams and sources, read once, and of the results.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/memory.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint STREAMS = 1;
layout(constant_id = 2) const uint SOURCES = 1;
layout(constant_id = 3) const uint COLUMNS = 1;
// A stream gets (BIAS + SCALE * coefficient) * source.
layout(constant_id = 4) const float BIAS = 0.0;
layout(constant_id = 5) const float SCALE = 1.0;

layout(push_constant, scalar) uniform Args {
    uint64_t inputs[4];
    uint64_t outputs[4];
    uint64_t sources[4];
    uint64_t coefficients;
    uint64_t rows;
    uint64_t chain;
} args;

void work_on_column(const uint column, const uint row) {
    const uint at = row * COLUMNS + column;
    float sources[4];
    [[unroll]] for (uint j = 0u; j < 4u; ++j) sources[j] = j < SOURCES ? ActiveFloats(args.sources[j]).at[at] : 0.0;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        if (i < STREAMS) {
            float value = ActiveFloats(args.inputs[i]).at[at];
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                if (j < SOURCES) {
                    const uint coefficient = row * (STREAMS * SOURCES) + i * SOURCES + j;
                    value += (BIAS + SCALE * ActiveFloats(args.coefficients).at[coefficient]) * sources[j];
                }
            }
            ActiveFloats(args.outputs[i]).at[at] = value;
        }
    }
}

void main() {
    const uint column = gl_GlobalInvocationID.x;
    const uint row = gl_WorkGroupID.y;
    const bool exists = column < COLUMNS && row < Words(args.rows).at[0];
    chain_wait(args.chain);
    if (exists) work_on_column(column, row);
    chain_signal(args.chain);
}
