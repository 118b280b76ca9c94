// Products of a matrix with 1 to 8 rows of activations, in one read of the matrix. Before the include: FORMAT, formats.glsl,
// operand.glsl, norm.glsl, activation.glsl, chain.glsl, and the constants LANES, ROWS, UNROLL, COLUMNS, SUBGROUP, STAGED, KEPT, GATHERED, WHOLE,
// AHEAD and CHAINED (see matvec.comp).
//
// LANES invocations, a team, share ROWS rows of the matrix and stride over their units; UNROLL units of each row are in flight.
// When slots have been used they are loaded again, from the rows of the next tile at the end of this one's: with AHEAD each
// slot immediately, so that an invocation always has loads in flight, otherwise all together, which takes fewer registers and
// copies.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer MatvecQuads { uvec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer MatvecVec4s { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer MatvecVec2s { vec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer MatvecFloats { float at[]; };

// A shader whose matrix and activations are chosen on the device defines before the include:
// MATVEC_ROW(row): the row in memory of a row of the matrix; MATVEC_SOURCE(c) and MATVEC_TARGET(c): the rows that the activations
// numbered `c` are read from and their products go to; MATVEC_HAS(c): whether there are such, which is the same for a whole workgroup.
#ifndef MATVEC_ROW
#define MATVEC_ROW(row) (row)
#define MATVEC_SOURCE(c) (c)
#define MATVEC_TARGET(c) (c)
#define MATVEC_HAS(c) true
#endif

const uint MATVEC_PLAIN = 0u;
const uint MATVEC_NORM = 1u;
const uint MATVEC_NORM_ADD_NORM = 2u;

// Bits of `results` of a gated product.
const uint MATVEC_FLOATS = 1u;
const uint MATVEC_FIXED = 2u;

struct MatvecArgs {
    uint64_t codes;
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint64_t operand;      // f32 rows or fixed-point codes; with a norm the residual stream, f32
    uint64_t sums;         // scale and sum of each block of a fixed-point operand; for NORM_ADD_NORM what is added, f32
    uint64_t out0;         // f32; for a gated product the codes follow in out1 and their scales in out2
    uint64_t out1;
    uint64_t out2;
    uint64_t weight;       // of the norm before the product
    uint64_t added_weight; // of the norm before the addition
    uint64_t x_out;        // the residual stream after the addition, or 0 if another product writes it
    uint rows;             // of the matrix; for a gated product the outputs
    uint columns;
    uint split1;           // first row of the second segment; for a gated product the first row of `up`
    uint split2;
    float epsilon;
    float scale;           // on the residual stream after the addition
    uint64_t chain;        // link of the chain, or 0
};

#if FORMAT_IS_FLOAT
shared vec4 matvec_staged[STAGED > 0u ? STAGED : 1u];
#else
// Four planes: high bytes of the first and second halves of all blocks, then low bytes.
shared uvec4 matvec_staged[STAGED > 0u ? STAGED : 1u];
shared vec2 matvec_staged_scales[STAGED > 0u ? STAGED / 4u : 1u];
#endif
const uint MATVEC_VALUES = ROWS * COLUMNS;
// Two copies, so that the next tile may be written while this one is read.
const uint MATVEC_PARTS = LANES > SUBGROUP ? gl_WorkGroupSize.x / SUBGROUP * MATVEC_VALUES : 1u;
shared float matvec_parts[2u * MATVEC_PARTS];
shared float matvec_totals[2u * (gl_WorkGroupSize.x / SUBGROUP)];
shared float matvec_gathered[GATHERED > 0u ? GATHERED : 1u];

// Returns the place in the workgroup; neighbours are also neighbours in a subgroup.
uint matvec_invocation() {
    return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
}

float matvec_workgroup_sum(const float value, const uint turn) {
    const uint base = turn * (gl_WorkGroupSize.x / SUBGROUP);
    const float part = subgroupAdd(value);
    if (gl_SubgroupInvocationID == 0u) matvec_totals[base + gl_SubgroupID] = part;
    barrier();
    float total = 0.0;
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) total += matvec_totals[base + i];
    return subgroupAdd(total);
}

// Returns four f32 from element 4 * quad of a row on; 0 beyond its columns.
vec4 matvec_load(const uint64_t address, const uint row, const uint columns, const uint quad) {
    const uint first = 4u * quad;
    if (WHOLE != 0u) {
        // Always read: a branch would keep loads from being in flight together.
        const uint at = row * (columns / 4u) + min(quad, columns / 4u - 1u);
        vec4 values;
        if (CHAINED != 0u) values = ActiveVec4s(address).at[at];
        else values = MatvecVec4s(address).at[at];
        return first < columns ? values : vec4(0.0);
    }
    vec4 values = vec4(0.0);
    for (uint k = 0u; k < 4u; ++k) {
        if (first + k < columns) {
            const uint at = row * columns + first + k;
            if (CHAINED != 0u) values[k] = ActiveFloats(address).at[at];
            else values[k] = MatvecFloats(address).at[at];
        }
    }
    return values;
}

