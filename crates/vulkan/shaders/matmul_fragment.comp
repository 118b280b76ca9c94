#version 460
// The product of a matrix of weights with few rows of activations, on matrix units with the layout that
// crates/vulkan/src/kernels/matmul/probe.rs describes: C[token][feature] = sum over k of W[feature][k] * X[token][k], X in
// halves with a factor for each row, sums in f32.
//
// Weights go from memory into the registers of the left factor. Lane 4 r + c of a subgroup loads a unit of 32 columns, the c-th
// of a group of 128, of rows r and r + 8: its share of eight products of 16 columns. The sum of a product does not depend on
// the order of the columns, so the activations get the same order when they go to shared memory, where every subgroup of the
// workgroup reads them; there a lane's share of two products is one vector.
//
// The units of steps along the columns of all tiles, one tile after another, are distributed over the workgroups in equal
// shares. A workgroup that makes a part of a tile leaves it in scratch memory; the last one to finish adds the parts in order.
// crates/vulkan/src/kernels/matmul.rs says what bounds it and which shapes are used.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require

#include "include/memory.glsl"
#include "include/activation.glsl"
#include "include/formats.glsl"
#include "include/dequantize.glsl"
#include "include/fragment.glsl"
#include "include/matmul.glsl"
#define CHAIN_MEMORY_MODEL
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 128;
// Left factors of 16 rows of a subgroup; an even number if GATED is not 0.
layout(constant_id = 1) const uint LEFTS = 2;
// Right factors of 8 tokens.
layout(constant_id = 2) const uint RIGHTS = 4;
// Groups of 128 columns of a subgroup in a step.
layout(constant_id = 3) const uint GROUPS = 1;
// Subgroups that share the columns of a step.
layout(constant_id = 4) const uint SLICES = 1;
// Steps of a unit of work: the weights of this many steps are in flight.
layout(constant_id = 5) const uint DEPTH = 2;
// 1: the upper half of each subgroup's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up. 2: as halves.
layout(constant_id = 6) const uint GATED = 0;
// 1: the last unit of a row has groups beyond its end.
layout(constant_id = 7) const uint RAGGED = 0;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

#include "include/sharing.glsl"

const uint LANES = 32;
const uint SUBGROUPS = LOCAL / LANES;
const uint STACKED = SUBGROUPS / SLICES;
const uint STEP_GROUPS = SLICES * GROUPS;
const uint TOKENS = 8 * RIGHTS;
// Left factors of a subgroup that produce outputs, and outputs of a tile along the features.
const uint OUT_LEFTS = GATED != 0 ? LEFTS / 2 : LEFTS;
const uint SUBGROUP_FEATURES = 16 * OUT_LEFTS;
const uint TILE_FEATURES = STACKED * SUBGROUP_FEATURES;
const uint ROWS = 2 * LEFTS;
const uint SHARES_OF_STEP = GROUPS * ROWS;
// Activations of a step, in pairs of vectors of 8 halves.
const uint PAIRS_OF_STEP = STEP_GROUPS * RIGHTS * 64;
const uint PAIRS = (PAIRS_OF_STEP + LOCAL - 1) / LOCAL;
const uint STAGE = 2 * PAIRS_OF_STEP;
const uint STRIPS = SLICES > 1 ? SUBGROUPS * LEFTS * LANES : 1;

// Parts of a tile that are loaded together when they are added.
const uint PARTS_TOGETHER = 8;

shared uvec4 staged[2 * STAGE];
shared vec4 strips[STRIPS];
shared float token_scales[TOKENS];

#define Left coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define Right coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define Sum coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

Share weights[DEPTH * SHARES_OF_STEP];
uvec4 operands[2 * PAIRS];
Sum sums[RIGHTS * LEFTS];
Planes planes;
Magic magic;
uint lane;
uint slice;
uint stacked;
// Units of a tile.
uint units;
uint token_tiles;

