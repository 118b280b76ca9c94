#version 460
// The experts of each row, from the logits of its router: those with the largest logits, in falling order, and their shares.
// One workgroup for each row. A logit's place is the number of those that are larger, or equal and before it.
//
// Bound: latency, mostly of the comparisons: EXPERTS^2 of them, one for each invocation in a few cycles.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"
#include "include/chain.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint EXPERTS = 1;
layout(constant_id = 2) const uint USED = 1;
// Whether shares are multiplied by a factor of the expert.
layout(constant_id = 3) const uint FACTORS = 0;

layout(push_constant, scalar) uniform Args {
    uint64_t logits;
    uint64_t factors;
    uint64_t chosen;
    uint64_t shares;
    uint64_t rows;
    uint64_t chain;
    float scale;
} args;

// Numbers in the order of the logits.
shared uint route_keys[EXPERTS];
shared uint route_chosen[USED];
shared uint route_broken;

uint key_of(const uint bits) {
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

float logit_of(const uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key);
}

float scaled(const uint place) {
    return args.scale * (logit_of(route_keys[route_chosen[place]]) - logit_of(route_keys[route_chosen[0]]));
}

void work_on_row(const uint row) {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    if (own == 0u) route_broken = 0u;
    barrier();
    for (uint e = own; e < EXPERTS; e += local) {
        const uint bits = floatBitsToUint(ActiveFloats(args.logits).at[row * EXPERTS + e]);
        route_keys[e] = key_of(bits);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) atomicOr(route_broken, 1u);
    }
    barrier();
    for (uint e = own; e < EXPERTS; e += local) {
        const uint key = route_keys[e];
        uint place = 0u;
        for (uint other = 0u; other < EXPERTS; ++other) {
            const uint that = route_keys[other];
            place += uint(that > key || (that == key && other < e));
        }
        if (place < USED) route_chosen[place] = e;
    }
    barrier();
    for (uint u = own; u < USED; u += local) {
        uint expert = u;
        float share = uintBitsToFloat(0x7FC00000u);
        if (route_broken == 0u) {
            expert = route_chosen[u];
            // Differences from an infinite logit are no numbers.
            const bool is_finite = (floatBitsToUint(logit_of(route_keys[route_chosen[0]])) & 0x7F800000u) != 0x7F800000u;
            float total = 0.0;
            for (uint other = 0u; other < USED; ++other) total += exp(scaled(other));
            if (is_finite) share = exp(scaled(u)) / total;
            if (FACTORS != 0u) share *= Floats(args.factors).at[expert];
        }
        ActiveFloats(args.chosen).at[row * USED + u] = float(expert);
        ActiveFloats(args.shares).at[row * USED + u] = share;
    }
}

void main() {
    const uint row = gl_WorkGroupID.x;
    const bool exists = row < Words(args.rows).at[0];
    chain_wait(args.chain);
    if (exists) work_on_row(row);
    chain_signal(args.chain);
}
