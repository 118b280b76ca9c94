#version 460
// The product of a matrix of weights with 9 to 64 rows of activations, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes: C[token][feature] = sum over k of W[feature][k] * X[token][k], X in
// halves in fragment order (operand.glsl) with a factor for each row, sums in f32.
//
// Both factors go from memory into the registers of the matrix units, without shared memory and without barriers. Lane 4 r + c
// of a subgroup loads a unit of 32 columns, the c-th of a group of 128, of rows r and r + 8: its share of eight products of 16
// columns. Weights come one step ahead, activations one product ahead. A workgroup takes as much of a core as one may: its
// subgroups have the same activations, which the core's cache then holds, and those that share the columns of a step read the
// weights of more columns of a row at about the same time, which memory serves better.
//
// The steps along the columns of all tiles, one tile after another, are distributed over the workgroups in equal shares. A
// workgroup that makes a part of a tile leaves it in scratch memory; the last one to finish adds the parts in order.
// crates/vulkan/src/kernels/matmul.rs says what bounds it and which shapes are used.

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
#define CHAIN_MEMORY_MODEL
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 384;
// Left factors of 16 rows of a subgroup; an even number if GATED is not 0.
layout(constant_id = 1) const uint LEFTS = 2;
// Right factors of 8 tokens: an even number. One tile has all tokens.
layout(constant_id = 2) const uint RIGHTS = 4;
// Groups of 128 columns of a subgroup in a step.
layout(constant_id = 3) const uint GROUPS = 1;
// Subgroups that share the columns of a step.
layout(constant_id = 4) const uint SLICES = 3;
// 1: the upper half of each subgroup's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up. 2: as halves in
// fragment order.
layout(constant_id = 5) const uint GATED = 0;
// 1: the last tile has rows beyond the matrix.
layout(constant_id = 6) const uint RAGGED_ROWS = 0;
// 1: the last step has groups beyond the end of a row.
layout(constant_id = 7) const uint RAGGED_COLUMNS = 0;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

#include "include/sharing.glsl"

const uint LANES = 32;
const uint SUBGROUPS = LOCAL / LANES;
const uint STACKED = SUBGROUPS / SLICES;
const uint PAIRS = RIGHTS / 2;
// Left factors of a subgroup that produce outputs, and outputs of a tile along the features.
const uint OUT_LEFTS = GATED != 0 ? LEFTS / 2 : LEFTS;
const uint SUBGROUP_FEATURES = 16 * OUT_LEFTS;
const uint TILE_FEATURES = STACKED * SUBGROUP_FEATURES;
const uint ROWS = 2 * LEFTS;
// Products of 16 columns in a group of 128.
const uint PRODUCTS = 8;
// Parts of a tile that are loaded together when they are added.
const uint PARTS_TOGETHER = 4;
const uint STRIPS = SLICES > 1 ? SUBGROUPS * LEFTS * LANES : 1;
const uint STEP_GROUPS = SLICES * GROUPS;

shared vec4 strips[STRIPS];

// Weights of a step, and of the next one.
Share weights[GROUPS * ROWS];
Share next[GROUPS * ROWS];
UnitScale scales[ROWS];
// Activations of a product: a vector for two right factors.
uvec4 operands[PAIRS];
Sum sums[RIGHTS * LEFTS];
Planes planes;
Magic magic;
uint lane;
uint slice;
uint stacked;
// Steps of a tile.
uint units;
// This lane's share of the activations.
uint64_t activations;

// The position of the loads of weights: a step of a tile, its first group, and the first rows of the tile that this lane loads.
uint ahead_unit;
uint ahead_tile;
uint ahead_group;
uint ahead_row;
uint ahead_up_row;

// Returns the first feature of this subgroup's part of a tile.
uint subgroup_feature(const uint tile) {
    return tile * TILE_FEATURES + stacked * SUBGROUP_FEATURES;
}

void find_group() {
    ahead_group = (ahead_unit * SLICES + slice) * GROUPS;
}

void find_rows() {
    ahead_row = subgroup_feature(ahead_tile) + lane / 4;
    ahead_up_row = ahead_row + push.args.split1;
}

void advance() {
    ahead_unit++;
    if (ahead_unit == units) {
        ahead_unit = 0;
        ahead_tile++;
        find_rows();
    }
    find_group();
}

