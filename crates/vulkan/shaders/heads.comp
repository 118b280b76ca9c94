#version 460
// Heads between their projection and the cache: norm and rotation of queries and keys, and the store of keys and values to the
// cache. One subgroup for each head of a row.
//
// Bound: the bytes of the heads, read once and written once.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/norm.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint DIM = 8;
// Query heads, which are changed in place; may be 0.
layout(constant_id = 2) const uint HEADS = 1;
// Key heads, and value heads, that go to the cache; may be 0.
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint KV = 0;
// Size of a subgroup.
layout(constant_id = 5) const uint SUBGROUP = 32;
// What is normed: bit 0: queries, bit 1: keys, bit 2: values. Bit 3: nothing is rotated, so that no table of turns is read: some
// software reads what a condition excludes. Bit 4: queries or keys are normed with weights.
layout(constant_id = 6) const uint NORMED = 0;
// Where the numbers of the rows stand in the frame, see kv_row.
layout(constant_id = 7) const uint PICKS = 0;
// Whether biases are added to keys and values; there are no queries and norms then.
layout(constant_id = 8) const uint BIASED = 0;
// See heads.glsl.
layout(constant_id = 9) const uint HEAD_SIDE = 0;
// Whether heads stay within limits before anything is done.
layout(constant_id = 10) const uint LIMITED = 0;
const uint UNITS = gl_WorkGroupSize.x / SUBGROUP;
const uint HEAD_PLACES = UNITS;

#include "include/kv.glsl"
#include "include/heads.glsl"
#include "include/chain.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t frame;
    uint64_t tables;
    uint64_t query;
    uint64_t key;
    uint64_t value;
    // Norm weights, 0 for factors of 1; the biases of values and of keys.
    uint64_t query_norm;
    uint64_t key_norm;
    // Table of turns, 0 for none.
    uint64_t rope;
    uint64_t cache;
    uint ring;
    float epsilon;
    uint64_t chain;
    vec2 query_limits;
    vec2 key_limits;
    vec2 value_limits;
} push;

void work_on_heads() {
    const uint row = gl_WorkGroupID.y;
    const uint unit = gl_WorkGroupID.x * UNITS + gl_SubgroupID;
    const bool is_query = unit < HEADS;
    const bool is_key = !is_query && unit < HEADS + KV_HEADS;
    const bool is_value = !is_query && !is_key;
    const bool exists = unit < HEADS + 2u * KV_HEADS;
    // The index among the key heads, or among the value heads.
    const uint kv_head = unit - HEADS - (is_value ? KV_HEADS : 0u);
    uint64_t weight = is_query ? push.query_norm : (is_key ? push.key_norm : 0ul);
    if (BIASED != 0u) weight = (is_value ? push.query_norm : push.key_norm) + 4ul * uint64_t(kv_head * DIM);
    const bool norms = (NORMED & (is_query ? 1u : (is_key ? 2u : 4u))) != 0u;
    const bool rotates = (NORMED & 8u) == 0u && !is_value;
    uint64_t source = is_query ? push.query : (is_key ? push.key : push.value);
    source += 4ul * uint64_t((is_query ? row * HEADS + unit : row * KV_HEADS + kv_head) * DIM);

    if (exists) {
        head_ask_weights(weight);
        // Subgroups with values ask too: software reads what a subgroup reads from one address even where a condition that
        // differs between subgroups excludes it, so that address must be valid.
        if ((NORMED & 8u) == 0u) head_ask_shares(push.rope);
    }
    const uvec4 place = kv_row(push.frame, PICKS, row);
    const bool has_row = row < kv_rows(push.frame, PICKS);
    chain_wait(push.chain);
    // There is memory for rows that the step does not have, so nothing waits for their number.
    if (exists) head_ask(source);
    if (!has_row) return;
    const uint position = place.y;
    uint64_t part = 0ul;
    if (exists && !is_query) {
        const uint block = kv_block(place, push.tables, push.ring, position / KV_BLOCK);
        part = kv_part(push.cache, block, kv_head) + (is_value ? uint64_t(KV_PART_BYTES) : 0ul);
    }
    if (exists) {
        if (LIMITED != 0u) head_limit(is_query ? push.query_limits : (is_key ? push.key_limits : push.value_limits));
        if (BIASED != 0u) head_add_weights();
        if (rotates && HEAD_SIDE == 0u) head_turn(position);
        if (rotates && HEAD_SIDE > 0u) head_turn_in_grid(place.x);
        // Heads without weights of their own are noted at others'.
        const uint64_t others = push.query_norm != 0ul ? push.query_norm : push.key_norm;
        const uint64_t noted = weight != 0ul ? weight : others;
        head_prepare(norms, (NORMED & 16u) != 0u, noted, rotates, push.epsilon, 1.0);
        if (is_query) {
            [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
                if (!head_has(i)) continue;
                ActiveFloats(source).at[head_element(i)] = head_pairs[i].x;
                ActiveFloats(source).at[head_element(i) + HEAD_APART] = head_pairs[i].y;
            }
        } else {
            head_stage(gl_SubgroupID);
        }
    }
    barrier();
    if (exists && !is_query) {
        for (uint quad = gl_SubgroupInvocationID; quad < HEAD_QUADS; quad += SUBGROUP) {
            head_keep(gl_SubgroupID, quad, true, part, position % KV_BLOCK);
        }
    }
}

void main() {
    work_on_heads();
    chain_signal(push.chain);
}
