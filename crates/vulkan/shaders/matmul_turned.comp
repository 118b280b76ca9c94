#version 460
// The product of a matrix of weights with many rows of activations, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes: C[token][feature] = sum over k of W[feature][k] * X[token][k], with tokens as
// left factors and weights, arranged by arrange.comp, as right ones. X is in halves in fragment order (operand.glsl) with a factor
// for each row, sums are in f32.
//
// Both factors go from memory into the registers of the matrix units, without shared memory and without barriers, and every load is
// 512 bytes in a row: a left factor as it is, a word of codes for each of four right factors, which are decoded in registers. A lane
// holds the results of neighbouring features, so it stores 16 bytes at a time, also where they are left factors of the next product.
//
// If there are too few tiles for the device, several workgroups share the columns of some; the last one to finish adds their
// parts in order. crates/vulkan/src/kernels/matmul.rs says what bounds it.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require

#include "include/memory.glsl"
#include "include/activation.glsl"
#define DECODES_SHARES
#include "include/formats.glsl"
#include "include/factors.glsl"
#include "include/operand.glsl"
#include "include/matmul.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 128;
// Subgroups along the features; the others are along the tokens.
layout(constant_id = 1) const uint ACROSS = 2;
// 1: the result is gelu(gate) * up. 2: as halves in fragment order.
layout(constant_id = 2) const uint GATED = 0;
// 1: several workgroups share a tile, except the first ones.
layout(constant_id = 3) const uint SPLIT = 0;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

#include "include/sharing.glsl"
#include "include/arranged.glsl"

const uint LANES = 32;
const uint SUBGROUPS = LOCAL / LANES;
// A subgroup's part of a tile: left factors of 16 tokens and right factors of 8 features, in a gated product half of them of `up`.
const uint LEFTS = 4;
const uint RIGHTS = ARRANGED_FACTORS;
const uint TOKENS = 16 * LEFTS;
const uint FEATURES = GATED != 0 ? 4 * RIGHTS : 8 * RIGHTS;
const uint TILE_TOKENS = SUBGROUPS / ACROSS * TOKENS;
const uint TILE_FEATURES = ACROSS * FEATURES;
// Products of 16 columns in a group of 128.
const uint PRODUCTS = 8;
const uint SUMS = LEFTS * RIGHTS;

// Codes of two products, and of the next two: a word for each right factor.
uvec4 codes[2];
uvec4 codes_ahead[2];
// Scales of a group, and of the next one.
uvec4 scales;
uvec4 scales_ahead;
// Activations of a product.
uvec4 operands[LEFTS];
Sum sums[SUMS];
Magic magic;
uint lane;
// This lane's share of the subgroup's weights, and of its activations.
uint64_t weights;
uint64_t scales_from;
uint64_t activations;
uint groups;

// The registers of these functions are indexed only by constants, whatever the order in which a compiler unrolls and inlines:
// otherwise they would become memory.

void load_codes(const uint group, const uint word) {
    [[unroll]] for (uint i = 0; i < 2; i++) codes_ahead[i] = ReadQuads(weights).at[((group * 4 + word) * 2 + i) * LANES];
}

void take_codes() {
    [[unroll]] for (uint i = 0; i < 2; i++) codes[i] = codes_ahead[i];
}

void load_operands(const uint group, const uint product, out uvec4 loaded[LEFTS]) {
    const uint64_t from = activations + uint64_t(group * PRODUCTS + product) * (4 * LANES * 16);
    [[unroll]] for (uint i = 0; i < LEFTS; i++) loaded[i] = ReadQuads(from).at[i * LANES];
}

// Returns a left factor of a vector in the order of its registers.
Left left_in_order(const uvec4 words) {
    return left_of(words.xz, words.yw);
}

// Returns the right factor j of a product.
Right decode(const uint j, const uint product) {
    Share unit;
    unit.codes = uvec4(component(codes[j / 4], j % 4));
    const UnitScale scale = halves_of(component(scales, j / 2) >> (j % 2 * 16)).xx;
    const uvec4 both = decode_word(unit, magic, scale, 0);
    return product % 2 == 0 ? right_of(both.x, both.y) : right_of(both.z, both.w);
}

// Computes the products of a group.
void multiply(const uint group, const uint following) {
    [[unroll]] for (uint product = 0; product < PRODUCTS; product++) {
        const bool is_last = product == PRODUCTS - 1;
        if (product % 2 == 0) load_codes(product == PRODUCTS - 2 ? following : group, (product / 2 + 1) % 4);
        uvec4 ahead[LEFTS];
        load_operands(is_last ? following : group, (product + 1) % PRODUCTS, ahead);
        if (product == PRODUCTS / 2) scales_ahead = ReadQuads(scales_from).at[following * LANES];
        Left lefts[LEFTS];
        [[unroll]] for (uint i = 0; i < LEFTS; i++) lefts[i] = left_in_order(operands[i]);
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
            const Right right = decode(j, product);
            [[unroll]] for (uint i = 0; i < LEFTS; i++) {
                sums[i * RIGHTS + j] = coopMatMulAdd(lefts[i], right, sums[i * RIGHTS + j]);
            }
        }
        [[unroll]] for (uint i = 0; i < LEFTS; i++) operands[i] = ahead[i];
        if (product % 2 == 1) take_codes();
    }
    scales = scales_ahead;
}

// Stores the results of four neighbouring features for a token, the first of them a multiple of 4.
void store_fours(const uint feature, const uint token, const vec4 values) {
    if (feature < push.args.features && token < push.args.tokens) {
        MatmulVec4s(matmul_output(push.args, feature, token)).at[0] = values;
    }
}

vec4 gated(const vec4 gate, const vec4 up) {
    return vec4(gelu(gate.x), gelu(gate.y), gelu(gate.z), gelu(gate.w)) * up;
}

