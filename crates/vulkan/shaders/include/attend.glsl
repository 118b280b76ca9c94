// Attention of a few rows: each workgroup takes one row, some query heads that share keys and values, and a share of the
// positions that the row sees. The workgroup that ends last for a row and its heads puts the shares together.
//
// A team of LANES invocations takes UNROLL positions at a time; each lane holds its elements of the queries and of the sum.
// With few positions the time is that of the loads that wait for one another, so everything is loaded as soon as its address is
// known: norm weights and turns, then keys and values of the first positions, then the row's own activations.
//
// Functions return only at their end, because they are inlined when attend.comp is compiled.
//
// crates/vulkan/src/kernels/attention/decode.rs chooses the constants, which the including shader defines: DIM, HEADS,
// KV_HEADS, KV, QUERIES, LANES, ELEMENTS, UNROLL, MERGED, SPLITS, FUSED, OUTPUT, SUBGROUP, RING, WINDOW, ALONE, LEAST, PICKS,
// VALUE_NORM and AHEAD.
// Before the include: memory.glsl, chain.glsl, handed.glsl.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require

const uint FUSED_ALL = 1u;
const uint GROUPS_OF_ROW = HEADS / QUERIES;
const uint SUBGROUPS = gl_WorkGroupSize.x / SUBGROUP;
// Whether the launch also stores the row's own key and value, which are not in the cache before it.
const bool OWNS = FUSED == FUSED_ALL;
// With FUSED: the queries, then with OWNS the row's key and value, each worked on by a subgroup.
const uint UNITS = QUERIES + (OWNS ? 2u : 0u);
const uint HEAD_PLACES = FUSED != 0u ? UNITS : 1u;
const uint HEAD_SIDE = 0u;

#define HEAD_HANDED
#include "kv.glsl"
#include "heads.glsl"
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
    // Planes of the fixed-point operand if OUTPUT & 2, of the operand in halves if OUTPUT & 4 or, in fragment order, OUTPUT & 8.
    uint64_t codes;
    uint64_t scales;
    // Unfinished results, and for each row and group of heads the number of finished shares.
    uint64_t parts;
    uint64_t counters;
    // With FUSED: the row's key and value as the projection left them, norm weights (0 for factors of 1), table of turns.
    uint64_t key;
    uint64_t value;
    uint64_t query_norm;
    uint64_t key_norm;
    uint64_t rope;
    float scale;
    float epsilon;
    // Link of the chain, or 0.
    uint64_t chain;
};

// A slot is up to four neighbouring elements of a head; a load gives a lane QUADS of them.
const uint SLOT = ELEMENTS < 4u ? ELEMENTS : 4u;
const uint QUADS = ELEMENTS < 4u ? 1u : ELEMENTS / 4u;
const uint CHUNKS = DIM / (LANES * ELEMENTS);
const uint HELD = CHUNKS * QUADS;
const uint SLOTS = DIM / SLOT;
const uint TEAMS = gl_WorkGroupSize.x / LANES;
const uint TEAMS_OF_SUBGROUP = SUBGROUP / LANES;
// Teams of a subgroup that share the work of adding up their sums: each ends with that many times fewer slots. The largest
// power of two that divides both numbers.
const uint COMMON = HELD | TEAMS_OF_SUBGROUP;
const uint SPREAD = COMMON & (~COMMON + 1u);
// Positions that a workgroup has in flight.
const uint STRIDE = TEAMS * UNROLL;
// Whether a subgroup can hold the numbers of all blocks that these positions touch.
const bool HOLDS_BLOCKS = STRIDE / KV_BLOCK + 2u <= SUBGROUP;
// vec4s of an unfinished result of one head: (highest score, sum of weights), then the slots.
const uint PART = 1u + SLOTS;
// Slots of a share, shares that a workgroup merges at the same time, and how many of each an invocation has in flight.
const uint WIDE = QUERIES * SLOTS;
const uint ABREAST = gl_WorkGroupSize.x >= 2u * WIDE ? gl_WorkGroupSize.x / WIDE : 1u;
const uint TOGETHER = SUBGROUP >= 16u ? 4u : 1u;
// Results in shared memory that are read at the same time: few on narrow devices, whose compilers have to write all of them
// out.
const uint READ = SUBGROUP >= 16u ? 16u : 1u;
const uint PADDED = (HEADS * DIM + 127u) / 128u * 128u;
const float LOWEST = -3.0e38;

