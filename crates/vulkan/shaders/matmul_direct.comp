#version 460
// The product of a matrix of weights with many rows of activations, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes: C[token][feature] = sum over k of W[feature][k] * X[token][k], X in
// halves in fragment order (operand.glsl) with a factor for each row, sums in f32.
//
// Both factors go from memory into the registers of the matrix units, without shared memory and without barriers. Lane 4 r + c
// of a subgroup loads a unit of 32 columns, the c-th of a group of 128, of rows r and r + 8: its share of eight products of 16
// columns. The activations lie in the order in which lanes take them, so each load is 512 bytes in a row. Subgroups of a
// workgroup have the same tokens, which the cache of their core then holds.
//
// If there are too few tiles for the device, several workgroups share the columns of some; the last one to finish adds their
// parts in order. crates/vulkan/src/kernels/matmul.rs says what bounds it and which shapes are used.
//
// With EXPERTS it multiplies entries, sorted by expert, with the matrices of their experts: a row of workgroups takes a group
// (kernels/matmul/grouped.rs).

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
// Left factors of 16 rows of a subgroup; an even number if GATED is not 0.
layout(constant_id = 1) const uint LEFTS = 4;
// Right factors of 8 tokens: 2, 4 or 8.
layout(constant_id = 2) const uint RIGHTS = 8;
// 1: the upper half of each subgroup's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up. 2: as halves in
// fragment order.
layout(constant_id = 3) const uint GATED = 0;
// 1: the last tile has rows beyond the matrix.
layout(constant_id = 4) const uint RAGGED = 0;
// 1: several workgroups share a tile, except the first ones.
layout(constant_id = 5) const uint SPLIT = 0;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

#ifndef EXPERTS
#include "include/sharing.glsl"
#endif

const uint LANES = 32;
const uint SUBGROUPS = LOCAL / LANES;
const uint TOKENS = 8 * RIGHTS;
const uint PAIRS = RIGHTS / 2;
// Left factors of a subgroup that produce outputs, and outputs of a tile along the features.
const uint OUT_LEFTS = GATED != 0 ? LEFTS / 2 : LEFTS;
const uint SUBGROUP_FEATURES = 16 * OUT_LEFTS;
const uint TILE_FEATURES = SUBGROUPS * SUBGROUP_FEATURES;
const uint ROWS = 2 * LEFTS;
// Products of 16 columns in a group of 128.
const uint PRODUCTS = 8;

// Codes of a unit of each row; of Q8_0 those of one half of it.
UnitCodes codes[ROWS];
#ifdef FORMAT_HIGH
FORMAT_HIGH high[ROWS];
#endif
// Scales of the next group, as they are in memory.
#ifdef HAS_SCALES
uint scales_ahead[ROWS];
#endif
#ifdef FORMAT_SUPER
UnitSuper supers_ahead[ROWS];
#endif
UnitScale scales[ROWS];
// Activations of a product: a vector for two right factors.
uvec4 operands[PAIRS];
Sum sums[RIGHTS * LEFTS];
Planes planes;
Magic magic;
uint lane;
// The first row of the matrix that this lane loads, and the first one of `up`.
uint first_row;
uint first_up_row;
// The tile's activations, this lane's.
uint64_t activations;
uint first_token;
uint first_feature;

// Products in the order in which a unit's codes are used up. Word w of a unit holds elements 4 w..4 w + 3 for product 2 w, and
// 16 + 4 w.. for product 2 w + 1; the two halves of a unit of Q8_0 are loaded one after the other.
uint product_of(const uint turn) {
#ifdef FORMAT_MORE
    return turn % 4 * 2 + turn / 4;
#else
    return turn;
#endif
}

#ifdef EXPERTS
#define OWN_ROW(row) (expert_row + (row))
#else
#define OWN_ROW(row) (row)
#endif

uint row_of(const uint i) {
    const bool is_up = i >= 2 * OUT_LEFTS;
    const uint row = (is_up ? first_up_row : first_row) + i % (2 * OUT_LEFTS) * 8;
    if (RAGGED == 0) return OWN_ROW(row);
    return OWN_ROW(min(row, (is_up ? first_up_row - first_row : 0) + push.args.features - 1));
}

// The registers of these functions are indexed only by constants, whatever the order in which a compiler unrolls and inlines:
// otherwise they would become memory.

// Loads the codes of one row: for Q8_0 half of its unit.
void load_codes(const uint i, const uint group, const uint half_unit) {
    const uint at = row_of(i) * (planes.groups * 4) + group * 4 + lane % 4;
    TAKE_TABLE(planes);
#ifdef FORMAT_MORE
    codes[i] = ReadQuads(planes.codes).at[(row_of(i) * planes.groups + group) * 8 + half_unit * 4 + lane % 4];
#else
    codes[i] = READ_CODES(planes.codes).at[at];
#endif
#ifdef FORMAT_HIGH
    high[i] = FORMAT_LOAD_HIGH(planes.high, at);
#endif
}

void load_scales(const uint group) {
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
#ifdef HAS_SCALES
        scales_ahead[i] = ReadWords(planes.scales).at[(row_of(i) * (planes.groups * 4) + group * 4 + lane % 4) / SCALES_OF_WORD];
#endif
#ifdef FORMAT_SUPER
        supers_ahead[i] = READ_SUPERS(planes.supers).at[row_of(i) * ((planes.groups + 1) / 2) + group / 2];
#endif
    }
}

void take_scales() {
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        Share unit;
#ifdef HAS_SCALES
        unit.scales = scales_ahead[i];
#else
        unit.codes = codes[i];
#ifdef FORMAT_HIGH
        unit.high = high[i];
#endif
#endif
#ifdef FORMAT_SUPER
        unit.super = supers_ahead[i];
#endif
        scales[i] = unit_scale(unit, UNIT_PLACE(lane));
    }
}

