#version 460
// Attention of rows that all see one another, those of a picture, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes. Each subgroup takes LEFTS times 16 neighbouring rows of a head.
//
// Keys and values lie in the order in which lanes take right factors (crates/vulkan/src/kernels/attention/whole.rs draws it), so
// that they go from memory into registers, 512 bytes in a row for each load, without shared memory and barriers; the subgroups of
// a workgroup find in the cache of their core what one of them loaded. Scores stay in registers: what a lane holds of a sum is what
// it has to hold of a left factor. Keys are loaded while the values of the block before are multiplied.
//
// Queries are scaled by powers of two, separately for each row. Weights are counted in units of 2^-14, so that those that matter
// are normal numbers; their sums are products, too, with a right factor of ones.
//
// Bound: 4 * DIM operations for each row and key at the rate of the matrix units, of which heads that end with half a product
// waste some; each key and value is read from the core's cache for 16 * LEFTS rows, 4 * DIM bytes.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#include "include/memory.glsl"
#include "include/halves.glsl"
#include "include/factors.glsl"
#include "include/operand.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer ReadQuads { uvec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer ReadVec4s { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { uint16_t at[]; };

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 128;
// A multiple of 8.
layout(constant_id = 1) const uint DIM = 72;
// HEADS * DIM is a multiple of 128.
layout(constant_id = 2) const uint HEADS = 16;

layout(push_constant, scalar) uniform Push {
    // The number of rows.
    uint64_t rows;
    // (rows, HEADS, DIM) f32.
    uint64_t query;
    uint64_t keys;
    uint64_t values;
    // An operand in fragment order.
    uint64_t codes;
    uint64_t scales;
    float scale;
    // Tiles of 16 keys that there is memory for.
    uint tiles;
} push;

const uint LANES = 32u;
const uint SUBGROUPS = LOCAL / LANES;
const uint LEFTS = 2u;
const uint ROWS = 16u * LEFTS;
// A block of keys: tiles of 16.
const uint TILES = 2u;
const uint BLOCK = 16u * TILES;
// Products of 16 elements of a key, and right factors of 8 elements of a value, of which a vector holds two.
const uint PRODUCTS = (DIM + 15u) / 16u;
const uint FACTORS = DIM / 8u;
const uint PAIRS = (FACTORS + 1u) / 2u;
const float LOWEST = -3.0e38;

uvec2 upper_query[LEFTS * PRODUCTS];
uvec2 lower_query[LEFTS * PRODUCTS];
// Those of the next block.
uvec4 keys[TILES * PRODUCTS];
Sum scores[LEFTS * 2u * TILES];
Sum sums[LEFTS * FACTORS];
// Sums of weights: of row r in element 0, of row r + 8 in element 2. The others are not kept up.
Sum totals[LEFTS];
// Of rows r and r + 8 of each left factor: what a score counts in powers of two, and the highest one so far.
vec2 factors[LEFTS];
vec2 high[LEFTS];
uint lane;
uint64_t keys_from;
uint64_t values_from;

uint halves(const float a, const float b) {
    return packFloat2x16(f16vec2(a, b));
}

vec4 query_four(const uint row, const uint product) {
    const uint element = 16u * product + lane % 4u * 4u;
    const uint at = ((row * HEADS + gl_WorkGroupID.y) * DIM + min(element, DIM - 4u)) / 4u;
    return element < DIM ? ReadVec4s(push.query).at[at] : vec4(0.0);
}

// Loads a row's query. Returns its factor.
float load_query(const uint left, const uint row, const bool is_lower) {
    float highest = 0.0;
    [[unroll]] for (uint p = 0u; p < PRODUCTS; ++p) highest = max(highest, operand_magnitude(query_four(row, p)));
    highest = max(highest, subgroupShuffleXor(highest, 1u));
    highest = max(highest, subgroupShuffleXor(highest, 2u));
    const int exponent = highest < OPERAND_INFINITE ? operand_exponent(highest) : 0;
    const float inverse = operand_power(-exponent);
    [[unroll]] for (uint p = 0u; p < PRODUCTS; ++p) {
        const vec4 four = query_four(row, p) * inverse;
        const uvec2 both = uvec2(halves(four.x, four.y), halves(four.z, four.w));
        if (is_lower) {
            lower_query[left * PRODUCTS + p] = both;
        } else {
            upper_query[left * PRODUCTS + p] = both;
        }
    }
    return operand_power(exponent) * push.scale * 1.4426950408889634;
}

