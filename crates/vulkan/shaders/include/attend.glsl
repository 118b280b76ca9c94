// Attention of a few rows: each workgroup takes one row, some query heads that share keys and values, and a share of the
// positions that the row sees. Whoever ends last for a row and its heads puts the shares together.
//
// A team of LANES invocations takes UNROLL positions at a time; each lane holds its elements of the queries and of the sum.
// crates/vulkan/src/kernels/attention/decode.rs chooses the constants, which whoever includes this defines: DIM, HEADS,
// KV_HEADS, KV, QUERIES, LANES, ELEMENTS, UNROLL, MERGED, SPLITS, FUSED and OUTPUT.

#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require

const uint GROUPS_OF_ROW = HEADS / QUERIES;
// With FUSED: the queries, then the row's own key and value.
const uint KV_VALUES = FUSED != 0u ? (QUERIES + 2u) * DIM : 1u;

#include "kv.glsl"
#include "operand.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer AttendParts { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer AttendCounters { uint at[]; };

struct AttendArgs {
    uint64_t frame;
    uint64_t tables;
    uint64_t cache;
    // (rows, HEADS, DIM) f32; with FUSED as the projection left it.
    uint64_t query;
    // (rows, HEADS, DIM) f32 if OUTPUT & 1.
    uint64_t target;
    // Planes of the fixed-point operand if OUTPUT & 2.
    uint64_t codes;
    uint64_t scales;
    // Unfinished results, and for each row and group of heads the number of them.
    uint64_t parts;
    uint64_t counters;
    // With FUSED: the row's key and value as the projection left them, norm weights (0 for none), table of turns.
    uint64_t key;
    uint64_t value;
    uint64_t query_norm;
    uint64_t key_norm;
    uint64_t rope;
    uint64_t chain;
    uint ring;
    uint window;
};

// A slot is up to four neighbouring elements of a head; a load gives a lane QUADS of them.
const uint SLOT = ELEMENTS < 4u ? ELEMENTS : 4u;
const uint QUADS = ELEMENTS < 4u ? 1u : ELEMENTS / 4u;
const uint CHUNKS = DIM / (LANES * ELEMENTS);
const uint HELD = CHUNKS * QUADS;
const uint SLOTS = DIM / SLOT;
const uint TEAMS = gl_WorkGroupSize.x / LANES;
// Positions that a workgroup has under way, and the blocks that they fill: no share is smaller.
const uint STRIDE = TEAMS * UNROLL;
const uint LEAST = (STRIDE + KV_BLOCK - 1u) / KV_BLOCK;
// vec4s of an unfinished result of one head: (highest score, sum of weights), then the slots.
const uint PART = 1u + SLOTS;
const uint PADDED = (HEADS * DIM + 127u) / 128u * 128u;
const float LOWEST = -3.0e38;

// Of each team: the highest score, the sum of weights.
shared float attend_highs[QUERIES * TEAMS];
shared float attend_totals[QUERIES * TEAMS];
shared vec4 attend_sums[MERGED * gl_WorkGroupSize.x * HELD];
shared vec2 attend_shares[QUERIES * SPLITS];
shared uint attend_turn;