// The position of the loads of weights: a unit of a tile, and the rows of the tile that this lane loads.
uint ahead_unit;
uint ahead_tile;
uint ahead_rows[ROWS];
// The position of the loads of activations: a step of a tile, the first token of the tile, and this invocation's vectors of the
// tile's first step.
uint operand_step;
uint operand_token;
uint operand_vectors[PAIRS];
// The factor of the activations of one token of the tile, this invocation's; there are at least as many invocations as tokens.
float scale_ahead;

// Returns the first feature of this subgroup's part of a tile.
uint subgroup_feature(const uint tile) {
    return tile / token_tiles * TILE_FEATURES + stacked * SUBGROUP_FEATURES;
}

// Returns the first token of a tile.
uint first_token(const uint tile) {
    return tile % token_tiles * TOKENS;
}

void find_rows() {
    const uint first = subgroup_feature(ahead_tile) + lane / 4;
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        const uint feature = min(first + i % (2 * OUT_LEFTS) * 8, push.args.features - 1);
        ahead_rows[i] = feature + (i >= 2 * OUT_LEFTS ? push.args.split1 : 0);
    }
}

// The registers of these functions are indexed only by constants, whatever the order in which a compiler unrolls and inlines:
// otherwise they would become memory.

// Loads the weights of one of the subgroup's groups of a step.
void load_group(const uint step, const uint group) {
    uint at = (ahead_unit * DEPTH + step) * STEP_GROUPS + slice * GROUPS + group;
    if (RAGGED != 0) at = min(at, planes.groups - 1);
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        weights[step * SHARES_OF_STEP + group * ROWS + i] = load_share(planes, ahead_rows[i], at * 4 + lane % 4);
    }
}

void advance_weights() {
    ahead_unit++;
    if (ahead_unit == units) {
        ahead_unit = 0;
        ahead_tile++;
        find_rows();
    }
}

// Finds an invocation's pairs of vectors of activations: elements 8 p..8 p + 7 and 16 + 8 p.. of block c of a token's group.
void find_operands() {
    [[unroll]] for (uint i = 0; i < PAIRS; i++) {
        const uint index = i * LOCAL + gl_SubgroupID * LANES + lane;
        const uint token = min(operand_token + (index >> 6) % RIGHTS * 8 + ((index >> 3) & 7), push.args.tokens - 1);
        operand_vectors[i] = token * planes.groups * 16 + ((index >> 1) & 3) * 4 + (index & 1);
    }
}

// Loads the activations of a step. After the last tile this starts again with the tokens, which nobody reads.
void load_operands() {
    [[unroll]] for (uint i = 0; i < PAIRS; i++) {
        const uint index = i * LOCAL + gl_SubgroupID * LANES + lane;
        uint group = operand_step * STEP_GROUPS + (index >> 6) / RIGHTS;
        if (RAGGED != 0) group = min(group, planes.groups - 1);
        const uint vector = operand_vectors[i] + group * 16;
        if (PAIRS_OF_STEP % LOCAL == 0 || index < PAIRS_OF_STEP) {
            operands[2 * i] = MatmulHalves(push.args.operand).at[vector];
            operands[2 * i + 1] = MatmulHalves(push.args.operand).at[vector + 2];
        }
    }
    operand_step++;
    if (operand_step == units * DEPTH) {
        operand_step = 0;
        operand_token += TOKENS;
        if (operand_token >= push.args.tokens) operand_token = 0;
        find_operands();
    }
}

// Loads the factors of a tile's activations, long before they are used.
void load_scales(const uint tile) {
    const uint token = min(first_token(tile) + gl_LocalInvocationIndex, push.args.tokens - 1);
    scale_ahead = MatmulFactors(push.args.operand_scales).at[token];
}

// Returns the vector of shared memory for a lane's share of the products of a word. The lanes that write together, of two
// words, write different banks.
uint staged_at(const uint group, const uint right, const uint word, const uint holder) {
    return ((group * RIGHTS + right) * 4 + word) * LANES + (holder ^ ((word >> 1) << 2));
}