// Stores the results of 16 tokens, the i-th of the subgroup's: of tokens r and r + 8 in turn, of right factor after right factor.
void store_outputs(const uint tile, const uint first_token, const uint i, const vec4 values[RIGHTS]) {
    const uint token = first_token + 16 * i + lane / 4;
    const uint last = push.args.tokens - 1;
    const vec4 factor = vec2(MatmulFactors(push.args.operand_scales).at[min(token, last)],
                             MatmulFactors(push.args.operand_scales).at[min(token + 8, last)]).xxyy;
    vec4 results[RIGHTS];
    [[unroll]] for (uint j = 0; j < RIGHTS; j++) results[j] = values[j] * factor;
    if (GATED != 0) {
        [[unroll]] for (uint j = 0; j < RIGHTS / 2; j++) results[j] = gated(results[j], results[RIGHTS / 2 + j]);
    }
    [[unroll]] for (uint j = 0; j < (GATED != 0 ? RIGHTS / 2 : RIGHTS); j += 2) {
        const vec4 upper = vec4(results[j].xy, results[j + 1].xy);
        const vec4 lower = vec4(results[j].zw, results[j + 1].zw);
        const uint feature = arranged_feature(GATED != 0, tile, j, lane % 4 * 2);
        if (GATED == 2) {
            if (feature >= push.args.features || token >= push.args.tokens) continue;
            const float inverse = matmul_inverse_unit(push.args);
            const uvec4 both = uvec4(operand_in_order(upper * inverse), operand_in_order(lower * inverse));
            const uint at = operand_fragment(token, feature, push.args.features / 128);
            const bool are_both = token + 8 <= last;
            if (are_both) {
                Quads(push.args.out0).at[at / 4] = both.xzyw;
            } else {
                Words(push.args.out0).at[at] = both.x;
                Words(push.args.out0).at[at + 2] = both.y;
            }
            if (feature == 0) {
                MatmulFloats(push.args.out1).at[token] = push.args.unit;
                if (are_both) MatmulFloats(push.args.out1).at[token + 8] = push.args.unit;
            }
        } else {
            store_fours(feature, token, upper);
            store_fours(feature, token + 8, lower);
        }
    }
}

uint part_at(const uint part, const uint sum) {
    return ((part * SUBGROUPS + gl_SubgroupID) * SUMS + sum) * LANES + lane;
}

// Adds the parts of a tile in their order.
void finish_tile(const uint first_part, const uint splits, const uint tile, const uint first_token) {
    [[dont_unroll]] for (uint i = 0; i < LEFTS; i++) {
        vec4 values[RIGHTS];
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) values[j] = vec4(0.0);
        [[dont_unroll]] for (uint split = 0; split < splits; split++) {
            [[unroll]] for (uint j = 0; j < RIGHTS; j++) values[j] += parts().at[part_at(first_part + split, i * RIGHTS + j)];
        }
        store_outputs(tile, first_token, i, values);
    }
}

void main() {
    lane = gl_SubgroupInvocationID;
    groups = push.args.groups;
    uint shared_tile = 0;
    uint split = 0;
    uint splits = 1;
    uint tile = gl_WorkGroupID.x;
    if (SPLIT != 0 && tile >= push.args.whole) {
        splits = push.args.splits;
        shared_tile = (tile - push.args.whole) / splits;
        split = (tile - push.args.whole) % splits;
        tile = push.args.whole + shared_tile;
    }
    // Tiles of the same weights are neighbours, so that the weights come from memory once.
    const uint token_tiles = (push.args.tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    const uint first_token = tile % token_tiles * TILE_TOKENS + gl_SubgroupID / ACROSS * TOKENS;
    const uint own_tile = tile / token_tiles * ACROSS + gl_SubgroupID % ACROSS;
    // A subgroup beyond an edge computes what the last one within it does, and stores nothing.
    const uint token_rows = min(first_token / TOKENS, (push.args.tokens - 1) / TOKENS);
    const uint weights_tile = min(own_tile, (push.args.features + FEATURES - 1) / FEATURES - 1);
    weights = push.args.codes + 16 * (uint64_t(weights_tile * groups) * (4 * 2 * LANES) + lane);
    scales_from = push.args.scales + 16 * (uint64_t(weights_tile * groups) * LANES + lane);
    activations = push.args.operand + 16 * (uint64_t(token_rows * groups) * (PRODUCTS * 4 * LANES) + lane);
    magic = magic_of(first_token >> 31);

    [[unroll]] for (uint i = 0; i < SUMS; i++) sums[i] = Sum(0.0);
    const uint end = (split + 1) * groups / splits;
    uint group = split * groups / splits;
    load_codes(group, 0);
    take_codes();
    scales = ReadQuads(scales_from).at[group * LANES];
    load_operands(group, 0, operands);
    // Every turn of this loop loads, the last one what it already has: with a branch around the loads the compiler would copy
    // their results, and wait for them.
    [[dont_unroll]] while (group < end) {
        const uint following = min(group + 1, end - 1);
        multiply(group, following);
        group++;
    }

    const uint first_part = shared_tile * splits;
    [[unroll]] for (uint i = 0; i < LEFTS; i++) {
        vec4 values[RIGHTS];
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) values[j] = values_of(sums[i * RIGHTS + j]);
        if (SPLIT != 0 && splits > 1) {
            [[unroll]] for (uint j = 0; j < RIGHTS; j++) parts().at[part_at(first_part + split, i * RIGHTS + j)] = values[j];
        } else {
            store_outputs(own_tile, first_token, i, values);
        }
    }
    if (SPLIT != 0 && splits > 1 && is_last(shared_tile, splits)) finish_tile(first_part, splits, own_tile, first_token);
}
