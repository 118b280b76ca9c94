#version 460
// Attention of many rows on matrix units with the layout that crates/vulkan/src/kernels/matmul/probe.rs describes, over a cache
// in f16 or int8. Each subgroup takes LEFTS times 16 vectors: neighbouring rows of one sequence, times QUERIES query heads that
// share a key head. Keys and values go from the cache into the registers of the matrix units, and scores stay in them: what an invocation
// holds of a sum is what it has to hold of a left factor.
//
// Keys: lane 4 r + c loads eight elements of key r, from 32 p + 8 c on, for two products of 16 elements; queries lie alike.
// Values: it loads eight elements from 64 g + 8 r on of keys 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, which are its share of eight
// right factors: column n of factor t is element 64 g + 8 n + t.
//
// Heads of an f16 cache may end with a part of a piece and a part of a group, as 72 do. Of such keys a lane loads four elements
// for each product of 16, or none; of such values one after another, those from the end of the groups plus r times the number
// of factors on.
//
// A load of codes has 16 elements: lane 4 r + c has those from DIM / 4 * c + 16 p on of key r, and from DIM / 8 * r + 16 g on of
// the values, so that its neighbouring loads share a scale. Codes times scales become halves in units of 2^8, which hold them for
// every scale.
//
// SLICES subgroups share the keys of the same vectors, block by block, and are put together at the end.
//
// If STAGED is 1, the subgroups of a workgroup go through the blocks together: each block passes through shared memory once, while
// the one before it is multiplied. Values lie there as right factors need them: a vector has two elements of the four keys of a
// lane, two words of each element with the halves of two neighbouring keys. For each four keys come first the elements 0 and 1 of
// each eight, then 2 and 3, and so on. Rows of keys are 64 bytes more than a multiple of 128 long, those of four keys 32: what
// eight lanes load together then lies in different banks.
//
// The sums of weights are products, too, with a right factor of ones, so that they are those of the weights as halves.
//
// Large heads are cut into SHARES of the result, each by workgroups of its own: sums of all 512 values would take more registers
// than an invocation has. Each share computes the scores again, DIM * (2 * SHARES + 2) operations for a vector and key.
//
// Queries are scaled by powers of two, separately for each vector. Weights are counted in units of 2^-14, so that those that
// matter are normal numbers.
//
// Bound: 4 * DIM operations for each vector and key at the rate of the matrix units; each key and value is read from the core's
// cache for 16 * LEFTS vectors, 4 * DIM bytes in f16 and 2 * DIM * 17 / 16 in int8. Decoding takes 7 instructions for each product of
// 16 x 8 x 16 with keys, and 8 for one with values.

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
// A multiple of 64; of 8 if KV is KV_F16 and KEPT is 1.
layout(constant_id = 1) const uint DIM = 64;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
// A power of two up to 16.
layout(constant_id = 4) const uint QUERIES = 1;
// Subgroups that share vectors.
layout(constant_id = 5) const uint SLICES = 1;
// 0: f32, 1: an operand in halves, 2: in halves in fragment order; HEADS * DIM is then a multiple of 128.
layout(constant_id = 6) const uint HALVES = 0;
// 1: queries stay in registers, 0: in shared memory.
layout(constant_id = 7) const uint KEPT = 1;
// KV_F16 or, for DIM of whole 128, KV_INT8.
layout(constant_id = 8) const uint KV = 1;
// Of codes: loads of keys that come a block ahead, and times 16 keys of a block whose values come before the products of keys.
layout(constant_id = 9) const uint KEYS_AHEAD = 0;
layout(constant_id = 10) const uint VALUES_AHEAD = 0;
// Parts of a head's result, each a multiple of 64; of 128 for KV_INT8.
layout(constant_id = 11) const uint SHARES = 1;
// 1: keys and values pass through shared memory; SLICES and SHARES are 1, and KV is KV_F16.
layout(constant_id = 12) const uint STAGED = 0;
// Left factors of a subgroup, which share what it loads of keys and values: 1 or, if STAGED and KEPT are 1, 2.
layout(constant_id = 13) const uint LEFTS = 1;

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

const uint LANES = 32u;
const uint SUBGROUPS = LOCAL / LANES;
const uint STACKED = SUBGROUPS / SLICES;
const uint VECTORS = 16u;
const uint ROWS = VECTORS * LEFTS * STACKED / QUERIES;
// Pieces of 32 elements of a query or key: two products of 16.
const uint PIECES = DIM / 32u;
// Groups of 64 elements of the share of a value: eight right factors.
const uint GROUPS = DIM / SHARES / 64u;
// Keys of a block, as right factors of 8 keys.
const uint FACTORS = KV_BLOCK / 8u;
// What heads end with: products of 16 elements of a key, and factors of 8 elements of a value.
const uint TAIL_PRODUCTS = (DIM % 32u + 15u) / 16u;
const uint TAIL_FACTORS = DIM % 64u / 8u;
const uint TAIL_VALUES = 64u * GROUPS;
const float LOWEST = -3.0e38;
const bool CODES = KV == KV_INT8;
// Loads of 16 codes: of a lane's share of a key, and of its share of a value.
const uint KEY_LOADS = DIM / 64u;
const uint VALUE_LOADS = CODES ? DIM / 128u : 1u;
const uint OWN_LOADS = CODES ? VALUE_LOADS / SHARES : 1u;
// What the unit of keys and values in registers is worth.
const float UNIT = CODES ? 256.0 : 1.0;

