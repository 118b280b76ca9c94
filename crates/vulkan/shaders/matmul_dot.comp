#version 460
// The product of a matrix of quantised weights with many rows of fixed-point activations, by integer dot products: for
// devices without matrix units. Exact up to the f32 sums over blocks, as the matrix-vector kernel is.
//
// A workgroup makes a tile of BM rows of weights and BN tokens, in steps of BLOCKS blocks of 32 columns that it lays out in
// shared memory. An invocation has RM x RN outputs; the invocations next to it have the rows and tokens in between.

#extension GL_GOOGLE_include_directive : require

#include "include/memory.glsl"
#include "include/activation.glsl"
#include "include/formats.glsl"
#include "include/matmul.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 64;
// The tile. BM / RM * (BN / RN) is the size of the workgroup.
layout(constant_id = 1) const uint BM = 32;
layout(constant_id = 2) const uint BN = 32;
layout(constant_id = 3) const uint RM = 4;
layout(constant_id = 4) const uint RN = 4;
// Blocks of a step: 1, 2 or 4.
layout(constant_id = 5) const uint BLOCKS = 2;
// 1: the upper half of an invocation's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up.
layout(constant_id = 6) const uint GATED = 0;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

// Bytes of a row's block, prepared for products: elements 0..15 and 16..31, one row after another.
shared uvec4 weight_bytes[BLOCKS * 2 * BM];
shared vec2 weight_scales[BLOCKS * BM];
#if defined FORMAT_RUNS && defined FORMAT_MINIMUM
shared vec2 weight_minima[BLOCKS * BM];
#endif
// High bytes of elements 0..15 and 16..31, low bytes of the same.
shared uvec4 operand_bytes[BLOCKS * 4 * BN];
shared vec2 operand_scales[BLOCKS * BN];

const uint ACROSS = BM / RM;
const uint DOWN = BN / RN;
const uint TILE_FEATURES = GATED != 0 ? BM / 2 : BM;

// Returns the row of the matrix that is row `row` of the tile.
uint weight_row(const uint first, const uint row) {
    const uint feature = first + row % TILE_FEATURES;
    return min(feature, push.args.features - 1) + (row >= TILE_FEATURES ? push.args.split1 : 0);
}

void load_step(const Planes planes, const uint first_feature, const uint first_token, const uint first_block) {
    for (uint i = gl_LocalInvocationIndex; i < BM * BLOCKS; i += LOCAL) {
        const uint row = i / BLOCKS;
        const uint part = i % BLOCKS;
        const Block block = unit_block(load_unit(planes, weight_row(first_feature, row), first_block + part));
        weight_bytes[part * 2 * BM + row] = block.low;
        weight_bytes[(part * 2 + 1) * BM + row] = block.high;
        weight_scales[part * BM + row] = vec2(block.scale, block.other);
#if defined FORMAT_RUNS && defined FORMAT_MINIMUM
        weight_minima[part * BM + row] = block.minima;
#endif
    }
    for (uint i = gl_LocalInvocationIndex; i < BN * BLOCKS * 4; i += LOCAL) {
        const uint row = i / (BLOCKS * 4);
        const uint piece = i / BLOCKS % 4;
        const uint part = i % BLOCKS;
        const uint block = first_block + part;
        const uint token = min(first_token + row, push.args.tokens - 1);
        const uint at = (token * planes.groups + block / 4) * 16 + piece * 4 + block % 4;
        operand_bytes[(part * 4 + piece) * BN + row] = ReadQuads(push.args.operand).at[at];
        if (piece == 0) {
            operand_scales[part * BN + row] = ReadVec2s(push.args.operand_scales).at[token * planes.groups * 4 + block];
        }
    }
}

void main() {
    const Planes planes =
        Planes(push.args.codes, push.args.high, push.args.scales, push.args.supers, push.args.groups);
    const uint token_tiles = (push.args.tokens + BN - 1) / BN;
    const uint first_token = gl_WorkGroupID.x % token_tiles * BN;
    const uint first_feature = gl_WorkGroupID.x / token_tiles * TILE_FEATURES;
    const uint row = gl_LocalInvocationIndex % ACROSS;
    const uint column = gl_LocalInvocationIndex / ACROSS;
    float sums[RM * RN];
    [[unroll]] for (uint i = 0; i < RM * RN; i++) sums[i] = 0.0;
    for (uint first_block = 0; first_block < planes.groups * 4; first_block += BLOCKS) {
        load_step(planes, first_feature, first_token, first_block);
        barrier();
        [[unroll]] for (uint part = 0; part < BLOCKS; part++) {
            Block blocks[RM];
            [[unroll]] for (uint m = 0; m < RM; m++) {
                const uint at = row + m * ACROSS;
                blocks[m].low = weight_bytes[part * 2 * BM + at];
                blocks[m].high = weight_bytes[(part * 2 + 1) * BM + at];
                const vec2 scale = weight_scales[part * BM + at];
                blocks[m].scale = scale.x;
                blocks[m].other = scale.y;
#if defined FORMAT_RUNS && defined FORMAT_MINIMUM
                blocks[m].minima = weight_minima[part * BM + at];
#endif
            }
            [[unroll]] for (uint n = 0; n < RN; n++) {
                const uint at = column + n * DOWN;
                Operand x;
                x.high0 = operand_bytes[(part * 4 + 0) * BN + at];
                x.high1 = operand_bytes[(part * 4 + 1) * BN + at];
                x.low0 = operand_bytes[(part * 4 + 2) * BN + at];
                x.low1 = operand_bytes[(part * 4 + 3) * BN + at];
                x.scale = operand_scales[part * BN + at];
                [[unroll]] for (uint m = 0; m < RM; m++) sums[n * RM + m] += block_product(blocks[m], x);
            }
        }
        barrier();
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
