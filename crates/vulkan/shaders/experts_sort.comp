#version 460
// Sorts entries, pairs of a row and the number of one of its experts in the row, by expert, and cuts the entries of each expert
// into groups: one workgroup. Each entry gets a place; those of a group are neighbours. The order of an expert's entries is open:
// each is multiplied by itself, whatever stands beside it.
//
// Bound: latency. It reads all numbers twice, several of an invocation at the same time, and waits for the additions of equal
// experts; 12 bytes for an entry.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
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

// Entries of an invocation whose experts are loaded together.
const uint TOGETHER = 8u;

// Loads the experts of an invocation's entries from `first` on, of `entries`; those beyond the last one have its expert.
void load_experts(const uint first, const uint entries, out uint experts[TOGETHER]) {
    [[unroll]] for (uint k = 0u; k < TOGETHER; ++k) {
        const uint entry = min(first + k * gl_WorkGroupSize.x, entries - 1u);
        experts[k] = min(uint(Floats(args.chosen).at[entry]), EXPERTS - 1u);
    }
}

void main() {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    const uint entries = Words(args.rows).at[0] * USED;
    for (uint e = own; e < EXPERTS; e += local) sort_counts[e] = 0u;
    barrier();
    uint experts[TOGETHER];
    for (uint i = own; i < entries; i += local * TOGETHER) {
        load_experts(i, entries, experts);
        [[unroll]] for (uint k = 0u; k < TOGETHER; ++k) {
            if (i + k * local < entries) atomicAdd(sort_counts[experts[k]], 1u);
        }
    }
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
    for (uint i = own; i < entries; i += local * TOGETHER) {
        load_experts(i, entries, experts);
        [[unroll]] for (uint k = 0u; k < TOGETHER; ++k) {
            const uint entry = i + k * local;
            if (entry < entries) Words(args.entries).at[atomicAdd(sort_places[experts[k]], 1u)] = entry;
        }
    }
}
