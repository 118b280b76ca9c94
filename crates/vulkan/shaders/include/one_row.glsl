// The product of a quantised matrix with one row of activations. Before the include: FORMAT, memory.glsl, formats.glsl,
// operand.glsl, norm.glsl, activation.glsl, chain.glsl, handed.glsl, and the constants of one_row.comp.
//
// A team of LANES invocations goes through its rows of the matrix one after another. Each invocation has its SPAN blocks of the
// activations in registers, so that only the matrix is read in the loop, and BATCH rows of the matrix in flight. A subgroup's
// sums of BATCH rows are added across its invocations together; those of the subgroups of a team meet in shared memory every
// ROUND rows.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

const uint ONE_ROW_PLAIN = 0u;
const uint ONE_ROW_NORM = 1u;
const uint ONE_ROW_NORM_ADD_NORM = 2u;
const uint ONE_ROW_INTERLEAVED = 3u;
const uint ONE_ROW_GATED_INTERLEAVED = 2u;
const uint ONE_ROW_GATES = 3u;
const bool ONE_ROW_NORMS = PROLOGUE == ONE_ROW_NORM || PROLOGUE == ONE_ROW_NORM_ADD_NORM;
// Whether the matrix consists of the rows of gate and up.
const bool ONE_ROW_PAIRS = GATED == 1u || GATED == ONE_ROW_GATED_INTERLEAVED;

struct OneRowArgs {
    uint64_t codes;
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint64_t source;       // f32 activations; with a norm the residual stream
    uint64_t added;        // for NORM_ADD_NORM, what is added after its norm
    uint64_t out0;
    uint64_t out1;         // if it gates, what it is multiplied by
    uint64_t out2;
    uint64_t weight;       // of the norm before the product
    uint64_t added_weight; // of the norm before the addition
    uint64_t updated;      // the residual stream after the addition, or 0 if another product writes it
    uint rows;             // outputs
    uint columns;
    uint split1;           // first row of the second segment; for a gated product the first row of `up`
    uint split2;
    float epsilon;
    float scale;           // on the residual stream after the addition
    uint64_t chain;        // link of the chain, or 0, with the flags of handed.glsl
};

const uint TEAMS = gl_WorkGroupSize.x / LANES;
const uint TEAM_SUBGROUPS = LANES / SUBGROUP;
const uint ITEMS_OF_OUTPUT = ONE_ROW_PAIRS ? 2u : 1u;

// The staged operand: high bytes of the first and second halves of all blocks, then low bytes.
shared uvec4 one_row_staged[STAGED];
#ifdef FORMAT_MINIMUM
shared vec2 one_row_staged_scales[STAGED / 4u];
#else
shared float one_row_staged_scales[STAGED / 4u];
#endif
// Sums of the subgroups: for the norm before the addition, and for the norm before the product.
shared float one_row_totals[2u * (gl_WorkGroupSize.x / SUBGROUP)];
// Sums of two rounds, which take turns.
shared float one_row_parts[2u * (gl_WorkGroupSize.x / SUBGROUP * ROUND)];

// Units of the matrix in flight. With two banks, one is loaded while the other is used, which takes twice the registers. With
// one, its units are loaded again as soon as they are used, for which compilers copy what is still needed, and wait. Scales
// come as the words of two neighbours: compilers put two 16-bit values of a loop into one register, and wait for both to do so.
Unit one_row_units[BANKS * BATCH * SPAN];
#ifdef HAS_SCALES
uint one_row_scales[BANKS * BATCH * SPAN];
#endif

// Factors of the norms for an invocation's pieces of the residual stream.
vec4 one_row_added_weights[KEPT];
vec4 one_row_weights[KEPT];

// Loads a lane's units of a row as number `b` of a bank.
void one_row_fetch_row(const Planes planes, const uint bank, const uint b, const uint row, const uint lane, const uint blocks) {
    [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
        const uint slot = (bank * BATCH + b) * SPAN + s;
        const uint unit = min(lane + s * LANES, blocks - 1u);
        one_row_units[slot] = load_unit(planes, row, unit);
#ifdef HAS_SCALES
        one_row_scales[slot] = ReadWords(planes.scales).at[(row * (planes.groups * UNITS_OF_GROUP) + unit) / SCALES_OF_WORD];
#endif
    }
}