// Sums of a left factor.
const uint SUMS = 8u * GROUPS + TAIL_FACTORS;

// Staged: vectors of eight elements of a head, those of a row of keys and of a row of the values of four keys in shared memory, and
// of a block there.
const uint QUADS = DIM / 8u;
const uint KEY_ROW = (QUADS + 3u) / 8u * 8u + 4u;
const uint FOUR_ROW = (4u * QUADS + 5u) / 8u * 8u + 2u;
const uint VALUES_AT = KV_BLOCK * KEY_ROW;
const uint BLOCK_QUADS = VALUES_AT + KV_BLOCK / 4u * FOUR_ROW;
// Vectors of keys, and of values of four keys, that an invocation moves.
const uint KEY_MOVES = STAGED != 0u ? (KV_BLOCK * QUADS + LOCAL - 1u) / LOCAL : 1u;
const uint FOUR_MOVES = STAGED != 0u ? (KV_BLOCK / 4u * QUADS + LOCAL - 1u) / LOCAL : 1u;

// Queries, if they do not stay in registers: for each piece of the vectors of a subgroup those of rows r, then those of rows
// r + 8. Slices have the same and write the same.
shared uvec4 staged[KEPT != 0u ? 1u : STACKED * PIECES * 2u * LANES];
// Highest scores and sums of weights of slices: of rows r and r + 8.
shared vec4 marks[SLICES > 1u ? SUBGROUPS * LANES : 1u];
// Sums of four factors of slices.
shared vec4 parts[SLICES > 1u ? SUBGROUPS * 4u * LANES : 1u];

// Two blocks: one that is multiplied, and the next.
shared uvec4 blocks[STAGED != 0u ? 2u * BLOCK_QUADS : 1u];

uvec4 upper_query[KEPT != 0u ? LEFTS * PIECES : 1u];
uvec4 lower_query[KEPT != 0u ? LEFTS * PIECES : 1u];
uvec2 upper_tail[TAIL_PRODUCTS > 0u ? LEFTS * TAIL_PRODUCTS : 1u];
uvec2 lower_tail[TAIL_PRODUCTS > 0u ? LEFTS * TAIL_PRODUCTS : 1u];
// Codes that came ahead, and their scales.
uvec4 key_codes[KEYS_AHEAD > 0u ? KEYS_AHEAD * FACTORS : 1u];
uint key_scales[KEYS_AHEAD > 0u ? KEYS_AHEAD * FACTORS : 1u];
uvec4 value_codes[VALUES_AHEAD > 0u ? VALUES_AHEAD * OWN_LOADS * 4u : 1u];
uint value_scales[VALUES_AHEAD > 0u ? VALUES_AHEAD * OWN_LOADS * 4u : 1u];
// The next block on its way, and where the one that is multiplied begins.
uvec4 moved_keys[KEY_MOVES];
uvec4 moved_values[4u * FOUR_MOVES];
uint stage = 0u;
Sum scores[LEFTS * FACTORS];
Sum sums[LEFTS * SUMS];
uint lane;
// The workgroup's part of the heads' results.
uint own_share;

// What this lane's vectors see: rows r and r + 8 of each left factor.
uvec2 firsts[LEFTS];
uvec2 lasts[LEFTS];

uint halves(const float a, const float b) {
    return packFloat2x16(f16vec2(a, b));
}

// Returns the halves of eight elements of a query, times a factor: in the order in which codes are decoded, if keys are codes.
uvec4 eight_of(const uint from, const float factor) {
    const vec4 a = Vec4s(push.query).at[from] * factor;
    const vec4 b = Vec4s(push.query).at[from + 1u] * factor;
    if (CODES) return uvec4(halves(a.x, a.z), halves(a.y, a.w), halves(b.x, b.z), halves(b.y, b.w));
    return uvec4(halves(a.x, a.y), halves(a.z, a.w), halves(b.x, b.y), halves(b.z, b.w));
}

// Returns the lane's element of a product of what heads end with, and whether it is one of theirs.
uint tail_element(const uint product) {
    return 32u * PIECES + 16u * product + 4u * (lane % 4u);
}

bool has_tail(const uint product) {
    return 16u * product + 4u * (lane % 4u) < DIM % 32u;
}

// Loads four elements of what a query ends with; 0 if the lane has none.
vec4 query_tail(const uint head_from, const uint product) {
    return has_tail(product) ? Vec4s(push.query).at[head_from + tail_element(product) / 4u] : vec4(0.0);
}

