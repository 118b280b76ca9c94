#version 460
// The product of a matrix of halves with many rows of activations, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes: C[token][feature] = sum over k of W[feature][k] * X[token][k], both in
// halves in the order in which subgroups hold factors (pack.rs, operand.glsl), X with a factor for each row, sums in f32.
//
// Both factors go from memory into the registers of the matrix units, without barriers. The subgroups of a workgroup form a
// rectangle: those of a row have the same features, those of a column the same tokens, so that the cache of their core holds
// what several of them load. Sums pass through shared memory to outputs, so that a sector of memory is written at once.
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
// Left factors of 16 rows of a subgroup; an even number if products are gated.
layout(constant_id = 1) const uint LEFTS = 4;
// Right factors of 8 tokens of a subgroup: 2, 4 or 8.
layout(constant_id = 2) const uint RIGHTS = 8;
// 0: the products. 1: the upper half of each subgroup's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up. 2:
// the same as halves in fragment order. 4: products with biases. 5: gelu(product + bias) as such halves. The format of the
// weights has one plane: the addresses of the others are those of the biases of each output. 6: the first third with biases; keys
// and values, which follow, with biases and in the order in which attention takes them (kernels/attention/whole.rs).
layout(constant_id = 3) const uint OUTPUT = 0;
// 1: the last tile has rows beyond the matrix.
layout(constant_id = 4) const uint RAGGED = 0;
// 1: several workgroups share a tile, except the first ones.
layout(constant_id = 5) const uint SPLIT = 0;
// Subgroups with the same features.
layout(constant_id = 6) const uint ACROSS = 2;
// Elements of a head, if OUTPUT is 6.
layout(constant_id = 7) const uint DIM = 8;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

#include "include/sharing.glsl"

const uint LANES = 32;
const uint SUBGROUPS = LOCAL / LANES;
const uint SUBGROUP_TOKENS = 8 * RIGHTS;
const uint TOKENS = SUBGROUP_TOKENS * ACROSS;
const uint PAIRS = RIGHTS / 2;
const bool GATED = OUTPUT == 1 || OUTPUT == 2;
// Left factors of a subgroup that produce outputs, and outputs of a tile along the features.
const uint OUT_LEFTS = GATED ? LEFTS / 2 : LEFTS;
const uint SUBGROUP_FEATURES = 16 * OUT_LEFTS;
const uint TILE_FEATURES = SUBGROUPS / ACROSS * SUBGROUP_FEATURES;
// Products of 16 columns in a group of 128, and those of a turn of the loop: with more, the compiler loads so far ahead that
// registers spill.
const uint PRODUCTS = 8;
const uint TURN = 2;
// Bytes from a left factor to the next one of its rows; right factors of 64 tokens take four times as many.
const uint FACTOR_BYTES = LANES * 16;
// A subgroup's sums for 16 tokens: one token after another, so that lanes write different banks.
const uint STRIP_ROW = 16 * LEFTS + 4;
const uint STRIP = 16 * STRIP_ROW;

shared float strips[SUBGROUPS * STRIP];

// Factors of a product: a vector for a left factor, a vector for two right ones.
uvec4 weights[LEFTS];
uvec4 operands[PAIRS];
Sum sums[RIGHTS * LEFTS];
// This lane's next vectors.
uint64_t weights_from[LEFTS];
uint64_t operands_from;
uint lane;
uint first_token;
uint first_feature;

// The registers of these functions are indexed only by constants, whatever the order in which a compiler unrolls and inlines:
// otherwise they would become memory.

void load_weights(const uint product, out uvec4 loaded[LEFTS]) {
    [[unroll]] for (uint i = 0; i < LEFTS; i++) loaded[i] = ReadQuads(weights_from[i]).at[product * LANES];
}

void load_operands(const uint product, out uvec4 loaded[PAIRS]) {
    [[unroll]] for (uint j = 0; j < PAIRS; j++) loaded[j] = ReadQuads(operands_from).at[(product * 4 + j) * LANES];
}

void multiply() {
    Right rights[RIGHTS];
    [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
        rights[j] = j % 2 == 0 ? right_of(operands[j / 2].x, operands[j / 2].z)
                              : right_of(operands[j / 2].y, operands[j / 2].w);
    }
    [[unroll]] for (uint i = 0; i < LEFTS; i++) {
        const Left left = left_of(weights[i].xz, weights[i].yw);
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
            sums[j * LEFTS + i] = coopMatMulAdd(left, rights[j], sums[j * LEFTS + i]);
        }
    }
}

// Computes the products of a turn, and loads each one's factors while the one before it is computed. `advance`: bytes to the
// weights of the next turn.
void take_turn(const uint advance) {
    [[unroll]] for (uint product = 0; product < TURN; product++) {
        if (product == TURN - 1) {
            operands_from += 4 * advance;
            [[unroll]] for (uint i = 0; i < LEFTS; i++) weights_from[i] += advance;
        }
        uvec4 operands_ahead[PAIRS];
        uvec4 weights_ahead[LEFTS];
        load_operands((product + 1) % TURN, operands_ahead);
        load_weights((product + 1) % TURN, weights_ahead);
        multiply();
        [[unroll]] for (uint j = 0; j < PAIRS; j++) operands[j] = operands_ahead[j];
        [[unroll]] for (uint i = 0; i < LEFTS; i++) weights[i] = weights_ahead[i];
    }
}

