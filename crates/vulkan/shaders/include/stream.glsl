// The product of a quantised matrix with one row of activations. Before the include: FORMAT, memory.glsl, formats.glsl,
// operand.glsl, activation.glsl, and the constants of stream.comp.
//
// A team of LANES invocations goes through its rows of the matrix one after the other. Each invocation has its SPAN blocks
// of the activations in registers, so that nothing but the matrix is read in the loop, and BATCH rows of the matrix under
// way. A subgroup's sums of BATCH rows are added across its invocations together; those of the subgroups of a team meet in
// shared memory every ROUND rows.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

const uint STREAM_PLAIN = 0u;
const uint STREAM_NORM = 1u;
const uint STREAM_NORM_ADD_NORM = 2u;

struct StreamArgs {
    uint64_t codes;
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint64_t source;       // f32 activations; with a norm the residual stream
    uint64_t added;        // for NORM_ADD_NORM what is added after its norm
    uint64_t out0;
    uint64_t out1;
    uint64_t out2;
    uint64_t weight;       // of the norm before the product
    uint64_t added_weight; // of the norm before the addition
    uint64_t updated;      // the residual stream after the addition
    uint rows;             // outputs
    uint columns;
    uint split1;           // first row of the second segment; of a gated product the first row of `up`
    uint split2;
    float epsilon;
};

const uint TEAMS = gl_WorkGroupSize.x / LANES;
const uint TEAM_SUBGROUPS = LANES / SUBGROUP;
const uint ITEMS_OF_OUTPUT = GATED != 0u ? 2u : 1u;

// The staged operand: high bytes of the first and second halves of all blocks, then low bytes.
shared uvec4 stream_staged[STAGED];
shared vec2 stream_staged_scales[STAGED / 4u];
shared float stream_totals[2u * (gl_WorkGroupSize.x / SUBGROUP)];
shared float stream_parts[gl_WorkGroupSize.x / SUBGROUP * ROUND];

// Neighbours are neighbours in a subgroup.
uint stream_invocation() {
    return gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
}

float stream_workgroup_sum(const float value, const uint turn) {
    const uint base = turn * (gl_WorkGroupSize.x / SUBGROUP);
    const float part = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0u) stream_totals[base + gl_SubgroupID] = part;
    barrier();
    float total = 0.0;
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += SUBGROUP) total += stream_totals[base + i];
    return subgroupAdd(total);
}

vec4 stream_load(const uint64_t address, const uint columns, const uint quad) {
    return 4u * quad < columns ? ActiveVec4s(address).at[quad] : vec4(0.0);
}

// The scale of a block whose largest magnitude is `highest`: 0 for a block that counts as 0 because the inverse of its scale
// would overflow, NaN for one that is not finite.
float stream_scale(const float highest) {
    if (!(highest < OPERAND_INFINITE)) return uintBitsToFloat(0x7FC00000u);
    return highest <= 1e-30 ? 0.0 : highest / 32512.0;
}

// Puts four elements of the operand, those of `quad`, into shared memory as quad `place` of `blocks` blocks. Eight
// neighbouring invocations hold a block.
void stream_put(const vec4 values, const uint place, const uint blocks) {
    float highest = operand_magnitude(values);
    float sum = values.x + values.y + values.z + values.w;
    [[unroll]] for (uint step = 1u; step < 8u; step *= 2u) {
        highest = max(highest, subgroupShuffleXor(highest, step));
        sum += subgroupShuffleXor(sum, step);
    }
    const float scale = stream_scale(highest);
    const uvec2 bytes = scale > 0.0 ? operand_fixed(values, 32512.0 / highest) : uvec2(0u);
    const uint block = place / 8u;
    const uint half_block = place % 8u / 4u;
    if (block < blocks) {
        stream_staged[half_block * blocks + block][place % 4u] = bytes.x;
        stream_staged[(half_block + 2u) * blocks + block][place % 4u] = bytes.y;
        if (place % 8u == 0u) stream_staged_scales[block] = vec2(scale, scale == scale ? sum : scale);
    }
}

// A staged block of the operand.
Operand stream_take(const uint block, const uint blocks) {
    Operand x;
    x.high0 = stream_staged[block];
    x.high1 = stream_staged[blocks + block];
    x.low0 = stream_staged[2u * blocks + block];
    x.low1 = stream_staged[3u * blocks + block];
    x.scale = stream_staged_scales[block];
    return x;
}

// Norms the residual stream (after an addition) and stages it. All that is read is asked for before anything is waited for.
void stream_stage(const StreamArgs args, const uint blocks, const bool first_group) {
    const uint invocation = stream_invocation();
    const uint local = gl_WorkGroupSize.x;
    vec4 x[KEPT];
    vec4 added[KEPT];
    vec4 added_weights[KEPT];
    vec4 weights[KEPT];
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
        const uint quad = invocation + i * local;
        x[i] = stream_load(args.source, args.columns, quad);
        if (PROLOGUE == STREAM_NORM_ADD_NORM) {
            added[i] = stream_load(args.added, args.columns, quad);
            added_weights[i] = stream_load(args.added_weight, args.columns, quad);
        }
        weights[i] = stream_load(args.weight, args.columns, quad);
    }
    if (PROLOGUE == STREAM_NORM_ADD_NORM) {
        float squares = 0.0;
        [[unroll]] for (uint i = 0u; i < KEPT; ++i) squares += dot(added[i], added[i]);
        const float factor = inversesqrt(stream_workgroup_sum(squares, 0u) / float(args.columns) + args.epsilon);
        [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
            const uint quad = invocation + i * local;
            x[i] += added[i] * factor * added_weights[i];
            if (first_group && 4u * quad < args.columns) Vec4s(args.updated).at[quad] = x[i];
        }
    }
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) squares += dot(x[i], x[i]);
    const float factor = inversesqrt(stream_workgroup_sum(squares, 1u) / float(args.columns) + args.epsilon);
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) stream_put(x[i] * factor * weights[i], invocation + i * local, blocks);
    barrier();
}

