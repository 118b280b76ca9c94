#version 460
// Attention of many rows with large heads on matrix units with the layout that crates/vulkan/src/kernels/matmul/probe.rs describes,
// over a cache in f16. A workgroup takes BANDS times 16 * LEFTS vectors: neighbouring rows of one sequence, times QUERIES query heads
// that share a key head. It goes through the keys in steps of KEYS. Of each band PARTS subgroups share the work: of the scores each
// computes those of its part of the step's keys, of the result each adds up its part of the columns. Weights pass through shared
// memory from the ones to the others, as left factors. So no score is computed twice, a subgroup loads a part of the keys and of the
// values only, and each of its loads serves 16 * LEFTS vectors.
//
// Keys and values go from the cache into the registers of the matrix units, as in attend_direct.comp: lane 4 r + c loads eight
// elements of key r, from 32 p + 8 c on, for two products of 16 elements, and queries lie alike; of values it loads eight elements from
// 64 g + 8 r on of keys 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, which are its share of eight right factors: column n of factor t is element
// 64 g + 8 n + t.
//
// Queries are scaled by powers of two, separately for each vector. Weights are counted in units of 2^-14, so that those that
// matter are normal numbers.
//
// Bound: 4 * DIM operations for each vector and key at the rate of the matrix units; 4 * DIM bytes of each key and value from L2 for
// the vectors of a workgroup; from the core's caches those, for those of a band, and the queries of a band once more for each part
// and step.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 128;
// A multiple of 64 * PARTS.
layout(constant_id = 1) const uint DIM = 256;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
// A power of two up to 16.
layout(constant_id = 4) const uint QUERIES = 1;
// 0: f32, 1: an operand in halves, 2: in halves in fragment order; HEADS * DIM is then a multiple of 128.
layout(constant_id = 5) const uint HALVES = 0;
// Left factors of a band.
layout(constant_id = 6) const uint LEFTS = 2;
// Subgroups of a band: 1, 2 or 4.
layout(constant_id = 7) const uint PARTS = 4;
// Keys of a step: a multiple of KV_BLOCK and of 16 * PARTS.
layout(constant_id = 8) const uint KEYS = 64;
// Pieces of keys that are loaded before their turn: 0, 1 or 3; groups of values: 0 or 1.
layout(constant_id = 9) const uint KEYS_AHEAD = 1;
layout(constant_id = 10) const uint VALUES_AHEAD = 1;
// Workgroups that share a tile of rows.
layout(constant_id = 11) const uint PIECES_OF_TILE = 1;

const uint KV = 1u;
#include "include/kv.glsl"
#include "include/operand.glsl"
#include "include/halves.glsl"
#include "include/factors.glsl"

layout(push_constant, scalar) uniform Push {
    uint64_t frame;
    uint64_t tables;
    uint64_t tiles;
    uint64_t cache;
    // (rows, HEADS, DIM) f32.
    uint64_t query;
    // (rows, HEADS, DIM) f32, or the operand's codes.
    uint64_t target;
    uint ring;
    uint window;
    float scale;
    // See kv_end.
    uint ahead;
    // The operand's scales.
    uint64_t scales;
} push;

#include "include/attend_store.glsl"

const uint LANES = 32u;
const uint SUBGROUPS = LOCAL / LANES;
const uint BANDS = SUBGROUPS / PARTS;
const uint VECTORS = 16u * LEFTS * BANDS;
const uint ROWS = VECTORS / QUERIES;
// Pieces of 32 elements of a query or key: two products of 16.
const uint PIECES = DIM / 32u;
const uint QUADS = DIM / 8u;
// Groups of 64 columns of a part: eight right factors.
const uint GROUPS = DIM / PARTS / 64u;
const uint SUMS = 8u * GROUPS;
// Keys of a part of a step, as right factors of 8 keys.
const uint OWN = KEYS / PARTS;
const uint FACTORS = OWN / 8u;
const uint SIXTEENS = KEYS / 16u;
// Blocks of the cache of a step.
const uint BLOCKS = KEYS / KV_BLOCK;
const uint UNITS = SIXTEENS * GROUPS;
const float LOWEST = -3.0e38;

