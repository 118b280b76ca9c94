#version 460
// Work on whole rows, one workgroup each: norms, additions to the residual stream, cutoffs, magnitudes, activations, and the
// conversion to the operand of a product. A row is held in registers between its one read and its one write.
//
// Bound: the bytes of the row, read and written once; one row is too short to be bound by anything but latency.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#include "include/memory.glsl"
#include "include/reduce.glsl"
#include "include/operand.glsl"
#include "include/norm.glsl"
#include "include/activation.glsl"
#include "include/limits.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
// 0: the row itself, 1: norm(row), 2: target = (target + norm(row)) * scale, 3: the same, then norm(target), 4: cutoff(row),
// 5: gelu(cutoff(row)) * target, 6: the row with the magnitude of the target, 7: layer_norm(row), 8: target = target + row, then
// layer_norm(target), 9: gelu(row), 10: norm(row) with factors of 1, 11: gelu(row) * target.
layout(constant_id = 1) const uint MODE = 0;
// 0: none, 1: fixed point, 2: halves, 3: halves in fragment order.
layout(constant_id = 2) const uint OPERAND = 0;
// Whether the f32 result is written too.
layout(constant_id = 3) const uint PLAIN = 1;
layout(constant_id = 4) const uint COLUMNS = 32;
// Pieces of four values for each invocation.
layout(constant_id = 5) const uint PER = 1;
// Rows here for each row of the step.
layout(constant_id = 6) const uint PARTS = 1;
// Whether a bias is added to the row first: of modes 8 and 9.
layout(constant_id = 7) const uint BIASED = 0;
// What stays within limits. Bit 0: the row, bit 1: the target, both before anything is done, bit 2: the result.
layout(constant_id = 8) const uint LIMITED = 0;

layout(push_constant, scalar) uniform Args {
    uint64_t source;
    uint64_t weight;
    uint64_t target;
    // Factors of the second norm; the bias of a layer norm.
    uint64_t next_weight;
    uint64_t plain;
    uint64_t codes;
    uint64_t scales;
    uint64_t rows;
    uint64_t chain;
    // Of the norms; the deviations of a cutoff; the least mean square that is divided by for a magnitude.
    float epsilon;
    // Factor on the sum of an addition.
    float scale;
    uint64_t bias;
    vec2 row_limits;
    vec2 target_limits;
    vec2 result_limits;
} args;

#include "include/row.glsl"

const bool NORMS = MODE >= 1u && MODE <= 3u || MODE == 10u;
const bool ADDS = MODE == 2u || MODE == 3u;
const bool LAYER_NORMS = MODE == 7u || MODE == 8u;
const bool HAS_TARGET = ADDS || MODE == 5u || MODE == 6u || MODE == 8u || MODE == 11u;

// Returns whether a norm produces the row that becomes an operand of halves.
bool norm_is_result() {
    return OPERAND >= 2u && (LIMITED & 4u) == 0u && (MODE == 1u || MODE == 3u || MODE == 10u);
}

vec4 factors[PER];
vec4 next_factors[PER];
vec4 old[PER];
vec4 biases[BIASED != 0u ? PER : 1u];

// Returns whether a column holds a value of the row.
bvec4 has_columns(const uint i) {
    return lessThan(uvec4(column(i)) + uvec4(0u, 1u, 2u, 3u), uvec4(COLUMNS));
}

// Returns the mean of the row.
float row_mean(const uint turn) {
    float total = 0.0;
    [[unroll]] for (uint i = 0u; i < PER; ++i) total += v[i].x + v[i].y + v[i].z + v[i].w;
    return workgroup_sum(total, turn) / float(COLUMNS);
}

// Returns the mean square of what the row has beyond `mean`.
float row_variance(const float mean, const uint turn) {
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        const vec4 off = mix(vec4(0.0), v[i] - mean, has_columns(i));
        squares += dot(off, off);
    }
    return workgroup_sum(squares, turn) / float(COLUMNS);
}

