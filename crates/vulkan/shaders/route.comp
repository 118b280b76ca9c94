#version 460
// A mix of streams whose coefficients are made from a row: its norm, the product with a small matrix (the router), tanh, and the
// product with a smaller one. One workgroup for each row of activations; all streams are in registers between their one read
// and their one write, which is in place. A norm before it and work on the first stream after it are done on the way.
//
// Bound: the bytes of the streams, read and written once; one row is bound by the latency of its reads and of two or three
// reductions, since one core holds it.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#define REDUCE_QUADS
#include "include/memory.glsl"
#include "include/reduce.glsl"
#include "include/operand.glsl"
#include "include/norm.glsl"
#include "include/activation.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint STREAMS = 1;
// 0: the first stream is routed, and the streams are the sources; 1: `row` is routed, and the source is what it exceeds the
// first stream by.
layout(constant_id = 2) const uint CORRECTS = 0;
// Whether the norm of `added` is added first: to `row`, or to all streams but the first.
layout(constant_id = 3) const uint ADDS = 0;
// What is made of the first stream: 0 nothing, 1 its norm, 2 its product with a vector.
layout(constant_id = 4) const uint FINISH = 0;
layout(constant_id = 5) const uint OPERAND = 0;
layout(constant_id = 6) const uint PLAIN = 0;
layout(constant_id = 7) const uint COLUMNS = 32;
layout(constant_id = 8) const uint PER = 1;
// Formats of the router and of the matrix of coefficients: 0 f32, 1 f16, 2 bf16.
layout(constant_id = 9) const uint ROUTER_FORMAT = 0;
layout(constant_id = 10) const uint COEFFICIENT_FORMAT = 0;
// Of all norms.
layout(constant_id = 11) const float EPSILON = 0.0;
layout(constant_id = 12) const float CAP = 1.0;
// A stream gets (BIAS + SCALE * coefficient) * source.
layout(constant_id = 13) const float BIAS = 0.0;
layout(constant_id = 14) const float SCALE = 1.0;

layout(push_constant, scalar) uniform Args {
    uint64_t streams[4];
    uint64_t row;
    uint64_t added;
    uint64_t added_weight;
    // Of the norm before the router.
    uint64_t norm_weight;
    uint64_t router;
    uint64_t coefficients;
    // Of what is made of the first stream.
    uint64_t weight;
    uint64_t plain;
    uint64_t codes;
    uint64_t scales;
    uint64_t rows;
    uint64_t chain;
} args;

#include "include/row.glsl"
#include "include/floats.glsl"

const uint SOURCES = CORRECTS != 0u ? 1u : STREAMS;
// Most coefficients of a row.
const uint COEFFICIENTS_MAX = 16u;

shared float route_coefficients[COEFFICIENTS_MAX];

vec4 streams[4u * PER];
vec4 added[PER];
vec4 added_factors[PER];
vec4 finish_factors[PER];
// The router's rows, times the factors of the norm before it.
vec4 router[4u * PER];

// Returns four elements of a row of a matrix of floats; those beyond it are 0.
vec4 matrix_quad(const uint64_t matrix, const uint format, const uint columns, const uint row, const uint c) {
    return c < columns ? floats_quad(matrix, format, columns, row, c / 4u) : vec4(0.0);
}

// Loads what does not depend on the step, and returns the row of the matrix of coefficients that this invocation multiplies.
vec4 load_constants() {
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        const vec4 factors = load(args.norm_weight, 0u, column(i));
        [[unroll]] for (uint m = 0u; m < 4u; ++m) {
            if (m < STREAMS) router[m * PER + i] = factors * matrix_quad(args.router, ROUTER_FORMAT, COLUMNS, m, column(i));
        }
        if (ADDS != 0u) added_factors[i] = load(args.added_weight, 0u, column(i));
        if (FINISH != 0u) finish_factors[i] = load(args.weight, 0u, column(i));
    }
    const uint own = min(gl_LocalInvocationID.x, STREAMS * SOURCES - 1u);
    return matrix_quad(args.coefficients, COEFFICIENT_FORMAT, STREAMS, own, 0u);
}

