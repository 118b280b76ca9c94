#version 460
// Attention of a few rows; with FUSED also what comes before it: norm and rotation of queries, or these of keys, too, and the
// store of the row's key and value.
//
// Bound: the bytes of the keys and values that the rows see.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/norm.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint DIM = 8;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint KV = 0;
// Query heads of a workgroup; divides the number that share a key head.
layout(constant_id = 5) const uint QUERIES = 1;
// Invocations that share a position: a power of two, at most a subgroup.
layout(constant_id = 6) const uint LANES = 1;
// Elements of a load: as many as 16 bytes hold, or 2.
layout(constant_id = 7) const uint ELEMENTS = 2;
// Positions in flight for each team.
layout(constant_id = 8) const uint UNROLL = 1;
// Heads whose sums are in shared memory at the same time; divides QUERIES.
layout(constant_id = 9) const uint MERGED = 1;
// Most shares of a row's positions.
layout(constant_id = 10) const uint SPLITS = 1;
// 1: with queries, keys and values; 2: with queries.
layout(constant_id = 11) const uint FUSED = 0;
// Bit 0: f32, bit 1: fixed-point operand, bit 2: halves, bit 3: halves in fragment order.
layout(constant_id = 12) const uint OUTPUT = 1;
// Size of a subgroup.
layout(constant_id = 13) const uint SUBGROUP = 32;
// Blocks of a slot's ring; 0 for block tables.
layout(constant_id = 14) const uint RING = 0;
// Positions that a row sees, its own included.
layout(constant_id = 15) const uint WINDOW = 0xFFFFFFFF;
// Blocks that are not split, and the least blocks of a share.
layout(constant_id = 16) const uint ALONE = 1;
layout(constant_id = 17) const uint LEAST = 1;

// Where the numbers of the rows stand in the frame, see kv_row.
layout(constant_id = 18) const uint PICKS = 0;
// Whether values are normed, with FUSED.
layout(constant_id = 19) const uint VALUE_NORM = 0;
// See kv_end.
layout(constant_id = 20) const uint AHEAD = 0xFFFFFFFF;

#include "include/chain.glsl"
#include "include/handed.glsl"
#include "include/attend.glsl"

layout(push_constant, scalar) uniform Push {
    AttendArgs args;
} push;

void main() {
    attend(push.args, gl_WorkGroupID.x, gl_NumWorkGroups.x);
    handed_signal(push.args.chain);
}
