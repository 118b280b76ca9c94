#version 460
// The product of a matrix of weights with up to eight rows of activations, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes: C[token][feature] = sum over k of W[feature][k] * X[token][k], X in
// halves with a factor for each row, sums in f32.
//
// A workgroup takes as much of a core as one may. Each of its subgroups has columns of its own, whose activations stay in its
// registers, and streams the weights of these columns: tiles of 16 rows, one after another. Lane 4 r + c of a subgroup loads the
// c-th unit of 32 columns of a group of 128, of rows r and r + 8, as in matmul_fragment.comp. The sums of the subgroups meet in
// shared memory, where one subgroup adds them, a different one for each tile. Nothing else is shared, so a tile costs one
// barrier.
//
// Where the registers of a workgroup do not hold all columns, PARTS workgroups share each tile. They leave their sums in scratch
// memory; the last one to finish adds them in order. crates/vulkan/src/kernels/matmul.rs says what bounds it.

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
#include "include/matmul.glsl"
#define CHAIN_MEMORY_MODEL
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 672;
// Groups of 128 columns of a subgroup.
layout(constant_id = 1) const uint GROUPS = 2;
// Workgroups that share the columns of a tile.
layout(constant_id = 2) const uint PARTS = 1;
// 1: the upper half of each tile's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up. 2: as halves.
layout(constant_id = 3) const uint GATED = 0;
// 1: the last subgroups have groups beyond the end of a row.
layout(constant_id = 4) const uint RAGGED = 0;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

#include "include/sharing.glsl"

const uint LANES = 32;
const uint SUBGROUPS = LOCAL / LANES;
// Outputs of a tile along the features.
const uint TILE_FEATURES = GATED != 0 ? 8 : 16;

// The sums of each subgroup, of this tile and the one before.
shared vec4 strips[2 * SUBGROUPS * LANES];

#define Left coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define Right coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define Sum coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

// Two rows of each group.
Share weights[2 * GROUPS];
Right activations[8 * GROUPS];
Sum even;
Sum odd;
Planes planes;
Magic magic;
uint lane;
uint first_group;
// The rows of the matrix that this lane loads.
uint upper_row;
uint lower_row;

void find_rows(const uint tile) {
    const uint feature = tile * TILE_FEATURES + lane / 4;
    const uint most = push.args.features - 1;
    upper_row = min(feature, most);
    lower_row = GATED != 0 ? upper_row + push.args.split1 : min(feature + 8, most);
}

// Loads the weights of one of the subgroup's groups.
void load_group(const uint group) {
    uint at = first_group + group;
    if (RAGGED != 0) at = min(at, planes.groups - 1);
    weights[2 * group] = load_share(planes, upper_row, at * 4 + lane % 4);
    weights[2 * group + 1] = load_share(planes, lower_row, at * 4 + lane % 4);
}

// Puts eight halves, in the order in which weights are decoded, into right factors: the first four into the one, the last four
// into the other.
void set_pair(const uint word, const uvec2 low, const uvec2 high) {
    const f16vec2 a = halves_of(low.x);
    const f16vec2 b = halves_of(low.y);
    const f16vec2 c = halves_of(high.x);
    const f16vec2 d = halves_of(high.y);
    activations[2 * word][0] = a.x;
    activations[2 * word][1] = a.y;
    activations[2 * word][2] = b.x;
    activations[2 * word][3] = b.y;
    activations[2 * word + 1][0] = c.x;
    activations[2 * word + 1][1] = c.y;
    activations[2 * word + 1][2] = d.x;
    activations[2 * word + 1][3] = d.y;
}

// Loads the activations of the subgroup's columns: this lane's block of 32 columns of its token, in each group. Tokens beyond
// the last repeat it; nobody reads their sums. Columns beyond the end are 0.
void load_activations() {
    const uint token = min(lane / 4, push.args.tokens - 1);
    [[unroll]] for (uint group = 0; group < GROUPS; group++) {
        uint at = first_group + group;
        if (RAGGED != 0) at = min(at, planes.groups - 1);
        const uint vector = (token * planes.groups + at) * 16 + lane % 4 * 4;
        [[unroll]] for (uint i = 0; i < 2; i++) {
            uvec4 low = permute_halves(MatmulHalves(push.args.operand).at[vector + i]);
            uvec4 high = permute_halves(MatmulHalves(push.args.operand).at[vector + i + 2]);
            if (RAGGED != 0 && first_group + group >= planes.groups) low = high = uvec4(0);
            set_pair(4 * group + 2 * i, low.xy, high.xy);
            set_pair(4 * group + 2 * i + 1, low.zw, high.zw);
        }
    }
}