void store_operands(const uint stage) {
    [[unroll]] for (uint i = 0; i < PAIRS; i++) {
        const uint index = i * LOCAL + gl_SubgroupID * LANES + lane;
        const uint right = (index >> 6) % RIGHTS;
        const uint holder = ((index >> 3) & 7) * 4 + ((index >> 1) & 3);
        const uint word = 2 * (index & 1);
        if (PAIRS_OF_STEP % LOCAL == 0 || index < PAIRS_OF_STEP) {
            const uvec4 low = permute_halves(operands[2 * i]);
            const uvec4 high = permute_halves(operands[2 * i + 1]);
            const uint at = stage * STAGE + staged_at((index >> 6) / RIGHTS, right, word, holder);
            staged[at] = uvec4(low.xy, high.xy);
            staged[at + LANES] = uvec4(low.zw, high.zw);
        }
    }
}

// Computes the products of one of the subgroup's groups of a step.
void multiply(const uint stage, const uint step, const uint group) {
    UnitScale scales[ROWS];
    [[unroll]] for (uint i = 0; i < ROWS; i++) {
        scales[i] = unit_scale(weights[step * SHARES_OF_STEP + group * ROWS + i], (lane & 1) != 0);
    }
    [[unroll]] for (uint word = 0; word < 4; word++) {
        Right first[RIGHTS];
        Right second[RIGHTS];
        [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
            const uvec4 words = staged[stage * STAGE + staged_at(slice * GROUPS + group, j, word, lane)];
            const f16vec2 a = halves_of(words.x);
            const f16vec2 b = halves_of(words.y);
            const f16vec2 c = halves_of(words.z);
            const f16vec2 d = halves_of(words.w);
            first[j][0] = a.x;
            first[j][1] = a.y;
            first[j][2] = b.x;
            first[j][3] = b.y;
            second[j][0] = c.x;
            second[j][1] = c.y;
            second[j][2] = d.x;
            second[j][3] = d.y;
        }
        [[unroll]] for (uint i = 0; i < LEFTS; i++) {
            const uint share = step * SHARES_OF_STEP + group * ROWS + 2 * i;
            const uvec4 upper = decode_word(weights[share], magic, scales[2 * i], word);
            const uvec4 lower = decode_word(weights[share + 1], magic, scales[2 * i + 1], word);
            Left left;
            [[unroll]] for (uint second_half = 0; second_half < 2; second_half++) {
                const f16vec2 a = halves_of(second_half == 0 ? upper.x : upper.z);
                const f16vec2 b = halves_of(second_half == 0 ? upper.y : upper.w);
                const f16vec2 c = halves_of(second_half == 0 ? lower.x : lower.z);
                const f16vec2 d = halves_of(second_half == 0 ? lower.y : lower.w);
                left[0] = a.x;
                left[1] = a.y;
                left[2] = b.x;
                left[3] = b.y;
                left[4] = c.x;
                left[5] = c.y;
                left[6] = d.x;
                left[7] = d.y;
                [[unroll]] for (uint j = 0; j < RIGHTS; j++) {
                    const uint sum = j * LEFTS + i;
                    sums[sum] = coopMatMulAdd(left, second_half == 0 ? first[j] : second[j], sums[sum]);
                }
            }
        }
    }
}