void load_keys() {
    [[unroll]] for (uint i = 0u; i < TILES * PRODUCTS; ++i) keys[i] = ReadQuads(keys_from).at[i * LANES];
}

void multiply_keys() {
    [[unroll]] for (uint i = 0u; i < LEFTS * 2u * TILES; ++i) scores[i] = Sum(0.0);
    [[unroll]] for (uint p = 0u; p < PRODUCTS; ++p) {
        [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
            const Left query = left_of(upper_query[left * PRODUCTS + p], lower_query[left * PRODUCTS + p]);
            [[unroll]] for (uint tile = 0u; tile < TILES; ++tile) {
                const uvec4 both = keys[tile * PRODUCTS + p];
                const uint score = (left * TILES + tile) * 2u;
                scores[score] = coopMatMulAdd(query, right_of(both.x, both.y), scores[score]);
                scores[score + 1u] = coopMatMulAdd(query, right_of(both.z, both.w), scores[score + 1u]);
            }
        }
    }
}

// Brings the scores of a block into powers of two, and returns the largest one or the largest before, of rows r and r + 8 of a left
// factor. Only the first `count` keys count.
vec2 highest_score(const uint left, const uint count, const bool is_partial) {
    vec2 largest = high[left];
    [[unroll]] for (uint i = 0u; i < 8u * TILES; ++i) {
        const uint j = left * 2u * TILES + i / 4u;
        const uint lower = i % 4u / 2u;
        float score = scores[j][i % 4u] * factors[left][lower];
        if (is_partial && i / 4u * 8u + lane % 4u * 2u + i % 2u >= count) score = LOWEST;
        scores[j][i % 4u] = score;
        largest[lower] = max(largest[lower], score);
    }
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    return max(largest, subgroupShuffleXor(largest, 2u));
}

// Multiplies the sums of a left factor by factors of rows r and r + 8.
void scale_sums(const uint left, const vec2 kept) {
    totals[left][0] *= kept.x;
    totals[left][2] *= kept.y;
    [[unroll]] for (uint i = left * FACTORS; i < left * FACTORS + FACTORS; ++i) {
        sums[i][0] *= kept.x;
        sums[i][1] *= kept.x;
        sums[i][2] *= kept.y;
        sums[i][3] *= kept.y;
    }
}

// Returns the weights of a tile of keys, and adds them to the sums of weights. `zero`: the score whose weight is 1.
Left weights_of(const uint left, const uint tile, const vec2 zero) {
    const uint i = (left * TILES + tile) * 2u;
    const uvec2 upper = uvec2(packFloat2x16(f16vec2(exp2(vec2(scores[i][0], scores[i][1]) - zero.x))),
                              packFloat2x16(f16vec2(exp2(vec2(scores[i + 1u][0], scores[i + 1u][1]) - zero.x))));
    const uvec2 lower = uvec2(packFloat2x16(f16vec2(exp2(vec2(scores[i][2], scores[i][3]) - zero.y))),
                              packFloat2x16(f16vec2(exp2(vec2(scores[i + 1u][2], scores[i + 1u][3]) - zero.y))));
    const Left found = left_of(upper, lower);
    totals[left] = coopMatMulAdd(found, Right(1.0hf), totals[left]);
    return found;
}

// Returns which of two neighbouring keys count, as a mask of their halves.
uint mask_of(const uint key, const uint count) {
    return (key < count ? 0xFFFFu : 0u) | (key + 1u < count ? 0xFFFF0000u : 0u);
}

// Takes a block of keys, of which `count` are rows. `is_last`: the next keys are these.
void take_block(const uint count, const bool is_partial, const bool is_last) {
    multiply_keys();
    if (!is_last) keys_from += TILES * PRODUCTS * LANES * 16u;
    load_keys();
    uvec4 values[TILES * PAIRS];
    [[unroll]] for (uint i = 0u; i < TILES * PAIRS; ++i) values[i] = ReadQuads(values_from).at[i * LANES];
    values_from += TILES * PAIRS * LANES * 16u;
    vec2 zeros[LEFTS];
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        const vec2 highest = highest_score(left, count, is_partial);
        const vec2 kept = exp2(high[left] - highest);
        high[left] = highest;
        zeros[left] = highest - 14.0;
        if (subgroupAny(kept != vec2(1.0))) scale_sums(left, kept);
    }
    [[unroll]] for (uint tile = 0u; tile < TILES; ++tile) {
        Left weights[LEFTS];
        [[unroll]] for (uint left = 0u; left < LEFTS; ++left) weights[left] = weights_of(left, tile, zeros[left]);
        uvec2 seen = uvec2(0xFFFFFFFFu);
        if (is_partial) {
            const uint key = 16u * tile + lane % 4u * 2u;
            seen = uvec2(mask_of(key, count), mask_of(key + 8u, count));
        }
        [[unroll]] for (uint t = 0u; t < FACTORS; ++t) {
            const uvec4 both = values[tile * PAIRS + t / 2u];
            // What rows beyond the last one left there may be no number, whose product with 0 is none either.
            const uvec2 own = (t % 2u == 0u ? both.xy : both.zw) & seen;
            const Right right = right_of(own.x, own.y);
            [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
                sums[left * FACTORS + t] = coopMatMulAdd(weights[left], right, sums[left * FACTORS + t]);
            }
        }
    }
}