// Returns a unit that was loaded for a lane; neighbours share a word of scales.
Block one_row_block(const uint slot, const uint lane) {
    Unit unit = one_row_units[slot];
#ifdef HAS_SCALES
    unit.scale = UnitScaleBits(one_row_scales[slot] >> (lane & (SCALES_OF_WORD - 1u)) * FORMAT_SCALE_BITS);
#endif
    return unit_block(unit);
}

// Returns the place in the workgroup; neighbours are also neighbours in a subgroup.
uint one_row_invocation() {
    return gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
}

// Adds a value across a subgroup, for sum `turn` of the workgroup.
void one_row_add(const uint turn, const float value) {
    const float part = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0u) one_row_totals[turn * (gl_WorkGroupSize.x / SUBGROUP) + gl_SubgroupID] = part;
}

// Returns the factor of the norm with these weights from sum `turn` of the workgroup, which meets in between. A few loads by each invocation are
// quicker than another sum across the subgroup.
float one_row_factor(const OneRowArgs args, const uint turn, const uint64_t weights) {
    float total = 0.0;
    [[unroll]] for (uint i = 0u; i < gl_WorkGroupSize.x / SUBGROUP; ++i) {
        total += one_row_totals[turn * (gl_WorkGroupSize.x / SUBGROUP) + i];
    }
    return norm_factor(total / float(args.columns), args.epsilon, weights);
}

vec4 one_row_load(const uint64_t address, const uint columns, const uint quad) {
    return 4u * quad < columns ? ActiveVec4s(address).at[quad] : vec4(0.0);
}

// Returns the scale of a block whose largest magnitude is `highest`: 0 for a block that counts as 0 because the inverse of its
// scale would overflow, NaN for one that is not finite.
float one_row_scale(const float highest) {
    if (!(highest < OPERAND_INFINITE)) return uintBitsToFloat(0x7FC00000u);
    return highest <= 1e-30 ? 0.0 : highest / 32512.0;
}

// Stores four elements of the operand, those of `quad`, in shared memory as quad `place` of `blocks` blocks. Eight neighbouring
// invocations hold a block.
void one_row_put(const vec4 values, const uint place, const uint blocks) {
    float highest = operand_magnitude(values);
    [[unroll]] for (uint step = 1u; step < 8u; step *= 2u) highest = max(highest, subgroupShuffleXor(highest, step));
#ifdef FORMAT_MINIMUM
    // Only the format with a minimum needs sums.
    float sum = values.x + values.y + values.z + values.w;
    [[unroll]] for (uint step = 1u; step < 8u; step *= 2u) sum += subgroupShuffleXor(sum, step);
#endif
    const float scale = one_row_scale(highest);
    const uvec2 bytes = scale > 0.0 ? operand_fixed(values, 32512.0 / highest) : uvec2(0u);
    const uint block = place / 8u;
    const uint half_block = place % 8u / 4u;
    if (block < blocks) {
        one_row_staged[half_block * blocks + block][place % 4u] = bytes.x;
        one_row_staged[(half_block + 2u) * blocks + block][place % 4u] = bytes.y;
        if (place % 8u == 0u) {
#ifdef FORMAT_MINIMUM
            one_row_staged_scales[block] = vec2(scale, scale == scale ? sum : scale);
#else
            one_row_staged_scales[block] = scale;
#endif
        }
    }
}

// Returns a staged block of the operand.
Operand one_row_take(const uint block, const uint blocks) {
    Operand x;
    x.high0 = one_row_staged[block];
    x.high1 = one_row_staged[blocks + block];
    x.low0 = one_row_staged[2u * blocks + block];
    x.low1 = one_row_staged[3u * blocks + block];
#ifdef FORMAT_MINIMUM
    x.scale = one_row_staged_scales[block];
#else
    x.scale = vec2(one_row_staged_scales[block], 0.0);
#endif
    return x;
}

