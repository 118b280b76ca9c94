#version 460
// The experts of each row: its norm, the products with the router's rows, and the choice from them (choice.glsl). Several
// workgroups share the experts of a row, and the one that ends last chooses. One more may give another norm of the same row.
//
// Bound: the router's bytes for each row, from a cache. Few rows are bound by latency: of the row, of the products, of a count
// and of the choice.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/memory.glsl"
#include "include/reduce.glsl"
#include "include/operand.glsl"
#include "include/norm.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 1;
layout(constant_id = 2) const uint USED = 1;
// Whether shares are multiplied by a factor of the expert.
layout(constant_id = 3) const uint FACTORS = 0;
// Workgroups that share the experts of a row.
layout(constant_id = 4) const uint SLICES = 1;
layout(constant_id = 5) const uint OPERAND = 0;
layout(constant_id = 6) const uint PLAIN = 0;
layout(constant_id = 7) const uint COLUMNS = 32;
layout(constant_id = 8) const uint PER = 1;
// Of the router: 0 f32, 1 f16, 2 bf16.
layout(constant_id = 9) const uint FORMAT = 0;
// Of both norms.
layout(constant_id = 10) const float EPSILON = 0.0;

#include "include/choice.glsl"
#include "include/row.glsl"
#include "include/floats.glsl"

layout(push_constant, scalar) uniform Args {
    ChoiceArgs choice;
    uint _padding;
    uint64_t source;
    // Factors of the norm before the router.
    uint64_t weight;
    uint64_t router;
    // One for each row: how many of its workgroups are done.
    uint64_t counters;
    // Of the other norm.
    uint64_t other_weight;
    uint64_t plain;
    uint64_t codes;
    uint64_t scales;
    uint64_t rows;
    uint64_t chain;
} args;

const uint QUADS = (COLUMNS + 3u) / 4u;
// Loads of the router in flight.
const uint AHEAD = 8u;
// Experts of a workgroup.
const uint SHARE = (EXPERTS + SLICES - 1u) / SLICES;

shared vec4 router_row[QUADS];
shared uint router_turn;

vec4 factors[PER];

// Returns the product of an expert's row with the row in shared memory. All invocations of a subgroup call it for one expert.
float product(const uint expert) {
    float total = 0.0;
    for (uint base = gl_SubgroupInvocationID; base < QUADS; base += AHEAD * gl_SubgroupSize) {
        vec4 loaded[AHEAD];
        [[unroll]] for (uint k = 0u; k < AHEAD; ++k) {
            // Always read: a branch would keep loads from being in flight together.
            loaded[k] = floats_quad(args.router, FORMAT, COLUMNS, expert, min(base + k * gl_SubgroupSize, QUADS - 1u));
        }
        [[unroll]] for (uint k = 0u; k < AHEAD; ++k) {
            const uint quad = base + k * gl_SubgroupSize;
            if (quad < QUADS) total += dot(loaded[k], router_row[quad]);
        }
    }
    return subgroupAdd(total);
}

// Computes the logits of a slice of the experts, and chooses if all others are done.
void route(const uint row, const uint slice, const float factor) {
    const uint end = min((slice + 1u) * SHARE, EXPERTS);
    for (uint expert = slice * SHARE + gl_SubgroupID; expert < end; expert += gl_NumSubgroups) {
        const float logit = factor * product(expert);
        if (subgroupElect()) ActiveFloats(args.choice.logits).at[row * EXPERTS + expert] = logit;
    }
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0u) router_turn = atomicAdd(ActiveWords(args.counters).at[row], 1u);
    barrier();
    if (router_turn == SLICES - 1u) {
        memoryBarrierBuffer();
        // The next launch counts from 0 again.
        if (gl_LocalInvocationID.x == 0u) ActiveWords(args.counters).at[row] = 0u;
        choose(args.choice, row);
    }
}

// `weight`: the factors of the slice's norm.
void work_on_row(const uint row, const uint slice, const uint64_t weight) {
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        v[i] = load(args.source, row, column(i));
        squares += dot(v[i], v[i]);
        v[i] *= factors[i];
        if (slice < SLICES && column(i) < COLUMNS) router_row[column(i) / 4u] = v[i];
    }
    // The sum's barrier comes before the row is read.
    const float factor = norm_factor(workgroup_sum(squares, 0u) / float(COLUMNS), EPSILON, weight);
    if (slice < SLICES) {
        route(row, slice, factor);
    } else {
        [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] *= factor;
        give_row(args.plain, args.codes, args.scales, row, false, 1u);
    }
}

void main() {
    const uint slice = gl_WorkGroupID.x;
    const uint row = gl_WorkGroupID.y;
    const uint64_t weight = slice < SLICES ? args.weight : args.other_weight;
    [[unroll]] for (uint i = 0u; i < PER; ++i) factors[i] = load(weight, 0u, column(i));
    const bool exists = row < Words(args.rows).at[0];
    chain_wait(args.chain);
    if (exists) work_on_row(row, slice, weight);
    chain_signal(args.chain);
}