uint row_of(const uint i) {
    const bool is_up = i >= 2 * OUT_LEFTS;
    const uint row = (is_up ? ahead_up_row : ahead_row) + i % (2 * OUT_LEFTS) * 8;
    if (RAGGED_ROWS == 0) return row;
    return min(row, (is_up ? push.args.split1 : 0) + push.args.features - 1);
}

// Returns a group, or the last one instead of one beyond the end of a row.
uint group_within(const uint group) {
    return RAGGED_COLUMNS != 0 ? min(group, planes.groups - 1) : group;
}

// The registers of these functions are indexed only by constants, whatever the order in which a compiler unrolls and inlines:
// otherwise they would become memory.

void load_weights() {
    [[unroll]] for (uint i = 0; i < GROUPS * ROWS; i++) {
        next[i] = load_share(planes, row_of(i % ROWS), group_within(ahead_group + i / ROWS) * 4 + lane % 4);
    }
}

// Loads the activations of a product of a group.
void load_operands(const uint group, const uint product, out uvec4 loaded[PAIRS]) {
    const uint64_t from = activations + uint64_t(group * PRODUCTS + product) * (4 * LANES * 16);
    [[unroll]] for (uint j = 0; j < PAIRS; j++) loaded[j] = MatmulHalves(from).at[j * LANES];
}

// Computes the products of a group, the n-th of the subgroup's in a step.
void multiply(const uint n, const uint group) {
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        scales[i] = unit_scale(weights[n * ROWS + i], UNIT_PLACE(lane));
        if (RAGGED_COLUMNS != 0 && group >= planes.groups) scales[i] = UnitScale(0.0);
    }
    [[unroll]] for (uint product = 0; product < PRODUCTS; product++) {
        // After a group comes the next one of the step, or the first one of the next step.
        const bool is_last = product == PRODUCTS - 1;
        const uint following = is_last ? (n == GROUPS - 1 ? ahead_group : group + 1) : group;
        uvec4 ahead[PAIRS];
        load_operands(group_within(following), (product + 1) % PRODUCTS, ahead);
        Right rights[RIGHTS];
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
            rights[j] = j % 2 == 0 ? right_of(operands[j / 2].x, operands[j / 2].y)
                                  : right_of(operands[j / 2].z, operands[j / 2].w);
        }
        [[unroll]] for (uint i = 0; i < LEFTS; i++) {
            const uint at = n * ROWS + 2 * i;
            const uvec4 upper = decode_word(weights[at], magic, scales[2 * i], product / 2);
            const uvec4 lower = decode_word(weights[at + 1], magic, scales[2 * i + 1], product / 2);
            const Left left = product % 2 == 0 ? left_of(upper.xy, lower.xy) : left_of(upper.zw, lower.zw);
            [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
                sums[j * LEFTS + i] = coopMatMulAdd(left, rights[j], sums[j * LEFTS + i]);
            }
        }
        [[unroll]] for (uint j = 0; j < PAIRS; j++) operands[j] = ahead[j];
    }
}

#include "include/outputs.glsl"

// Steps of all tiles, one tile after another: the workgroup that has a step, and where a workgroup's steps begin.
uint owner_of(const uint unit) {
    return ((unit + 1) * gl_NumWorkGroups.x - 1) / (push.args.whole * units);
}

uint first_unit(const uint workgroup) {
    return workgroup * (push.args.whole * units) / gl_NumWorkGroups.x;
}

// Each workgroup has room for two parts: of the tile that it does not begin, and of the one that it does not end.
uint part_at(const uint workgroup, const bool begins, const uint right) {
    const uint place = 2 * workgroup + (begins ? 1 : 0);
    return ((place * RIGHTS + right) * STACKED + stacked) * (LEFTS * LANES) + lane;
}