// Results to be merged: highest scores with sums of weights, and sums of values.
const uint MARKS = SUBGROUPS > ABREAST ? SUBGROUPS : ABREAST;
const uint SUMS = MERGED * SUBGROUPS * SLOTS;
shared vec2 attend_marks[QUERIES * MARKS];
shared vec4 attend_sums[SUMS > gl_WorkGroupSize.x ? SUMS : gl_WorkGroupSize.x];
// With OWNS: scores of the row's own position, and its value as it would be read back from the cache.
shared float attend_own_scores[QUERIES];
shared vec4 attend_own_value[HEAD_QUADS];
shared uint attend_turn;

// What a lane holds. Not in structures or arguments, because those cannot have arrays of specialised sizes.
// The queries, times the scale and the base-2 logarithm of e; the running sums over keys for each query.
vec4 attend_query[QUERIES * HELD];
float attend_high[QUERIES];
float attend_total[QUERIES];
vec4 attend_sum[QUERIES * HELD];
// Keys and values in flight.
uvec4 attend_keys[UNROLL * CHUNKS];
uvec4 attend_values[UNROLL * CHUNKS];
float attend_key_scales[UNROLL * CHUNKS];
float attend_value_scales[UNROLL * CHUNKS];
float attend_scores[UNROLL * QUERIES];
// The number in the cache of one of the sequence's blocks: the one after `attend_first_held` by the lane's number.
uint attend_held;
uint attend_first_held;

// Neighbours are also neighbours in a subgroup.
uint attend_invocation() {
    return gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
}

uint attend_team() {
    return attend_invocation() / LANES;
}

uint attend_lane() {
    return gl_SubgroupInvocationID % LANES;
}

// Returns the lane's `c`-th load of position `at` of a part.
uvec4 attend_load(const uint64_t part, const uint at, const uint c) {
    const uint index = at * (DIM / ELEMENTS) + c * LANES + attend_lane();
    uvec4 raw = uvec4(0u);
    if (KV == KV_INT8 && ELEMENTS == 8u) raw.xy = Pairs(part).at[index];
    else if (ELEMENTS >= 4u) raw = Quads(part).at[index];
    else if (KV == KV_F32) raw.xy = Pairs(part).at[index];
    else if (KV == KV_F16) raw.x = Words(part).at[index];
    else raw.x = uint(KvShorts(part).at[index]);
    return raw;
}

float attend_load_scale(const uint64_t part, const uint at, const uint c) {
    return KV == KV_INT8 ? kv_scale(part, at, (c * LANES + attend_lane()) * ELEMENTS) : 1.0;
}

// Returns slot `quad` of a load, without the scale of an int8 load.
vec4 attend_unpack(const uvec4 raw, const uint quad) {
    vec4 values;
    if (KV == KV_F32) values = uintBitsToFloat(raw);
    if (KV == KV_F16) values = vec4(unpackHalf2x16(raw[quad * 2u % 4u]), unpackHalf2x16(raw[(quad * 2u + 1u) % 4u]));
    if (KV == KV_INT8) values = kv_codes(raw[quad % 4u]);
    return ELEMENTS < 4u ? vec4(values.xy, 0.0, 0.0) : values;
}

// Returns the slot number of a lane's `k`-th slot, which holds the elements from SLOT * number on.
uint attend_slot(const uint k) {
    return (k / QUADS * LANES + attend_lane()) * QUADS + k % QUADS;
}