// Loads the query of one of the lane's vectors of a left factor. Returns its factor.
float load_query(const uint left, const uint vector_row, const uint head, const bool is_lower) {
    const uint head_from = (vector_row * HEADS + head) * (DIM / 4u);
    const uint from = head_from + lane % 4u * (CODES ? DIM / 16u : 2u);
    const uint apart = CODES ? 2u : 8u;
    float high = 0.0;
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        high = max(high, operand_magnitude(Vec4s(push.query).at[from + apart * p]));
        high = max(high, operand_magnitude(Vec4s(push.query).at[from + apart * p + 1u]));
    }
    [[unroll]] for (uint i = 0u; i < TAIL_PRODUCTS; ++i) high = max(high, operand_magnitude(query_tail(head_from, i)));
    high = max(high, subgroupShuffleXor(high, 1u));
    high = max(high, subgroupShuffleXor(high, 2u));
    const int exponent = high < OPERAND_INFINITE ? operand_exponent(high) : 0;
    const float inverse = operand_power(-exponent);
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        const uvec4 eight = eight_of(from + apart * p, inverse);
        if (KEPT == 0u) {
            staged[((gl_SubgroupID / SLICES * PIECES + p) * 2u + (is_lower ? 1u : 0u)) * LANES + lane] = eight;
        } else if (is_lower) {
            lower_query[left * PIECES + p] = eight;
        } else {
            upper_query[left * PIECES + p] = eight;
        }
    }
    [[unroll]] for (uint i = 0u; i < TAIL_PRODUCTS; ++i) {
        const vec4 four = query_tail(head_from, i) * inverse;
        const uvec2 both = uvec2(halves(four.x, four.y), halves(four.z, four.w));
        if (is_lower) {
            lower_tail[left * TAIL_PRODUCTS + i] = both;
        } else {
            upper_tail[left * TAIL_PRODUCTS + i] = both;
        }
    }
    return operand_power(exponent) * push.scale * UNIT * 1.4426950408889634;
}

// Returns what the lane holds of piece `p` of the queries of rows r and r + 8 of a left factor.
void query_piece(const uint left, const uint p, out uvec4 upper, out uvec4 lower) {
    const uint at = KEPT != 0u ? left * PIECES + p : 0u;
    const uint place = KEPT != 0u ? 0u : (gl_SubgroupID / SLICES * PIECES + p) * 2u * LANES + lane;
    upper = KEPT != 0u ? upper_query[at] : staged[place];
    lower = KEPT != 0u ? lower_query[at] : staged[KEPT != 0u ? 0u : place + LANES];
}

// Returns the first and third code of a word times 2^-8. That is the distance of halves from 4 to 8.
f16vec2 codes_of(const uint word) {
    return halves_of((word & 0x00FF00FFu) ^ 0x44804480u) - f16vec2(4.5hf);
}

// Returns the codes of a word times scales: the first and third, then the second and fourth.
uvec2 decoded(const uint word, const f16vec2 scales) {
    return uvec2(packFloat2x16(codes_of(word) * scales), packFloat2x16(codes_of(word >> 8) * scales));
}

// Returns a component without an index: registers have none.
uint word_of(const uvec4 all, const uint index) {
    return index == 0u ? all.x : index == 1u ? all.y : index == 2u ? all.z : all.w;
}

// Returns the bits of the scale of load `load` of the `loads` that each of the lanes has of position `at`, for the `share`-th.
uint scale_bits(const uint64_t part, const uint at, const uint share, const uint loads, const uint load) {
    const uint group = loads % 2u == 0u ? share * (loads / 2u) + load / 2u : (share * loads + load) / 2u;
    return uint(KvShorts(part).at[KV_BLOCK * DIM / 2u + at * KV_GROUPS + group]);
}

// Returns the lane's key of right factor `j`. Those from `count` on repeat the last one, as they do in a staged block; nobody counts
// their scores.
uint key_of(const uint j, const uint count) {
    const uint key = 8u * j + lane / 4u;
    return STAGED != 0u ? key : min(key, count - 1u);
}

// Returns the lane's key of which it holds share `i` of the values of 16 keys.
uint value_of(const uint sixteen, const uint i, const uint count) {
    return min(16u * sixteen + lane % 4u * 2u + i % 2u + i / 2u * 8u, count - 1u);
}

uvec4 load_key(const uint64_t part, const uint at, const uint load) {
    return Quads(part).at[at * (DIM / 16u) + lane % 4u * KEY_LOADS + load];
}

uint load_key_scale(const uint64_t part, const uint at, const uint load) {
    return scale_bits(part, at, lane % 4u, KEY_LOADS, load);
}

// `load` counts those of the share.
uvec4 load_value(const uint64_t part, const uint at, const uint load) {
    return Quads(part).at[at * (DIM / 16u) + lane / 4u * VALUE_LOADS + own_share * OWN_LOADS + load];
}

uint load_value_scale(const uint64_t part, const uint at, const uint load) {
    return scale_bits(part, at, lane / 4u, VALUE_LOADS, own_share * OWN_LOADS + load);
}

// Loads the first codes of a block's keys.
void fetch_keys(const uint64_t part, const uint count) {
    [[unroll]] for (uint load = 0u; load < KEYS_AHEAD; ++load) {
        [[unroll]] for (uint j = 0u; j < FACTORS; ++j) {
            key_codes[load * FACTORS + j] = load_key(part, key_of(j, count), load);
            key_scales[load * FACTORS + j] = load_key_scale(part, key_of(j, count), load);
        }
    }
}

// Loads the codes of the values of a block's first keys.
void fetch_values(const uint64_t part, const uint count) {
    [[unroll]] for (uint sixteen = 0u; sixteen < VALUES_AHEAD; ++sixteen) {
        [[unroll]] for (uint load = 0u; load < OWN_LOADS; ++load) {
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                const uint place = (sixteen * OWN_LOADS + load) * 4u + i;
                value_codes[place] = load_value(part, value_of(sixteen, i, count), load);
                value_scales[place] = load_value_scale(part, value_of(sixteen, i, count), load);
            }
        }
    }
}

