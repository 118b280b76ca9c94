#version 460
// Attention of many rows with cooperative matrices, f16 times f16 onto f32. Each workgroup takes neighbouring rows of one
// sequence and QUERIES query heads that share a key head: a vector for each row and head, M of them for each subgroup. Keys and
// values pass through shared memory as f16.
//
// Values that do not fit into an f16 are scaled by powers of two: queries separately for each vector, keys and values of caches
// that are not f16 for each tile of KEYS positions. Weights are counted in units of 2^-14, so that those that matter are normal
// numbers.
//
// Large heads are cut into SHARES of the result, each by workgroups of its own: the sums of all 512 values of a vector would take
// too many registers. Each share computes the scores again.
//
// Heads that are no whole factors, as those of 72, are filled up with zeros in shared memory.
//
// Bound: DIM * (2 * SHARES + 2) operations for each vector and key at the rate of the matrix units.

#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
// A multiple of 8.
layout(constant_id = 1) const uint DIM = 64;
layout(constant_id = 2) const uint HEADS = 1;
layout(constant_id = 3) const uint KV_HEADS = 1;
layout(constant_id = 4) const uint KV = 1;
layout(constant_id = 5) const uint QUERIES = 1;
// Shape of a matrix product; N and K divide KEYS, are multiples of 8, and divide DIM if SHARES is not 1.
layout(constant_id = 6) const uint M = 16;
layout(constant_id = 7) const uint N = 16;
layout(constant_id = 8) const uint K = 16;
// Keys in shared memory at a time; divides the 32 of a block.
layout(constant_id = 9) const uint KEYS = 32;
layout(constant_id = 10) const uint SUBGROUPS = 1;
// The size of a subgroup; a multiple of M.
layout(constant_id = 11) const uint SUBGROUP = 32;
// Whether queries stay in matrices, if registers suffice. Otherwise they stay in shared memory.
layout(constant_id = 12) const uint KEPT = 1;
// 1: the result is an operand in halves, 2: in halves in fragment order; HEADS * DIM is then a multiple of 128.
layout(constant_id = 13) const uint HALVES = 0;
// Parts of a head's result; N and 8 divide each.
layout(constant_id = 14) const uint SHARES = 1;

#include "include/kv.glsl"
#include "include/operand.glsl"

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

const uint VECTORS = SUBGROUPS * M;
// Elements of the share of a value.
const uint OWN = DIM / SHARES;
// The same of queries and keys, and of the share, as whole factors.
const uint FILL = N > K ? N : K;
const uint PADDED = (DIM + FILL - 1u) / FILL * FILL;
const uint OWN_PADDED = PADDED / SHARES;
// Rows in shared memory are 16 bytes longer than their content, so that a column lies in different banks.
const uint WIDTH = PADDED / 8u + 1u;
// Values are transposed: a matrix product then loads them as widely as it loads keys.
const uint FLIPPED = KEYS / 8u + 1u;
const uint SCORES = KEYS / 4u + 1u;
const uint WEIGHTS = KEYS / 4u + 2u;
// Queries share `pool` with keys and values, or lie after them.
const uint STAGED = KEYS * WIDTH + OWN_PADDED * FLIPPED;
const uint QUERIES_AT = KEPT != 0u ? 0u : STAGED;
const uint POOL = QUERIES_AT + VECTORS * WIDTH > STAGED ? QUERIES_AT + VECTORS * WIDTH : STAGED;
// Pieces of 8 x 16 bytes that make up a tile's keys, and its values, and how many of both an invocation moves.
const uint PIECES = KEYS * DIM / 64u;
const uint ALL_PIECES = PIECES + KEYS * OWN / 64u;
const uint MOVED = (ALL_PIECES + gl_WorkGroupSize.x - 1u) / gl_WorkGroupSize.x;
// Whether the next tile is loaded while this one is multiplied: if that takes few registers.
const bool AHEAD = KV == KV_F16 && MOVED == 1u;
// Invocations for each row of a subgroup's scores.
const uint LANES = SUBGROUP / M;
const uint STEPS = PADDED / K;
const uint COLUMNS = OWN_PADDED / N;
const float LOWEST = -3.0e38;

shared uvec4 pool[POOL];
shared vec4 scores[VECTORS * SCORES];
shared uvec2 weights[VECTORS * WEIGHTS];
shared float tops[2u * SUBGROUPS];

