#version 460
// The product of a matrix of weights with many rows of activations on the matrix units: C[token][feature] = sum over k of
// W[feature][k] * X[token][k], X in halves with a factor for each row, sums in f32.
//
// A workgroup makes a tile of BM rows of weights and BN tokens, in steps of BK columns. Weights are decoded to halves on their
// way to shared memory; what the next step needs is loaded into registers before the products of this step. The subgroups share
// the tile: each has WM x WN of it, and SK of them share the columns of a step. If there are too few tiles for the device,
// gl_NumWorkGroups.y workgroups share the columns of the matrix; the last one to finish adds their parts in order.
// crates/vulkan/src/kernels/matmul.rs says what bounds it and which shapes are used.
//
// With EXPERTS it multiplies entries, sorted by expert, with the matrices of their experts: a row of workgroups takes a group
// (kernels/matmul/grouped.rs).

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#include "include/memory.glsl"
#include "include/activation.glsl"
#define DECODES_UNITS
#include "include/formats.glsl"
#include "include/permute.glsl"
#include "include/matmul.glsl"
#define CHAIN_MEMORY_MODEL
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 128;
// The tile, and the columns of a step: a multiple of 32 up to 128.
layout(constant_id = 1) const uint BM = 64;
layout(constant_id = 2) const uint BN = 16;
layout(constant_id = 3) const uint BK = 64;
// A subgroup's part of the tile.
layout(constant_id = 4) const uint WM = 64;
layout(constant_id = 5) const uint WN = 16;
// Subgroups that share the columns of a step.
layout(constant_id = 6) const uint SK = 4;
// The product that the device does in one instruction.
layout(constant_id = 7) const uint TM = 16;
layout(constant_id = 8) const uint TN = 16;
layout(constant_id = 9) const uint TK = 16;
// Copies of the tiles in shared memory: 1 or 2.
layout(constant_id = 10) const uint STAGES = 1;
// Steps in flight: 1 to 4.
layout(constant_id = 14) const uint DEPTH = 1;
// 1: the dispatch may be part of a chain.
layout(constant_id = 15) const uint CHAINED = 0;
// Vectors of shared memory: for the tiles, and for the sums at the end.
layout(constant_id = 11) const uint SHARED = 1024;
// 1: the upper half of each subgroup's rows is of `gate`, the lower of `up`; the result is gelu(gate) * up. 2: as halves.
layout(constant_id = 12) const uint GATED = 0;
// 1: several workgroups share a tile, except the first ones.
layout(constant_id = 13) const uint SPLIT = 0;

layout(push_constant, scalar) uniform Push {
    MatmulArgs args;
} push;

shared uvec4 tiles[SHARED];
shared uint finished;

// Rows of the tiles are BK halves and 16 bytes more: eight rows then lie in different banks.
const uint ROW = BK / 8 + 1;
const uint STAGE = (BM + BN) * ROW;
const uint UNITS_OF_ROW = BK / UNIT;
const uint UNITS_OF_TILE = BM * UNITS_OF_ROW;
const uint UNITS = (UNITS_OF_TILE + LOCAL - 1) / LOCAL;
const uint OPERANDS_OF_TILE = BN * BK / 8;
const uint OPERANDS = (OPERANDS_OF_TILE + LOCAL - 1) / LOCAL;
const uint PIECES = UNITS + OPERANDS;
const uint SUBGROUPS_N = BN / WN;
const uint CM = WM / TM;
const uint CN = WN / TN;
// Products of a step for each of a subgroup's sums.
const uint PRODUCTS = BK / TK / SK;
// A subgroup's sums of TN tokens at the end: one token after another.
const uint STRIP_ROW = WM / 4 + 1;
const uint STRIP = TN * STRIP_ROW;
const uint SUBGROUP = LOCAL / (BM / WM * SUBGROUPS_N * SK);
// Outputs of a subgroup and of a tile along the features.
const uint WIDTH = GATED != 0 ? WM / 2 : WM;
const uint TILE_FEATURES = GATED != 0 ? BM / 2 : BM;

// Counters at the front of the scratch memory.
const uint COUNTERS = 4096;

// Barriers make what is written visible: no access needs to bypass a cache by itself.
layout(buffer_reference, scalar, buffer_reference_align = 16) nonprivate buffer Parts { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) nonprivate buffer OutputPairs { uvec2 at[]; };

Unit weights[DEPTH * UNITS];
uvec4 operands[DEPTH * OPERANDS];
Planes planes;
uint first_feature;
uint first_token;
uint invocation;