void matvec_keep(const uint64_t address, const uint columns, const uint quad, const vec4 values) {
    if (WHOLE != 0u) {
        if (4u * quad < columns) ActiveVec4s(address).at[quad] = values;
        return;
    }
    for (uint k = 0u; k < 4u; ++k) {
        if (4u * quad + k < columns) ActiveFloats(address).at[4u * quad + k] = values[k];
    }
}

// Returns the fixed-point bytes (x: high, y: low) of four elements; eight neighbouring invocations hold a block of 32.
uvec2 matvec_quantise(const vec4 values, out vec2 scale) {
    float highest = operand_magnitude(values);
    float sum = values.x + values.y + values.z + values.w;
    [[unroll]] for (uint step = 1u; step < 8u; step *= 2u) {
        highest = max(highest, subgroupShuffleXor(highest, step));
        sum += subgroupShuffleXor(sum, step);
    }
    if (!(highest < OPERAND_INFINITE)) {
        scale = vec2(uintBitsToFloat(0x7FC00000u));
        return uvec2(0u);
    }
    // The inverse of a subnormal scale overflows: such a block counts as 0.
    if (highest <= 1e-30) {
        scale = vec2(0.0);
        return uvec2(0u);
    }
    scale = vec2(highest / 32512.0, sum);
    return operand_fixed(values, 32512.0 / highest);
}

// Norms the residual stream (after an addition) and stages it as the operand.
void matvec_stage(const MatvecArgs args, const uint prologue, const uint groups, const bool updates) {
    const uint invocation = matvec_invocation();
    const uint local = gl_WorkGroupSize.x;
    vec4 x[KEPT];
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) x[i] = matvec_load(args.operand, 0u, args.columns, invocation + i * local);
    if (prologue == MATVEC_NORM_ADD_NORM) {
        vec4 added[KEPT];
        float squares = 0.0;
        [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
            added[i] = matvec_load(args.sums, 0u, args.columns, invocation + i * local);
            squares += dot(added[i], added[i]);
        }
        const float square = matvec_workgroup_sum(squares, 0u) / float(args.columns);
        const float factor = norm_factor(square, args.epsilon, args.added_weight);
        [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
            const uint quad = invocation + i * local;
            x[i] = (x[i] + added[i] * factor * matvec_load(args.added_weight, 0u, args.columns, quad)) * args.scale;
            if (updates) matvec_keep(args.x_out, args.columns, quad, x[i]);
        }
    }
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) squares += dot(x[i], x[i]);
    const float square = matvec_workgroup_sum(squares, 1u) / float(args.columns);
    const float factor = norm_factor(square, args.epsilon, args.weight);
    [[unroll]] for (uint i = 0u; i < KEPT; ++i) {
        const uint quad = invocation + i * local;
        const vec4 values = x[i] * factor * matvec_load(args.weight, 0u, args.columns, quad);
#if FORMAT_IS_FLOAT
        if (quad < groups * 32u) matvec_staged[quad] = values;
#else
        vec2 scale;
        const uvec2 bytes = matvec_quantise(values, scale);
        const uint blocks = groups * 4u;
        const uint block = quad / 8u;
        const uint half_block = quad % 8u / 4u;
        if (block < blocks) {
            matvec_staged[half_block * blocks + block][quad % 4u] = bytes.x;
            matvec_staged[(half_block + 2u) * blocks + block][quad % 4u] = bytes.y;
            if (quad % 8u == 0u) matvec_staged_scales[block] = scale;
        }
#endif
    }
    barrier();
}

#if FORMAT_IS_FLOAT

// Returns four elements of the operand; 0 beyond its end.
vec4 matvec_values(const MatvecArgs args, const bool staged, const uint groups, const uint row, const uint quad) {
    if (staged) return quad < groups * 32u ? matvec_staged[quad] : vec4(0.0);
    return matvec_load(args.operand, row, args.columns, quad);
}

#else