// Left factors: of queries those of each 16 elements, of weights those of each 16 keys.
shared uvec4 queries[BANDS * LEFTS * 2u * PIECES * LANES];
shared uvec4 weights[BANDS * LEFTS * SIXTEENS * LANES];
// Of each vector: first and last key that it sees, and what a score counts in powers of two.
shared uvec4 about[VECTORS];
// Highest scores of a step, of each part; at the end sums of weights.
shared vec4 marks[VECTORS];

// A step: its first position, and the cache's blocks, of which there are up to four.
struct Step {
    uint base;
    uvec4 blocks;
};

uvec4 keys[(KEYS_AHEAD + 1u) * FACTORS];
uvec4 values[(VALUES_AHEAD + 1u) * 4u];
Sum scores[LEFTS * FACTORS];
Sum sums[LEFTS * SUMS];
vec2 high[LEFTS];
vec2 totals[LEFTS];
uint lane;
uint band;
uint part;
uint kv_head;
uint end;
uvec4 place;

uint halves(const float a, const float b) {
    return packFloat2x16(f16vec2(a, b));
}

uvec4 eight_of(const uint from, const float factor) {
    const vec4 a = Vec4s(push.query).at[from] * factor;
    const vec4 b = Vec4s(push.query).at[from + 1u] * factor;
    return uvec4(halves(a.x, a.y), halves(a.z, a.w), halves(b.x, b.y), halves(b.z, b.w));
}

// Returns the exponent of the factor of a query whose elements from 4 * from + 8 c on the lane holds.
int query_exponent(const uint from) {
    float most = 0.0;
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        most = max(most, operand_magnitude(Vec4s(push.query).at[from + 8u * p]));
        most = max(most, operand_magnitude(Vec4s(push.query).at[from + 8u * p + 1u]));
    }
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    return most < OPERAND_INFINITE ? operand_exponent(most) : 0;
}

// Loads 16 queries as left factors, and what is known of their vectors. Those without a row repeat the last one and write nothing.
void load_queries(const uint left, const uint first_row, const uint rows, const uint first_head) {
    uvec2 from;
    ivec2 exponents;
    [[unroll]] for (uint lower = 0u; lower < 2u; ++lower) {
        const uint vector = 16u * left + 8u * lower + lane / 4u;
        const uint own_row = min(vector / QUERIES, rows - 1u);
        const uint row = first_row + own_row;
        from[lower] = (row * HEADS + first_head + vector % QUERIES) * (DIM / 4u) + lane % 4u * 2u;
        exponents[lower] = query_exponent(from[lower]);
        const float factor = operand_power(exponents[lower]) * push.scale * 1.4426950408889634;
        const uint last = kv_end(kv_row(push.frame, row), push.ahead) - 1u;
        if (lane % 4u == 0u) {
            about[vector] = uvec4(kv_first(place.y + own_row, push.window), last, floatBitsToUint(factor), 0u);
        }
    }
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        const uvec4 upper = eight_of(from.x + 8u * p, operand_power(-exponents.x));
        const uvec4 lower = eight_of(from.y + 8u * p, operand_power(-exponents.y));
        const uint at = (left * 2u * PIECES + 2u * p) * LANES + lane;
        queries[at] = uvec4(upper.x, lower.x, upper.y, lower.y);
        queries[at + LANES] = uvec4(upper.z, lower.z, upper.w, lower.w);
    }
}

// Returns a left factor that lies in the order of the registers.
Left left_in_order(const uvec4 all) {
    return left_of(all.xz, all.yw);
}

Step step_of(const uint base) {
    Step found;
    found.base = base;
    found.blocks = uvec4(0u);
    [[unroll]] for (uint i = 0u; i < BLOCKS; ++i) {
        const uint index = min(base / KV_BLOCK + i, (end - 1u) / KV_BLOCK);
        found.blocks[i] = kv_block(place, push.tables, push.ring, index);
    }
    return found;
}

// Returns where the keys of the lane's first right factor begin.
uint64_t keys_of(const Step at) {
    uint block = at.blocks[0];
    [[unroll]] for (uint i = 1u; i < BLOCKS; ++i) block = part * OWN / KV_BLOCK == i ? at.blocks[i] : block;
    const uint key = part * OWN % KV_BLOCK + lane / 4u;
    return kv_part(push.cache, block, kv_head) + uint64_t((key * QUADS + lane % 4u) * 16u);
}

