#version 460
// Weighted sums of rows, one workgroup for each row: terms may be normed first; one may be a sum of parts of the row with a share
// each. The norm of the sum may be added to a row, and the result may be normed after that.
//
// Bound: the bytes of the terms, read once, and of the results; one row is bound by the latency of its reads and of at most three
// reductions.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define REDUCE_QUADS
#include "include/memory.glsl"
#include "include/reduce.glsl"
#include "include/operand.glsl"
#include "include/norm.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint TERMS = 1;
// Which terms are normed, as bits.
layout(constant_id = 2) const uint NORMED = 0;
// Whether the norm of the result is given, too.
layout(constant_id = 3) const uint FINISH = 0;
layout(constant_id = 4) const uint OPERAND = 0;
layout(constant_id = 5) const uint PLAIN = 0;
layout(constant_id = 6) const uint COLUMNS = 32;
layout(constant_id = 7) const uint PER = 1;
layout(constant_id = 8) const float FACTOR_0 = 1.0;
layout(constant_id = 9) const float FACTOR_1 = 1.0;
layout(constant_id = 10) const float FACTOR_2 = 1.0;
layout(constant_id = 11) const float FACTOR_3 = 1.0;
// Of all norms.
layout(constant_id = 12) const float EPSILON = 0.0;
// The term of parts, if there is one among the first three: `USED` for each row.
layout(constant_id = 13) const uint PARTED = 4;
layout(constant_id = 14) const uint USED = 1;
// Whether the norm of the sum is added to what the result replaces, with a factor on that.
layout(constant_id = 15) const uint ADDS = 0;
layout(constant_id = 16) const float SCALE = 1.0;

layout(push_constant, scalar) uniform Args {
    // With a term of parts the last one is the address of their shares.
    uint64_t terms[4];
    // Factors of the terms' norms.
    uint64_t weights[4];
    // Factors of the norm that is added.
    uint64_t added_weight;
    uint64_t sum;
    // Of the norm of the result.
    uint64_t weight;
    uint64_t plain;
    uint64_t codes;
    uint64_t scales;
    uint64_t rows;
    uint64_t chain;
} args;

#include "include/row.glsl"

const vec4 FACTORS = vec4(FACTOR_0, FACTOR_1, FACTOR_2, FACTOR_3);

vec4 terms[4u * PER];
vec4 factors[4u * PER];
vec4 added_factors[PER];
vec4 next_factors[PER];

// Parts that are loaded together.
const uint TOGETHER = 8u;

// Returns a column of the term of parts, which are added in their order.
vec4 sum_of_parts(const uint64_t parts, const uint row, const uint c) {
    vec4 total = vec4(0.0);
    for (uint first = 0u; first < USED; first += TOGETHER) {
        vec4 loaded[TOGETHER];
        float shares[TOGETHER];
        [[unroll]] for (uint k = 0u; k < TOGETHER; ++k) {
            const uint part = row * USED + min(first + k, USED - 1u);
            loaded[k] = load(parts, part, c);
            shares[k] = ActiveFloats(args.terms[3]).at[part];
        }
        [[unroll]] for (uint k = 0u; k < TOGETHER; ++k) {
            if (first + k < USED) total += shares[k] * loaded[k];
        }
    }
    return total;
}

bool is_normed(const uint t) {
    return (NORMED >> t & 1u) != 0u;
}

void work_on_row(const uint row) {
    vec4 squares = vec4(0.0);
    [[unroll]] for (uint t = 0u; t < 4u; ++t) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) {
            if (t == PARTED) terms[t * PER + i] = sum_of_parts(args.terms[t], row, column(i));
            else if (t < TERMS) terms[t * PER + i] = load(args.terms[t], row, column(i));
        }
    }
    vec4 target[PER];
    [[unroll]] for (uint i = 0u; i < PER; ++i) target[i] = ADDS != 0u ? load(args.sum, row, column(i)) : vec4(0.0);
    vec4 scaling = FACTORS;
    if (NORMED != 0u) {
        [[unroll]] for (uint t = 0u; t < 4u; ++t) {
            [[unroll]] for (uint i = 0u; i < PER; ++i) {
                if (t < TERMS && is_normed(t)) squares[t] += dot(terms[t * PER + i], terms[t * PER + i]);
            }
        }
        vec2 none = vec2(0.0);
        const vec4 means = workgroup_sums(squares, none) / float(COLUMNS);
        [[unroll]] for (uint t = 0u; t < 4u; ++t) {
            if (is_normed(t)) scaling[t] *= norm_factor(means[t], EPSILON, args.weights[t]);
        }
    }
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        v[i] = vec4(0.0);
        [[unroll]] for (uint t = 0u; t < 4u; ++t) {
            if (t < TERMS) {
                const vec4 value = terms[t * PER + i] * scaling[t];
                v[i] += is_normed(t) ? value * factors[t * PER + i] : value;
            }
        }
    }
    if (ADDS != 0u) {
        norm(added_factors, args.added_weight, EPSILON, false, 4u, 4u);
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] = (target[i] + v[i]) * SCALE;
    }
    store_row(args.sum, row);
    if (FINISH != 0u) {
        norm(next_factors, args.weight, EPSILON, OPERAND >= 2u, 2u, 3u);
        give_row(args.plain, args.codes, args.scales, row, true, 3u);
    }
}

void main() {
    const uint row = gl_WorkGroupID.x;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        [[unroll]] for (uint t = 0u; t < 4u; ++t) {
            if (is_normed(t)) factors[t * PER + i] = load(args.weights[t], 0u, column(i));
        }
        if (ADDS != 0u) added_factors[i] = load(args.added_weight, 0u, column(i));
        if (FINISH != 0u) next_factors[i] = load(args.weight, 0u, column(i));
    }
    const bool exists = row < Words(args.rows).at[0];
    chain_wait(args.chain);
    if (exists) work_on_row(row);
    chain_signal(args.chain);
}