// Returns a block of the operand; one beyond its end has no effect.
Operand matvec_operand(const MatvecArgs args, const bool staged, const uint groups, const uint row, const uint unit) {
    const uint blocks = groups * 4u;
    const uint block = min(unit, blocks - 1u);
    Operand x;
    if (staged) {
        x.high0 = matvec_staged[block];
        x.high1 = matvec_staged[blocks + block];
        x.low0 = matvec_staged[2u * blocks + block];
        x.low1 = matvec_staged[3u * blocks + block];
        x.scale = matvec_staged_scales[block];
    } else {
        const uint at = (row * groups + block / 4u) * 16u + block % 4u;
        x.high0 = MatvecQuads(args.operand).at[at];
        x.high1 = MatvecQuads(args.operand).at[at + 4u];
        x.low0 = MatvecQuads(args.operand).at[at + 8u];
        x.low1 = MatvecQuads(args.operand).at[at + 12u];
        x.scale = MatvecVec2s(args.sums).at[row * blocks + block];
    }
    if (unit >= blocks) x.scale = vec2(0.0);
    return x;
}

#endif

void matvec_store(const MatvecArgs args, const uint row, const uint column, const float value) {
    // Each segment's rows are as long as it has rows of the matrix.
    if (column < args.split1) {
        ActiveFloats(args.out0).at[row * args.split1 + column] = value;
    } else if (column < args.split2) {
        ActiveFloats(args.out1).at[row * (args.split2 - args.split1) + column - args.split1] = value;
    } else {
        ActiveFloats(args.out2).at[row * (args.rows - args.split2) + column - args.split2] = value;
    }
}

// Quantises the gathered outputs of a tile of `width` outputs, the first of which is `first`.
void matvec_store_fixed(const MatvecArgs args, const uint first, const uint width, const uint padded) {
    barrier();
    const uint quads = width / 4u;
    for (uint i = matvec_invocation(); i < COLUMNS * quads; i += gl_WorkGroupSize.x) {
        const uint row = i / quads;
        const uint at = 4u * i; // the rows follow one another
        vec2 scale;
        const uvec2 bytes = matvec_quantise(
            vec4(matvec_gathered[at], matvec_gathered[at + 1u], matvec_gathered[at + 2u], matvec_gathered[at + 3u]), scale
        );
        const uint column = first + 4u * (i % quads);
        if (column >= padded || !(MATVEC_HAS(row))) continue;
        const uint block = MATVEC_TARGET(row) * (padded / 32u) + column / 32u;
        const uint word = block / 4u * 64u + column % 32u / 16u * 16u + block % 4u * 4u + column % 16u / 4u;
        Words(args.out1).at[word] = bytes.x;
        Words(args.out1).at[word + 32u] = bytes.y;
        if (column % 32u == 0u) Vec2s(args.out2).at[block] = scale;
    }
    barrier();
}

// Computes the product, as workgroup `group` of `groups`. `gated`: the rows of `up` begin at split1.
void matvec(
    const MatvecArgs args, const uint prologue, const bool gated, const uint results, const uint group, const uint groups
) {
    const uint invocation = matvec_invocation();
    const uint lane = invocation % LANES;
    const uint team = invocation / LANES;
    const uint half_rows = (ROWS + 1u) / 2u; // ROWS is even where this matters
    const uint team_rows = gated ? half_rows : ROWS;
    const uint tile_rows = gl_WorkGroupSize.x / LANES * team_rows;
    const Planes planes = Planes(args.codes, args.high, args.scales, args.supers, (args.columns + 127u) / 128u);
    const uint units = planes.groups * UNITS_OF_GROUP;
    const uint span = LANES * UNROLL;
    const uint chunks = (units + span - 1u) / span;
    const bool fixed_output = gated && (results & MATVEC_FIXED) != 0u;
    const uint padded = fixed_output ? (args.rows + 127u) / 128u * 128u : args.rows;
    const uint tiles = (padded + tile_rows - 1u) / tile_rows;
    const bool staged = prologue != MATVEC_PLAIN;

    Unit slots[UNROLL * ROWS];
    float sums[MATVEC_VALUES];
    uint rows[ROWS];
    uint tile = group;
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        const uint row = tile * tile_rows + team * team_rows + (gated ? r % half_rows : r);
        rows[r] = MATVEC_ROW(min(row, args.rows - 1u) + (gated && r >= half_rows ? args.split1 : 0u));
    }
    if (tile < tiles) {
        [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
            const uint unit = min(u * LANES + lane, units - 1u);
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) slots[u * ROWS + r] = load_unit(planes, rows[r], unit);
        }
    }
    // The matrix depends on nothing: its first rows are loaded during this wait.
    if (CHAINED != 0u) chain_wait(args.chain);
    if (staged && tile < tiles) matvec_stage(args, prologue, planes.groups, group == 0u && args.x_out != 0ul);

    uint turn = 0u;
    for (; tile < tiles; tile += groups) {
        [[unroll]] for (uint v = 0u; v < MATVEC_VALUES; ++v) sums[v] = 0.0;
        for (uint chunk = 0u; chunk < chunks; ++chunk) {
            const bool ends = chunk + 1u == chunks;
            // With AHEAD, what follows the last tile is read too, but one unit for all: loads under a condition are waited for
            // where it ends.
            const bool more = !ends || tile + groups < tiles;
            const uint last = more ? units - 1u : 0u;
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                const uint row = (tile + groups) * tile_rows + team * team_rows + (gated ? r % half_rows : r);
                const uint clamped = MATVEC_ROW(min(row, args.rows - 1u) + (gated && r >= half_rows ? args.split1 : 0u));
                rows[r] = ends ? (more ? clamped : 0u) : rows[r];
            }
            const uint here = chunk * span + lane;
            const uint next = ends ? lane : here + span;
            [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
#if FORMAT_IS_FLOAT
                [[unroll]] for (uint part = 0u; part < UNIT / 4u; ++part) {
                    const uint quad = (here + u * LANES) * (UNIT / 4u) + part;
                    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                        if (!(MATVEC_HAS(c))) continue;
                        const vec4 x = matvec_values(args, staged, planes.groups, MATVEC_SOURCE(c), quad);
                        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                            sums[r * COLUMNS + c] += dot(unit_values(slots[u * ROWS + r], part), x);
                        }
                    }
                }