// What a lane holds. Not in structures or arguments, because those cannot have arrays whose sizes are specialised.
// The queries, times the scale and the base-2 logarithm of e; the running sums over keys for each query.
vec4 attend_query[QUERIES * HELD];
float attend_high[QUERIES];
float attend_total[QUERIES];
vec4 attend_sum[QUERIES * HELD];
// Keys and values under way.
uvec4 attend_keys[UNROLL * CHUNKS];
uvec4 attend_values[UNROLL * CHUNKS];
float attend_key_scales[UNROLL * CHUNKS];
float attend_value_scales[UNROLL * CHUNKS];
float attend_scores[UNROLL * QUERIES];
const uint ROUNDED = (2u * DIM + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;
float attend_rounded[ROUNDED];

uint attend_lane() {
    return gl_LocalInvocationIndex % LANES;
}

// The lane's `c`-th load of position `at` of a part.
uvec4 attend_load(const uint64_t part, const uint at, const uint c) {
    const uint index = at * (DIM / ELEMENTS) + c * LANES + attend_lane();
    if (ELEMENTS >= 4u) return Quads(part).at[index];
    if (KV == KV_F32) return uvec4(Pairs(part).at[index], 0u, 0u);
    if (KV == KV_F16) return uvec4(Words(part).at[index], 0u, 0u, 0u);
    return uvec4(uint(KvShorts(part).at[index]), 0u, 0u, 0u);
}

float attend_load_scale(const uint64_t part, const uint at, const uint c) {
    return KV == KV_INT8 ? kv_scale(part, at, (c * LANES + attend_lane()) * ELEMENTS) : 1.0;
}

// Slot `quad` of a load, without an int8 load's scale.
vec4 attend_unpack(const uvec4 raw, const uint quad) {
    vec4 values;
    if (KV == KV_F32) values = uintBitsToFloat(raw);
    if (KV == KV_F16) values = vec4(unpackHalf2x16(raw[quad * 2u % 4u]), unpackHalf2x16(raw[(quad * 2u + 1u) % 4u]));
    if (KV == KV_INT8) values = kv_codes(raw[quad % 4u]);
    return ELEMENTS < 4u ? vec4(values.xy, 0.0, 0.0) : values;
}

// Slot number of a lane's `k`-th: it holds elements SLOT * number and following.
uint attend_slot(const uint k) {
    return (k / QUADS * LANES + attend_lane()) * QUADS + k % QUADS;
}

// A finished slot of a head: as f32, and as a block of the fixed-point operand, which eight neighbouring invocations hold.
void attend_emit(const AttendArgs args, const uint row, const uint head, const uint slot, const vec4 value) {
    const uint column = head * DIM + slot * SLOT;
    if ((OUTPUT & 1u) != 0u) {
        if (DIM % 4u == 0u && SLOT == 4u) {
            Vec4s(args.target).at[(row * (HEADS * DIM) + column) / 4u] = value;
        } else {
            for (uint k = 0u; k < SLOT; ++k) Floats(args.target).at[row * (HEADS * DIM) + column + k] = value[k];
        }
    }
    if ((OUTPUT & 2u) != 0u) {
        float high = operand_magnitude(value);
        float sum = value.x + value.y + value.z + value.w;
        for (uint step = 1u; step < 8u; step *= 2u) {
            high = max(high, subgroupShuffleXor(high, step));
            sum += subgroupShuffleXor(sum, step);
        }
        const bool finite = high < OPERAND_INFINITE;
        const float broken = uintBitsToFloat(0x7FC00000u);
        // The inverse of a subnormal scale overflows: such a block counts as 0.
        const bool some = finite && high > 1e-30;
        const uvec2 bytes = some ? operand_fixed(value, 32512.0 / high) : uvec2(0u);
        const uint block = column / 32u;
        const uint groups = PADDED / 128u;
        const uint at = (row * groups + block / 4u) * 64u + column % 32u / 16u * 16u + block % 4u * 4u + column % 16u / 4u;
        Words(args.codes).at[at] = bytes.x;
        Words(args.codes).at[at + 32u] = bytes.y;
        if (column % 32u == 0u) {
            const float scale = some ? high / 32512.0 : 0.0;
            Vec2s(args.scales).at[row * groups * 4u + block] = finite ? vec2(scale, sum) : vec2(broken);
        }
    }
}

// Columns behind the last head that fill a row of the operand up to a whole group.
void attend_pad(const AttendArgs args, const uint row, const uint group) {
    if ((OUTPUT & 2u) == 0u || group != GROUPS_OF_ROW - 1u) return;
    for (uint column = HEADS * DIM + 4u * gl_LocalInvocationIndex; column < PADDED; column += 4u * gl_WorkGroupSize.x) {
        const uint block = column / 32u;
        const uint groups = PADDED / 128u;
        const uint at = (row * groups + block / 4u) * 64u + column % 32u / 16u * 16u + block % 4u * 4u + column % 16u / 4u;
        Words(args.codes).at[at] = 0u;
        Words(args.codes).at[at + 32u] = 0u;
        if (column % 32u == 0u) Vec2s(args.scales).at[row * groups * 4u + block] = vec2(0.0);
    }
}

// With FUSED: the queries of the group to kv_values, and, if the row's own position is in this share, its key and value too.
void attend_prepare(const AttendArgs args, const uint row, const uint group, const uint position, const bool owner) {
    const uint kv_head = group * QUERIES / (HEADS / KV_HEADS);
    for (uint unit = gl_SubgroupID; unit < QUERIES + (owner ? 2u : 0u); unit += gl_NumSubgroups) {
        if (unit < QUERIES) {
            const uint64_t source = args.query + 4ul * uint64_t((row * HEADS + group * QUERIES + unit) * DIM);
            head_prepare(source, args.query_norm, args.rope, EPSILON, position, unit * DIM);
        } else {
            const bool is_key = unit == QUERIES;
            const uint64_t from = is_key ? args.key : args.value;
            const uint64_t source = from + 4ul * uint64_t((row * KV_HEADS + kv_head) * DIM);
            head_prepare(source, is_key ? args.key_norm : 0ul, is_key ? args.rope : 0ul, EPSILON, position, unit * DIM);
        }
    }
}

void attend_begin() {
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        attend_high[r] = LOWEST;
        attend_total[r] = 0.0;
    }
    [[unroll]] for (uint i = 0u; i < QUERIES * HELD; ++i) attend_sum[i] = vec4(0.0);
}