// Puts a subgroup's sums for the first or second eight tokens of 16 into its strip.
void lay_out(const uint eight, const vec4 values[LEFTS]) {
    const uint at = gl_SubgroupID * STRIP + (eight * 8 + lane % 4 * 2) * STRIP_ROW + lane / 4;
    [[unroll]] for (uint i = 0; i < LEFTS; i++) {
        strips[at + i * 16] = values[i].x;
        strips[at + STRIP_ROW + i * 16] = values[i].y;
        strips[at + i * 16 + 8] = values[i].z;
        strips[at + STRIP_ROW + i * 16 + 8] = values[i].w;
    }
}

// Returns what the strip has of a token from a feature on.
vec4 laid_out(const uint token, const uint feature) {
    const uint at = gl_SubgroupID * STRIP + token * STRIP_ROW + feature;
    return vec4(strips[at], strips[at + 1], strips[at + 2], strips[at + 3]);
}

vec4 gelu(const vec4 x) {
    return vec4(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w));
}

// Returns the biases of four features.
vec4 bias(const uint feature) {
    const bool second = feature >= push.args.split1;
    const bool third = feature >= push.args.split2;
    const uint64_t from = third ? push.args.supers : second ? push.args.scales : push.args.high;
    const uint start = third ? push.args.split2 : second ? push.args.split1 : 0;
    return feature < push.args.features ? ReadVec4s(from).at[(feature - start) / 4] : vec4(0.0);
}

// Returns the outputs of a token, of which `row` of the strip has the sums, in four features of a subgroup.
vec4 outputs(const uint token, const uint row, const uint feature) {
    const float factor = MatmulFactors(push.args.operand_scales).at[min(token, push.args.tokens - 1)];
    const vec4 values = laid_out(row, feature) * factor;
    if (GATED) return gelu(values) * (laid_out(row, SUBGROUP_FEATURES + feature) * factor);
    if (OUTPUT == 4 || OUTPUT == 6) return values + bias(first_feature + feature);
    if (OUTPUT == 5) return gelu(values + bias(first_feature + feature));
    return values;
}

void store_plain(const uint feature, const uint token, const vec4 values) {
    if (token < push.args.tokens && feature < push.args.features) {
        MatmulVec4s(matmul_output(push.args, feature, token)).at[0] = values;
    }
}

// Stores the outputs of two tokens, eight apart, which are neighbours in fragment order. Columns beyond the features are zeros.
void store_halves(const uint feature, const uint token, const vec4 first, const vec4 second) {
    const uint groups = (push.args.features + 127) / 128;
    if (token >= push.args.tokens || feature >= groups * 128) return;
    uvec4 halves = uvec4(0);
    if (feature < push.args.features) {
        const float inverse = matmul_inverse_unit(push.args);
        halves = uvec4(operand_in_order(first * inverse), operand_in_order(second * inverse)).xzyw;
    }
    const uint at = operand_fragment(token, feature, groups);
    const bool are_both = token + 8 < push.args.tokens;
    if (are_both) {
        Quads(push.args.out0).at[at / 4] = halves;
    } else {
        Words(push.args.out0).at[at] = halves.x;
        Words(push.args.out0).at[at + 2] = halves.z;
    }
    if (feature == 0) {
        MatmulFloats(push.args.out1).at[token] = push.args.unit;
        if (are_both) MatmulFloats(push.args.out1).at[token + 8] = push.args.unit;
    }
}

// Returns where an element of a feature's head is for a tile of 16 tokens: the place of its 16 elements, and which it is.
uvec2 head_place(const uint feature, const uint token) {
    const uint sixteens = (DIM + 15) / 16;
    const uint tile = feature / DIM * push.args.columns + token / 16;
    return uvec2(tile * sixteens + feature % DIM / 16, feature % DIM % 16);
}

uvec2 halves_in_row(const vec4 v) {
    return uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
}

// Stores four elements of keys r and r + 8.
void store_keys(const uint feature, const uint token, const vec4 first, const vec4 second) {
    const uvec2 place = head_place(feature, token);
    const uint at = place.x * LANES + token % 8 * 4 + place.y / 4;
    Quads(push.args.out1).at[at] = uvec4(halves_in_row(first), halves_in_row(second));
    // What a head ends with.
    if (DIM % 16 == 8 && feature % DIM >= DIM - 8) Quads(push.args.out1).at[at + 2] = uvec4(0);
}