// Computes the coefficients from v, the row that is routed: its mean square and its products with the router's rows come from
// one reduction, since a norm is a factor. `squares`: sum of an invocation's squares of what is added to the streams. Returns
// the factor of its norm.
float route(const vec4 coefficients, const float squares) {
    vec4 products = vec4(0.0);
    vec2 totals = vec2(0.0, squares);
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        totals.x += dot(v[i], v[i]);
        [[unroll]] for (uint m = 0u; m < 4u; ++m) {
            if (m < STREAMS) products[m] += dot(v[i], router[m * PER + i]);
        }
    }
    products = workgroup_sums(products, totals);
    const float factor = norm_factor(totals.x / float(COLUMNS), EPSILON, args.norm_weight);
    vec4 capped = vec4(0.0);
    [[unroll]] for (uint m = 0u; m < 4u; ++m) {
        if (m < STREAMS) capped[m] = CAP * bounded_tanh(products[m] * factor / CAP);
    }
    if (gl_LocalInvocationID.x < STREAMS * SOURCES) {
        route_coefficients[gl_LocalInvocationID.x] = BIAS + SCALE * dot(coefficients, capped);
    }
    barrier();
    return ADDS != 0u ? norm_factor(totals.y / float(COLUMNS), EPSILON, args.added_weight) : 1.0;
}

void work_on_row(const vec4 coefficients, const uint row) {
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        [[unroll]] for (uint s = 0u; s < 4u; ++s) {
            if (s < STREAMS) streams[s * PER + i] = load(args.streams[s], row, column(i));
        }
        if (ADDS != 0u) added[i] = load(args.added, row, column(i));
        v[i] = CORRECTS != 0u ? load(args.row, row, column(i)) : streams[i];
    }
    float squares = 0.0;
    if (ADDS != 0u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) squares += dot(added[i], added[i]);
    }
    if (ADDS != 0u && CORRECTS != 0u) {
        const float square = workgroup_sum(squares, 2u) / float(COLUMNS);
        const float factor = norm_factor(square, EPSILON, args.added_weight);
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] += added[i] * factor * added_factors[i];
    }
    const float factor = route(coefficients, squares);
    if (ADDS != 0u && CORRECTS == 0u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) {
            const vec4 value = added[i] * factor * added_factors[i];
            [[unroll]] for (uint s = 1u; s < 4u; ++s) {
                if (s < STREAMS) streams[s * PER + i] += value;
            }
        }
    }
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        vec4 mixed[4];
        [[unroll]] for (uint s = 0u; s < 4u; ++s) {
            if (s < STREAMS) {
                mixed[s] = streams[s * PER + i];
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    if (j < SOURCES) {
                        const vec4 source = CORRECTS != 0u ? v[i] - streams[i] : streams[j * PER + i];
                        mixed[s] += route_coefficients[s * SOURCES + j] * source;
                    }
                }
            }
        }
        [[unroll]] for (uint s = 0u; s < 4u; ++s) {
            if (s < STREAMS) store(args.streams[s], row, column(i), mixed[s]);
        }
        v[i] = mixed[0];
    }
    if (FINISH == 1u) norm(finish_factors, args.weight, EPSILON, OPERAND >= 2u, 3u, 4u);
    if (FINISH == 2u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] *= finish_factors[i];
    }
    if (FINISH != 0u) give_row(args.plain, args.codes, args.scales, row, FINISH == 1u, 4u);
}

void main() {
    const vec4 coefficients = load_constants();
    const uint row = gl_WorkGroupID.x;
    const bool exists = row < Words(args.rows).at[0];
    chain_wait(args.chain);
    if (exists) work_on_row(coefficients, row);
    chain_signal(args.chain);
}