// Writes a finished slot of a head: as f32, as halves, and as part of a block of the fixed-point operand, which eight
// neighbouring invocations hold.
void attend_emit(const AttendArgs args, const uint row, const uint head, const uint slot, const vec4 value) {
    const uint column = head * DIM + slot * SLOT;
    if ((OUTPUT & 1u) != 0u) {
        if (DIM % 4u == 0u && SLOT == 4u) {
            ActiveVec4s(args.target).at[(row * (HEADS * DIM) + column) / 4u] = handed_on(args.chain, value);
        } else {
            const uint at = row * (HEADS * DIM) + column;
            [[unroll]] for (uint k = 0u; k < SLOT; ++k) ActiveFloats(args.target).at[at + k] = handed_on(args.chain, value[k]);
        }
    }
    if ((OUTPUT & 12u) != 0u) {
        // Means of what an f16 cache holds are halves without a factor.
        if ((OUTPUT & 4u) != 0u) {
            const uvec2 halves = uvec2(packHalf2x16(value.xy), packHalf2x16(value.zw));
            ActivePairs(args.codes).at[(row * (HEADS * DIM) + column) / 4u] = halves;
        } else {
            const uint at = operand_fragment(row, column, PADDED / 128u);
            const uvec2 halves = operand_in_order(value);
            ActiveWords(args.codes).at[at] = halves.x;
            ActiveWords(args.codes).at[at + 2u] = halves.y;
        }
        if (column == 0u) ActiveFloats(args.scales).at[row] = 1.0;
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

// Writes the columns after the last head that fill a row of the operand up to a whole group.
void attend_pad(const AttendArgs args, const uint row, const uint group) {
    const uint padded = (OUTPUT & 2u) != 0u && group == GROUPS_OF_ROW - 1u ? PADDED : 0u;
    for (uint column = HEADS * DIM + 4u * attend_invocation(); column < padded; column += 4u * gl_WorkGroupSize.x) {
        const uint block = column / 32u;
        const uint groups = PADDED / 128u;
        const uint at = (row * groups + block / 4u) * 64u + column % 32u / 16u * 16u + block % 4u * 4u + column % 16u / 4u;
        Words(args.codes).at[at] = 0u;
        Words(args.codes).at[at + 32u] = 0u;
        if (column % 32u == 0u) Vec2s(args.scales).at[row * groups * 4u + block] = vec2(0.0);
    }
}

// Returns the address of a unit of the row, with FUSED.
uint64_t attend_source(const AttendArgs args, const uint row, const uint group, const uint kv_head, const uint unit) {
    const bool is_query = unit < QUERIES;
    const uint head = is_query ? row * HEADS + group * QUERIES + unit : row * KV_HEADS + kv_head;
    return (is_query ? args.query : (unit == QUERIES ? args.key : args.value)) + 4ul * uint64_t(head * DIM);
}

uint64_t attend_norm(const AttendArgs args, const uint unit) {
    return unit < QUERIES ? args.query_norm : (unit == QUERIES ? args.key_norm : 0ul);
}

// Returns whether a unit is normed.
bool attend_norms(const AttendArgs args, const uint unit) {
    return unit > QUERIES ? VALUE_NORM != 0u : attend_norm(args, unit) != 0ul;
}

// With FUSED: loads what does not depend on the row.
void attend_ask_constants(const AttendArgs args) {
    head_ask_shares(args.rope);
    head_ask_weights(attend_norm(args, gl_SubgroupID));
}

// With FUSED: puts the queries of the group and, if the row's own position is in this share, its key and value into shared
// memory, normed and rotated, the queries also scaled.
void attend_prepare(
    const AttendArgs args,
    const uint row,
    const uint group,
    const uint kv_head,
    const bool owner,
    const float scale
) {
    // All of a row's heads are noted at the norm of its queries; without one at nothing, but some software reads there.
    const uint64_t noted = args.query_norm != 0ul ? args.query_norm : args.frame + 8ul;
    const uint units = owner ? UNITS : QUERIES;
    for (uint unit = gl_SubgroupID; unit < units; unit += SUBGROUPS) {
        const uint64_t source = attend_source(args, row, group, kv_head, unit);
        head_ask(source);
        head_take(args.chain, source);
        if (UNITS > SUBGROUPS) head_ask_weights(attend_norm(args, unit));
        const bool rotates = unit <= QUERIES && args.rope != 0ul;
        const bool norms = attend_norms(args, unit);
        head_prepare(norms, args.query_norm != 0ul, noted, rotates, args.epsilon, unit < QUERIES ? scale : 1.0);
        head_stage(unit);
    }
}

// Returns a slot of a head that is kept in quads.
vec4 attend_pick(const vec4 quad, const uint slot) {
    return SLOT == 4u ? quad : vec4(slot % 2u == 0u ? quad.xy : quad.zw, 0.0, 0.0);
}

// With OWNS, in the share of the row's own position: computes the scores of its key, and its value, both as they would be read
// back from the cache; with `stores` also stores them in the cache. `own` is the number of its block.
void attend_own(const AttendArgs args, const uint own, const uint at, const uint kv_head, const bool stores) {
    const uint64_t part = kv_part(args.cache, own, kv_head);
    if (gl_SubgroupID == QUERIES % SUBGROUPS) {
        float scores[QUERIES];
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) scores[r] = 0.0;
        for (uint quad = gl_SubgroupInvocationID; quad < HEAD_QUADS; quad += SUBGROUP) {
            const vec4 key = head_keep(QUERIES, quad, stores, part, at);
            [[unroll]] for (uint r = 0u; r < QUERIES; ++r) scores[r] += dot(head_quad(r, quad), key);
        }
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
            const float score = subgroupAdd(scores[r]);
            if (gl_SubgroupInvocationID == 0u) attend_own_scores[r] = score;
        }
    }
    if (gl_SubgroupID == (QUERIES + 1u) % SUBGROUPS) {
        for (uint quad = gl_SubgroupInvocationID; quad < HEAD_QUADS; quad += SUBGROUP) {
            attend_own_value[quad] = head_keep(QUERIES + 1u, quad, stores, part + uint64_t(KV_PART_BYTES), at);
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

// Loads the numbers of a sequence's blocks from `first` on, up to `last`.
void attend_hold_blocks(const AttendArgs args, const uvec4 place, const uint first, const uint last) {
    if (HOLDS_BLOCKS) {
        attend_first_held = first;
        attend_held = kv_block(place, args.tables, RING, min(first + gl_SubgroupInvocationID, last));
    }
}

// Returns the address of a position's key.
uint64_t attend_part(const AttendArgs args, const uvec4 place, const uint kv_head, const uint position) {
    const uint index = position / KV_BLOCK;
    uint block;
    if (HOLDS_BLOCKS) {
        block = subgroupShuffle(attend_held, index - attend_first_held);
    } else {
        block = kv_block(place, args.tables, RING, index);
    }
    return kv_part(args.cache, block, kv_head);
}

// Returns the u-th of a team's positions in the step of the workgroup that begins at `base`: neighbours, of one block.
uint attend_position(const uint base, const uint u) {
    return base + attend_team() * UNROLL + u;
}

// Loads the keys of UNROLL positions of a team; in place of those outside of `begin` and `end` the nearest ones inside.
void attend_fetch_keys(
    const AttendArgs args,
    const uvec4 place,
    const uint kv_head,
    const uint base,
    const uint begin,
    const uint end
) {
    const uint last = (end - 1u) / KV_BLOCK;
    if (HOLDS_BLOCKS && (min(base + STRIDE, end) - 1u) / KV_BLOCK >= attend_first_held + SUBGROUP) {
        attend_hold_blocks(args, place, base / KV_BLOCK, last);
    }
    const uint64_t part = attend_part(args, place, kv_head, clamp(attend_position(base, 0u), begin, end - 1u));
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        const uint position = clamp(attend_position(base, u), begin, end - 1u);
        [[unroll]] for (uint c = 0u; c < CHUNKS; ++c) {
            attend_keys[u * CHUNKS + c] = attend_load(part, position % KV_BLOCK, c);
            attend_key_scales[u * CHUNKS + c] = attend_load_scale(part, position % KV_BLOCK, c);
        }
    }
}

// Loads their values, after the keys of the same positions and before those of others.
void attend_fetch_values(
    const AttendArgs args,
    const uvec4 place,
    const uint kv_head,
    const uint base,
    const uint begin,
    const uint end
) {
    const uint64_t keys = attend_part(args, place, kv_head, clamp(attend_position(base, 0u), begin, end - 1u));
    const uint64_t part = keys + uint64_t(KV_PART_BYTES);
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        const uint position = clamp(attend_position(base, u), begin, end - 1u);
        [[unroll]] for (uint c = 0u; c < CHUNKS; ++c) {
            attend_values[u * CHUNKS + c] = attend_load(part, position % KV_BLOCK, c);
            attend_value_scales[u * CHUNKS + c] = attend_load_scale(part, position % KV_BLOCK, c);
        }
    }
}

// Computes the scores of the keys that were loaded.
void attend_score() {
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) attend_scores[u * QUERIES + r] = 0.0;
        [[unroll]] for (uint c = 0u; c < CHUNKS; ++c) {
            // Elements of a load share a scale.
            float dots[QUERIES];
            [[unroll]] for (uint r = 0u; r < QUERIES; ++r) dots[r] = 0.0;
            [[unroll]] for (uint q = 0u; q < QUADS; ++q) {
                const vec4 key = attend_unpack(attend_keys[u * CHUNKS + c], q);
                [[unroll]] for (uint r = 0u; r < QUERIES; ++r) dots[r] += dot(attend_query[r * HELD + c * QUADS + q], key);
            }
            [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
                attend_scores[u * QUERIES + r] += dots[r] * attend_key_scales[u * CHUNKS + c];
            }
        }
    }
    [[unroll]] for (uint step = 1u; step < LANES; step *= 2u) {
        [[unroll]] for (uint i = 0u; i < UNROLL * QUERIES; ++i) attend_scores[i] += subgroupShuffleXor(attend_scores[i], step);
    }
}