// Returns a block of an interleaved row: neighbours read next to each other, and need nothing from one another.
Operand one_row_interleaved(const OneRowArgs args, const uint block, const uint blocks) {
    vec4 values[8];
    [[unroll]] for (uint k = 0u; k < 8u; ++k) values[k] = ActiveVec4s(args.source).at[k * blocks + block];
    bool here = !handed_flag(args.chain, HANDED_TAKES);
    for (uint looks = 0u; !here && handed_again(args.chain, looks); ++looks) {
        here = true;
        [[unroll]] for (uint k = 0u; k < 8u; ++k) {
            if (!handed_here(values[k])) {
                values[k] = HandedVec4s(args.source).at[k * blocks + block];
                here = false;
            }
        }
    }
    float highest = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; ++k) highest = max(highest, operand_magnitude(values[k]));
    const float scale = one_row_scale(highest);
    const float inverse = scale > 0.0 ? 32512.0 / highest : 0.0;
    Operand x;
    [[unroll]] for (uint k = 0u; k < 4u; ++k) {
        const uvec2 first = scale > 0.0 ? operand_fixed(values[k], inverse) : uvec2(0u);
        const uvec2 second = scale > 0.0 ? operand_fixed(values[k + 4u], inverse) : uvec2(0u);
        x.high0[k] = first.x;
        x.low0[k] = first.y;
        x.high1[k] = second.x;
        x.low1[k] = second.y;
    }
    x.scale = vec2(scale, 0.0);
#ifdef FORMAT_MINIMUM
    float sum = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; ++k) sum += dot(values[k], vec4(1.0));
    x.scale.y = scale == scale ? sum : scale;
#endif
    return x;
}

// Loads the factors of the norms, which depend on nothing.
void one_row_load_weights(const OneRowArgs args) {
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
        const uint quad = one_row_invocation() + i * gl_WorkGroupSize.x;
        if (PROLOGUE == ONE_ROW_NORM_ADD_NORM) {
            one_row_added_weights[i] = one_row_load(args.added_weight, args.columns, quad);
        }
        one_row_weights[i] = one_row_load(args.weight, args.columns, quad);
    }
}

// Stages the residual stream (after an addition), times the weights of the norm. The factor that the whole row shares comes
// after the product, from sum 1: blocks have scales of their own, so their codes do not depend on it, and nothing here waits
// for that sum. All loads are issued before any is waited for.
void one_row_stage(const OneRowArgs args, const uint blocks, const bool updates) {
    const uint invocation = one_row_invocation();
    const uint local = gl_WorkGroupSize.x;
    vec4 x[KEPT];
    vec4 added[KEPT];
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
        const uint quad = invocation + i * local;
        x[i] = one_row_load(args.source, args.columns, quad);
        if (PROLOGUE == ONE_ROW_NORM_ADD_NORM) added[i] = one_row_load(args.added, args.columns, quad);
    }
    if (PROLOGUE == ONE_ROW_NORM_ADD_NORM) {
        const bool residual = handed_flag(args.chain, HANDED_RESIDUAL);
        bool here = !handed_flag(args.chain, HANDED_TAKES);
        for (uint looks = 0u; !here && handed_again(args.chain, looks); ++looks) {
            here = true;
            [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
                const uint quad = invocation + i * local;
                if (4u * quad < args.columns && !handed_here(added[i])) {
                    added[i] = HandedVec4s(args.added).at[quad];
                    here = false;
                }
                if (4u * quad < args.columns && residual && !handed_here(x[i])) {
                    x[i] = HandedVec4s(args.source).at[quad];
                    here = false;
                }
            }
        }
        float squares = 0.0;
        [[unroll]] for (uint i = 0u; i < KEPT; ++i) squares += dot(added[i], added[i]);
        one_row_add(0u, squares);
        barrier();
        const float factor = one_row_factor(args, 0u, args.added_weight);
        [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
            const uint quad = invocation + i * local;
            x[i] = (x[i] + added[i] * factor * one_row_added_weights[i]) * args.scale;
            if (updates && 4u * quad < args.columns) ActiveVec4s(args.updated).at[quad] = handed_on(args.chain, x[i]);
        }
    }
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) squares += dot(x[i], x[i]);
    one_row_add(1u, squares);
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) one_row_put(x[i] * one_row_weights[i], invocation + i * local, blocks);
    barrier();
}

void one_row_store(const OneRowArgs args, const uint row, const float value) {
    const float given = handed_on(args.chain, value);
    if (row < args.split1) {
        ActiveFloats(args.out0).at[row] = given;
    } else if (row < args.split2) {
        ActiveFloats(args.out1).at[row - args.split1] = given;
    } else {
        ActiveFloats(args.out2).at[row - args.split2] = given;
    }
}

