#version 460
// The product of a matrix of floats with many rows of activations, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes: C[token][feature] = sum over k of W[feature][k] * X[token][k], as exact as
// sums in f32 are. A factor in f32 is split into a half and what it leaves, a half again, so that 22 bits of it are multiplied:
// X as the operand is (operand.glsl), W here if it is in f32. A weight of 16 bits is one half. What two remainders would give is
// left out: it is less than the rounding of the sums.
//
// The unit of the matrix is a power of two, of which no weight is more than 2^15 times as large: what is in bf16 or f32 is
// counted in it before it becomes halves. A matrix that is not finite has a NaN as its unit.
//
// Both factors go from memory into the registers of the matrix units, without barriers. Lane 4 r + c of a subgroup loads eight
// columns, the c-th of 32, of rows r and r + 8. The subgroups of a workgroup form a rectangle: those of a row have the same
// features, those of a column the same tokens, so that the cache of their core holds what several of them load.
//
// If there are too few tiles for the device, several workgroups share the columns of some; the last one to finish adds their
// parts in order. crates/vulkan/src/kernels/matmul.rs says what bounds it and which shapes are used.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require

#include "include/memory.glsl"
#include "include/activation.glsl"
#include "include/formats.glsl"
#include "include/halves.glsl"
#include "include/factors.glsl"
#include "include/operand.glsl"
#include "include/matmul.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 128;
// Left factors of 16 rows of a subgroup; an even number if GATED is not 0.
layout(constant_id = 1) const uint LEFTS = 4;
// Right factors of 8 tokens of a subgroup: 2, 4 or 8.
layout(constant_id = 2) const uint RIGHTS = 4;
// 1: the upper half of each subgroup's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up.
layout(constant_id = 3) const uint GATED = 0;
// 1: the last tile has rows beyond the matrix.
layout(constant_id = 4) const uint RAGGED = 0;
// 1: several workgroups share a tile, except the first ones.
layout(constant_id = 5) const uint SPLIT = 0;
// Subgroups with the same features.
layout(constant_id = 6) const uint ACROSS = 2;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

#include "include/sharing.glsl"

const uint LANES = 32;
const uint SUBGROUPS = LOCAL / LANES;
const uint SUBGROUP_TOKENS = 8 * RIGHTS;
const uint TOKENS = SUBGROUP_TOKENS * ACROSS;
const uint PAIRS = RIGHTS / 2;
const uint HELD = 2 * PAIRS;
// Left factors of a subgroup that produce outputs, and outputs of a tile along the features.
const uint OUT_LEFTS = GATED != 0 ? LEFTS / 2 : LEFTS;
const uint SUBGROUP_FEATURES = 16 * OUT_LEFTS;
const uint TILE_FEATURES = SUBGROUPS / ACROSS * SUBGROUP_FEATURES;
const uint ROWS = 2 * LEFTS;
// Products of 16 columns in a step of 32, and steps in a group of 128.
const uint PRODUCTS = 2;
const uint STEPS = 4;
// Vectors of eight weights.
const uint VECTORS = 8 / FORMAT_UNIT;
#ifdef FORMAT_SINGLES
const bool SPLITS_WEIGHTS = true;
#else
const bool SPLITS_WEIGHTS = false;
#endif

// The weights of a step as they are in memory.
uvec4 codes[ROWS * VECTORS];
// Activations of a product: for two right factors the halves, then what these leave.
uvec4 operands[HELD];
Sum sums[RIGHTS * LEFTS];
// This lane's first weights and activations.
uint64_t rows_from[ROWS];
uint64_t operands_from;
uint lane;
uint first_token;
uint first_feature;
float inverse;

// The registers of these functions are indexed only by constants, whatever the order in which a compiler unrolls and inlines:
// otherwise they would become memory.

void load_codes(const uint i, const uint step) {
    [[unroll]] for (uint n = 0; n < VECTORS; n++) {
        codes[i * VECTORS + n] = ReadQuads(rows_from[i]).at[step * (4 * VECTORS) + n];
    }
}

void load_operands(const uint product, out uvec4 loaded[HELD]) {
    [[unroll]] for (uint j = 0; j < PAIRS; j++) {
        loaded[j] = ReadQuads(operands_from).at[(product * 8 + j) * LANES];
        loaded[PAIRS + j] = ReadQuads(operands_from).at[(product * 8 + 4 + j) * LANES];
    }
}

// Returns four weights of a row as halves.
uvec2 weights_of(const uint i, const uint product) {
    Unit unit;
    unit.codes = codes[VECTORS == 2u ? i * 2 + product : i];
    const uint part = VECTORS == 2u ? 0 : product;
#ifdef FORMAT_HALVES
    return part == 0 ? unit.codes.xy : unit.codes.zw;
#else
    const vec4 values = unit_values(unit, part) * inverse;
    return uvec2(packHalf2x16(values.xy), packHalf2x16(values.zw));
#endif
}

// Returns what the halves of four weights leave.
uvec2 remainders_of(const uint i, const uint product, const uvec2 halves) {
    Unit unit;
    unit.codes = codes[i * VECTORS + product % VECTORS];
    const vec4 left = operand_rest(unit_values(unit, 0) * inverse, halves, first_feature >> 31);
    return uvec2(packHalf2x16(left.xy), packHalf2x16(left.zw));
}