// Turns the scores into weights; those of positions that the row does not see are 0.
void attend_weigh(const uint base, const uint begin, const uint end) {
    bool seen[UNROLL];
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        const uint position = attend_position(base, u);
        seen[u] = position >= begin && position < end;
    }
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        float high = attend_high[r];
        [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
            if (seen[u]) high = max(high, attend_scores[u * QUERIES + r]);
        }
        const float kept = exp2(attend_high[r] - high);
        attend_high[r] = high;
        attend_total[r] *= kept;
        [[unroll]] for (uint i = 0u; i < HELD; ++i) attend_sum[r * HELD + i] *= kept;
        [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
            const float weight = seen[u] ? exp2(attend_scores[u * QUERIES + r] - high) : 0.0;
            attend_scores[u * QUERIES + r] = weight;
            attend_total[r] += weight;
        }
    }
}

// Adds the values that were loaded.
void attend_add() {
    [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
        [[unroll]] for (uint c = 0u; c < CHUNKS; ++c) {
            float weights[QUERIES];
            [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
                weights[r] = attend_scores[u * QUERIES + r] * attend_value_scales[u * CHUNKS + c];
            }
            [[unroll]] for (uint q = 0u; q < QUADS; ++q) {
                const vec4 value = attend_unpack(attend_values[u * CHUNKS + c], q);
                [[unroll]] for (uint r = 0u; r < QUERIES; ++r) attend_sum[r * HELD + c * QUADS + q] += weights[r] * value;
            }
        }
    }
}

