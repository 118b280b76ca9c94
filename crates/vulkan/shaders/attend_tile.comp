#version 460
// Attention of many rows in plain f32 arithmetic. Each workgroup takes neighbouring rows of one sequence and one query head,
// and passes the keys and values that they see through shared memory. A team of LANES invocations takes ROWS rows.
//
// Bound: arithmetic and reads of shared memory, four products for each element of 4 bytes times ROWS.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint DIM = 8;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint KV = 0;
// Whether 16 bytes of the cache can be loaded at a time.
layout(constant_id = 5) const uint WIDE = 0;
// Invocations that share a row: a power of two that divides SLOTS, at most a subgroup.
layout(constant_id = 6) const uint LANES = 1;
// Rows of a team.
layout(constant_id = 7) const uint ROWS = 1;
// Keys in shared memory at a time; divides the 32 of a block.
layout(constant_id = 8) const uint KEYS = 4;
// Keys between two checks of the highest score; divides KEYS.
layout(constant_id = 9) const uint BATCH = 4;

#include "include/kv.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t frame;
    uint64_t tables;
    uint64_t tiles;
    uint64_t cache;
    // (rows, HEADS, DIM) f32.
    uint64_t query;
    // (rows, HEADS, DIM) f32.
    uint64_t target;
    uint ring;
    uint window;
    float scale;
    // See kv_end.
    uint ahead;
} push;

// Groups of four elements of a head; the last may be half empty.
const uint SLOTS = (DIM + 3u) / 4u;
const uint HELD = SLOTS / LANES;
const uint TEAMS = gl_WorkGroupSize.x / LANES;
const float LOWEST = -3.0e38;

shared vec4 keys[KEYS * SLOTS];
shared vec4 values[KEYS * SLOTS];

vec4 query[ROWS * HELD];
vec4 sum[ROWS * HELD];
float high[ROWS];
float total[ROWS];
float scores[ROWS * BATCH];
// The first position that each row no longer sees.
uint ends[ROWS];

// Unpacks sixteen bytes of the cache to slots.
void unpack(const uvec4 raw, const uint64_t part, const uint at, const uint load, const uint target, const bool is_value) {
    const uint each = KV == KV_F32 ? 1u : (KV == KV_F16 ? 2u : 4u);
    const float scale = KV == KV_INT8 ? kv_scale(part, at, load * 16u) : 1.0;
    [[unroll]] for (uint k = 0u; k < each; ++k) {
        vec4 four;
        if (KV == KV_F32) four = uintBitsToFloat(raw);
        if (KV == KV_F16) four = vec4(unpackHalf2x16(raw[k * 2u % 4u]), unpackHalf2x16(raw[(k * 2u + 1u) % 4u]));
        if (KV == KV_INT8) four = kv_codes(raw[k]) * scale;
        if (is_value) {
            values[target + load * each + k] = four;
        } else {
            keys[target + load * each + k] = four;
        }
    }
}

// Loads keys and values of KEYS positions from `base` on into shared memory; those from `end` on are 0.
void stage(const uvec4 place, const uint base, const uint end, const uint head) {
    const uint64_t part = kv_part(push.cache, kv_block(place, push.tables, push.ring, base / KV_BLOCK), head);
    const uint loads = WIDE != 0u ? DIM * (KV == KV_F32 ? 4u : (KV == KV_F16 ? 2u : 1u)) / 16u : SLOTS;
    for (uint i = gl_LocalInvocationIndex; i < 2u * KEYS * loads; i += gl_WorkGroupSize.x) {
        const bool is_value = i >= KEYS * loads;
        const uint key = i / loads % KEYS;
        const uint load = i % loads;
        const uint at = base % KV_BLOCK + key;
        const uint64_t from = part + (is_value ? uint64_t(KV_PART_BYTES) : 0ul);
        const bool inside = base + key < end;
        if (WIDE != 0u && inside) {
            unpack(Quads(from).at[at * loads + load], from, at, load, key * SLOTS, is_value);
        } else if (WIDE != 0u) {
            const uint each = SLOTS / loads;
            for (uint k = 0u; k < each; ++k) {
                if (is_value) {
                    values[key * SLOTS + load * each + k] = vec4(0.0);
                } else {
                    keys[key * SLOTS + load * each + k] = vec4(0.0);
                }
            }
        } else {
            const vec4 four = inside ? kv_slow(from, at, 4u * load) : vec4(0.0);
            if (is_value) {
                values[key * SLOTS + load] = four;
            } else {
                keys[key * SLOTS + load] = four;
            }
        }
    }
}

