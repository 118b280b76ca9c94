#version 460
// Sorts entries, pairs of a row and the number of one of its experts in the row, by expert, and cuts the entries of each expert
// into groups: one workgroup. Each entry gets a place; those of a group are neighbours. The order of an expert's entries is open:
// each is multiplied by itself, whatever stands beside it.
//
// Bound: latency. It waits three times for a read of all numbers and for the additions of equal experts; 8 bytes for an entry.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 1;
// Entries of a row.
layout(constant_id = 2) const uint USED = 1;
// Most entries of a group.
layout(constant_id = 3) const uint COLUMNS = 1;
// Groups that there is memory for.
layout(constant_id = 4) const uint GROUPS = 1;
// 1: each group has COLUMNS places, those without an entry the last.
layout(constant_id = 5) const uint PADDED = 0;

layout(push_constant, scalar) uniform Args {
    uint64_t chosen;
    uint64_t groups;  // (expert, first place, number of entries, 0); no entries beyond the last group
    uint64_t entries; // of each place
    uint64_t rows;
} args;

// Numbers of each expert's entries.
shared uint sort_counts[EXPERTS];
// The place of its next entry.
shared uint sort_places[EXPERTS];
// Places and groups of the experts up to those of each invocation.
shared uvec2 sort_totals[gl_WorkGroupSize.x];

uint expert_of(const uint entry) {
    return min(uint(Floats(args.chosen).at[entry]), EXPERTS - 1u);
}

void main() {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    const uint entries = Words(args.rows).at[0] * USED;
    for (uint e = own; e < EXPERTS; e += local) sort_counts[e] = 0u;
    barrier();
    for (uint i = own; i < entries; i += local) atomicAdd(sort_counts[expert_of(i)], 1u);
    barrier();

    // Each invocation takes neighbouring experts.
    const uint per = (EXPERTS + local - 1u) / local;
    const uint first = min(own * per, EXPERTS);
    const uint last = min(first + per, EXPERTS);
    uvec2 count = uvec2(0u);
    for (uint e = first; e < last; ++e) {
        const uint groups = (sort_counts[e] + COLUMNS - 1u) / COLUMNS;
        count += uvec2(PADDED != 0u ? groups * COLUMNS : sort_counts[e], groups);
    }
    sort_totals[own] = count;
    barrier();
    for (uint step = 1u; step < local; step *= 2u) {
        const uvec2 before = own >= step ? sort_totals[own - step] : uvec2(0u);
        barrier();
        sort_totals[own] += before;
        barrier();
    }
    uvec2 at = sort_totals[own] - count;
    for (uint e = first; e < last; ++e) {
        sort_places[e] = at.x;
        for (uint left = sort_counts[e]; left > 0u; left -= min(left, COLUMNS)) {
            Quads(args.groups).at[at.y] = uvec4(e, at.x, min(left, COLUMNS), 0u);
            at += uvec2(PADDED != 0u ? COLUMNS : min(left, COLUMNS), 1u);
        }
    }
    for (uint group = sort_totals[local - 1u].y + own; group < GROUPS; group += local) {
        Quads(args.groups).at[group] = uvec4(0u);
    }
    barrier();
    for (uint i = own; i < entries; i += local) {
        Words(args.entries).at[atomicAdd(sort_places[expert_of(i)], 1u)] = i;
    }
}