// Returns row and unit in the tile of the unit-th unit of this invocation. Four units of a row are distributed so that the
// eight invocations that write shared memory together write different banks.
uvec2 unit_place(const uint unit) {
    const uint index = unit * LOCAL + invocation;
    if (UNIT == 32 && UNITS_OF_ROW == 4) {
        return uvec2(((index >> 1) & 3) | ((index >> 4) << 2), (index & 1) | ((index >> 2) & 2));
    }
    return uvec2(index / UNITS_OF_ROW, index % UNITS_OF_ROW);
}

// Returns the row of the matrix that is row `row` of the tile.
uint weight_row(const uint row) {
#ifdef EXPERTS
    const uint own = expert_row;
#else
    const uint own = 0;
#endif
    if (GATED != 0) {
        const uint feature = first_feature + row / WM * WIDTH + row % WIDTH;
        return own + min(feature, push.args.features - 1) + (row % WM >= WIDTH ? push.args.split1 : 0);
    }
    return own + min(first_feature + row, push.args.features - 1);
}

// The registers of these functions are indexed only by constants, whatever the order in which a compiler unrolls and inlines:
// otherwise they would become memory.

// Returns a vector of activations. Memory that no dispatch writes while this one runs may be loaded in any order, which
// compilers make use of.
uvec4 load_operand(const uint vector) {
    return CHAINED != 0 ? MatmulHalves(push.args.operand).at[vector] : ReadQuads(push.args.operand).at[vector];
}

// Loads the invocation's pieces of a step: its units of weights, then its vectors of the operand. `turn` names the registers.
void load_step(const uint step, const uint turn) {
    const uint set = turn % DEPTH;
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        const uvec2 place = unit_place(i);
        if (UNITS_OF_TILE % LOCAL == 0 || place.x < BM) {
            weights[set * UNITS + i] = load_unit(planes, weight_row(place.x), step * UNITS_OF_ROW + place.y);
        }
    }
    [[unroll]] for (uint i = 0; i < OPERANDS; i++) {
        const uint index = i * LOCAL + invocation;
        const uint token = min(first_token + index / (BK / 8), push.args.tokens - 1);
        const uint vector = step * (BK / 8) + index % (BK / 8);
        if (OPERANDS_OF_TILE % LOCAL == 0 || index < OPERANDS_OF_TILE) {
            operands[set * OPERANDS + i] = load_operand(token * (planes.groups * 16) + vector);
        }
    }
}

// Stores one of `parts` parts of the pieces.
void store_part(const uint stage, const uint turn, const uint part, const uint parts) {
    const uint base = stage * STAGE;
    const uint set = turn % DEPTH;
    [[unroll]] for (uint i = 0; i < UNITS; i++) {
        const uvec2 place = unit_place(i);
        if (i * parts / PIECES == part && (UNITS_OF_TILE % LOCAL == 0 || place.x < BM)) {
            uvec4 halves[UNIT_VECTORS];
            decode_unit(weights[set * UNITS + i], halves);
            [[unroll]] for (uint vector = 0; vector < UNIT_VECTORS; vector++) {
                tiles[base + place.x * ROW + place.y * UNIT_VECTORS + vector] = halves[vector];
            }
        }
    }
    [[unroll]] for (uint i = 0; i < OPERANDS; i++) {
        const uint index = i * LOCAL + invocation;
        if ((UNITS + i) * parts / PIECES == part && (OPERANDS_OF_TILE % LOCAL == 0 || index < OPERANDS_OF_TILE)) {
            const uint at = base + (BM + index / (BK / 8)) * ROW + index % (BK / 8);
            tiles[at] = permute_halves(operands[set * OPERANDS + i]);
        }
    }
}

vec4 gelu(const vec4 x) {
    return vec4(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w));
}

// Stores the outputs of four features, except beyond the edges.
void store_outputs(const uint feature, const uint token, const vec4 sum, const vec4 other) {
    const uint target = matmul_row(push.args, token);
    if (target >= push.args.tokens) return;
    const float factor = MatmulFactors(push.args.operand_scales).at[token];
    vec4 values = sum * factor;
    if (GATED != 0) values = gelu(values) * (other * factor);
#ifndef EXPERTS
    if (GATED == 2) {
        const vec4 scaled = values * matmul_inverse_unit(push.args);
        if (feature < push.args.features) {
            const uvec2 halves = uvec2(packHalf2x16(scaled.xy), packHalf2x16(scaled.zw));
            OutputPairs(matmul_half(push.args, feature, token)).at[0] = halves;
        }
        if (feature == 0) MatmulFloats(push.args.out1).at[token] = push.args.unit;
    } else
#endif
    if (push.args.aligned == 0) {
        matmul_store(push.args, feature, target, values.x);
        matmul_store(push.args, feature + 1, target, values.y);
        matmul_store(push.args, feature + 2, target, values.z);
        matmul_store(push.args, feature + 3, target, values.w);
    } else if (feature < push.args.features) {
        MatmulVec4s(matmul_output(push.args, feature, target)).at[0] = values;
    }
}