// Returns a lane's four elements of a row in a product.
uvec2 decode(const uint i, const uint product) {
    Share unit;
    unit.codes = codes[i];
#ifdef FORMAT_MORE
    unit.more = codes[i];
#endif
#ifdef FORMAT_HIGH
    unit.high = high[i];
#endif
    const uvec4 both = decode_word(unit, magic, scales[i], product / 2);
    return product % 2 == 0 ? both.xy : both.zw;
}

// Loads the activations of a product of a group.
void load_operands(const uint group, const uint product, out uvec4 loaded[PAIRS]) {
    const uint64_t from = activations + uint64_t(group * PRODUCTS + product) * (4 * LANES * 16);
    [[unroll]] for (uint j = 0; j < PAIRS; j++) loaded[j] = ReadQuads(from).at[j * LANES];
}

// Computes the products of a group, and loads the codes of the next one as soon as those of this one are used.
void multiply(const uint group, const uint following) {
    take_scales();
    [[unroll]] for (uint turn = 0; turn < PRODUCTS; turn++) {
        const uint product = product_of(turn);
        const bool is_last = turn == PRODUCTS - 1;
        uvec4 ahead[PAIRS];
        load_operands(is_last ? following : group, product_of((turn + 1) % PRODUCTS), ahead);
        if (turn == PRODUCTS / 2) load_scales(following);
        Right rights[RIGHTS];
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
            rights[j] = j % 2 == 0 ? right_of(operands[j / 2].x, operands[j / 2].y)
                                  : right_of(operands[j / 2].z, operands[j / 2].w);
        }
        [[unroll]] for (uint i = 0; i < LEFTS; i++) {
            const Left left = left_of(decode(2 * i, product), decode(2 * i + 1, product));
            if (is_last) {
                load_codes(2 * i, following, 0);
                load_codes(2 * i + 1, following, 0);
            }
#ifdef FORMAT_MORE
            if (turn == PRODUCTS / 2 - 1) {
                load_codes(2 * i, group, 1);
                load_codes(2 * i + 1, group, 1);
            }
#endif
            [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
                sums[j * LEFTS + i] = coopMatMulAdd(left, rights[j], sums[j * LEFTS + i]);
            }
        }
        [[unroll]] for (uint j = 0; j < PAIRS; j++) operands[j] = ahead[j];
    }
}

#include "include/outputs.glsl"

#ifndef EXPERTS
#include "include/parts.glsl"

// Adds the parts of a tile.
void finish_tile(const uint first_part, const uint splits) {
    [[dont_unroll]] for (uint right = 0; right < RIGHTS; right++) {
        store_outputs(first_feature, first_token + 8 * right, add_parts(first_part, splits, right));
    }
}
#endif

void main() {
    lane = gl_SubgroupInvocationID;
    planes = Planes(push.args.codes, push.args.high, push.args.scales, push.args.supers, push.args.groups);
    uint shared_tile = 0;
    uint split = 0;
    uint splits = 1;
#ifdef EXPERTS
    if (!find_group(push.args)) return;
    first_token = expert_first;
    const uint feature_tile = gl_WorkGroupID.x;
#else
    uint tile = gl_WorkGroupID.x;
    if (SPLIT != 0 && tile >= push.args.whole) {
        splits = push.args.splits;
        shared_tile = (tile - push.args.whole) / splits;
        split = (tile - push.args.whole) % splits;
        tile = push.args.whole + shared_tile;
    }
    // Tiles of the same weights are neighbours, so that the weights come from memory once.
    const uint token_tiles = (push.args.tokens + TOKENS - 1) / TOKENS;
    first_token = tile % token_tiles * TOKENS;
    const uint feature_tile = tile / token_tiles;
#endif
    first_feature = feature_tile * TILE_FEATURES + gl_SubgroupID * SUBGROUP_FEATURES;
    first_row = first_feature + lane / 4;
    first_up_row = first_row + push.args.split1;
    const uint tile_vectors = planes.groups * (PRODUCTS * 4 * LANES);
    activations = push.args.operand + 16 * uint64_t(first_token / 64 * tile_vectors + first_token % 64 / 16 * LANES + lane);
    magic = magic_of(first_row >> 31);

    [[unroll]] for (uint i = 0; i < RIGHTS * LEFTS; i++) sums[i] = Sum(0.0);
    const uint end = (split + 1) * planes.groups / splits;
    uint group = split * planes.groups / splits;
    [[unroll]] for (uint i = 0; i < ROWS; i++) load_codes(i, group, 0);
    load_scales(group);
    load_operands(group, 0, operands);
    // Every turn of this loop loads, the last one what it already has: with a branch around the loads the compiler would copy
    // their results, and wait for them.
    [[dont_unroll]] while (group < end) {
        const uint following = min(group + 1, end - 1);
        multiply(group, following);
        group++;
    }

    const uint first_part = shared_tile * splits;
    [[unroll]] for (uint right = 0; right < RIGHTS; right++) {
        vec4 values[LEFTS];
        [[unroll]] for (uint i = 0; i < LEFTS; i++) {
            values[i] = values_of(sums[right * LEFTS + i]);
        }
#ifndef EXPERTS
        if (SPLIT != 0 && splits > 1) {
            const uint at = part_at(first_part, split, right);
            [[unroll]] for (uint i = 0; i < LEFTS; i++) parts().at[at + i * LANES] = values[i];
            continue;
        }
#endif
        store_outputs(first_feature, first_token + 8 * right, values);
    }
#ifndef EXPERTS
    if (SPLIT != 0 && splits > 1 && is_last(shared_tile, splits)) finish_tile(first_part, splits);
#endif
}