// Returns which of `all` moves is the invocation's `i`-th. Those beyond the last one repeat it: with a branch around the loads the
// compiler would wait for them at once.
uint moved_by(const uint i, const uint all) {
    const uint number = i * LOCAL + gl_LocalInvocationIndex;
    return all % LOCAL == 0u ? number : min(number, all - 1u);
}

// Loads this invocation's part of a block.
void fetch_block(const uint64_t part, const uint count) {
    const uint64_t values = part + uint64_t(KV_PART_BYTES);
    [[unroll]] for (uint i = 0u; i < KEY_MOVES; ++i) {
        const uint number = moved_by(i, KV_BLOCK * QUADS);
        moved_keys[i] = Quads(part).at[min(number, count * QUADS - QUADS + number % QUADS)];
    }
    [[unroll]] for (uint i = 0u; i < FOUR_MOVES; ++i) {
        const uint number = moved_by(i, KV_BLOCK / 4u * QUADS);
        const uint four = number / QUADS;
        const uint key = four / 4u * 16u + four % 4u * 2u;
        [[unroll]] for (uint k = 0u; k < 4u; ++k) {
            moved_values[4u * i + k] = Quads(values).at[min(key + k / 2u * 8u + k % 2u, count - 1u) * QUADS + number % QUADS];
        }
    }
}

// Stores it from `to` on.
void put_block(const uint to) {
    [[unroll]] for (uint i = 0u; i < KEY_MOVES; ++i) {
        const uint number = moved_by(i, KV_BLOCK * QUADS);
        blocks[to + number / QUADS * KEY_ROW + number % QUADS] = moved_keys[i];
    }
    [[unroll]] for (uint i = 0u; i < FOUR_MOVES; ++i) {
        const uint number = moved_by(i, KV_BLOCK / 4u * QUADS);
        const uint place = to + VALUES_AT + number / QUADS * FOUR_ROW + number % QUADS;
        [[unroll]] for (uint word = 0u; word < 4u; ++word) {
            const uint a = word_of(moved_values[4u * i], word);
            const uint b = word_of(moved_values[4u * i + 1u], word);
            const uint c = word_of(moved_values[4u * i + 2u], word);
            const uint d = word_of(moved_values[4u * i + 3u], word);
            blocks[place + word * QUADS] =
                uvec4(a & 0xFFFFu | b << 16, c & 0xFFFFu | d << 16, a >> 16 | b & 0xFFFF0000u, c >> 16 | d & 0xFFFF0000u);
        }
    }
}

// Returns elements 8 * quad.. of a key.
uvec4 key_quad(const uint64_t part, const uint key, const uint quad) {
    return STAGED != 0u ? blocks[STAGED != 0u ? stage + key * KEY_ROW + quad : 0u] : Quads(part).at[key * QUADS + quad];
}

// Returns elements 4 * pair.. of a key.
uvec2 key_pair(const uint64_t part, const uint key, const uint pair) {
    if (STAGED == 0u) return Pairs(part).at[key * (DIM / 4u) + pair];
    const uint place = STAGED != 0u ? stage + key * KEY_ROW + pair / 2u : 0u;
    return uvec2(blocks[place][pair % 2u * 2u], blocks[place][pair % 2u * 2u + 1u]);
}


// Staged: returns a lane's share of a right factor of values: an element of four keys.
uvec2 staged_value(const uint four, const uint element) {
    const uint place = stage + VALUES_AT + four * FOUR_ROW + element / 8u + element % 8u / 2u * QUADS;
    const uvec4 both = blocks[STAGED != 0u ? place : 0u];
    return element % 2u == 0u ? both.xy : both.zw;
}

// Adds to the scores what 16 codes of each key give.
void multiply_codes(const uint64_t part, const uint count, const uint load) {
    uvec4 codes[FACTORS];
    f16vec2 scales[FACTORS];
    [[unroll]] for (uint j = 0u; j < FACTORS; ++j) {
        const bool here = load < KEYS_AHEAD;
        const uint place = here ? load * FACTORS + j : 0u;
        codes[j] = here ? key_codes[place] : load_key(part, key_of(j, count), load);
        scales[j] = halves_of(here ? key_scales[place] : load_key_scale(part, key_of(j, count), load)).xx;
    }
    [[unroll]] for (uint later = 0u; later < 2u; ++later) {
        uvec4 upper, lower;
        query_piece(0u, 2u * load + later, upper, lower);
        const Left first = left_of(upper.xy, lower.xy);
        const Left second = left_of(upper.zw, lower.zw);
        [[unroll]] for (uint j = 0u; j < FACTORS; ++j) {
            const uvec2 words = later == 0u ? codes[j].xy : codes[j].zw;
            const uvec2 a = decoded(words.x, scales[j]);
            const uvec2 b = decoded(words.y, scales[j]);
            scores[j] = coopMatMulAdd(first, right_of(a.x, a.y), scores[j]);
            scores[j] = coopMatMulAdd(second, right_of(b.x, b.y), scores[j]);
        }
    }
}