float attend_team_sum(float value) {
    [[unroll]] for (uint step = 1u; step < LANES; step *= 2u) value += subgroupShuffleXor(value, step);
    return value;
}

// Loads keys and values of UNROLL positions of a team, from `first` on and TEAMS apart; for those from `end` on of the last.
void attend_fetch(const AttendArgs args, const uvec4 place, const uint kv_head, const uint first, const uint end) {
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        const uint position = min(first + u * TEAMS, end - 1u);
        const uint block = kv_block(place, args.tables, args.ring, position / KV_BLOCK);
        const uint64_t part = kv_part(args.cache, block, kv_head);
        const uint64_t next = part + uint64_t(KV_PART_BYTES);
        [[unroll]] for (uint c = 0u; c < CHUNKS; ++c) {
            attend_keys[u * CHUNKS + c] = attend_load(part, position % KV_BLOCK, c);
            attend_key_scales[u * CHUNKS + c] = attend_load_scale(part, position % KV_BLOCK, c);
        }
        [[unroll]] for (uint c = 0u; c < CHUNKS; ++c) {
            attend_values[u * CHUNKS + c] = attend_load(next, position % KV_BLOCK, c);
            attend_value_scales[u * CHUNKS + c] = attend_load_scale(next, position % KV_BLOCK, c);
        }
    }
}

// Takes what was fetched into account.
void attend_batch(const uint first, const uint end) {
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) attend_scores[u * QUERIES + r] = 0.0;
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const uint load = u * CHUNKS + i / QUADS;
            const vec4 key = attend_unpack(attend_keys[load], i % QUADS) * attend_key_scales[load];
            [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
                attend_scores[u * QUERIES + r] += dot(attend_query[r * HELD + i], key);
            }
        }
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
            attend_scores[u * QUERIES + r] = attend_team_sum(attend_scores[u * QUERIES + r]);
        }
    }
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        float high = attend_high[r];
        [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
            if (first + u * TEAMS < end) high = max(high, attend_scores[u * QUERIES + r]);
        }
        const float kept = exp2(attend_high[r] - high);
        attend_high[r] = high;
        attend_total[r] *= kept;
        [[unroll]] for (uint i = 0u; i < HELD; ++i) attend_sum[r * HELD + i] *= kept;
        [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
            const float weight = first + u * TEAMS < end ? exp2(attend_scores[u * QUERIES + r] - high) : 0.0;
            attend_scores[u * QUERIES + r] = weight;
            attend_total[r] += weight;
        }
    }
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const uint load = u * CHUNKS + i / QUADS;
            const vec4 value = attend_unpack(attend_values[load], i % QUADS) * attend_value_scales[load];
            [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
                attend_sum[r * HELD + i] += attend_scores[u * QUERIES + r] * value;
            }
        }
    }
}

// A slot of a head in kv_values.
vec4 attend_staged(const uint offset, const uint slot) {
    vec4 values = vec4(0.0);
    [[unroll]] for (uint k = 0u; k < SLOT; ++k) values[k] = kv_values[offset + slot * SLOT + k];
    return values;
}

// With FUSED: the row's own key and value in kv_values to the cache, if `store`, and back as the cache would give them.
void attend_store(const AttendArgs args, const uvec4 place, const uint kv_head, const bool store) {
    const uint key = QUERIES * DIM;
    if (store) {
        const uint block = kv_block(place, args.tables, args.ring, place.y / KV_BLOCK);
        const uint64_t part = kv_part(args.cache, block, kv_head);
        const uint64_t next = part + uint64_t(KV_PART_BYTES);
        kv_store(part, place.y % KV_BLOCK, key, gl_LocalInvocationIndex, gl_WorkGroupSize.x);
        kv_store(next, place.y % KV_BLOCK, key + DIM, gl_LocalInvocationIndex, gl_WorkGroupSize.x);
    }
    if (KV == KV_F32) return;
    [[unroll]] for (uint i = 0u; i < ROUNDED; ++i) {
        const uint element = i * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
        if (element < 2u * DIM) attend_rounded[i] = kv_rounded(key + element / DIM * DIM, element % DIM);
    }
    // Roundings look at whole groups of the values as they were.
    barrier();
    [[unroll]] for (uint i = 0u; i < ROUNDED; ++i) {
        const uint element = i * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
        if (element < 2u * DIM) kv_values[key + element] = attend_rounded[i];
    }
    barrier();
}

