#version 460
// Heads between their projection and the cache: norm and rotation of queries and keys, keys and values to the cache. One
// subgroup for each head of a row.
//
// Bound: the bytes of the heads, read once and written once.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint DIM = 8;
// Query heads, worked on in place; may be 0.
layout(constant_id = 2) const uint HEADS = 1;
// Key heads, and value heads, that go to the cache; may be 0.
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint KV = 0;
// Heads for each workgroup.
layout(constant_id = 5) const uint UNITS = 1;
const uint KV_VALUES = UNITS * DIM;

#include "include/kv.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t frame;
    uint64_t tables;
    uint64_t query;
    uint64_t key;
    uint64_t value;
    // Norm weights, 0 for none.
    uint64_t query_norm;
    uint64_t key_norm;
    // Table of turns, 0 for none.
    uint64_t rope;
    uint64_t cache;
    uint ring;
    float epsilon;
} push;

void main() {
    const uint row = gl_WorkGroupID.y;
    if (row >= Words(push.frame).at[0]) return;
    const uvec4 place = kv_row(push.frame, row);
    const uint position = place.y;
    const uint first = gl_WorkGroupID.x * UNITS;
    const uint count = min(UNITS, HEADS + 2u * KV_HEADS - first);
    for (uint unit = gl_SubgroupID; unit < count; unit += gl_NumSubgroups) {
        const uint head = first + unit;
        if (head < HEADS) {
            const uint64_t source = push.query + 4ul * uint64_t((row * HEADS + head) * DIM);
            head_prepare(source, push.query_norm, push.rope, push.epsilon, position, unit * DIM);
        } else if (head < HEADS + KV_HEADS) {
            const uint64_t source = push.key + 4ul * uint64_t((row * KV_HEADS + head - HEADS) * DIM);
            head_prepare(source, push.key_norm, push.rope, push.epsilon, position, unit * DIM);
        } else {
            const uint64_t source = push.value + 4ul * uint64_t((row * KV_HEADS + head - HEADS - KV_HEADS) * DIM);
            head_prepare(source, 0ul, 0ul, 0.0, position, unit * DIM);
        }
    }
    barrier();
    for (uint unit = gl_SubgroupID; unit < count; unit += gl_NumSubgroups) {
        const uint head = first + unit;
        if (head < HEADS) {
            const uint target = (row * HEADS + head) * DIM;
            for (uint e = gl_SubgroupInvocationID; e < DIM; e += gl_SubgroupSize) {
                Floats(push.query).at[target + e] = kv_values[unit * DIM + e];
            }
        } else {
            const bool is_value = head >= HEADS + KV_HEADS;
            const uint kv_head = head - HEADS - (is_value ? KV_HEADS : 0u);
            const uint block = kv_block(place, push.tables, push.ring, position / KV_BLOCK);
            const uint64_t part = kv_part(push.cache, block, kv_head) + (is_value ? uint64_t(KV_PART_BYTES) : 0ul);
            kv_store(part, position % KV_BLOCK, unit * DIM, gl_SubgroupInvocationID, gl_SubgroupSize);
        }
    }
}