// Adds up the sums of a subgroup's teams. Each team then has HELD / SPREAD of its HELD slots, from the returned one on; teams
// from SPREAD on have the same slots as others.
uint attend_join_teams() {
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        float high = attend_high[r];
        [[unroll]] for (uint step = LANES; step < SUBGROUP; step *= 2u) high = max(high, subgroupShuffleXor(high, step));
        const float share = exp2(attend_high[r] - high);
        attend_high[r] = high;
        attend_total[r] *= share;
        [[unroll]] for (uint i = 0u; i < HELD; ++i) attend_sum[r * HELD + i] *= share;
    }
    uint offset = 0u;
    [[unroll]] for (uint step = LANES; step < SUBGROUP; step *= 2u) {
        const bool halves = step / LANES < SPREAD;
        const uint before = HELD / (halves ? step / LANES : SPREAD);
        const bool upper = (gl_SubgroupInvocationID & step) != 0u;
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
            attend_total[r] += subgroupShuffleXor(attend_total[r], step);
            if (halves) {
                // Each passes on the half that it does not keep.
                [[unroll]] for (uint i = 0u; i < before / 2u; ++i) {
                    const vec4 low = attend_sum[r * HELD + i];
                    const vec4 rest = attend_sum[r * HELD + before / 2u + i];
                    attend_sum[r * HELD + i] = (upper ? rest : low) + subgroupShuffleXor(upper ? low : rest, step);
                }
            } else {
                [[unroll]] for (uint i = 0u; i < before; ++i) {
                    attend_sum[r * HELD + i] += subgroupShuffleXor(attend_sum[r * HELD + i], step);
                }
            }
        }
        if (halves && upper) offset += before / 2u;
    }
    return offset;
}