// With FUSED: the row's own position, for the first team, from kv_values.
void attend_own() {
    const bool counts = gl_LocalInvocationIndex < LANES;
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) attend_scores[r] = 0.0;
    [[unroll]] for (uint i = 0u; i < HELD; ++i) {
        const vec4 key = attend_staged(QUERIES * DIM, attend_slot(i));
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) attend_scores[r] += dot(attend_query[r * HELD + i], key);
    }
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        const float score = attend_team_sum(attend_scores[r]);
        const float high = counts ? max(attend_high[r], score) : attend_high[r];
        const float kept = exp2(attend_high[r] - high);
        attend_scores[r] = counts ? exp2(score - high) : 0.0;
        attend_high[r] = high;
        attend_total[r] = attend_total[r] * kept + attend_scores[r];
        [[unroll]] for (uint i = 0u; i < HELD; ++i) attend_sum[r * HELD + i] *= kept;
    }
    [[unroll]] for (uint i = 0u; i < HELD; ++i) {
        const vec4 value = attend_staged((QUERIES + 1u) * DIM, attend_slot(i));
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) attend_sum[r * HELD + i] += attend_scores[r] * value;
    }
}

// Puts the teams' sums together, and emits them if `alone`, otherwise writes them as the part `part`.
void attend_merge(const AttendArgs args, const uint row, const uint group, const bool alone, const uint64_t part) {
    const uint team = gl_LocalInvocationIndex / LANES;
    if (attend_lane() == 0u) {
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) attend_highs[r * TEAMS + team] = attend_high[r];
    }
    barrier();
    [[unroll]] for (uint begin = 0u; begin < QUERIES; begin += MERGED) {
        const uint count = min(MERGED, QUERIES - begin);
        if (begin > 0u) barrier();
        [[unroll]] for (uint r = begin; r < begin + count; ++r) {
            float high = LOWEST;
            for (uint t = 0u; t < TEAMS; ++t) high = max(high, attend_highs[r * TEAMS + t]);
            const float share = exp2(attend_high[r] - high);
            if (attend_lane() == 0u) attend_totals[r * TEAMS + team] = attend_total[r] * share;
            [[unroll]] for (uint i = 0u; i < HELD; ++i) {
                attend_sums[((r - begin) * TEAMS + team) * SLOTS + attend_slot(i)] = attend_sum[r * HELD + i] * share;
            }
        }
        barrier();
        for (uint at = gl_LocalInvocationIndex; at < count * SLOTS; at += gl_WorkGroupSize.x) {
            const uint r = begin + at / SLOTS;
            const uint slot = at % SLOTS;
            float total = 0.0;
            vec4 sum = vec4(0.0);
            for (uint t = 0u; t < TEAMS; ++t) {
                total += attend_totals[r * TEAMS + t];
                sum += attend_sums[((r - begin) * TEAMS + t) * SLOTS + slot];
            }
            if (alone) {
                attend_emit(args, row, group * QUERIES + r, slot, sum / total);
            } else {
                AttendParts(part).at[r * PART + 1u + slot] = sum;
                if (slot == 0u) {
                    float high = LOWEST;
                    for (uint t = 0u; t < TEAMS; ++t) high = max(high, attend_highs[r * TEAMS + t]);
                    AttendParts(part).at[r * PART] = vec4(high, total, 0.0, 0.0);
                }
            }
        }
    }
}

// Puts the shares of a row and group together. With 0 shares there is nothing to do, but all invocations call it.
void attend_finish(const AttendArgs args, const uint row, const uint group, const uint shares, const uint64_t parts) {
    for (uint at = gl_LocalInvocationIndex; at < QUERIES * shares; at += gl_WorkGroupSize.x) {
        attend_shares[at % QUERIES * SPLITS + at / QUERIES] = AttendParts(parts).at[at * PART].xy;
    }
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < (shares > 0u ? QUERIES * SLOTS : 0u); at += gl_WorkGroupSize.x) {
        const uint r = at / SLOTS;
        const uint slot = at % SLOTS;
        float high = LOWEST;
        for (uint s = 0u; s < shares; ++s) high = max(high, attend_shares[r * SPLITS + s].x);
        float total = 0.0;
        vec4 sum = vec4(0.0);
        for (uint s = 0u; s < shares; ++s) {
            const vec2 mark = attend_shares[r * SPLITS + s];
            const float share = exp2(mark.x - high);
            total += mark.y * share;
            sum += AttendParts(parts).at[(s * QUERIES + r) * PART + 1u + slot] * share;
        }
        attend_emit(args, row, group * QUERIES + r, slot, sum / total);
    }
    if (shares > 0u) attend_pad(args, row, group);
}