// Loads a piece of the keys, which may be any memory beyond the last one: nobody counts their scores.
void load_keys(const uint64_t from, const uint piece, const uint slot) {
    [[unroll]] for (uint j = 0u; j < FACTORS; ++j) keys[slot * FACTORS + j] = Quads(from).at[8u * j * QUADS + 4u * piece];
}

// Computes the scores of the subgroup's keys of a step.
void multiply_keys(const uint64_t from, const uint64_t next) {
    [[unroll]] for (uint j = 0u; j < LEFTS * FACTORS; ++j) scores[j] = Sum(0.0);
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        const uint fetched = p + KEYS_AHEAD;
        load_keys(fetched < PIECES ? from : next, fetched % PIECES, fetched % (KEYS_AHEAD + 1u));
        const uint slot = p % (KEYS_AHEAD + 1u) * FACTORS;
        [[unroll]] for (uint later = 0u; later < 2u; ++later) {
            Left lefts[LEFTS];
            [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
                lefts[left] = left_in_order(queries[((band * LEFTS + left) * 2u * PIECES + 2u * p + later) * LANES + lane]);
            }
            [[unroll]] for (uint j = 0u; j < FACTORS; ++j) {
                const uvec4 all = keys[slot + j];
                const Right right = later == 0u ? right_of(all.x, all.y) : right_of(all.z, all.w);
                [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
                    scores[left * FACTORS + j] = coopMatMulAdd(lefts[left], right, scores[left * FACTORS + j]);
                }
            }
        }
    }
}

// Loads what a unit takes of values: 64 columns of 16 keys. Keys beyond the last one repeat it: their weights are 0, which
// anything else may not be multiplied by.
void load_values(const Step at, const uint unit, const uint slot) {
    const uint sixteen = unit / GROUPS;
    const uint block = at.blocks[sixteen / 2u];
    const uint64_t from = kv_part(push.cache, block, kv_head) + uint64_t(KV_PART_BYTES);
    const uint begin = min(at.base / KV_BLOCK + sixteen / 2u, (end - 1u) / KV_BLOCK) * KV_BLOCK;
    const uint most = min(KV_BLOCK, end - begin) - 1u;
    const uint quad = 8u * (GROUPS * part + unit % GROUPS) + lane / 4u;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const uint key = 16u * (sixteen % 2u) + lane % 4u * 2u + i % 2u + i / 2u * 8u;
        values[slot * 4u + i] = Quads(from).at[min(key, most) * QUADS + quad];
    }
}

// Returns half `t` of two vectors of eight halves, those of `a` first.
uint pair_of(const uvec4 a, const uvec4 b, const uint t) {
    const uint x = t / 2u == 0u ? a.x : t / 2u == 1u ? a.y : t / 2u == 2u ? a.z : a.w;
    const uint y = t / 2u == 0u ? b.x : t / 2u == 1u ? b.y : t / 2u == 2u ? b.z : b.w;
    return t % 2u == 0u ? x & 0xFFFFu | y << 16 : x >> 16 | y & 0xFFFF0000u;
}

// Adds the values of a step times its weights to the sums. `next`: the step whose values come then.
void multiply_values(const Step at, const Step next) {
    [[unroll]] for (uint sixteen = 0u; sixteen < SIXTEENS; ++sixteen) {
        Left lefts[LEFTS];
        [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
            lefts[left] = left_in_order(weights[((band * LEFTS + left) * SIXTEENS + sixteen) * LANES + lane]);
        }
        [[unroll]] for (uint g = 0u; g < GROUPS; ++g) {
            const uint fetched = sixteen * GROUPS + g + VALUES_AHEAD;
            const uint into = fetched % (VALUES_AHEAD + 1u);
            if (fetched < UNITS) {
                load_values(at, fetched, into);
            } else {
                load_values(next, 0u, into);
            }
            const uint slot = (sixteen * GROUPS + g) % (VALUES_AHEAD + 1u) * 4u;
            [[unroll]] for (uint t = 0u; t < 8u; ++t) {
                const uint near = pair_of(values[slot], values[slot + 1u], t);
                const Right right = right_of(near, pair_of(values[slot + 2u], values[slot + 3u], t));
                [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
                    const uint sum = left * SUMS + 8u * g + t;
                    sums[sum] = coopMatMulAdd(lefts[left], right, sums[sum]);
                }
            }
        }
    }
}