// Adds `count` results in shared memory to the given ones, with marks from `mark` on and sums from `from` on, SLOTS * `apart`
// between them.
void attend_gather(const uint mark, const uint from, const uint apart, const uint count, inout vec2 marks, inout vec4 sum) {
    float high = marks.x;
    for (uint i = 0u; i < count; i += READ) {
        [[unroll]] for (uint k = 0u; k < READ; ++k) {
            if (i + k < count) high = max(high, attend_marks[mark + i + k].x);
        }
    }
    float share = exp2(marks.x - high);
    float total = marks.y * share;
    sum *= share;
    for (uint i = 0u; i < count; i += READ) {
        [[unroll]] for (uint k = 0u; k < READ; ++k) {
            if (i + k >= count) continue;
            share = exp2(attend_marks[mark + i + k].x - high);
            total += attend_marks[mark + i + k].y * share;
            sum += attend_sums[from + (i + k) * apart] * share;
        }
    }
    marks = vec2(high, total);
}

// Merges the teams' sums, including the row's own position if `owner`, and emits them if `alone`; otherwise writes them as the
// part `part`.
void attend_merge(
    const AttendArgs args,
    const uint row,
    const uint group,
    const bool owner,
    const bool alone,
    const uint64_t part
) {
    const uint offset = attend_join_teams();
    if (gl_SubgroupInvocationID == 0u) {
        [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
            attend_marks[r * SUBGROUPS + gl_SubgroupID] = vec2(attend_high[r], attend_total[r]);
        }
    }
    for (uint begin = 0u; begin < QUERIES; begin += MERGED) {
        if (begin > 0u) barrier();
        if (gl_SubgroupInvocationID < LANES * SPREAD) {
            [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
                if (r / MERGED * MERGED != begin) continue;
                [[unroll]] for (uint i = 0u; i < HELD / SPREAD; ++i) {
                    const uint place = (gl_SubgroupID * MERGED + r % MERGED) * SLOTS + attend_slot(offset + i);
                    attend_sums[place] = attend_sum[r * HELD + i];
                }
            }
        }
        barrier();
        for (uint at = attend_invocation(); at < MERGED * SLOTS; at += gl_WorkGroupSize.x) {
            const uint r = begin + at / SLOTS;
            const uint slot = at % SLOTS;
            vec2 marks = vec2(LOWEST, 0.0);
            vec4 sum = vec4(0.0);
            if (OWNS && owner) {
                marks = vec2(attend_own_scores[r], 1.0);
                sum = attend_pick(attend_own_value[slot * SLOT / 4u], slot);
            }
            attend_gather(r * SUBGROUPS, at, MERGED * SLOTS, SUBGROUPS, marks, sum);
            if (alone) {
                attend_emit(args, row, group * QUERIES + r, slot, sum / marks.y);
            } else {
                AttendParts(part).at[r * PART + 1u + slot] = sum;
                if (slot == 0u) AttendParts(part).at[r * PART] = vec4(marks, 0.0, 0.0);
                // What this invocation wrote has to be visible before its workgroup counts as done.
                memoryBarrierBuffer();
            }
        }
    }
}