// Adds a subgroup's BATCH values across its invocations. The sum of value `v` ends in the invocations whose first bits are
// those of `v`: halves of the subgroup exchange halves of the values, so that BATCH sums take little more than one.
float one_row_reduce(inout float sums[BATCH]) {
    uint held = BATCH;
    uint step = SUBGROUP / 2u;
    [[unroll]] for (uint level = 0u; level < 3u; ++level) {
        if (held > 1u) {
            const bool upper = (gl_SubgroupInvocationID & step) != 0u;
            held /= 2u;
            [[unroll]] for (uint i = 0u; i < BATCH / 2u; ++i) {
                if (i < held) {
                    const float kept = upper ? sums[i + held] : sums[i];
                    const float sent = upper ? sums[i] : sums[i + held];
                    sums[i] = kept + subgroupShuffleXor(sent, step);
                }
            }
            step /= 2u;
        }
    }
    float total = sums[0];
    for (; step > 0u; step /= 2u) total += subgroupShuffleXor(total, step);
    return total;
}

// Returns which of the BATCH values one_row_reduce leaves in this invocation.
uint one_row_place() {
    return gl_SubgroupInvocationID / (SUBGROUP / BATCH);
}

// Returns the row of the matrix that is item `item` of a team whose outputs are `first` and those at distances of `apart`;
// beyond `items` the last row again.
uint one_row_row(const OneRowArgs args, const uint first, const uint apart, const uint items, const uint item) {
    const uint at = min(item, items - 1u);
    return ONE_ROW_PAIRS ? first + at / 2u * apart + (at & 1u) * args.split1 : first + at * apart;
}