// Adds the parts of a tile in the order of the workgroups, the first of which begins it.
void finish_tile(const uint tile, const uint first, const uint last) {
    [[dont_unroll]] for (uint right = slice; right < RIGHTS; right += SLICES) {
        vec4 values[LEFTS];
        [[unroll]] for (uint i = 0; i < LEFTS; i++) values[i] = vec4(0.0);
        [[dont_unroll]] for (uint workgroup = first; workgroup <= last; workgroup += PARTS_TOGETHER) {
            vec4 loaded[PARTS_TOGETHER * LEFTS];
            [[unroll]] for (uint n = 0; n < PARTS_TOGETHER; n++) {
                const uint sharer = min(workgroup + n, last);
                const uint at = part_at(sharer, sharer == first, right);
                [[unroll]] for (uint i = 0; i < LEFTS; i++) loaded[n * LEFTS + i] = parts().at[at + i * LANES];
            }
            [[unroll]] for (uint n = 0; n < PARTS_TOGETHER; n++) {
                [[unroll]] for (uint i = 0; i < LEFTS; i++) {
                    if (workgroup + n <= last) values[i] += loaded[n * LEFTS + i];
                }
            }
        }
        store_outputs(subgroup_feature(tile), 8 * right, values);
    }
}

// Handles the sums of a tile, all of it or a part.
void finish_sums(const uint tile, const bool begins, const bool ends) {
    const bool is_whole = begins && ends;
    [[dont_unroll]] for (uint right = 0; right < RIGHTS; right++) {
        vec4 values[LEFTS];
        [[unroll]] for (uint constant = 0; constant < RIGHTS; constant++) {
            if (constant == right) {
                [[unroll]] for (uint i = 0; i < LEFTS; i++) values[i] = values_of(sums[constant * LEFTS + i]);
            }
        }
        if (SLICES > 1) {
            barrier();
            [[unroll]] for (uint i = 0; i < LEFTS; i++) strips[(gl_SubgroupID * LEFTS + i) * LANES + lane] = values[i];
            barrier();
            if (right % SLICES != slice) continue;
            [[unroll]] for (uint i = 0; i < LEFTS; i++) {
                const uint at = (stacked * SLICES * LEFTS + i) * LANES + lane;
                values[i] = strips[at];
                [[unroll]] for (uint k = 1; k < SLICES; k++) values[i] += strips[at + k * LEFTS * LANES];
            }
        }
        if (is_whole) {
            store_outputs(subgroup_feature(tile), 8 * right, values);
        } else {
            const uint at = part_at(gl_WorkGroupID.x, begins, right);
            [[unroll]] for (uint i = 0; i < LEFTS; i++) parts().at[at + i * LANES] = values[i];
        }
    }
    if (!is_whole) {
        const uint first = owner_of(tile * units);
        const uint last = owner_of(tile * units + units - 1);
        if (is_last(first, last - first + 1)) finish_tile(tile, first, last);
    }
}

void work() {
    lane = gl_SubgroupInvocationID;
    slice = gl_SubgroupID % SLICES;
    stacked = gl_SubgroupID / SLICES;
    planes = Planes(push.args.codes, push.args.high, push.args.scales, push.args.supers, push.args.groups);
    units = (planes.groups + STEP_GROUPS - 1) / STEP_GROUPS;
    activations = push.args.operand + 16 * uint64_t(lane);
    uint unit = first_unit(gl_WorkGroupID.x);
    const uint end = first_unit(gl_WorkGroupID.x + 1);
    uint tile = unit / units;
    ahead_tile = tile;
    ahead_unit = unit % units;
    find_rows();
    find_group();
    magic = magic_of(ahead_row >> 31);
    load_weights();
    // The matrix depends on nothing: its first units are loaded during this wait.
    chain_wait(push.args.chain);
    load_operands(group_within(ahead_group), 0, operands);
    [[dont_unroll]] while (unit < end) {
        const uint first = unit;
        const uint stop = min(end, (tile + 1) * units);
        [[unroll]] for (uint i = 0; i < RIGHTS * LEFTS; i++) sums[i] = Sum(0.0);
        // Every turn of this loop loads, the last one what it already has: with a branch around the loads the compiler would
        // copy their results, and wait for them.
        [[dont_unroll]] do {
            [[unroll]] for (uint i = 0; i < GROUPS * ROWS; i++) weights[i] = next[i];
            const uint group = ahead_group;
            unit++;
            if (unit < end) advance();
            load_weights();
            [[unroll]] for (uint n = 0; n < GROUPS; n++) multiply(n, group + n);
        } while (unit < stop);
        finish_sums(tile, first == tile * units, unit == (tile + 1) * units);
        tile++;
    }
}

void main() {
    work();
    chain_signal(push.args.chain);
}