// One share of a row's positions: `size` blocks from the `split`-th share on.
void attend_work(
    const AttendArgs args,
    const uvec4 place,
    const uint row,
    const uint group,
    const uint split,
    const uint size,
    const uint shares
) {
    const uint position = place.y;
    const uint first = kv_first(position, args.window);
    const uint first_block = first / KV_BLOCK;
    const uint begin_block = first_block + split * size;
    const uint begin = max(first, begin_block * KV_BLOCK);
    const bool owner = FUSED != 0u && split == shares - 1u;
    // The row's own position is not in the cache yet.
    const uint end = owner ? position : min(position + 1u, (begin_block + size) * KV_BLOCK);
    const uint kv_head = group * QUERIES / (HEADS / KV_HEADS);
    const uint team = gl_LocalInvocationIndex / LANES;

    // What takes longest starts first.
    if (begin < end) attend_fetch(args, place, kv_head, begin + team, end);
    chain_wait(args.chain);
    if (FUSED != 0u) {
        attend_prepare(args, row, group, position, owner);
        barrier();
    }
    const float scale = SCALE * 1.4426950408889634;
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const uint at = ((row * HEADS + group * QUERIES + r) * DIM) / SLOT + attend_slot(i);
            vec4 values;
            if (FUSED != 0u) {
                values = attend_staged(r * DIM, attend_slot(i));
            } else {
                values = SLOT == 4u ? Vec4s(args.query).at[at] : vec4(Vec2s(args.query).at[at], 0.0, 0.0);
            }
            attend_query[r * HELD + i] = values * scale;
        }
    }

    attend_begin();
    for (uint base = begin; base < end; base += STRIDE) {
        attend_batch(base + team, end);
        if (base + STRIDE < end) attend_fetch(args, place, kv_head, base + STRIDE + team, end);
    }
    if (owner) {
        // Several groups of queries may share the key head; one of them stores it.
        attend_store(args, place, kv_head, group * QUERIES % (HEADS / KV_HEADS) == 0u);
        attend_own();
    }

    const uint group_of_all = row * GROUPS_OF_ROW + group;
    const uint64_t part_bytes = uint64_t(16u * QUERIES * PART);
    const uint64_t parts = args.parts + uint64_t(group_of_all * SPLITS) * part_bytes;
    attend_merge(args, row, group, shares == 1u, parts + uint64_t(split) * part_bytes);
    if (shares == 1u) {
        attend_pad(args, row, group);
    } else {
        // Each invocation's writes come before the count, and what the last one reads comes behind it. Not in the terms of
        // the Vulkan memory model: with it every access of shared memory carries a barrier, which Mesa 22.3's software
        // driver takes for one of the whole workgroup, in branches too.
        memoryBarrierBuffer();
        barrier();
        if (gl_LocalInvocationIndex == 0u) attend_turn = atomicAdd(AttendCounters(args.counters).at[group_of_all], 1u);
        barrier();
        memoryBarrierBuffer();
        const bool last = attend_turn == shares - 1u;
        if (last && gl_LocalInvocationIndex == 0u) AttendCounters(args.counters).at[group_of_all] = 0u;
        attend_finish(args, row, group, last ? shares : 0u, parts);
    }
}

void attend_share(const AttendArgs args, const uint row, const uint group, const uint split) {
    const uvec4 place = kv_row(args.frame, row);
    const uint position = place.y;
    const uint first = kv_first(position, args.window);
    const uint first_block = first / KV_BLOCK;
    const uint blocks = position / KV_BLOCK + 1u - first_block;
    // Fewer blocks take less time than putting shares together does.
    const uint size = max((blocks + SPLITS - 1u) / SPLITS, 4u);
    const uint shares = (blocks + size - 1u) / size;
    // Every workgroup can tell how many have work, so those without need not be counted.
    if (split < shares) attend_work(args, place, row, group, split, size, shares);
}

// Attention of the step's rows. `group` is the number of this workgroup, `groups` how many there are.
void attend(const AttendArgs args, const uint group, const uint groups) {
    const uint items = Words(args.frame).at[0] * GROUPS_OF_ROW * SPLITS;
    for (uint item = group; item < items; item += groups) {
        attend_share(args, item / (GROUPS_OF_ROW * SPLITS), item / SPLITS % GROUPS_OF_ROW, item % SPLITS);
        // The next share's preparation writes what this one's threads may still read.
        barrier();
    }
}