// Computes the scores of a block's keys.
void multiply_keys(const uint64_t part, const uint count) {
    [[unroll]] for (uint j = 0u; j < LEFTS * FACTORS; ++j) scores[j] = Sum(0.0);
    if (CODES) {
        [[unroll]] for (uint load = 0u; load < KEY_LOADS; ++load) multiply_codes(part, count, load);
        return;
    }
    uint at[FACTORS];
    [[unroll]] for (uint j = 0u; j < FACTORS; ++j) at[j] = key_of(j, count);
    [[unroll]] for (uint p = 0u; p < PIECES; ++p) {
        uvec4 keys[FACTORS];
        [[unroll]] for (uint j = 0u; j < FACTORS; ++j) keys[j] = key_quad(part, at[j], 4u * p + lane % 4u);
        [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
            uvec4 upper, lower;
            query_piece(left, p, upper, lower);
            const Left first = left_of(upper.xy, lower.xy);
            const Left second = left_of(upper.zw, lower.zw);
            [[unroll]] for (uint j = 0u; j < FACTORS; ++j) {
                const uint score = left * FACTORS + j;
                scores[score] = coopMatMulAdd(first, right_of(keys[j].x, keys[j].y), scores[score]);
                scores[score] = coopMatMulAdd(second, right_of(keys[j].z, keys[j].w), scores[score]);
            }
        }
    }
    [[unroll]] for (uint i = 0u; i < TAIL_PRODUCTS; ++i) {
        uvec2 keys[FACTORS];
        [[unroll]] for (uint j = 0u; j < FACTORS; ++j) {
            // Staged, lanes that have none take the last elements, which the zeros of their queries leave out.
            if (STAGED != 0u) {
                keys[j] = key_pair(part, at[j], min(tail_element(i), DIM - 4u) / 4u);
            } else {
                keys[j] = has_tail(i) ? key_pair(part, at[j], tail_element(i) / 4u) : uvec2(0u);
            }
        }
        [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
            const uint tail = left * TAIL_PRODUCTS + i;
            const Left tails = left_of(upper_tail[tail], lower_tail[tail]);
            [[unroll]] for (uint j = 0u; j < FACTORS; ++j) {
                const uint score = left * FACTORS + j;
                scores[score] = coopMatMulAdd(tails, right_of(keys[j].x, keys[j].y), scores[score]);
            }
        }
    }
}

// Returns half `t` of two vectors of eight halves, those of `a` first.
uint pair_of(const uvec4 a, const uvec4 b, const uint t) {
    const uint x = t / 2u == 0u ? a.x : t / 2u == 1u ? a.y : t / 2u == 2u ? a.z : a.w;
    const uint y = t / 2u == 0u ? b.x : t / 2u == 1u ? b.y : t / 2u == 2u ? b.z : b.w;
    return t % 2u == 0u ? x & 0xFFFFu | y << 16 : x >> 16 | y & 0xFFFF0000u;
}

// Adds the values that are 16 codes of each of four keys, times weights.
void multiply_value_codes(const uint64_t part, const uint sixteen, const uint count, const uint load, const Left weights) {
    uvec4 codes[4];
    uint scales[4];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const bool here = sixteen < VALUES_AHEAD;
        const uint place = here ? (sixteen * OWN_LOADS + load) * 4u + i : 0u;
        codes[i] = here ? value_codes[place] : load_value(part, value_of(sixteen, i, count), load);
        scales[i] = here ? value_scales[place] : load_value_scale(part, value_of(sixteen, i, count), load);
    }
    const f16vec2 near = halves_of(scales[0] | scales[1] << 16);
    const f16vec2 far = halves_of(scales[2] | scales[3] << 16);
    [[unroll]] for (uint word = 0u; word < 4u; ++word) {
        const uvec4 words = uvec4(word_of(codes[0], word), word_of(codes[1], word), word_of(codes[2], word), word_of(codes[3], word));
        // Two codes of each of two keys.
        [[unroll]] for (uint high = 0u; high < 2u; ++high) {
            const uvec2 both = high == 0u
                ? uvec2(words.x & 0xFFFFu | words.y << 16, words.z & 0xFFFFu | words.w << 16)
                : uvec2(words.x >> 16 | words.y & 0xFFFF0000u, words.z >> 16 | words.w & 0xFFFF0000u);
            const uvec2 a = decoded(both.x, near);
            const uvec2 b = decoded(both.y, far);
            const uint sum = 16u * load + 4u * word + 2u * high;
            sums[sum] = coopMatMulAdd(weights, right_of(a.x, b.x), sums[sum]);
            sums[sum + 1u] = coopMatMulAdd(weights, right_of(a.y, b.y), sums[sum + 1u]);
        }
    }
}

// Adds a right factor of values times the weights of each left factor.
void add_values(const uint sum, const Right right, const Left weights[LEFTS]) {
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        sums[left * SUMS + sum] = coopMatMulAdd(weights[left], right, sums[left * SUMS + sum]);
    }
}