// A piece on its way: of values, 8 elements for each of 8 keys; of keys, any 8 groups of 8 elements.
uvec4 piece[8];
coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> query[KEPT != 0u ? STEPS : 1u];
coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sum[COLUMNS];
coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> found[KEYS / N];

// Returns the part of the heads' results that the workgroup computes.
uint share_of_group() {
    return gl_WorkGroupID.x % SHARES;
}

// Returns the exponent whose power of two brings values of at most `high` below 2^14; 0 if `high` is not finite.
int exponent_of(const float high) {
    return high < OPERAND_INFINITE ? operand_exponent(high) : 0;
}

// Writes the vector's query to `pool` and returns its factor.
float stage_query(const uint vector, const uint row, const uint head, const uint lane) {
    const uint from = (row * HEADS + head) * DIM / 4u;
    float high = 0.0;
    for (uint i = lane; i < DIM / 4u; i += LANES) high = max(high, operand_magnitude(Vec4s(push.query).at[from + i]));
    [[unroll]] for (uint step = 1u; step < LANES; step *= 2u) high = max(high, subgroupShuffleXor(high, step));
    const int exponent = exponent_of(high);
    const float inverse = operand_power(-exponent);
    for (uint i = 2u * lane; i < DIM / 4u; i += 2u * LANES) {
        const vec4 a = Vec4s(push.query).at[from + i] * inverse;
        const vec4 b = Vec4s(push.query).at[from + i + 1u] * inverse;
        pool[QUERIES_AT + vector * WIDTH + i / 2u] = uvec4(
            packFloat2x16(f16vec2(a.xy)),
            packFloat2x16(f16vec2(a.zw)),
            packFloat2x16(f16vec2(b.xy)),
            packFloat2x16(f16vec2(b.zw))
        );
    }
    for (uint i = DIM / 8u + lane; i < PADDED / 8u; i += LANES) pool[QUERIES_AT + vector * WIDTH + i] = uvec4(0u);
    return operand_power(exponent) * push.scale * 1.4426950408889634;
}

// Fills up keys and values with zeros, which no piece replaces.
void fill_up() {
    const uint more = (PADDED - DIM) / 8u;
    for (uint i = gl_LocalInvocationIndex; i < KEYS * more; i += gl_WorkGroupSize.x) {
        pool[i / more * WIDTH + DIM / 8u + i % more] = uvec4(0u);
    }
    for (uint i = gl_LocalInvocationIndex; i < (OWN_PADDED - OWN) * FLIPPED; i += gl_WorkGroupSize.x) {
        pool[KEYS * WIDTH + OWN * FLIPPED + i] = uvec4(0u);
    }
}

// Reads eight elements of a key or value as floats, from element 8 * `eight` on.
void eight_values(const uint64_t part, const uint at, const uint eight, out vec4 a, out vec4 b) {
    if (KV == KV_F32) {
        a = Vec4s(part).at[(at * DIM + 8u * eight) / 4u];
        b = Vec4s(part).at[(at * DIM + 8u * eight) / 4u + 1u];
    } else {
        const uvec2 raw = Pairs(part).at[(at * DIM + 8u * eight) / 8u];
        const float scale = kv_scale(part, at, 8u * eight);
        a = kv_codes(raw.x) * scale;
        b = kv_codes(raw.y) * scale;
    }
}

// Returns the highest magnitude among keys (x) and values (y) of a tile in a cache that is not f16.
vec2 tile_high(const uint64_t part, const uint base, const uint end) {
    vec2 high = vec2(0.0);
    const uint each = KV == KV_INT8 ? KV_GROUPS : DIM / 8u;
    for (uint i = gl_LocalInvocationIndex; i < 2u * KEYS * each; i += gl_WorkGroupSize.x) {
        const uint key = i / each % KEYS;
        if (base + key >= end) continue;
        const uint at = base % KV_BLOCK + key;
        const bool is_value = i >= KEYS * each;
        const uint64_t from = part + (is_value ? uint64_t(KV_PART_BYTES) : 0ul);
        float found;
        if (KV == KV_INT8) {
            found = 127.0 * operand_magnitude(kv_scale(from, at, i % each * KV_GROUP));
        } else {
            vec4 a, b;
            eight_values(from, at, i % each, a, b);
            found = max(operand_magnitude(a), operand_magnitude(b));
        }
        if (is_value) {
            high.y = max(high.y, found);
        } else {
            high.x = max(high.x, found);
        }
    }
    high = subgroupMax(high);
    if (subgroupElect()) {
        tops[2u * gl_SubgroupID] = high.x;
        tops[2u * gl_SubgroupID + 1u] = high.y;
    }
    barrier();
    for (uint i = 0u; i < SUBGROUPS; ++i) high = max(high, vec2(tops[2u * i], tops[2u * i + 1u]));
    return high;
}