// Computes the product, as workgroup `group` of `groups`.
void one_row(const OneRowArgs args, const uint group, const uint groups) {
    const uint invocation = one_row_invocation();
    const uint lane = invocation % LANES;
    const uint team = invocation / LANES;
    const uint blocks = args.columns / 32u;
    const Planes planes = Planes(args.codes, args.high, args.scales, args.supers, (args.columns + 127u) / 128u);
    const uint teams = groups * TEAMS;
    const uint place = group * TEAMS + team;
    const uint least = args.rows / teams;
    const uint more = args.rows % teams;
    const uint first = TURNS != 0u ? place : place * least + min(place, more);
    const uint apart = TURNS != 0u ? teams : 1u;
    const uint outputs = least + (place < more ? 1u : 0u);
    // A team without rows reads the first one and stores nothing.
    const uint items = max(outputs, 1u) * ITEMS_OF_OUTPUT;
    const uint start = outputs > 0u ? first : 0u;
    // All teams of a workgroup meet at the same barriers.
    const uint longest = (least + (more > 0u ? 1u : 0u)) * ITEMS_OF_OUTPUT;

    [[unroll]] for (uint b = 0u; b < BATCH; ++b) {
        one_row_fetch_row(planes, 0u, b, one_row_row(args, start, apart, items, b), lane, blocks);
    }
    if (ONE_ROW_NORMS) one_row_load_weights(args);
    // The matrix depends on nothing: its first rows are loaded during this wait.
    handed_wait(args.chain);
    Operand x[SPAN];
    if (PROLOGUE == ONE_ROW_INTERLEAVED) {
        [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
            x[s] = one_row_interleaved(args, min(lane + s * LANES, blocks - 1u), blocks);
        }
    } else if (PROLOGUE != ONE_ROW_PLAIN) {
        one_row_stage(args, blocks, group == 0u && args.updated != 0ul);
        [[unroll]] for (uint s = 0u; s < SPAN; ++s) x[s] = one_row_take(min(lane + s * LANES, blocks - 1u), blocks);
    } else {
        // In pieces that fit into shared memory.
        const uint piece_blocks = STAGED / 4u;
        for (uint begin = 0u; begin < blocks; begin += piece_blocks) {
            vec4 values[KEPT];
            [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
                values[i] = one_row_load(args.source, args.columns, 8u * begin + invocation + i * gl_WorkGroupSize.x);
            }
            bool here = !handed_flag(args.chain, HANDED_TAKES);
            for (uint looks = 0u; !here && handed_again(args.chain, looks); ++looks) {
                here = true;
                [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
                    const uint quad = 8u * begin + invocation + i * gl_WorkGroupSize.x;
                    if (4u * quad < args.columns && !handed_here(values[i])) {
                        values[i] = HandedVec4s(args.source).at[quad];
                        here = false;
                    }
                }
            }
            if (begin > 0u) barrier();
            [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
                one_row_put(values[i], invocation + i * gl_WorkGroupSize.x, piece_blocks);
            }
            barrier();
            [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
                const uint block = min(lane + s * LANES, blocks - 1u);
                if (block - begin < piece_blocks) x[s] = one_row_take(block - begin, piece_blocks);
            }
        }
    }
    // A block beyond the end has no effect.
    [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
        if (lane + s * LANES >= blocks) x[s].scale = vec2(0.0);
    }

    float factor = 1.0;
    uint half_parts = 0u;
    for (uint base = 0u; base < longest; base += ROUND) {
        const uint end = min(longest, base + ROUND);
        uint item = base;
        while (item < end) {
            [[unroll]] for (uint bank = 0u; bank < BANKS; ++bank) {
                // A round has an even number of batches, unless it is the last.
                if (item < end) {
                    const uint next = (bank + 1u) % BANKS;
                    if (BANKS > 1u) {
                        [[unroll]] for (uint b = 0u; b < BATCH; ++b) {
                            one_row_fetch_row(planes, next, b, one_row_row(args, start, apart, items, item + BATCH + b), lane, blocks);
                        }
                    }
                    float sums[BATCH];
                    [[unroll]] for (uint b = 0u; b < BATCH; ++b) {
                        sums[b] = 0.0;
                        [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
                            sums[b] += block_product(one_row_block((bank * BATCH + b) * SPAN + s, lane), x[s]);
                        }
                        if (BANKS == 1u) {
                            one_row_fetch_row(planes, next, b, one_row_row(args, start, apart, items, item + BATCH + b), lane, blocks);
                        }
                    }
                    const float total = one_row_reduce(sums);
                    if (gl_SubgroupInvocationID % (SUBGROUP / BATCH) == 0u) {
                        one_row_parts[half_parts + gl_SubgroupID * ROUND + item - base + one_row_place()] = total;
                    }
                    item += BATCH;
                }
            }
        }
        barrier();
        // In the subgroups that have results.
        if (ONE_ROW_NORMS && base == 0u && lane - gl_SubgroupInvocationID < ROUND) factor = one_row_factor(args, 1u, args.weight);
        for (uint i = lane; i * ITEMS_OF_OUTPUT < end - base; i += LANES) {
            const uint output_of = base / ITEMS_OF_OUTPUT + i;
            float sums[2] = float[2](0.0, 0.0);
            for (uint part = 0u; part < TEAM_SUBGROUPS; ++part) {
                const uint at = half_parts + (team * TEAM_SUBGROUPS + part) * ROUND + i * ITEMS_OF_OUTPUT;
                sums[0] += one_row_parts[at];
                if (ONE_ROW_PAIRS) sums[1] += one_row_parts[at + 1u];
            }
            if (ONE_ROW_NORMS) {
                sums[0] *= factor;
                sums[1] *= factor;
            }
            if (output_of < outputs) {
                const uint row = first + output_of * apart;
                if (GATED == ONE_ROW_GATES) {
                    const float gated = gelu(sums[0]) * ActiveFloats(args.out1).at[row];
                    ActiveFloats(args.out0).at[row] = handed_on(args.chain, gated);
                } else if (GATED != 0u) {
                    // An interleaved row is eight planes of the blocks' quads.
                    const uint quad = row % 32u / 4u * (args.rows / 32u) + row / 32u;
                    const uint target = GATED == ONE_ROW_GATED_INTERLEAVED ? 4u * quad + row % 4u : row;
                    ActiveFloats(args.out0).at[target] = handed_on(args.chain, gelu(sums[0]) * sums[1]);
                } else {
                    one_row_store(args, row, sums[0]);
                }
            }
        }
        // An invocation that writes this half again has met all others at the barrier of the other half.
        half_parts = gl_WorkGroupSize.x / SUBGROUP * ROUND - half_parts;
    }
}