// Stores four elements of rows r and r + 8 from a column on, or of row r only.
void store_fours(const uint row, const uint column, const vec4 first, const vec4 second, const bool are_both) {
    const uint at = operand_fragment(row, column, HEADS * DIM / 128u);
    if (are_both) {
        Quads(push.codes).at[at / 4u] = uvec4(operand_in_order(first), operand_in_order(second)).xzyw;
    } else {
        const uvec2 halves = operand_in_order(first);
        Words(push.codes).at[at] = halves.x;
        Words(push.codes).at[at + 2u] = halves.y;
    }
}

void store_one(const uint row, const uint column, const float value) {
    const uint at = operand_fragment_half(row, column, HEADS * DIM / 128u);
    Halves(push.codes).at[at] = uint16_t(packHalf2x16(vec2(value, 0.0)));
}

// Stores the rows r and r + 8 of a left factor, as means of halves.
void store_rows(const uint left, const uint row, const uint count) {
    if (row >= count) return;
    const bool are_both = row + 8u < count;
    const vec2 unit = 1.0 / vec2(totals[left][0], totals[left][2]);
    const uint head_column = gl_WorkGroupID.y * DIM;
    const uint base = left * FACTORS;
    [[unroll]] for (uint u = 0u; u < FACTORS / 2u; ++u) {
        const uint i = base + 2u * u;
        const vec4 first = vec4(sums[i][0], sums[i][1], sums[i + 1u][0], sums[i + 1u][1]) * unit.x;
        const vec4 second = vec4(sums[i][2], sums[i][3], sums[i + 1u][2], sums[i + 1u][3]) * unit.y;
        store_fours(row, head_column + 16u * u + lane % 4u * 4u, first, second, are_both);
    }
    if (FACTORS % 2u != 0u) {
        const uint i = base + FACTORS - 1u;
        const uint column = head_column + DIM - 8u + lane % 4u * 2u;
        [[unroll]] for (uint both = 0u; both < 2u; ++both) {
            store_one(row, column + both, sums[i][both] * unit.x);
            if (are_both) store_one(row + 8u, column + both, sums[i][2u + both] * unit.y);
        }
    }
    if (gl_WorkGroupID.y == 0u && lane % 4u == 0u) {
        Floats(push.scales).at[row] = 1.0;
        if (are_both) Floats(push.scales).at[row + 8u] = 1.0;
    }
}

void main() {
    lane = gl_SubgroupInvocationID;
    const uint count = Words(push.rows).at[0];
    const uint first_row = (gl_WorkGroupID.x * SUBGROUPS + gl_SubgroupID) * ROWS;
    if (first_row >= count) return;
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        // Rows beyond the last one repeat it and are not stored.
        const uint row = first_row + 16u * left + lane / 4u;
        factors[left] = vec2(load_query(left, min(row, count - 1u), false), load_query(left, min(row + 8u, count - 1u), true));
        high[left] = vec2(LOWEST);
        totals[left] = Sum(0.0);
    }
    [[unroll]] for (uint i = 0u; i < LEFTS * FACTORS; ++i) sums[i] = Sum(0.0);
    keys_from = push.keys + uint64_t(gl_WorkGroupID.y * push.tiles) * (PRODUCTS * LANES * 16u) + lane * 16u;
    values_from = push.values + uint64_t(gl_WorkGroupID.y * push.tiles) * (PAIRS * LANES * 16u) + lane * 16u;
    load_keys();
    const uint blocks = count / BLOCK;
    const bool has_rest = count % BLOCK != 0u;
    [[dont_unroll]] for (uint block = 0u; block < blocks; ++block) {
        take_block(BLOCK, false, block + 1u == blocks && !has_rest);
    }
    if (has_rest) take_block(count % BLOCK, true, true);
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) store_rows(left, first_row + 16u * left + lane / 4u, count);
}