// Adds the values of 16 keys of a staged block times weights to the sums.
void multiply_staged_values(const uint sixteen, const Left weights[LEFTS]) {
    const uint four = 4u * sixteen + lane % 4u;
    [[unroll]] for (uint g = 0u; g < GROUPS; ++g) {
        [[unroll]] for (uint word = 0u; word < 4u; ++word) {
            const uint place = stage + VALUES_AT + four * FOUR_ROW + 8u * g + lane / 4u + word * QUADS;
            const uvec4 both = blocks[STAGED != 0u ? place : 0u];
            add_values(8u * g + 2u * word, right_of(both.x, both.y), weights);
            add_values(8u * g + 2u * word + 1u, right_of(both.z, both.w), weights);
        }
    }
    [[unroll]] for (uint t = 0u; t < TAIL_FACTORS; ++t) {
        const uvec2 both = staged_value(four, TAIL_VALUES + lane / 4u * TAIL_FACTORS + t);
        add_values(8u * GROUPS + t, right_of(both.x, both.y), weights);
    }
}

// Adds the values of 16 keys of a block times weights to the sums.
void multiply_values(const uint64_t part, const uint sixteen, const uint count, const Left weights[LEFTS]) {
    if (CODES) {
        [[unroll]] for (uint load = 0u; load < OWN_LOADS; ++load) multiply_value_codes(part, sixteen, count, load, weights[0]);
        return;
    }
    if (STAGED != 0u) {
        multiply_staged_values(sixteen, weights);
        return;
    }
    uint at[4];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) at[i] = value_of(sixteen, i, count);
    [[unroll]] for (uint g = 0u; g < GROUPS; ++g) {
        uvec4 values[4];
        const uint quad = 8u * (GROUPS * own_share + g) + lane / 4u;
        [[unroll]] for (uint i = 0u; i < 4u; ++i) values[i] = Quads(part).at[at[i] * QUADS + quad];
        [[unroll]] for (uint t = 0u; t < 8u; ++t) {
            add_values(8u * g + t, right_of(pair_of(values[0], values[1], t), pair_of(values[2], values[3], t)), weights);
        }
    }
    [[unroll]] for (uint t = 0u; t < TAIL_FACTORS; ++t) {
        uint values[4];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            values[i] = uint(KvShorts(part).at[at[i] * DIM + TAIL_VALUES + lane / 4u * TAIL_FACTORS + t]);
        }
        add_values(8u * GROUPS + t, right_of(values[0] | values[1] << 16, values[2] | values[3] << 16), weights);
    }
}

// Multiplies the sums of a left factor by factors of rows r and r + 8.
void scale_sums(const uint left, const vec2 factors) {
    [[unroll]] for (uint i = left * SUMS; i < left * SUMS + SUMS; ++i) {
        sums[i][0] *= factors.x;
        sums[i][1] *= factors.x;
        sums[i][2] *= factors.y;
        sums[i][3] *= factors.y;
    }
}

// Returns the largest of a value over the four lanes that hold the same rows.
vec2 highest_of_rows(vec2 value) {
    value = max(value, subgroupShuffleXor(value, 1u));
    return max(value, subgroupShuffleXor(value, 2u));
}

#include "include/attend_store.glsl"

// Stores one element of a vector.
void store_one(const uint row, const uint column, const float value) {
    if (HALVES == 0u) {
        Floats(push.target).at[row * (HEADS * DIM) + column] = value;
        return;
    }
    const uint at = HALVES == 1u ? row * (HEADS * DIM) + column : operand_fragment_half(row, column, HEADS * DIM / 128u);
    KvShorts(push.target).at[at] = uint16_t(packHalf2x16(vec2(value, 0.0)));
}

// Adds `count` sums of the slices, up to four, from `first` on, to those of the first slice. Both are constants where it is called: a
// loop whose length depends on anything else would put all sums into memory.
void join_sums(const uint first, const uint count) {
    barrier();
    [[unroll]] for (uint t = 0u; t < count; ++t) {
        const uint i = first + t;
        parts[(gl_SubgroupID * 4u + t) * LANES + lane] = vec4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    }
    barrier();
    if (gl_SubgroupID % SLICES == 0u) {
        [[unroll]] for (uint t = 0u; t < count; ++t) {
            vec4 total = vec4(0.0);
            for (uint slice = 0u; slice < SLICES; ++slice) {
                total += parts[((gl_SubgroupID + slice) * 4u + t) * LANES + lane];
            }
            const uint i = first + t;
            sums[i][0] = total.x;
            sums[i][1] = total.y;
            sums[i][2] = total.z;
            sums[i][3] = total.w;
        }
    }
}

// Adds the sums of the slices to those of the first, whose factors for rows r and r + 8 are `kept`.
void join(const vec2 kept) {
    scale_sums(0u, kept);
    [[unroll]] for (uint first = 0u; first + 4u <= SUMS; first += 4u) join_sums(first, 4u);
    if (SUMS % 4u > 0u) join_sums(SUMS / 4u * 4u, SUMS % 4u);
}

// What is known of the vectors of rows r and r + 8 of each left factor: what a score counts in powers of two, and the highest one so
// far.
vec2 factors[LEFTS];
vec2 high[LEFTS];
// Sums of weights: of row r in element 0, of row r + 8 in element 2. The others are not kept up.
Sum totals[LEFTS];