// Returns eight elements of position `base + key` as f16 times a power of two; 0 from `end` on.
uvec4 eight_halves(const uint64_t part, const uint base, const uint key, const uint end, const uint eight, const int exponent) {
    if (base + key >= end) return uvec4(0u);
    const uint at = base % KV_BLOCK + key;
    if (KV == KV_F16) return Quads(part).at[at * (DIM / 8u) + eight];
    vec4 a, b;
    eight_values(part, at, eight, a, b);
    const float factor = operand_power(-exponent);
    return uvec4(
        packFloat2x16(f16vec2(a.xy * factor)),
        packFloat2x16(f16vec2(a.zw * factor)),
        packFloat2x16(f16vec2(b.xy * factor)),
        packFloat2x16(f16vec2(b.zw * factor))
    );
}

// Loads piece `number` of the tile from `base` on: those of keys come first.
void fetch(const uint64_t part, const uint number, const uint base, const uint end, const ivec2 exponents) {
    if (number < PIECES) {
        [[unroll]] for (uint j = 0u; j < 8u; ++j) {
            const uint at = j * PIECES + number;
            piece[j] = eight_halves(part, base, at / (DIM / 8u), end, at % (DIM / 8u), exponents.x);
        }
    } else if (number < ALL_PIECES) {
        const uint keys = (number - PIECES) % (KEYS / 8u) * 8u;
        const uint eight = share_of_group() * (OWN / 8u) + (number - PIECES) / (KEYS / 8u);
        [[unroll]] for (uint j = 0u; j < 8u; ++j) {
            piece[j] = eight_halves(part + uint64_t(KV_PART_BYTES), base, keys + j, end, eight, exponents.y);
        }
    }
}

// Returns halves 2 * k (`odd`: 2 * k + 1) of the piece's eight groups.
uvec4 piece_column(const uint k, const bool odd) {
    uvec4 column;
    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
        const uint a = piece[2u * j][k];
        const uint b = piece[2u * j + 1u][k];
        column[j] = odd ? a >> 16 | b & 0xFFFF0000u : a & 0xFFFFu | b << 16;
    }
    return column;
}

// Stores a piece in shared memory.
void put(const uint number) {
    if (number < PIECES) {
        [[unroll]] for (uint j = 0u; j < 8u; ++j) {
            const uint at = j * PIECES + number;
            pool[at / (DIM / 8u) * WIDTH + at % (DIM / 8u)] = piece[j];
        }
    } else if (number < ALL_PIECES) {
        const uint keys = (number - PIECES) % (KEYS / 8u);
        const uint eight = (number - PIECES) / (KEYS / 8u);
        [[unroll]] for (uint k = 0u; k < 4u; ++k) {
            const uint at = KEYS * WIDTH + (8u * eight + 2u * k) * FLIPPED + keys;
            pool[at] = piece_column(k, false);
            pool[at + FLIPPED] = piece_column(k, true);
        }
    }
}

// Loads the queries of the subgroup's vectors, from element k * K on.
void load_query(const uint at, const uint first_vector, const uint k) {
    coopMatLoad(query[at], pool, QUERIES_AT + first_vector * WIDTH + k * K / 8u, WIDTH, gl_CooperativeMatrixLayoutRowMajor);
}

