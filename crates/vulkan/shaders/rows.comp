#version 460
// Work on whole rows, one workgroup each: norms, additions of norms to the residual stream, and the conversion to the operand
// of a product. A row is held in registers between its one read and its one write.
//
// Bound: the bytes of the row, read and written once; one row is too short to be bound by anything but latency.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require
#include "include/memory.glsl"
#include "include/reduce.glsl"
#include "include/operand.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
// 0: the row itself, 1: norm(row), 2: target += norm(row), 3: target += norm(row), then norm(target).
layout(constant_id = 1) const uint MODE = 0;
// 0: none, 1: fixed point, 2: halves.
layout(constant_id = 2) const uint OPERAND = 0;
// Whether the f32 result is written too.
layout(constant_id = 3) const uint PLAIN = 1;
layout(constant_id = 4) const uint COLUMNS = 32;
// Pieces of four values for each invocation.
layout(constant_id = 5) const uint PER = 1;

layout(push_constant, scalar) uniform Args {
    uint64_t source;
    uint64_t weight;
    uint64_t target;
    uint64_t next_weight;
    uint64_t plain;
    uint64_t codes;
    uint64_t scales;
    uint64_t rows;
    uint64_t chain;
    float epsilon;
} args;

const uint PADDED = (COLUMNS + 127u) / 128u * 128u;

// Returns four values from column `c` on; those beyond the row are 0.
vec4 load(uint64_t address, uint row, uint c) {
    if (COLUMNS % 4u == 0u) {
        return c < COLUMNS ? ActiveVec4s(address).at[(row * COLUMNS + c) / 4u] : vec4(0.0);
    }
    vec4 v = vec4(0.0);
    for (uint k = 0u; k < 4u; ++k) {
        if (c + k < COLUMNS) v[k] = ActiveFloats(address).at[row * COLUMNS + c + k];
    }
    return v;
}

void store(uint64_t address, uint row, uint c, vec4 v) {
    if (COLUMNS % 4u == 0u) {
        if (c < COLUMNS) ActiveVec4s(address).at[(row * COLUMNS + c) / 4u] = v;
        return;
    }
    for (uint k = 0u; k < 4u; ++k) {
        if (c + k < COLUMNS) ActiveFloats(address).at[row * COLUMNS + c + k] = v[k];
    }
}

// Returns whether a norm produces the row that becomes an operand of halves.
bool norm_is_result() {
    return OPERAND == 2u && (MODE == 1u || MODE == 3u);
}

uint column(uint i) {
    return 4u * (gl_LocalInvocationID.x + i * gl_WorkGroupSize.x);
}

vec4 v[PER];
vec4 factors[PER];
vec4 next_factors[PER];
vec4 old[PER];

// The largest magnitude of the row that becomes an operand of halves.
float highest;

// Norms v with the factors of its columns. The norm that produces the result finds its largest magnitude in the same reduction.
void norm(const vec4 weights[PER], const bool is_result, const uint turn) {
    float total = 0.0;
    float high = 0.0;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        total += dot(v[i], v[i]);
        v[i] *= weights[i];
        if (is_result) high = max(high, operand_magnitude(v[i]));
    }
    if (is_result) {
        const vec2 both = workgroup_sum_max(vec2(total, high), turn, 2u);
        total = both.x;
        high = both.y;
    } else {
        total = workgroup_sum(total, turn);
    }
    const float factor = inversesqrt(total / float(COLUMNS) + args.epsilon);
    [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] *= factor;
    highest = high * factor;
}

// Eight neighbouring invocations hold a block of 32.
void store_fixed(uint row) {
    const uint groups = PADDED / 128u;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        float high = operand_magnitude(v[i]);
        float sum = v[i].x + v[i].y + v[i].z + v[i].w;
        for (uint step = 1u; step < 8u; step *= 2u) {
            high = max(high, subgroupShuffleXor(high, step));
            sum += subgroupShuffleXor(sum, step);
        }
        uint c = column(i);
        if (c >= PADDED) continue;
        bool finite = high < OPERAND_INFINITE;
        float scale = finite ? high / 32512.0 : uintBitsToFloat(0x7FC00000u);
        // The inverse of a subnormal scale overflows: such a block counts as 0.
        bool some = finite && high > 1e-30;
        uvec2 bytes = some ? operand_fixed(v[i], 32512.0 / high) : uvec2(0u);
        uint block = c / 32u;
        uint at = (row * groups + block / 4u) * 64u + (c % 32u) / 16u * 16u + block % 4u * 4u + (c % 16u) / 4u;
        ActiveWords(args.codes).at[at] = bytes.x;
        ActiveWords(args.codes).at[at + 32u] = bytes.y;
        if (c % 32u == 0u) ActiveVec2s(args.scales).at[row * groups * 4u + block] = vec2(some || !finite ? scale : 0.0, finite ? sum : scale);
    }
}

void store_halves(uint row) {
    if (!norm_is_result()) {
        float high = 0.0;
        [[unroll]] for (uint i = 0u; i < PER; ++i) high = max(high, operand_magnitude(v[i]));
        highest = workgroup_max(high, 2u);
    }
    bool finite = highest < OPERAND_INFINITE;
    int exponent = operand_exponent(highest);
    float inverse = operand_power(-exponent);
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        uint c = column(i);
        if (c >= PADDED) continue;
        vec4 scaled = finite ? v[i] * inverse : vec4(0.0);
        ActivePairs(args.codes).at[(row * PADDED + c) / 4u] = uvec2(packHalf2x16(scaled.xy), packHalf2x16(scaled.zw));
    }
    if (gl_LocalInvocationID.x == 0u) {
        ActiveFloats(args.scales).at[row] = finite ? operand_power(exponent) : uintBitsToFloat(0x7FC00000u);
    }
}

void work_on_row(uint row) {
    [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] = load(args.source, row, column(i));
    if (MODE > 1u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) old[i] = load(args.target, row, column(i));
    }
    if (MODE > 0u) norm(factors, norm_is_result() && MODE == 1u, 0u);
    if (MODE > 1u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) {
            v[i] += old[i];
            store(args.target, row, column(i), v[i]);
        }
    }
    if (MODE > 2u) norm(next_factors, norm_is_result(), 1u);
    if (PLAIN != 0u) {
        [[unroll]] for (uint i = 0u; i < PER; ++i) store(args.plain, row, column(i), v[i]);
    }
    if (OPERAND == 1u) store_fixed(row);
    if (OPERAND == 2u) store_halves(row);
}

void main() {
    uint row = gl_WorkGroupID.x;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        if (MODE > 0u) factors[i] = load(args.weight, 0u, column(i));
        if (MODE > 2u) next_factors[i] = load(args.next_weight, 0u, column(i));
    }
    // What the host wrote for the step: rows beyond its own are left out.
    const bool exists = row < Words(args.rows).at[0];
    // Every workgroup waits: those that wait for this dispatch rely on everything before it being done.
    chain_wait(args.chain);
    if (exists) work_on_row(row);
    chain_signal(args.chain);
}