// Merges the shares of a row and group: ABREAST of them at a time, then the results of those.
void attend_finish(const AttendArgs args, const uint row, const uint group, const uint shares, const uint64_t parts) {
    for (uint item = attend_invocation(); item < ABREAST * WIDE; item += gl_WorkGroupSize.x) {
        const uint r = item % WIDE / SLOTS;
        const uint slot = item % SLOTS;
        vec2 marks = vec2(LOWEST, 0.0);
        vec4 sum = vec4(0.0);
        for (uint first = item / WIDE; first < shares; first += TOGETHER * ABREAST) {
            vec2 found[TOGETHER];
            vec4 sums[TOGETHER];
            [[unroll]] for (uint k = 0u; k < TOGETHER; ++k) {
                const uint from = (min(first + k * ABREAST, shares - 1u) * QUERIES + r) * PART;
                found[k] = AttendParts(parts).at[from].xy;
                sums[k] = AttendParts(parts).at[from + 1u + slot];
            }
            [[unroll]] for (uint k = 0u; k < TOGETHER; ++k) {
                if (first + k * ABREAST >= shares) continue;
                const float high = max(marks.x, found[k].x);
                const vec2 kept = exp2(vec2(marks.x, found[k].x) - high);
                marks = vec2(high, marks.y * kept.x + found[k].y * kept.y);
                sum = sum * kept.x + sums[k] * kept.y;
            }
        }
        if (ABREAST == 1u) {
            attend_emit(args, row, group * QUERIES + r, slot, sum / marks.y);
        } else {
            attend_sums[item] = sum;
            if (slot == 0u) attend_marks[r * ABREAST + item / WIDE] = marks;
        }
    }
    if (ABREAST > 1u) {
        barrier();
        const uint at = attend_invocation();
        if (at < WIDE) {
            const uint r = at / SLOTS;
            vec2 marks = vec2(LOWEST, 0.0);
            vec4 sum = vec4(0.0);
            attend_gather(r * ABREAST, at, WIDE, ABREAST, marks, sum);
            attend_emit(args, row, group * QUERIES + r, at % SLOTS, sum / marks.y);
        }
    }
    attend_pad(args, row, group);
}

// Loads the queries, without FUSED.
void attend_ask_queries(const AttendArgs args, const uint row, const uint group) {
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const uint at = ((row * HEADS + group * QUERIES + r) * DIM) / SLOT + attend_slot(i);
            vec4 values;
            if (SLOT == 4u) values = ActiveVec4s(args.query).at[at];
            else values = vec4(ActiveVec2s(args.query).at[at], 0.0, 0.0);
            attend_query[r * HELD + i] = values;
        }
    }
}

// Distributes the queries in shared memory to the lanes that need them.
void attend_take_queries() {
    [[unroll]] for (uint r = 0u; r < QUERIES; ++r) {
        [[unroll]] for (uint i = 0u; i < HELD; ++i) {
            const uint slot = attend_slot(i);
            attend_query[r * HELD + i] = attend_pick(head_values[r * HEAD_QUADS + slot * SLOT / 4u], slot);
        }
    }
}

// Returns the first position that a row no longer sees. With OWNS each row is the only one of its sequence: there is nothing
// ahead that it could see.
uint attend_end(const uvec4 place) {
    return OWNS ? place.y + 1u : kv_end(place, AHEAD);
}

