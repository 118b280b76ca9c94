#version 460
// The product of a matrix of float weights with many rows of f32 activations in plain f32 arithmetic. If the weights are kept
// as they are, results have to agree with the reference as closely as f32 allows.
//
// A workgroup makes a tile of BM rows of weights and BN tokens, in steps of BK columns laid out in shared memory. An invocation
// has RM x RN outputs; the invocations next to it have the rows and tokens in between. SLICES invocations share each of these
// outputs, and take the columns of a step in turn: small tiles of a few outputs then have enough invocations to load and to add.

#extension GL_GOOGLE_include_directive : require

#include "include/memory.glsl"
#include "include/activation.glsl"
#include "include/formats.glsl"
#include "include/matmul.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 64;
// The tile. BM / RM * (BN / RN) * SLICES is the size of the workgroup.
layout(constant_id = 1) const uint BM = 32;
layout(constant_id = 2) const uint BN = 32;
layout(constant_id = 3) const uint RM = 4;
layout(constant_id = 4) const uint RN = 4;
// Columns of a step: a multiple of 4 that divides 128.
layout(constant_id = 5) const uint BK = 16;
// 1: the upper half of an invocation's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up.
layout(constant_id = 6) const uint GATED = 0;
layout(constant_id = 7) const uint SLICES = 1;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

// Column by column, one row after another.
shared float weight_values_of[BK * BM];
shared float operand_values_of[BK * BN];

// Sums of all slices but the first.
shared float slice_sums[SLICES > 1 ? (SLICES - 1) * BM * BN : 1];

const uint ACROSS = BM / RM;
const uint DOWN = BN / RN;
const uint TILE_FEATURES = GATED != 0 ? BM / 2 : BM;

// Returns the row of the matrix that is row `row` of the tile.
uint weight_row(const uint first, const uint row) {
    const uint feature = first + row % TILE_FEATURES;
    return min(feature, push.args.features - 1) + (row >= TILE_FEATURES ? push.args.split1 : 0);
}

// Returns four activations of a token; 0 beyond its columns.
vec4 operand_values(const uint token, const uint first) {
    const uint columns = push.args.columns;
    if (columns % 4 == 0) {
        return first < columns ? ReadVec4s(push.args.operand).at[token * (columns / 4) + first / 4] : vec4(0.0);
    }
    vec4 values = vec4(0.0);
    [[unroll]] for (uint k = 0; k < 4; k++) {
        if (first + k < columns) values[k] = ReadFloats(push.args.operand).at[token * columns + first + k];
    }
    return values;
}

void load_step(const Planes planes, const uint first_feature, const uint first_token, const uint first_column) {
    for (uint i = gl_LocalInvocationIndex; i < BM * BK / 4; i += LOCAL) {
        const uint row = i % BM;
        const uint k = i / BM * 4;
        const vec4 values = weight_values(planes, weight_row(first_feature, row), first_column + k);
        [[unroll]] for (uint part = 0; part < 4; part++) weight_values_of[(k + part) * BM + row] = values[part];
    }
    for (uint i = gl_LocalInvocationIndex; i < BN * BK / 4; i += LOCAL) {
        const uint row = i % BN;
        const uint k = i / BN * 4;
        const vec4 values = operand_values(min(first_token + row, push.args.tokens - 1), first_column + k);
        [[unroll]] for (uint part = 0; part < 4; part++) operand_values_of[(k + part) * BN + row] = values[part];
    }
}

void main() {
    const Planes planes =
        Planes(push.args.codes, push.args.high, push.args.scales, push.args.supers, push.args.groups);
    const uint token_tiles = (push.args.tokens + BN - 1) / BN;
    const uint first_token = gl_WorkGroupID.x % token_tiles * BN;
    const uint first_feature = gl_WorkGroupID.x / token_tiles * TILE_FEATURES;
    const uint slice = gl_LocalInvocationIndex / (LOCAL / SLICES);
    const uint row = gl_LocalInvocationIndex % ACROSS;
    const uint column = gl_LocalInvocationIndex / ACROSS % DOWN;
    float sums[RM * RN];
    [[unroll]] for (uint i = 0; i < RM * RN; i++) sums[i] = 0.0;
    for (uint first_column = 0; first_column < push.args.columns; first_column += BK) {
        load_step(planes, first_feature, first_token, first_column);
        barrier();
        for (uint k = slice; k < BK; k += SLICES) {
            float weights[RM];
            [[unroll]] for (uint m = 0; m < RM; m++) weights[m] = weight_values_of[k * BM + row + m * ACROSS];
            [[unroll]] for (uint n = 0; n < RN; n++) {
                const float x = operand_values_of[k * BN + column + n * DOWN];
                [[unroll]] for (uint m = 0; m < RM; m++) sums[n * RM + m] = fma(weights[m], x, sums[n * RM + m]);
            }
        }
        barrier();
    }
    if (SLICES > 1) {
        [[unroll]] for (uint i = 0; i < RM * RN; i++) {
            const uint own = gl_LocalInvocationIndex % (LOCAL / SLICES) * (RM * RN) + i;
            if (slice > 0) slice_sums[(slice - 1) * BM * BN + own] = sums[i];
        }
        barrier();
        if (slice > 0) return;
        [[unroll]] for (uint i = 0; i < RM * RN; i++) {
            const uint own = gl_LocalInvocationIndex * (RM * RN) + i;
            for (uint other = 0; other < SLICES - 1; other++) sums[i] += slice_sums[other * BM * BN + own];
        }
    }
    const uint outputs = GATED != 0 ? RM / 2 : RM;
    [[unroll]] for (uint n = 0; n < RN; n++) {
        const uint token = first_token + column + n * DOWN;
        [[unroll]] for (uint m = 0; m < outputs; m++) {
            const uint feature = first_feature + row + m * ACROSS;
            const float sum = sums[n * RM + m];
            const float value = GATED != 0 ? gelu(sum) * sums[n * RM + m + RM - outputs] : sum;
            matmul_store(push.args, feature, token, value);
        }
    }
}