// x = (x - mean) / sqrt(variance + epsilon) * factor + bias.
void layer_norm() {
    const float mean = row_mean(0u);
    const float factor = norm_factor(row_variance(mean, 1u), args.epsilon, args.weight);
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        v[i] = mix(vec4(0.0), (v[i] - mean) * factor * factors[i] + next_factors[i], has_columns(i));
    }
}

// x = max(x - (mean + deviations * std), 0). What is not finite in the row, or its variance, makes all of it NaN.
void cut_off() {
    const float mean = row_mean(0u);
    const float limit = mean + args.epsilon * sqrt(row_variance(mean, 1u));
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        const vec4 above = is_number(limit) ? max(v[i] - limit, 0.0) : vec4(NOT_A_NUMBER);
        v[i] = mix(vec4(0.0), above, has_columns(i));
    }
}

// Gives the row the magnitude of the other one.
void rescale() {
    float own = 0.0;
    float other = 0.0;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        own += dot(v[i], v[i]);
        other += dot(old[i], old[i]);
    }
    own = workgroup_sum(own, 0u) / float(COLUMNS);
    other = workgroup_sum(other, 1u) / float(COLUMNS);
    const bool are_finite = is_number(own) && is_number(other);
    const float factor = are_finite ? sqrt(other / (own < args.epsilon ? args.epsilon : own)) : NOT_A_NUMBER;
    [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] *= factor;
}

void work_on_row(uint row) {
    [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] = load(args.source, row, column(i));
    if (HAS_TARGET) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) old[i] = load(args.target, row, column(i));
    }
    if ((LIMITED & 1u) != 0u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] = mix(vec4(0.0), within(v[i], args.row_limits), has_columns(i));
    }
    if ((LIMITED & 2u) != 0u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) old[i] = within(old[i], args.target_limits);
    }
    if (BIASED != 0u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] += biases[i];
    }
    if (NORMS) norm(factors, MODE == 10u ? 0ul : args.weight, args.epsilon, norm_is_result() && MODE != 3u, 0u, 2u);
    if (ADDS) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) {
            v[i] = (v[i] + old[i]) * args.scale;
            store(args.target, row, column(i), v[i]);
        }
    }
    if (MODE == 3u) norm(next_factors, args.next_weight, args.epsilon, norm_is_result(), 1u, 2u);
    if (MODE == 4u || MODE == 5u) cut_off();
    if (MODE == 5u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) {
            v[i] = vec4(gelu(v[i].x), gelu(v[i].y), gelu(v[i].z), gelu(v[i].w)) * old[i];
        }
    }
    if (MODE == 6u) rescale();
    if (MODE == 8u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) {
            v[i] += old[i];
            store(args.target, row, column(i), v[i]);
        }
    }
    if (LAYER_NORMS) layer_norm();
    if (MODE == 9u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] = vec4(gelu(v[i].x), gelu(v[i].y), gelu(v[i].z), gelu(v[i].w));
    }
    if (MODE == 11u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) {
            const vec4 gate = vec4(gelu(v[i].x), gelu(v[i].y), gelu(v[i].z), gelu(v[i].w));
            v[i] = mix(vec4(0.0), gate * old[i], has_columns(i));
        }
    }
    if ((LIMITED & 4u) != 0u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] = mix(vec4(0.0), within(v[i], args.result_limits), has_columns(i));
    }
    give_row(args.plain, args.codes, args.scales, row, norm_is_result(), 2u);
}

void main() {
    uint row = gl_WorkGroupID.x;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        if (MODE == 10u) factors[i] = vec4(1.0);
        else if (NORMS || LAYER_NORMS) factors[i] = load(args.weight, 0u, column(i));
        if (BIASED != 0u) biases[i] = load(args.bias, 0u, column(i));
        if (MODE == 3u || LAYER_NORMS) next_factors[i] = load(args.next_weight, 0u, column(i));
    }
    // What the host wrote for the step: rows beyond its own are left out.
    const bool exists = row < Words(args.rows).at[0] * PARTS;
    // Every workgroup waits: those that wait for this dispatch rely on everything before it being done.
    chain_wait(args.chain);
    if (exists) work_on_row(row);
    chain_signal(args.chain);
}