// Processes one share of a row's positions: `size` blocks, of the `split`-th share.
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
    const uint first = kv_first(position, WINDOW);
    const uint begin_block = first / KV_BLOCK + split * size;
    const uint begin = max(first, begin_block * KV_BLOCK);
    const bool owner = OWNS && split == shares - 1u;
    // The row's own position is not in the cache yet.
    const uint end = owner ? position : min(attend_end(place), (begin_block + size) * KV_BLOCK);
    // Neighbours of a team are in one block.
    const uint from = begin / UNROLL * UNROLL;
    const uint kv_head = group * QUERIES / (HEADS / KV_HEADS);
    const float scale = args.scale * 1.4426950408889634;

    uint own = 0u;
    if (owner) own = kv_block(place, args.tables, RING, position / KV_BLOCK);
    if (begin < end) attend_hold_blocks(args, place, begin / KV_BLOCK, (end - 1u) / KV_BLOCK);
    // What is in the cache was stored by other steps or by earlier layers, unless the launch before has stored this step's rows.
    if (FUSED != 0u && begin < end) {
        attend_fetch_keys(args, place, kv_head, from, begin, end);
        attend_fetch_values(args, place, kv_head, from, begin, end);
    }
    if (FUSED != 0u && args.rope != 0ul) head_turn(position);
    // What the dispatch before leaves is read after this, and not before.
    handed_wait(args.chain);
    if (FUSED != 0u) {
        attend_prepare(args, row, group, kv_head, owner, scale);
        barrier();
        // Several groups of queries may share the key head; one of them stores it.
        if (owner) attend_own(args, own, position % KV_BLOCK, kv_head, group * QUERIES % (HEADS / KV_HEADS) == 0u);
        attend_take_queries();
    } else {
        attend_ask_queries(args, row, group);
        if (begin < end) {
            attend_fetch_keys(args, place, kv_head, from, begin, end);
            attend_fetch_values(args, place, kv_head, from, begin, end);
        }
        [[unroll]] for (uint i = 0u; i < QUERIES * HELD; ++i) attend_query[i] *= scale;
    }

    attend_begin();
    for (uint base = from; base < end; base += STRIDE) {
        const bool more = base + STRIDE < end;
        attend_score();
        if (more) attend_fetch_keys(args, place, kv_head, base + STRIDE, begin, end);
        attend_weigh(base, begin, end);
        attend_add();
        if (more) attend_fetch_values(args, place, kv_head, base + STRIDE, begin, end);
    }

    const uint group_of_all = row * GROUPS_OF_ROW + group;
    const uint64_t part_bytes = uint64_t(16u * QUERIES * PART);
    const uint64_t parts = args.parts + uint64_t(group_of_all * SPLITS) * part_bytes;
    attend_merge(args, row, group, owner, shares == 1u, parts + uint64_t(split) * part_bytes);
    if (shares == 1u) {
        attend_pad(args, row, group);
    } else {
        // Each invocation's writes come before the count, and what the last one reads comes after it. This is not expressed in
        // the terms of the Vulkan memory model: with it every access of shared memory would carry a barrier, which Mesa 22.3's
        // software driver treats as one of the whole workgroup, even in branches.
        barrier();
        if (attend_invocation() == 0u) attend_turn = atomicAdd(AttendCounters(args.counters).at[group_of_all], 1u);
        barrier();
        if (attend_turn == shares - 1u) {
            // The next launch of attention may count once it has seen all values of this one. Invocation 0 writes some of them, after
            // this fence.
            if (attend_invocation() == 0u) AttendCounters(args.counters).at[group_of_all] = 0u;
            memoryBarrierBuffer();
            attend_finish(args, row, group, shares, parts);
        }
    }
}

void attend_share(const AttendArgs args, const uvec4 place, const uint row, const uint group, const uint split) {
    const uint position = place.y;
    const uint first_block = kv_first(position, WINDOW) / KV_BLOCK;
    const uint blocks = (attend_end(place) - 1u) / KV_BLOCK + 1u - first_block;
    // Few blocks take less time than merging shares does.
    const uint size = blocks <= ALONE ? blocks : max((blocks + SPLITS - 1u) / SPLITS, LEAST);
    const uint shares = (blocks + size - 1u) / size;
    // Every workgroup can compute how many have work, so those without work need not be counted.
    if (split < shares) attend_work(args, place, row, group, split, size, shares);
}

// Computes attention of the step's rows. `group` is the number of this workgroup, `groups` how many there are: no more than the
// work of the rows that there is room for.
void attend(const AttendArgs args, const uint group, const uint groups) {
    const uint items_of_row = GROUPS_OF_ROW * SPLITS;
    if (FUSED != 0u) attend_ask_constants(args);
    // The first row is loaded at the same time as the number of rows.
    uvec4 place = kv_row(args.frame, PICKS, group / items_of_row);
    const uint items = kv_rows(args.frame, PICKS) * items_of_row;
    for (uint item = group; item < items;) {
        attend_share(args, place, item / items_of_row, item / SPLITS % GROUPS_OF_ROW, item % SPLITS);
        item += groups;
        if (item < items) place = kv_row(args.frame, PICKS, item / items_of_row);
        // The preparation of the next share overwrites what invocations may still be reading for this one.
        barrier();
    }
}