// Writes the scores of the subgroup's vectors against the tile's keys to `scores`.
void multiply_keys(const uint first_vector) {
    [[unroll]] for (uint n = 0u; n < KEYS / N; ++n) {
        found[n] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    [[unroll]] for (uint k = 0u; k < STEPS; ++k) {
        if (KEPT == 0u) load_query(0u, first_vector, k);
        [[unroll]] for (uint n = 0u; n < KEYS / N; ++n) {
            coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> keys;
            coopMatLoad(keys, pool, n * N * WIDTH + k * K / 8u, WIDTH, gl_CooperativeMatrixLayoutColumnMajor);
            found[n] = coopMatMulAdd(query[KEPT != 0u ? k : 0u], keys, found[n]);
        }
    }
    [[unroll]] for (uint n = 0u; n < KEYS / N; ++n) {
        coopMatStore(found[n], scores, first_vector * SCORES + n * N / 4u, SCORES, gl_CooperativeMatrixLayoutRowMajor);
    }
}

// Multiplies the subgroup's sums by a factor for each row, which is in the first N places of the row's scores.
void scale_sums(const uint first_vector) {
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> factors;
    coopMatLoad(factors, scores, first_vector * SCORES, SCORES, gl_CooperativeMatrixLayoutRowMajor);
    [[unroll]] for (uint n = 0u; n < COLUMNS; ++n) sum[n] = sum[n] * factors;
}

// Adds the tile's values times `weights` to the subgroup's sums.
void multiply_values(const uint first_vector) {
    [[unroll]] for (uint k = 0u; k < KEYS / K; ++k) {
        coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> part;
        coopMatLoad(part, weights, first_vector * WEIGHTS + k * K / 4u, WEIGHTS, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint n = 0u; n < COLUMNS; ++n) {
            coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> values;
            const uint at = KEYS * WIDTH + n * N * FLIPPED + k * K / 8u;
            coopMatLoad(values, pool, at, FLIPPED, gl_CooperativeMatrixLayoutColumnMajor);
            sum[n] = coopMatMulAdd(part, values, sum[n]);
        }
    }
}

// Returns the address of the keys of the block that position `base` is in.
uint64_t part_of(const uvec4 place, const uint base, const uint head) {
    return kv_part(push.cache, kv_block(place, push.tables, push.ring, base / KV_BLOCK), head);
}

void put_factor(const uint vector, const uint lane, const float factor) {
    for (uint i = lane; i < N / 4u; i += LANES) scores[vector * SCORES + i] = vec4(factor);
}

void main() {
    const uint tiles = Words(push.frame).at[2];
    if (gl_WorkGroupID.y >= tiles) return;
    // The last tiles of a prompt see most keys: they start first.
    const uvec4 tile = Quads(push.tiles).at[tiles - 1u - gl_WorkGroupID.y];
    const uint rows_of_group = VECTORS / QUERIES;
    const uint begin_row = gl_WorkGroupID.z * rows_of_group;
    if (begin_row >= tile.y) return;
    const uint rows = min(rows_of_group, tile.y - begin_row);
    const uint first_head = gl_WorkGroupID.x / SHARES * QUERIES;
    const uint kv_head = first_head / (HEADS / KV_HEADS);
    const uvec4 place = kv_row(push.frame, tile.x + begin_row);
    // No row sees less far than the one before.
    const uint end = kv_end(kv_row(push.frame, tile.x + begin_row + rows - 1u), push.ahead);

    const uint first_vector = gl_SubgroupID * M;
    const uint lane = gl_SubgroupInvocationID % LANES;
    const uint vector = first_vector + gl_SubgroupInvocationID / LANES;
    // Vectors without a row repeat the last row and write nothing.
    const uint row = min(vector / QUERIES, rows - 1u);
    const uint head = first_head + vector % QUERIES;
    const uint first = kv_first(place.y + row, push.window);
    const uint last = kv_end(kv_row(push.frame, tile.x + begin_row + row), push.ahead) - 1u;

    const float factor = stage_query(vector, tile.x + begin_row + row, head, lane);
    barrier();
    if (KEPT != 0u) {
        [[unroll]] for (uint k = 0u; k < STEPS; ++k) load_query(k, first_vector, k);
    }
    [[unroll]] for (uint n = 0u; n < COLUMNS; ++n) {
        sum[n] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    float high = LOWEST;
    float total = 0.0;
    // The unit that values are counted in, the largest so far, and the one that the sums are still counted in.
    int value_exponent = -200;
    int sum_exponent = -200;

    const uint begin = kv_first(place.y, push.window) / KEYS * KEYS;
    if (AHEAD) fetch(part_of(place, begin, kv_head), gl_LocalInvocationIndex, begin, end, ivec2(0));
    for (uint base = begin; base < end; base += KEYS) {
        ivec2 exponents = ivec2(0);
        if (KV != KV_F16) {
            const vec2 tops_found = tile_high(part_of(place, base, kv_head), base, end);
            exponents = ivec2(exponent_of(tops_found.x), max(value_exponent, exponent_of(tops_found.y)));
        }
        value_exponent = exponents.y;
        barrier();
        if (PADDED > DIM && base == begin) fill_up();
        if (AHEAD) {
            put(gl_LocalInvocationIndex);
        } else {
            const uint64_t part = part_of(place, base, kv_head);
            for (uint i = 0u; i < MOVED; ++i) {
                const uint number = i * gl_WorkGroupSize.x + gl_LocalInvocationIndex;
                fetch(part, number, base, end, exponents);
                put(number);
            }
        }
        barrier();
        if (AHEAD && base + KEYS < end) {
            fetch(part_of(place, base + KEYS, kv_head), gl_LocalInvocationIndex, base + KEYS, end, ivec2(0));
        }
        // All subgroups continue, also those that see none of these keys: software drivers treat a subgroup's barrier as one of
        // the whole workgroup.
        const float shift = sum_exponent < -126 ? 1.0 : operand_power(max(sum_exponent - value_exponent, -126));
        sum_exponent = value_exponent;
        multiply_keys(first_vector);
        subgroupBarrier();
        const float unit = factor * operand_power(exponents.x);
        float highest = high;
        for (uint i = lane; i < KEYS / 4u; i += LANES) {
            const vec4 four = scores[vector * SCORES + i] * unit;
            [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                const uint key = base + 4u * i + k;
                if (key >= first && key <= last) highest = max(highest, four[k]);
            }
        }
        [[unroll]] for (uint step = 1u; step < LANES; step *= 2u) highest = max(highest, subgroupShuffleXor(highest, step));
        const float kept = exp2(high - highest);
        high = highest;
        total *= kept;
        for (uint i = lane; i < KEYS / 4u; i += LANES) {
            const vec4 four = scores[vector * SCORES + i] * unit;
            f16vec4 share;
            [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                const uint key = base + 4u * i + k;
                const bool seen = key >= first && key <= last;
                share[k] = float16_t(seen ? exp2(four[k] - highest + 14.0) : 0.0);
                total += float(share[k]);
            }
            weights[vector * WEIGHTS + i] = uvec2(packFloat2x16(share.xy), packFloat2x16(share.zw));
        }
        subgroupBarrier();
        put_factor(vector, lane, kept * shift);
        subgroupBarrier();
        if (subgroupAny(kept * shift != 1.0)) scale_sums(first_vector);
        multiply_values(first_vector);
    }

    // Each lane only has the weights of its own keys.
    [[unroll]] for (uint step = 1u; step < LANES; step *= 2u) total += subgroupShuffleXor(total, step);
    const float unit = operand_power(max(sum_exponent, -126));
    subgroupBarrier();
    put_factor(vector, lane, unit / total);
    subgroupBarrier();
    scale_sums(first_vector);
    [[unroll]] for (uint n = 0u; n < COLUMNS; ++n) {
        subgroupBarrier();
        coopMatStore(sum[n], scores, first_vector * SCORES, SCORES, gl_CooperativeMatrixLayoutRowMajor);
        subgroupBarrier();
        if (vector / QUERIES < rows) {
            const uint output_row = tile.x + begin_row + row;
            const uint column = head * DIM + share_of_group() * OWN + n * N;
            const uint target = (output_row * (HEADS * DIM) + column) / 4u;
            for (uint i = lane; i < N / 4u; i += LANES) {
                if (PADDED > DIM && n * N + 4u * i >= OWN) continue;
                const vec4 four = scores[vector * SCORES + i];
                if (HALVES == 0u) {
                    Vec4s(push.target).at[target + i] = four;
                } else if (HALVES == 1u) {
                    // Means of what an f16 cache holds are halves without a factor.
                    Pairs(push.target).at[target + i] = uvec2(packHalf2x16(four.xy), packHalf2x16(four.zw));
                } else {
                    const uint at = operand_fragment(output_row, column + 4u * i, HEADS * DIM / 128u);
                    const uvec2 halves = operand_in_order(four);
                    Words(push.target).at[at] = halves.x;
                    Words(push.target).at[at + 2u] = halves.y;
                }
            }
        }
    }
    if (HALVES != 0u && vector / QUERIES < rows && head == 0u && share_of_group() == 0u && lane == 0u) {
        Floats(push.scales).at[tile.x + begin_row + row] = 1.0;
    }
}