Right operand_of(const uint term, const uint j) {
    const uvec4 two = operands[term * PAIRS + j / 2];
    return j % 2 == 0 ? right_of(two.x, two.y) : right_of(two.z, two.w);
}

// Computes the products of a step, and loads the weights of the next one as soon as those of this one are used.
void multiply(const uint step, const uint following) {
    [[unroll]] for (uint product = 0; product < PRODUCTS; product++) {
        const bool is_last = product == PRODUCTS - 1;
        uvec4 ahead[HELD];
        load_operands(is_last ? following * PRODUCTS : step * PRODUCTS + 1, ahead);
        Right rights[2 * RIGHTS];
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
            rights[j] = operand_of(0, j);
            rights[RIGHTS + j] = operand_of(1, j);
        }
        [[unroll]] for (uint i = 0; i < LEFTS; i++) {
            const uvec2 upper = weights_of(2 * i, product);
            const uvec2 lower = weights_of(2 * i + 1, product);
            const Left left = left_of(upper, lower);
            Left rest;
            if (SPLITS_WEIGHTS) {
                rest = left_of(remainders_of(2 * i, product, upper), remainders_of(2 * i + 1, product, lower));
            }
            if (is_last) {
                load_codes(2 * i, following);
                load_codes(2 * i + 1, following);
            }
            [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
                sums[j * LEFTS + i] = coopMatMulAdd(left, rights[j], sums[j * LEFTS + i]);
            }
            [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
                sums[j * LEFTS + i] = coopMatMulAdd(left, rights[RIGHTS + j], sums[j * LEFTS + i]);
            }
            if (SPLITS_WEIGHTS) {
                [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
                    sums[j * LEFTS + i] = coopMatMulAdd(rest, rights[j], sums[j * LEFTS + i]);
                }
            }
        }
        [[unroll]] for (uint j = 0; j < HELD; j++) operands[j] = ahead[j];
    }
}

#include "include/outputs.glsl"
#include "include/parts.glsl"

// Stores a subgroup's sums for eight tokens.
void store_sums(const uint right, vec4 values[LEFTS]) {
#ifndef FORMAT_HALVES
    [[unroll]] for (uint i = 0; i < LEFTS; i++) values[i] *= push.args.unit;
#endif
    store_outputs(first_feature, first_token + 8 * right, values);
}

void main() {
    lane = gl_SubgroupInvocationID;
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
    const uint token_tiles = (push.args.tokens + TOKENS - 1) / TOKENS;
    first_token = tile % token_tiles * TOKENS + gl_SubgroupID % ACROSS * SUBGROUP_TOKENS;
    first_feature = tile / token_tiles * TILE_FEATURES + gl_SubgroupID / ACROSS * SUBGROUP_FEATURES;

    const uint groups = push.args.groups;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        uint row = first_feature + i % (2 * OUT_LEFTS) * 8 + lane / 4;
        if (RAGGED != 0) row = min(row, push.args.features - 1);
        if (i >= 2 * OUT_LEFTS) row += push.args.split1;
        rows_from[i] = push.args.codes + uint64_t(row) * (groups * (16 * VECTORS * 16)) + lane % 4 * (16 * VECTORS);
    }
    // Subgroups beyond the tokens multiply the last ones that have memory.
    const uint token = min(first_token, (push.args.tokens - 1) / 64 * 64 + first_token % 64);
    operands_from = push.args.operand + uint64_t(token / 64) * (groups * (STEPS * PRODUCTS * 8 * LANES * 16))
        + (token % 64 / 16 * LANES + lane) * 16;
#ifndef FORMAT_HALVES
    inverse = matmul_inverse_unit(push.args);
#endif

    [[unroll]] for (uint i = 0; i < RIGHTS * LEFTS; i++) sums[i] = Sum(0.0);
    uint step = split * groups / splits * STEPS;
    const uint end = (split + 1) * groups / splits * STEPS;
    [[unroll]] for (uint i = 0; i < ROWS; i++) load_codes(i, step);
    load_operands(step * PRODUCTS, operands);
    // Every turn of this loop loads, the last one what it already has: with a branch around the loads the compiler would copy
    // their results, and wait for them.
    [[dont_unroll]] while (step < end) {
        const uint following = min(step + 1, end - 1);
        multiply(step, following);
        step++;
    }

    const uint first_part = shared_tile * splits;
    const bool is_part = SPLIT != 0 && splits > 1;
    [[unroll]] for (uint right = 0; right < RIGHTS; right++) {
        vec4 values[LEFTS];
        [[unroll]] for (uint i = 0; i < LEFTS; i++) values[i] = values_of(sums[right * LEFTS + i]);
        if (is_part) {
            const uint at = part_at(first_part, split, right);
            [[unroll]] for (uint i = 0; i < LEFTS; i++) parts().at[at + i * LANES] = values[i];
        } else {
            store_sums(right, values);
        }
    }
    if (is_part && is_last(shared_tile, splits)) {
        [[dont_unroll]] for (uint right = 0; right < RIGHTS; right++) {
            store_sums(right, add_parts(first_part, splits, right));
        }
    }
}