#else
                Block blocks[ROWS];
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) blocks[r] = unit_block(slots[u * ROWS + r]);
                [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                    if (!(MATVEC_HAS(c))) continue;
                    const Operand x = matvec_operand(args, staged, planes.groups, MATVEC_SOURCE(c), here + u * LANES);
                    [[unroll]] for (uint r = 0u; r < ROWS; ++r) sums[r * COLUMNS + c] += block_product(blocks[r], x);
                }
#endif
                if (AHEAD != 0u) {
                    const uint unit = min(next + u * LANES, last);
                    [[unroll]] for (uint r = 0u; r < ROWS; ++r) slots[u * ROWS + r] = load_unit(planes, rows[r], unit);
                }
            }
            if (AHEAD == 0u && more) {
                [[unroll]] for (uint u = 0u; u < UNROLL; ++u) {
                    const uint unit = min(next + u * LANES, last);
                    [[unroll]] for (uint r = 0u; r < ROWS; ++r) slots[u * ROWS + r] = load_unit(planes, rows[r], unit);
                }
            }
        }

        [[unroll]] for (uint v = 0u; v < MATVEC_VALUES; ++v) {
            [[unroll]] for (uint step = 1u; step < LANES; step *= 2u) {
                if (step < gl_SubgroupSize) sums[v] += subgroupShuffleXor(sums[v], step);
            }
        }
        if (LANES > gl_SubgroupSize) {
            const uint base = turn * MATVEC_PARTS;
            if (gl_SubgroupInvocationID == 0u) {
                [[unroll]] for (uint v = 0u; v < MATVEC_VALUES; ++v) {
                    matvec_parts[base + gl_SubgroupID * MATVEC_VALUES + v] = sums[v];
                }
            }
            barrier();
            const uint parts = LANES / gl_SubgroupSize;
            [[unroll]] for (uint v = 0u; v < MATVEC_VALUES; ++v) {
                float total = 0.0;
                for (uint i = 0u; i < parts; ++i) {
                    total += matvec_parts[base + (team * parts + i) * MATVEC_VALUES + v];
                }
                sums[v] = total;
            }
            turn ^= 1u;
        }

        // All lanes of a team hold its sums; each stores its share.
        const uint first = tile * tile_rows + team * team_rows;
        if (gated) {
            [[unroll]] for (uint v = 0u; v < half_rows * COLUMNS; ++v) {
                if (lane != v % LANES) continue;
                const uint column = first + v / COLUMNS;
                const float value = gelu(sums[v]) * sums[(ROWS - half_rows) * COLUMNS + v];
                if ((results & MATVEC_FLOATS) != 0u && column < args.rows && MATVEC_HAS(v % COLUMNS)) {
                    ActiveFloats(args.out0).at[MATVEC_TARGET(v % COLUMNS) * args.rows + column] = value;
                }
                if (fixed_output) {
                    const uint at = v % COLUMNS * tile_rows + team * team_rows + v / COLUMNS;
                    matvec_gathered[at] = column < args.rows ? value : 0.0;
                }
            }
            if (fixed_output) matvec_store_fixed(args, tile * tile_rows, tile_rows, padded);
        } else {
            [[unroll]] for (uint v = 0u; v < MATVEC_VALUES; ++v) {
                const uint column = first + v / COLUMNS;
                if (lane == v % LANES && column < args.rows && MATVEC_HAS(v % COLUMNS)) {
                    matvec_store(args, MATVEC_TARGET(v % COLUMNS), column, sums[v]);
                }
            }
        }
    }
}
