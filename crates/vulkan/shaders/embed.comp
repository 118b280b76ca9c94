#version 460
// Rows of a table: values of the step's tokens times a factor, for tokens beyond the table those of its first row; those of soft
// tokens are rows that are there, if there are any. If tokens are places in a grid, the sums of a column's and a row's values. Four
// elements for each invocation.
//
// Bound: the bytes of the table's row read and of the f32 row written once; latency at small widths.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/formats.glsl"
#include "include/token.glsl"

layout(local_size_x_id = 0) in;

layout(push_constant, scalar) uniform Push {
    uint64_t codes;
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint64_t frame;
    uint64_t target;
    // (soft tokens, columns) f32, or 0 if there are none.
    uint64_t soft;
    uint columns;
    uint vocabulary;
    float factor;
    // Places on a side of the grid, 0 if tokens are none. The table has the columns, then the rows.
    uint side;
} push;

void main() {
    const uint row = gl_WorkGroupID.y;
    const uint first = 4u * gl_GlobalInvocationID.x;
    if (row >= Words(push.frame).at[0] || first >= push.columns) return;
    const uint token = frame_token(push.frame, row);
    const bool is_soft = push.soft != 0ul && token_is_soft(token);
    const Planes planes = Planes(push.codes, push.high, push.scales, push.supers, (push.columns + 127u) / 128u);
    vec4 values;
    if (is_soft) {
        const uint from = soft_row(token) * push.columns + first;
        for (uint k = 0u; k < 4u; ++k) values[k] = first + k < push.columns ? Floats(push.soft).at[from + k] : 0.0;
    } else if (push.side > 0u) {
        const uint column = token % push.side;
        const uint grid_row = min(token / push.side, push.side - 1u);
        values = weight_values(planes, column, first) + weight_values(planes, push.side + grid_row, first);
    } else {
        values = weight_values(planes, token < push.vocabulary ? token : 0u, first) * push.factor;
    }
    if ((push.columns & 3u) == 0u) {
        Vec4s(push.target).at[(row * push.columns + first) / 4u] = values;
        return;
    }
    for (uint k = 0u; k < 4u && first + k < push.columns; ++k) {
        Floats(push.target).at[row * push.columns + first + k] = values[k];
    }
}