// Returns which scores of a left factor count that begin at position `base`, a bit for each: those whose keys their rows see.
uint seen_scores(const uint left, const uint base) {
    uint bits = 0u;
    [[unroll]] for (uint i = 0u; i < 4u * FACTORS; ++i) {
        const uint key = base + i / 4u * 8u + lane % 4u * 2u + i % 2u;
        const bool seen = key >= firsts[left][i % 4u / 2u] && key <= lasts[left][i % 4u / 2u];
        bits |= seen ? 1u << i : 0u;
    }
    return bits;
}

// Brings the scores of a block into powers of two, and returns the largest one or the largest before, of rows r and r + 8 of a left
// factor. `seen`: which of them count, a bit for each.
vec2 highest_score(const uint left, const uint seen) {
    vec2 largest = high[left];
    [[unroll]] for (uint i = 0u; i < 4u * FACTORS; ++i) {
        const uint j = left * FACTORS + i / 4u;
        const uint lower = i % 4u / 2u;
        const float score = (seen >> i & 1u) != 0u ? scores[j][i % 4u] * factors[left][lower] : LOWEST;
        scores[j][i % 4u] = score;
        largest[lower] = max(largest[lower], score);
    }
    return highest_of_rows(largest);
}

// Returns the weights of 16 keys of a block, and adds them to the sums of weights. `zero`: the score whose weight is 1.
Left weights_of(const uint left, const uint sixteen, const vec2 zero) {
    f16vec2 shares[4];
    [[unroll]] for (uint j = 0u; j < 2u; ++j) {
        const uint i = left * FACTORS + 2u * sixteen + j;
        shares[j] = f16vec2(exp2(vec2(scores[i][0], scores[i][1]) - zero.x));
        shares[2u + j] = f16vec2(exp2(vec2(scores[i][2], scores[i][3]) - zero.y));
    }
    const uvec2 upper = uvec2(packFloat2x16(shares[0]), packFloat2x16(shares[1]));
    const uvec2 lower = uvec2(packFloat2x16(shares[2]), packFloat2x16(shares[3]));
    const Left found = left_of(upper, lower);
    totals[left] = coopMatMulAdd(found, Right(1.0hf), totals[left]);
    return found;
}

// Stores the vectors of rows r or, if `lower` is 1, r + 8 of a left factor. `unit`: what a sum counts.
void store_vector(const uint left, const uint lower, const uint row, const uint head, const float unit) {
    // Sixteen elements that follow one another are those of two columns of eight factors, or of one of sixteen.
    [[unroll]] for (uint g = 0u; g < GROUPS; ++g) {
        float low[8];
        float far[8];
        [[unroll]] for (uint t = 0u; t < 8u; ++t) {
            const uint near_sum = left * SUMS + (CODES ? 16u * (g / 2u) + t : 8u * g + t);
            const uint far_sum = CODES ? near_sum + 8u : near_sum;
            low[t] = sums[near_sum][2u * lower + (CODES ? g % 2u : 0u)] * unit;
            far[t] = sums[far_sum][2u * lower + (CODES ? g % 2u : 1u)] * unit;
        }
        const uint group = own_share * GROUPS + g;
        const uint from = CODES ? (lane % 4u * 2u + g % 2u) * (DIM / 8u) + 16u * (group / 2u) : 64u * group + 16u * (lane % 4u);
        store(row, head * DIM + from, low, far);
    }
    [[unroll]] for (uint t = 0u; t < TAIL_FACTORS; ++t) {
        [[unroll]] for (uint both = 0u; both < 2u; ++both) {
            const uint from = TAIL_VALUES + (lane % 4u * 2u + both) * TAIL_FACTORS + t;
            store_one(row, head * DIM + from, sums[left * SUMS + 8u * GROUPS + t][2u * lower + both] * unit);
        }
    }
    if (HALVES != 0u && head == 0u && own_share == 0u && lane % 4u == 0u) Floats(push.scales).at[row] = 1.0;
}