// Computes the products of one of the subgroup's groups.
void multiply(const uint group) {
    const UnitPlace second = UNIT_PLACE(lane);
    const UnitScale upper_scale = unit_scale(weights[2 * group], second);
    const UnitScale lower_scale = unit_scale(weights[2 * group + 1], second);
    [[unroll]] for (uint word = 0; word < 4; word++) {
        const uvec4 upper = decode_word(weights[2 * group], magic, upper_scale, word);
        const uvec4 lower = decode_word(weights[2 * group + 1], magic, lower_scale, word);
        [[unroll]] for (uint half_word = 0; half_word < 2; half_word++) {
            const f16vec2 a = halves_of(half_word == 0 ? upper.x : upper.z);
            const f16vec2 b = halves_of(half_word == 0 ? upper.y : upper.w);
            const f16vec2 c = halves_of(half_word == 0 ? lower.x : lower.z);
            const f16vec2 d = halves_of(half_word == 0 ? lower.y : lower.w);
            Left left;
            left[0] = a.x;
            left[1] = a.y;
            left[2] = b.x;
            left[3] = b.y;
            left[4] = c.x;
            left[5] = c.y;
            left[6] = d.x;
            left[7] = d.y;
            if (half_word == 0) {
                even = coopMatMulAdd(left, activations[8 * group + 2 * word], even);
            } else {
                odd = coopMatMulAdd(left, activations[8 * group + 2 * word + 1], odd);
            }
        }
    }
}

// Stores the outputs of a tile from its sums.
void store_outputs(const uint tile, vec4 value) {
    const uint token = lane % 4 * 2;
    const uint feature = tile * TILE_FEATURES + lane / 4;
    const uint last = push.args.tokens - 1;
    const vec2 factors = vec2(MatmulFactors(push.args.operand_scales).at[min(token, last)],
                              MatmulFactors(push.args.operand_scales).at[min(token + 1, last)]);
    value *= factors.xyxy;
    if (GATED == 0) {
        matmul_store(push.args, feature, token, value.x);
        matmul_store(push.args, feature, token + 1, value.y);
        matmul_store(push.args, feature + 8, token, value.z);
        matmul_store(push.args, feature + 8, token + 1, value.w);
        return;
    }
    const vec2 gated = vec2(gelu(value.x), gelu(value.y)) * value.zw;
    if (GATED == 1) {
        matmul_store(push.args, feature, token, gated.x);
        matmul_store(push.args, feature, token + 1, gated.y);
    } else {
        const float unit = matmul_inverse_unit(push.args);
        store_half(feature, token, gated.x * unit);
        store_half(feature, token + 1, gated.y * unit);
    }
}

uint part_at(const uint tile, const uint part) {
    return (tile * PARTS + part) * LANES + lane;
}

// Adds the parts of this workgroup's tiles, in their order.
void add_parts(const uint tiles, const uint stride) {
    [[dont_unroll]] for (uint tile = gl_WorkGroupID.x / PARTS + gl_SubgroupID * stride; tile < tiles; tile += SUBGROUPS * stride) {
        vec4 sum = parts().at[part_at(tile, 0)];
        [[unroll]] for (uint part = 1; part < PARTS; part++) sum += parts().at[part_at(tile, part)];
        store_outputs(tile, sum);
    }
}

// Adds the sums of all subgroups.
void add_sums(const uint tile, const uint stage) {
    const uint first = stage * SUBGROUPS * LANES + lane;
    vec4 sum = strips[first];
    [[unroll]] for (uint i = 1; i < SUBGROUPS; i++) sum += strips[first + i * LANES];
    if (PARTS > 1) {
        parts().at[part_at(tile, gl_WorkGroupID.x % PARTS)] = sum;
    } else {
        store_outputs(tile, sum);
    }
}

void work() {
    lane = gl_SubgroupInvocationID;
    planes = Planes(push.args.codes, push.args.high, push.args.scales, push.args.supers, push.args.groups);
    first_group = (gl_WorkGroupID.x % PARTS * SUBGROUPS + gl_SubgroupID) * GROUPS;
    const uint tiles = (push.args.features + TILE_FEATURES - 1) / TILE_FEATURES;
    const uint stride = gl_NumWorkGroups.x / PARTS;
    uint tile = gl_WorkGroupID.x / PARTS;
    find_rows(tile);
    magic = magic_of(upper_row >> 31);
    [[unroll]] for (uint group = 0; group < GROUPS; group++) load_group(group);
    // The matrix depends on nothing: its first rows are loaded during this wait.
    chain_wait(push.args.chain);
    load_activations();
    uint stage = 0;
    uint adder = 0;
    [[dont_unroll]] while (tile < tiles) {
        even = Sum(0.0);
        odd = Sum(0.0);
        // The last tile loads what it already has: with a branch around the loads the compiler would copy their results, and
        // wait for them.
        if (tile + stride < tiles) find_rows(tile + stride);
        [[unroll]] for (uint group = 0; group < GROUPS; group++) {
            multiply(group);
            load_group(group);
        }
        even = even + odd;
        // What another subgroup still adds is in the other stage: it comes to the barrier after that.
        strips[(stage * SUBGROUPS + gl_SubgroupID) * LANES + lane] = vec4(even[0], even[1], even[2], even[3]);
        barrier();
        if (gl_SubgroupID == adder) add_sums(tile, stage);
        adder = adder + 1 == SUBGROUPS ? 0 : adder + 1;
        stage ^= 1;
        tile += stride;
    }
    if (PARTS > 1 && is_last(gl_WorkGroupID.x / PARTS, PARTS)) add_parts(tiles, stride);
}

void main() {
    work();
    chain_signal(push.args.chain);
}