// Stores the strip as values: a lane has four tokens of an element of each eight.
void store_values(const uint token) {
    const uint last = push.args.tokens - 1;
    const uint own = lane % 4 * 2;
    const uvec4 rows = uvec4(own, own + 1, own + 8, own + 9);
    vec4 factors;
    [[unroll]] for (uint k = 0; k < 4; k++) {
        factors[k] = MatmulFactors(push.args.operand_scales).at[min(token + rows[k], last)];
    }
    [[unroll]] for (uint n = 0; n < 2 * OUT_LEFTS; n++) {
        const uint from = 8 * n + lane / 4;
        const uint feature = first_feature + from - push.args.split2;
        if (first_feature + from >= push.args.features) continue;
        vec4 four;
        [[unroll]] for (uint k = 0; k < 4; k++) {
            four[k] = strips[gl_SubgroupID * STRIP + rows[k] * STRIP_ROW + from];
        }
        four = four * factors + ReadFloats(push.args.supers).at[feature];
        const uvec2 place = head_place(feature, token);
        const bool ends = DIM % 16 == 8 && feature % DIM >= DIM - 8;
        const uint column = ends ? place.y : place.y / 4 * 2 + place.y % 2;
        const uint second = ends ? 0 : place.y % 4 / 2;
        Pairs(push.args.out2).at[(place.x * LANES + column * 4 + lane % 4) * 2 + second] = halves_in_row(four);
    }
}

// Stores what the strip holds: 16 tokens from `token` on.
void store_strip(const uint token) {
    subgroupBarrier();
    if (OUTPUT == 6 && token >= push.args.columns * 16) return;
    if (OUTPUT == 6 && first_feature >= push.args.split2) {
        store_values(token);
        subgroupBarrier();
        return;
    }
    [[unroll]] for (uint n = 0; n < OUT_LEFTS; n++) {
        const uint index = n * LANES + lane;
        const uint feature = index % (4 * OUT_LEFTS) * 4;
        const uint row = index / (4 * OUT_LEFTS);
        const vec4 first = outputs(token + row, row, feature);
        const vec4 second = outputs(token + row + 8, row + 8, feature);
        if (OUTPUT == 2 || OUTPUT == 5) {
            store_halves(first_feature + feature, token + row, first, second);
        } else if (OUTPUT == 6 && first_feature >= push.args.split1) {
            store_keys(first_feature + feature - push.args.split1, token + row, first, second);
        } else {
            store_plain(first_feature + feature, token + row, first);
            store_plain(first_feature + feature, token + row + 8, second);
        }
    }
    subgroupBarrier();
}

#include "include/parts.glsl"

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
    const uint first_group = split * groups / splits;
    const uint end_group = (split + 1) * groups / splits;
    const uint start = first_group * (PRODUCTS * FACTOR_BYTES);
    const uint row_bytes = groups * (PRODUCTS * FACTOR_BYTES);
    [[unroll]] for (uint i = 0; i < LEFTS; i++) {
        uint row = first_feature + i % OUT_LEFTS * 16;
        if (RAGGED != 0) row = min(row, push.args.features - 16);
        if (i >= OUT_LEFTS) row += push.args.split1;
        weights_from[i] = push.args.codes + uint64_t(row / 16) * row_bytes + start + lane * 16;
    }
    // Subgroups beyond the tokens multiply the last ones that have memory.
    const uint token = min(first_token, (push.args.tokens - 1) / 64 * 64 + first_token % 64);
    operands_from = push.args.operand + uint64_t(token / 64) * (4 * row_bytes) + 4 * start
        + (token % 64 / 16 * LANES + lane) * 16;

    [[unroll]] for (uint i = 0; i < RIGHTS * LEFTS; i++) sums[i] = Sum(0.0);
    load_weights(0, weights);
    load_operands(0, operands);
    // Every turn of this loop loads, the last one what it already has: with a branch around the loads the compiler would copy
    // their results, and wait for them.
    uint turns = (end_group - first_group) * (PRODUCTS / TURN);
    [[dont_unroll]] while (turns > 0) {
        turns--;
        take_turn(turns > 0 ? TURN * FACTOR_BYTES : 0);
    }

    const uint first_part = shared_tile * splits;
    const bool is_part = SPLIT != 0 && splits > 1;
    // This loop is not unrolled: otherwise the code that runs once for each tile would not fit into the caches of instructions.
    [[dont_unroll]] for (uint right = 0; right < RIGHTS; right++) {
        vec4 values[LEFTS];
        [[unroll]] for (uint constant = 0; constant < RIGHTS; constant++) {
            if (constant == right) {
                [[unroll]] for (uint i = 0; i < LEFTS; i++) values[i] = values_of(sums[constant * LEFTS + i]);
            }
        }
        if (is_part) {
            const uint at = part_at(first_part, split, right);
            [[unroll]] for (uint i = 0; i < LEFTS; i++) parts().at[at + i * LANES] = values[i];
        } else {
            lay_out(right % 2, values);
            if (right % 2 == 1) store_strip(first_token + 8 * (right - 1));
        }
    }
    if (is_part && is_last(shared_tile, splits)) {
        [[dont_unroll]] for (uint right = 0; right < RIGHTS; right++) {
            lay_out(right % 2, add_parts(first_part, splits, right));
            if (right % 2 == 1) store_strip(first_token + 8 * (right - 1));
        }
    }
}