// Multiplies the sums by the factors of rows r and r + 8 of each left factor.
void scale_sums(const vec2 by[LEFTS]) {
    [[unroll]] for (uint i = 0u; i < LEFTS * SUMS; ++i) {
        sums[i][0] *= by[i / SUMS].x;
        sums[i][1] *= by[i / SUMS].x;
        sums[i][2] *= by[i / SUMS].y;
        sums[i][3] *= by[i / SUMS].y;
    }
}

// Brings the subgroup's scores into powers of two, and marks the highest ones. `is_all`: whether all vectors see all keys of the step.
void mark_scores(const uint base, const bool is_all) {
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        const uint vector = (band * LEFTS + left) * 16u + lane / 4u;
        const uvec4 upper = about[vector];
        const uvec4 lower = about[vector + 8u];
        [[unroll]] for (uint i = 0u; i < 4u * FACTORS; ++i) {
            scores[left * FACTORS + i / 4u][i % 4u] *= uintBitsToFloat(i % 4u < 2u ? upper.z : lower.z);
        }
        if (!is_all) {
            [[unroll]] for (uint i = 0u; i < 4u * FACTORS; ++i) {
                const uint key = base + part * OWN + i / 4u * 8u + lane % 4u * 2u + i % 2u;
                const uvec2 seen = i % 4u < 2u ? upper.xy : lower.xy;
                if (key < seen.x || key > seen.y) scores[left * FACTORS + i / 4u][i % 4u] = LOWEST;
            }
        }
        vec2 most = vec2(LOWEST);
        [[unroll]] for (uint i = 0u; i < 4u * FACTORS; ++i) {
            most[i % 4u / 2u] = max(most[i % 4u / 2u], scores[left * FACTORS + i / 4u][i % 4u]);
        }
        most = max(most, subgroupShuffleXor(most, 1u));
        most = max(most, subgroupShuffleXor(most, 2u));
        if (lane % 4u == 0u) {
            marks[vector][part] = most.x;
            marks[vector + 8u][part] = most.y;
        }
    }
}

float highest_of(const vec4 mark) {
    const float two = PARTS > 1u ? max(mark.x, mark.y) : mark.x;
    return PARTS > 2u ? max(two, max(mark.z, mark.w)) : two;
}

float total_of(const vec4 mark) {
    const float two = PARTS > 1u ? mark.x + mark.y : mark.x;
    return PARTS > 2u ? two + (mark.z + mark.w) : two;
}

// Makes weights of the subgroup's scores, from the marks of all parts. Returns the factors of what was summed before.
void make_weights(out vec2 kept[LEFTS]) {
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        const uint vector = (band * LEFTS + left) * 16u + lane / 4u;
        const vec2 highest = max(high[left], vec2(highest_of(marks[vector]), highest_of(marks[vector + 8u])));
        kept[left] = exp2(high[left] - highest);
        high[left] = highest;
        // A row that sees none of the keys so far has the same highest score as they have: its weights are 0 too.
        const vec2 zero = vec2(highest.x > LOWEST ? highest.x - 14.0 : 0.0, highest.y > LOWEST ? highest.y - 14.0 : 0.0);
        vec2 total = vec2(0.0);
        [[unroll]] for (uint s = 0u; s < FACTORS / 2u; ++s) {
            uvec4 all;
            [[unroll]] for (uint j = 0u; j < 2u; ++j) {
                const uint i = left * FACTORS + 2u * s + j;
                const f16vec2 upper = f16vec2(exp2(vec2(scores[i][0], scores[i][1]) - zero.x));
                const f16vec2 lower = f16vec2(exp2(vec2(scores[i][2], scores[i][3]) - zero.y));
                total += vec2(float(upper.x) + float(upper.y), float(lower.x) + float(lower.y));
                all[2u * j] = packFloat2x16(upper);
                all[2u * j + 1u] = packFloat2x16(lower);
            }
            weights[((band * LEFTS + left) * SIXTEENS + part * (FACTORS / 2u) + s) * LANES + lane] = all;
        }
        totals[left] = totals[left] * kept[left] + total;
    }
}

