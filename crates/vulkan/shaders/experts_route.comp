#version 460
// The experts of each row, from the logits of its router: those with the largest logits, in falling order, and their shares.
// One workgroup for each row. A logit's place is the number of those that are larger, or equal and before it.
//
// Bound: latency, mostly of the comparisons: EXPERTS^2 of them, one for each invocation in a few cycles.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
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

// Numbers in the order of the logits, four at a time. Beyond the last they are 0, which no place counts.
const uint QUADS = (EXPERTS + 3u) / 4u;
shared uvec4 route_keys[QUADS];
shared uint route_chosen[USED];
shared uint route_broken;

uint key_of(const uint bits) {
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

float logit_of(const uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key);
}

float chosen_logit(const uint place) {
    const uint expert = route_chosen[place];
    return logit_of(route_keys[expert / 4u][expert % 4u]);
}

float scaled(const uint place) {
    return args.scale * (chosen_logit(place) - chosen_logit(0u));
}

void work_on_row(const uint row) {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    if (own == 0u) route_broken = 0u;
    barrier();
    for (uint e = own; e < 4u * QUADS; e += local) {
        if (e >= EXPERTS) {
            route_keys[e / 4u][e % 4u] = 0u;
            continue;
        }
        const uint bits = floatBitsToUint(ActiveFloats(args.logits).at[row * EXPERTS + e]);
        route_keys[e / 4u][e % 4u] = key_of(bits);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) atomicOr(route_broken, 1u);
    }
    barrier();
    for (uint e = own; e < EXPERTS; e += local) {
        const uint key = route_keys[e / 4u][e % 4u];
        uint place = 0u;
        for (uint quad = 0u; quad < QUADS; ++quad) {
            const uvec4 those = route_keys[quad];
            [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                place += uint(those[k] > key || (those[k] == key && 4u * quad + k < e));
            }
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
            const bool is_finite = (floatBitsToUint(chosen_logit(0u)) & 0x7F800000u) != 0x7F800000u;
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