void stream_store(const StreamArgs args, const uint row, const float value) {
    if (row < args.split1) {
        Floats(args.out0).at[row] = value;
    } else if (row < args.split2) {
        Floats(args.out1).at[row - args.split1] = value;
    } else {
        Floats(args.out2).at[row - args.split2] = value;
    }
}

// Adds a subgroup's BATCH values across its invocations. The sum of value `v` ends in the invocations whose first bits are
// those of `v`: halves of the subgroup exchange halves of the values, so that BATCH sums take little more than one.
float stream_reduce(inout float sums[BATCH]) {
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

// Which of the BATCH values stream_reduce leaves in this invocation.
uint stream_place() {
    return gl_SubgroupInvocationID / (SUBGROUP / BATCH);
}

// The row of the matrix that is item `item` of those from output `first` on; the last one again beyond `items`.
uint stream_row(const StreamArgs args, const uint first, const uint items, const uint item) {
    const uint at = min(item, items - 1u);
    return GATED != 0u ? first + at / 2u + (at & 1u) * args.split1 : first + at;
}

// The product, as workgroup `group` of `groups`.
void stream(const StreamArgs args, const uint group, const uint groups) {
    const uint invocation = stream_invocation();
    const uint lane = invocation % LANES;
    const uint team = invocation / LANES;
    const uint blocks = args.columns / 32u;
    const Planes planes = Planes(args.codes, args.high, args.scales, args.supers, (args.columns + 127u) / 128u);
    const uint teams = groups * TEAMS;
    const uint place = group * TEAMS + team;
    const uint least = args.rows / teams;
    const uint more = args.rows % teams;
    const uint first = place * least + min(place, more);
    const uint outputs = least + (place < more ? 1u : 0u);
    // A team without rows reads the first one and stores nothing.
    const uint items = max(outputs, 1u) * ITEMS_OF_OUTPUT;
    const uint start = outputs > 0u ? first : 0u;
    // All teams of a workgroup meet at the same barriers.
    const uint longest = (least + (more > 0u ? 1u : 0u)) * ITEMS_OF_OUTPUT;

    Unit slots[BATCH * SPAN];
    [[unroll]] for (uint b = 0u; b < BATCH; ++b) {
        const uint row = stream_row(args, start, items, b);
        [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
            slots[b * SPAN + s] = load_unit(planes, row, min(lane + s * LANES, blocks - 1u));
        }
    }
    STREAM_WAIT
    Operand x[SPAN];
    if (PROLOGUE != STREAM_PLAIN) {
        stream_stage(args, blocks, group == 0u);
        [[unroll]] for (uint s = 0u; s < SPAN; ++s) x[s] = stream_take(min(lane + s * LANES, blocks - 1u), blocks);
    } else {
        // In pieces that shared memory has room for.
        const uint piece_blocks = STAGED / 4u;
        for (uint begin = 0u; begin < blocks; begin += piece_blocks) {
            vec4 values[KEPT];
            [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
                values[i] = stream_load(args.source, args.columns, 8u * begin + invocation + i * gl_WorkGroupSize.x);
            }
            if (begin > 0u) barrier();
            [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
                stream_put(values[i], invocation + i * gl_WorkGroupSize.x, piece_blocks);
            }
            barrier();
            [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
                const uint block = min(lane + s * LANES, blocks - 1u);
                if (block - begin < piece_blocks) x[s] = stream_take(block - begin, piece_blocks);
            }
        }
    }
    // A block beyond the end counts nothing.
    [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
        if (lane + s * LANES >= blocks) x[s].scale = vec2(0.0);
    }

    for (uint base = 0u; base < longest; base += ROUND) {
        const uint end = min(longest, base + ROUND);
        for (uint item = base; item < end; item += BATCH) {
            float sums[BATCH];
            [[unroll]] for (uint b = 0u; b < BATCH; ++b) {
                sums[b] = 0.0;
                [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
                    sums[b] += block_product(unit_block(slots[b * SPAN + s]), x[s]);
                }
                const uint row = stream_row(args, start, items, item + BATCH + b);
                [[unroll]] for (uint s = 0u; s < SPAN; ++s) {
                    slots[b * SPAN + s] = load_unit(planes, row, min(lane + s * LANES, blocks - 1u));
                }
            }
            const float total = stream_reduce(sums);
            if (gl_SubgroupInvocationID % (SUBGROUP / BATCH) == 0u) {
                stream_parts[gl_SubgroupID * ROUND + item - base + stream_place()] = total;
            }
        }
        barrier();
        for (uint i = lane; i * ITEMS_OF_OUTPUT < end - base; i += LANES) {
            const uint output_of = base / ITEMS_OF_OUTPUT + i;
            float sums[2] = float[2](0.0, 0.0);
            for (uint part = 0u; part < TEAM_SUBGROUPS; ++part) {
                const uint at = (team * TEAM_SUBGROUPS + part) * ROUND + i * ITEMS_OF_OUTPUT;
                sums[0] += stream_parts[at];
                if (GATED != 0u) sums[1] += stream_parts[at + 1u];
            }
            if (output_of < outputs) {
                if (GATED != 0u) {
                    Floats(args.out0).at[first + output_of] = gelu(sums[0]) * sums[1];
                } else {
                    stream_store(args, first + output_of, sums[0]);
                }
            }
        }
        barrier();
    }
}