// Processes BATCH keys in shared memory from `key` on, which are those at `position`.
void batch(const uint key, const uint position, const uint first_row, const uint last_row) {
    const uint lane = gl_LocalInvocationIndex % LANES;
    [[unroll]] for (uint i = 0u; i < ROWS * BATCH; ++i) scores[i] = 0.0;
    [[unroll]] for (uint j = 0u; j < BATCH; ++j) {
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const vec4 four = keys[(key + j) * SLOTS + i * LANES + lane];
            [[unroll]] for (uint n = 0u; n < ROWS; ++n) scores[n * BATCH + j] += dot(query[n * HELD + i], four);
        }
    }
    [[unroll]] for (uint step = 1u; step < LANES; step *= 2u) {
        [[unroll]] for (uint i = 0u; i < ROWS * BATCH; ++i) scores[i] += subgroupShuffleXor(scores[i], step);
    }
    [[unroll]] for (uint n = 0u; n < ROWS; ++n) {
        const uint own = min(first_row + n, last_row);
        const uint first = kv_first(own, push.window);
        float highest = high[n];
        [[unroll]] for (uint j = 0u; j < BATCH; ++j) {
            if (position + j >= first && position + j < ends[n]) highest = max(highest, scores[n * BATCH + j]);
        }
        const float kept = exp2(high[n] - highest);
        high[n] = highest;
        total[n] *= kept;
        [[unroll]] for (uint i = 0u; i < HELD; ++i) sum[n * HELD + i] *= kept;
        [[unroll]] for (uint j = 0u; j < BATCH; ++j) {
            const bool seen = position + j >= first && position + j < ends[n];
            const float weight = seen ? exp2(scores[n * BATCH + j] - highest) : 0.0;
            scores[n * BATCH + j] = weight;
            total[n] += weight;
        }
    }
    [[unroll]] for (uint j = 0u; j < BATCH; ++j) {
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const vec4 four = values[(key + j) * SLOTS + i * LANES + lane];
            [[unroll]] for (uint n = 0u; n < ROWS; ++n) sum[n * HELD + i] += scores[n * BATCH + j] * four;
        }
    }
}

void main() {
    if (gl_WorkGroupID.y >= Words(push.frame).at[2]) return;
    const uvec4 tile = Quads(push.tiles).at[gl_WorkGroupID.y];
    const uint begin_row = gl_WorkGroupID.z * TEAMS * ROWS;
    if (begin_row >= tile.y) return;
    const uint rows = min(TEAMS * ROWS, tile.y - begin_row);
    const uint head = gl_WorkGroupID.x;
    const uint kv_head = head / (HEADS / KV_HEADS);
    const uint lane = gl_LocalInvocationIndex % LANES;
    const uint team = gl_LocalInvocationIndex / LANES;
    const uvec4 place = kv_row(push.frame, tile.x + begin_row);
    // No row sees less far than the one before.
    const uint end = kv_end(kv_row(push.frame, tile.x + begin_row + rows - 1u), push.ahead);

    const float scale = push.scale * 1.4426950408889634;
    [[unroll]] for (uint n = 0u; n < ROWS; ++n) {
        // Teams and rows in excess repeat the last row and write nothing.
        const uint row = tile.x + begin_row + min(team * ROWS + n, rows - 1u);
        ends[n] = kv_end(kv_row(push.frame, row), push.ahead);
        high[n] = LOWEST;
        total[n] = 0.0;
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const uint e = 4u * (i * LANES + lane);
            const uint at = (row * HEADS + head) * DIM + e;
            vec4 four;
            if (DIM % 4u == 0u) {
                four = Vec4s(push.query).at[at / 4u];
            } else {
                four.xy = Vec2s(push.query).at[at / 2u];
                four.zw = e + 2u < DIM ? Vec2s(push.query).at[at / 2u + 1u] : vec2(0.0);
            }
            query[n * HELD + i] = four * scale;
            sum[n * HELD + i] = vec4(0.0);
        }
    }

    const uint first = kv_first(place.y, push.window);
    for (uint base = first / KEYS * KEYS; base < end; base += KEYS) {
        stage(place, base, end, kv_head);
        barrier();
        for (uint key = 0u; key < KEYS; key += BATCH) {
            batch(key, base + key, place.y + team * ROWS, place.y + rows - 1u);
        }
        barrier();
    }

    [[unroll]] for (uint n = 0u; n < ROWS; ++n) {
        if (team * ROWS + n >= rows) continue;
        const uint row = tile.x + begin_row + team * ROWS + n;
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const uint e = 4u * (i * LANES + lane);
            const uint at = (row * HEADS + head) * DIM + e;
            const vec4 four = sum[n * HELD + i] / total[n];
            if (DIM % 4u == 0u) {
                Vec4s(push.target).at[at / 4u] = four;
            } else {
                Vec2s(push.target).at[at / 2u] = four.xy;
                if (e + 2u < DIM) Vec2s(push.target).at[at / 2u + 1u] = four.zw;
            }
        }
    }
}