// Returns the sum of the subgroups that share the columns of a step, from the first one's strip on.
vec4 add_slices(const uint at) {
    vec4 sum = uintBitsToFloat(tiles[at]);
    [[unroll]] for (uint k = 1; k < SK; k++) sum += uintBitsToFloat(tiles[at + k * STRIP]);
    return sum;
}

vec4 load_part(const Parts parts, const uint split, const uint token, const uint row) {
    return parts.at[((split * BN + token) * BM + row) / 4];
}

#ifndef EXPERTS
// Returns the sum of all parts of a tile in four rows, in the order of the workgroups.
vec4 add_parts(const Parts parts, const uint splits, const uint token, const uint row) {
    vec4 sum = vec4(0.0);
    [[dont_unroll]] for (uint first = 0; first < splits; first += 4) {
        // Four loads in flight.
        const vec4 a = load_part(parts, first, token, row);
        const vec4 b = load_part(parts, min(first + 1, splits - 1), token, row);
        const vec4 c = load_part(parts, min(first + 2, splits - 1), token, row);
        const vec4 d = load_part(parts, min(first + 3, splits - 1), token, row);
        sum += a;
        if (first + 1 < splits) sum += b;
        if (first + 2 < splits) sum += c;
        if (first + 3 < splits) sum += d;
    }
    return sum;
}

void finish_tile(const uint64_t parts, const uint splits) {
    [[dont_unroll]] for (uint i = invocation; i < TILE_FEATURES * BN / 4; i += LOCAL) {
        const uint feature = 4 * i % TILE_FEATURES;
        const uint token = 4 * i / TILE_FEATURES;
        const uint row = GATED != 0 ? feature / WIDTH * WM + feature % WIDTH : feature;
        const vec4 sum = add_parts(Parts(parts), splits, token, row);
        const vec4 other = GATED != 0 ? add_parts(Parts(parts), splits, token, row + WIDTH) : vec4(0.0);
        store_outputs(first_feature + feature, first_token + token, sum, other);
    }
}