// Stores a vector's columns of the subgroup's part. `unit`: what a sum counts.
void store_vector(const uint left, const uint lower, const uint row, const uint head, const float unit) {
    // Sixteen elements that follow one another are those of two columns of eight factors.
    [[unroll]] for (uint g = 0u; g < GROUPS; ++g) {
        float low[8];
        float far[8];
        [[unroll]] for (uint t = 0u; t < 8u; ++t) {
            low[t] = sums[left * SUMS + 8u * g + t][2u * lower] * unit;
            far[t] = sums[left * SUMS + 8u * g + t][2u * lower + 1u] * unit;
        }
        store(row, head * DIM + 64u * (GROUPS * part + g) + 16u * (lane % 4u), low, far);
    }
    if (HALVES != 0u && head == 0u && part == 0u && lane % 4u == 0u) Floats(push.scales).at[row] = 1.0;
}

void main() {
    lane = gl_SubgroupInvocationID;
    const uint tiles = Words(push.frame).at[2];
    const uint number = gl_WorkGroupID.y / PIECES_OF_TILE;
    if (number >= tiles) return;
    // The last tiles of a prompt see most keys: they start first.
    const uvec4 tile = Quads(push.tiles).at[tiles - 1u - number];
    const uint begin_row = gl_WorkGroupID.y % PIECES_OF_TILE * ROWS;
    if (begin_row >= tile.y) return;
    const uint rows = min(ROWS, tile.y - begin_row);
    const uint first_head = gl_WorkGroupID.x * QUERIES;
    kv_head = first_head / (HEADS / KV_HEADS);
    const uint first_row = tile.x + begin_row;
    place = kv_row(push.frame, first_row);
    band = gl_SubgroupID / PARTS;
    part = gl_SubgroupID % PARTS;

    // No row sees less far than the one before.
    const uint from = kv_first(place.y, push.window);
    end = kv_end(kv_row(push.frame, first_row + rows - 1u), push.ahead);
    // Keys that all of the vectors see need no comparisons.
    const uint all_from = kv_first(place.y + rows - 1u, push.window);
    const uint all_end = kv_end(place, push.ahead);

    [[dont_unroll]] for (uint left = gl_SubgroupID; left < BANDS * LEFTS; left += SUBGROUPS) {
        load_queries(left, first_row, rows, first_head);
    }
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        high[left] = vec2(LOWEST);
        totals[left] = vec2(0.0);
    }
    [[unroll]] for (uint i = 0u; i < LEFTS * SUMS; ++i) sums[i] = Sum(0.0);

    Step here = step_of(from / KV_BLOCK * KV_BLOCK);
    uint64_t own_keys = keys_of(here);
    [[unroll]] for (uint p = 0u; p < KEYS_AHEAD; ++p) load_keys(own_keys, p, p);
    if (VALUES_AHEAD > 0u) load_values(here, 0u, 0u);
    barrier();
    [[dont_unroll]] for (uint base = here.base; base < end; base += KEYS) {
        const Step after = step_of(base + KEYS);
        const uint64_t next_keys = keys_of(after);
        multiply_keys(own_keys, next_keys);
        mark_scores(base, base >= all_from && base + KEYS <= all_end);
        barrier();
        vec2 kept[LEFTS];
        make_weights(kept);
        scale_sums(kept);
        barrier();
        multiply_values(here, after);
        here = after;
        own_keys = next_keys;
    }
    barrier();
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        vec2 total = totals[left];
        total += subgroupShuffleXor(total, 1u);
        total += subgroupShuffleXor(total, 2u);
        const uint vector = (band * LEFTS + left) * 16u + lane / 4u;
        if (lane % 4u == 0u) {
            marks[vector][part] = total.x;
            marks[vector + 8u][part] = total.y;
        }
    }
    barrier();
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        [[unroll]] for (uint lower = 0u; lower < 2u; ++lower) {
            const uint vector = (band * LEFTS + left) * 16u + lane / 4u + 8u * lower;
            if (vector / QUERIES >= rows) continue;
            const float unit = 1.0 / total_of(marks[vector]);
            store_vector(left, lower, first_row + vector / QUERIES, first_head + vector % QUERIES, unit);
        }
    }
}