// Stores the outputs of eight tokens in this subgroup's features, except beyond the edges.
void store_outputs(const uint tile, const uint right, const vec4 values[LEFTS]) {
    const uint within = right * 8 + lane % 4 * 2;
    const uint token = first_token(tile) + within;
    const vec2 both = vec2(token_scales[within], token_scales[within + 1]);
    [[unroll]] for (uint i = 0; i < OUT_LEFTS; i++) {
        const uint feature = subgroup_feature(tile) + i * 16 + lane / 4;
        vec4 value = values[i] * both.xyxy;
        if (GATED != 0) {
            const vec4 up = values[(i + OUT_LEFTS) % LEFTS] * both.xyxy;
            value = vec4(gelu(value.x), gelu(value.y), gelu(value.z), gelu(value.w)) * up;
        }
        if (GATED == 2) {
            value *= matmul_inverse_unit(push.args);
            store_half(feature, token, value.x);
            store_half(feature, token + 1, value.y);
            store_half(feature + 8, token, value.z);
            store_half(feature + 8, token + 1, value.w);
        } else {
            matmul_store(push.args, feature, token, value.x);
            matmul_store(push.args, feature, token + 1, value.y);
            matmul_store(push.args, feature + 8, token, value.z);
            matmul_store(push.args, feature + 8, token + 1, value.w);
        }
    }
}

// Units of all tiles, one tile after another: the workgroup that has a unit, and where a workgroup's units begin.
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
        store_outputs(tile, right, values);
    }
}

// Handles the sums of a tile, all of it or a part.
void finish_sums(const uint tile, const bool begins, const bool ends) {
    const bool is_whole = begins && ends;
    if (gl_LocalInvocationIndex < TOKENS) token_scales[gl_LocalInvocationIndex] = scale_ahead;
    barrier();
    [[dont_unroll]] for (uint right = 0; right < RIGHTS; right++) {
        vec4 values[LEFTS];
        [[unroll]] for (uint constant = 0; constant < RIGHTS; constant++) {
            if (constant == right) {
                [[unroll]] for (uint i = 0; i < LEFTS; i++) {
                    const uint sum = constant * LEFTS + i;
                    values[i] = vec4(sums[sum][0], sums[sum][1], sums[sum][2], sums[sum][3]);
                }
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
            store_outputs(tile, right, values);
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
    units = (planes.groups + DEPTH * STEP_GROUPS - 1) / (DEPTH * STEP_GROUPS);
    token_tiles = (push.args.tokens + TOKENS - 1) / TOKENS;
    uint unit = first_unit(gl_WorkGroupID.x);
    const uint end = first_unit(gl_WorkGroupID.x + 1);
    uint tile = unit / units;
    ahead_tile = tile;
    ahead_unit = unit % units;
    operand_token = first_token(tile);
    operand_step = ahead_unit * DEPTH;
    find_rows();
    find_operands();
    magic = magic_of(ahead_rows[0] >> 31);
    [[unroll]] for (uint step = 0; step < DEPTH; step++) {
        [[unroll]] for (uint group = 0; group < GROUPS; group++) load_group(step, group);
    }
    // The matrix depends on nothing: its first units are loaded during this wait.
    chain_wait(push.args.chain);
    load_operands();
    uint stage = 0;
    [[dont_unroll]] while (unit < end) {
        const uint first = unit;
        const uint stop = min(end, (tile + 1) * units);
        load_scales(tile);
        [[unroll]] for (uint i = 0; i < RIGHTS * LEFTS; i++) sums[i] = Sum(0.0);
        // Every iteration of this loop loads, the last one what it already has: with a branch around the loads the compiler
        // would copy their results, and wait for them.
        [[dont_unroll]] do {
            const uint first_group = (unit - tile * units) * (DEPTH * STEP_GROUPS) + slice * GROUPS;
            unit++;
            if (unit < end) advance_weights();
            [[unroll]] for (uint step = 0; step < DEPTH; step++) {
                // A subgroup stores a stage when all have read it: they are past the barrier of the step between.
                store_operands(stage);
                load_operands();
                barrier();
                [[unroll]] for (uint group = 0; group < GROUPS; group++) {
                    const uint at = first_group + step * STEP_GROUPS + group;
                    if (RAGGED == 0 || at < planes.groups) multiply(stage, step, group);
                    load_group(step, group);
                }
                stage ^= 1;
            }
        } while (unit < stop);
        finish_sums(tile, first == tile * units, unit == (tile + 1) * units);
        tile++;
    }
}

void main() {
    work();
    chain_signal(push.args.chain);
}