void main() {
    lane = gl_SubgroupInvocationID;
    const uint tiles = Words(push.frame).at[2];
    if (gl_WorkGroupID.y >= tiles) return;
    // The last tiles of a prompt see most keys: they start first.
    const uvec4 tile = Quads(push.tiles).at[tiles - 1u - gl_WorkGroupID.y];
    const uint begin_row = gl_WorkGroupID.z * ROWS;
    if (begin_row >= tile.y) return;
    const uint rows = min(ROWS, tile.y - begin_row);
    own_share = gl_WorkGroupID.x % SHARES;
    const uint first_head = gl_WorkGroupID.x / SHARES * QUERIES;
    const uint kv_head = first_head / (HEADS / KV_HEADS);
    const uint first_row = tile.x + begin_row;
    const uvec4 place = kv_row(push.frame, first_row);

    const uint slice = gl_SubgroupID % SLICES;
    const uint first_vector = gl_SubgroupID / SLICES * (VECTORS * LEFTS) + lane / 4u;
    uint from = 0xFFFFFFFFu;
    uint end = 0u;
    uint all_from = 0u;
    uint all_end = 0xFFFFFFFFu;
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        const uvec2 vectors = first_vector + VECTORS * left + uvec2(0u, 8u);
        // Vectors without a row repeat the last row and write nothing.
        const uvec2 own_rows = min(vectors / QUERIES, uvec2(rows - 1u));
        [[unroll]] for (uint lower = 0u; lower < 2u; ++lower) {
            const uint row = first_row + own_rows[lower];
            firsts[left][lower] = kv_first(place.y + own_rows[lower], push.window);
            lasts[left][lower] = kv_end(kv_row(push.frame, row), push.ahead) - 1u;
            factors[left][lower] = load_query(left, row, first_head + vectors[lower] % QUERIES, lower == 1u);
        }
        from = min(from, subgroupMin(min(firsts[left].x, firsts[left].y)));
        end = max(end, subgroupMax(max(lasts[left].x, lasts[left].y)) + 1u);
        // Keys that all of the subgroup's vectors see need no comparisons.
        all_from = max(all_from, subgroupMax(max(firsts[left].x, firsts[left].y)));
        all_end = min(all_end, subgroupMin(min(lasts[left].x, lasts[left].y)) + 1u);
        high[left] = vec2(LOWEST);
        totals[left] = Sum(0.0);
    }
    if (STAGED != 0u) {
        // Those of the whole workgroup. No row sees less far than the one before.
        from = kv_first(place.y, push.window);
        end = kv_end(kv_row(push.frame, first_row + rows - 1u), push.ahead);
    }
    if (KEPT == 0u) barrier();

    [[unroll]] for (uint i = 0u; i < LEFTS * SUMS; ++i) sums[i] = Sum(0.0);
    const uint begin = from / KV_BLOCK * KV_BLOCK + slice * KV_BLOCK;
    uint64_t part = kv_part(push.cache, kv_block(place, push.tables, push.ring, min(begin, end - 1u) / KV_BLOCK), kv_head);
    if (KEYS_AHEAD > 0u) fetch_keys(part, begin < end ? min(end - begin, KV_BLOCK) : 1u);
    if (STAGED != 0u) {
        fetch_block(part, min(end - begin, KV_BLOCK));
        put_block(0u);
    }
    [[dont_unroll]] for (uint base = begin; base < end; base += SLICES * KV_BLOCK) {
        const uint count = min(end - base, KV_BLOCK);
        const uint next = base + SLICES * KV_BLOCK;
        const uint next_block = kv_block(place, push.tables, push.ring, min(next, end - 1u) / KV_BLOCK);
        if (STAGED != 0u) {
            // All have stored this block, and none reads the one before any more.
            barrier();
            fetch_block(kv_part(push.cache, next_block, kv_head), next < end ? min(end - next, KV_BLOCK) : 1u);
        }
        const uint64_t values = part + uint64_t(KV_PART_BYTES);
        if (VALUES_AHEAD > 0u) fetch_values(values, count);
        multiply_keys(part, count);
        part = kv_part(push.cache, next_block, kv_head);
        // After the last block once more its first key, which nobody uses.
        if (KEYS_AHEAD > 0u) fetch_keys(part, next < end ? min(end - next, KV_BLOCK) : 1u);
        const bool all_seen = base >= all_from && base + KV_BLOCK <= all_end;
        vec2 zeros[LEFTS];
        [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
            const vec2 highest = highest_score(left, all_seen ? 0xFFFFFFFFu : seen_scores(left, base));
            const vec2 kept = exp2(high[left] - highest);
            high[left] = highest;
            totals[left][0] *= kept.x;
            totals[left][2] *= kept.y;
            if (LEFTS > 1u || subgroupAny(kept != vec2(1.0))) scale_sums(left, kept);
            // A row that sees none of the keys so far has the same highest score as they have: its weights are 0 too.
            zeros[left] = vec2(highest.x > LOWEST ? highest.x - 14.0 : 0.0, highest.y > LOWEST ? highest.y - 14.0 : 0.0);
        }
        [[unroll]] for (uint sixteen = 0u; sixteen < FACTORS / 2u; ++sixteen) {
            Left weights[LEFTS];
            [[unroll]] for (uint left = 0u; left < LEFTS; ++left) weights[left] = weights_of(left, sixteen, zeros[left]);
            multiply_values(values, sixteen, count, weights);
        }
        if (STAGED != 0u) {
            stage = BLOCK_QUADS - stage;
            put_block(stage);
        }
    }

    vec2 total[LEFTS];
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) total[left] = vec2(totals[left][0], totals[left][2]);
    if (SLICES > 1u) {
        marks[gl_SubgroupID * LANES + lane] = vec4(high[0], total[0]);
        barrier();
        vec2 highest = high[0];
        const uint first_slice = gl_SubgroupID - slice;
        for (uint i = 0u; i < SLICES; ++i) highest = max(highest, marks[(first_slice + i) * LANES + lane].xy);
        total[0] = vec2(0.0);
        for (uint i = 0u; i < SLICES; ++i) {
            const vec4 mark = marks[(first_slice + i) * LANES + lane];
            total[0] += mark.zw * exp2(mark.xy - highest);
        }
        join(exp2(high[0] - highest));
        if (slice != 0u) return;
    }
    [[unroll]] for (uint left = 0u; left < LEFTS; ++left) {
        [[unroll]] for (uint lower = 0u; lower < 2u; ++lower) {
            const uint vector = first_vector + VECTORS * left + 8u * lower;
            if (vector / QUERIES >= rows) continue;
            store_vector(left, lower, first_row + vector / QUERIES, first_head + vector % QUERIES, UNIT / total[left][lower]);
        }
    }
}