// Returns whether this is the last of the workgroups that share a tile to get here; all of them then see what the others wrote.
bool is_last(const uint shared_tile, const uint splits) {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (invocation == 0) {
        Counters counters = Counters(push.args.scratch);
        const uint before = atomicAdd(counters.at[shared_tile], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                                      gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
        finished = before + 1;
        // The next dispatch counts from 0 again.
        if (finished == splits) counters.at[shared_tile] = 0;
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeDevice, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    return finished == splits;
}
#endif

void work() {
    invocation = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    planes = Planes(push.args.codes, push.args.high, push.args.scales, push.args.supers, push.args.groups);
    uint tile = gl_WorkGroupID.x;
    uint split = 0;
    uint splits = 1;
#ifdef EXPERTS
    first_token = expert_first;
    first_feature = tile * TILE_FEATURES;
#else
    uint64_t parts = push.args.scratch;
    if (SPLIT != 0 && tile >= push.args.whole) {
        const uint shared_tile = (tile - push.args.whole) / push.args.splits;
        split = (tile - push.args.whole) % push.args.splits;
        splits = push.args.splits;
        tile = push.args.whole + shared_tile;
        parts += COUNTERS * 4 + 4 * uint64_t(shared_tile) * (splits * BM * BN);
    }
    // Tiles of the same weights are neighbours, so that the weights come from memory once.
    const uint token_tiles = (push.args.tokens + BN - 1) / BN;
    first_token = tile % token_tiles * BN;
    first_feature = tile / token_tiles * TILE_FEATURES;
#endif
    const uint slice = gl_SubgroupID % SK;
    const uint place = gl_SubgroupID / SK;
    const uint row = place / SUBGROUPS_N * WM;
    const uint column = place % SUBGROUPS_N * WN;

    coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator> sums[CM * CN];
    [[unroll]] for (uint i = 0; i < CM * CN; i++) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, TM, TN, gl_MatrixUseAccumulator>(0.0);
    }
    const uint steps = planes.groups * (128 / BK);
    uint step = split * steps / splits;
    const uint end = (split + 1) * steps / splits;
    // With one stage, a step is: all have finished with the one before, store it, load a later one, multiply. With two, a step
    // is multiplied while the next one is stored: the products leave room for the decoding between them.
    const uint first = step;
    if (CHAINED != 0) chain_wait(push.args.chain);
    [[unroll]] for (uint turn = 0; turn < DEPTH; turn++) {
        if (step + turn < end) load_step(step + turn, turn);
    }
    if (STAGES == 2) {
        store_part(0, 0, 0, 1);
        if (step + DEPTH < end) load_step(step + DEPTH, 0);
    }
    while (step < end) {
        [[unroll]] for (uint turn = 0; turn < DEPTH; turn++) {
            if (step >= end) continue;
            const uint stage = STAGES == 2 ? (step - first) & 1 : 0;
            const uint next = (turn + 1) % DEPTH;
            if (STAGES == 1) {
                barrier();
                store_part(0, turn, 0, 1);
                if (step + DEPTH < end) load_step(step + DEPTH, turn);
            }
            barrier();
            const uint base = stage * STAGE;
            [[unroll]] for (uint k = 0; k < PRODUCTS; k++) {
                const uint vector = (k * SK + slice) * (TK / 8);
                coopmat<float16_t, gl_ScopeSubgroup, TM, TK, gl_MatrixUseA> left[CM];
                [[unroll]] for (uint i = 0; i < CM; i++) {
                    const uint at = base + (row + i * TM) * ROW + vector;
                    coopMatLoad(left[i], tiles, at, ROW, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (uint j = 0; j < CN; j++) {
                    coopmat<float16_t, gl_ScopeSubgroup, TK, TN, gl_MatrixUseB> right;
                    const uint at = base + (BM + column + j * TN) * ROW + vector;
                    coopMatLoad(right, tiles, at, ROW, gl_CooperativeMatrixLayoutColumnMajor);
                    [[unroll]] for (uint i = 0; i < CM; i++) {
                        sums[j * CM + i] = coopMatMulAdd(left[i], right, sums[j * CM + i]);
                    }
                    if (STAGES == 2) {
                        // After the last step this stores what nobody reads: a branch would keep the compiler from
                        // interleaving.
                        store_part(stage ^ 1, next, k * CN + j, PRODUCTS * CN);
                    }
                }
            }
            if (STAGES == 2) load_step(min(step + 1 + DEPTH, end - 1), next);
            step++;
        }
    }

    // This loop is not unrolled: otherwise the code that runs once for each tile would not fit into the caches of instructions.
    [[dont_unroll]] for (uint j = 0; j < CN; j++) {
        barrier();
        [[unroll]] for (uint constant = 0; constant < CN; constant++) {
            if (constant == j) {
                [[unroll]] for (uint i = 0; i < CM; i++) {
                    const uint at = gl_SubgroupID * STRIP + i * TM / 4;
                    coopMatStore(sums[constant * CM + i], tiles, at, STRIP_ROW, gl_CooperativeMatrixLayoutColumnMajor);
                }
            }
        }
        barrier();
        // The subgroups that share a part of the tile share its outputs.
        const uint share = slice * SUBGROUP + gl_SubgroupInvocationID;
        const uint strips = place * SK * STRIP;
        if (SPLIT == 0 || splits == 1) {
            [[unroll]] for (uint n = 0; n < (WIDTH * TN / 4 + SK * SUBGROUP - 1) / (SK * SUBGROUP); n++) {
                const uint i = n * SK * SUBGROUP + share;
                const uint token = 4 * i / WIDTH;
                const uint feature = 4 * i % WIDTH;
                const uint at = strips + token * STRIP_ROW + feature / 4;
                if (i < WIDTH * TN / 4) {
                    const vec4 sum = add_slices(at);
                    const vec4 other = GATED != 0 ? add_slices(at + WIDTH / 4) : vec4(0.0);
                    const uint first_output = first_feature + row / WM * WIDTH;
                    store_outputs(first_output + feature, first_token + column + j * TN + token, sum, other);
                }
            }
        }
#ifndef EXPERTS
        if (SPLIT != 0 && splits > 1) {
            [[unroll]] for (uint n = 0; n < (WM * TN / 4 + SK * SUBGROUP - 1) / (SK * SUBGROUP); n++) {
                const uint i = n * SK * SUBGROUP + share;
                const uint token = 4 * i / WM;
                const uint feature = 4 * i % WM;
                if (i < WM * TN / 4) {
                    const uint to = (split * BN + column + j * TN + token) * BM + row + feature;
                    Parts(parts).at[to / 4] = add_slices(strips + token * STRIP_ROW + feature / 4);
                }
            }
        }
#endif
    }
#ifndef EXPERTS
    if (SPLIT != 0 && splits > 1 && is_last(tile - push.args.whole, splits)) finish_tile(parts, splits);
#endif
}

void main() {
#ifdef EXPERTS
    if (!find_group(push.args)) return;
#endif
    work();
    if (CHAINED != 0) chain_signal(push.args.chain);
}
