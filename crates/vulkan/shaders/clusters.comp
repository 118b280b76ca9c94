#version 460
// Rows of logits from the products of some clusters of tokens: each product at its token, the smallest product less 1 at all
// others. A workgroup makes a part of a row in shared memory, with those of the row's products that belong there.
//
// Bound: the bytes of the logits, each written once. Every workgroup also reads the products of the row, twice, and their
// tokens, which are in a cache after the first. One row is bound by the latency of these reads and of three barriers.

#extension GL_GOOGLE_include_directive : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint CLUSTERS = 1;
// Tokens of a cluster.
layout(constant_id = 2) const uint SIZE = 1;
// Clusters of a row.
layout(constant_id = 3) const uint USED = 1;
// Logits of a workgroup.
layout(constant_id = 4) const uint PART = 1;

layout(push_constant, scalar) uniform Args {
    // (rows, USED, SIZE)
    uint64_t products;
    // (rows, USED): the clusters.
    uint64_t chosen;
    // (rows, USED): NaN where a score is.
    uint64_t shares;
    // (CLUSTERS, SIZE)
    uint64_t tokens;
    // (rows, CLUSTERS x SIZE)
    uint64_t logits;
    uint64_t rows;
} args;

const uint PRODUCTS = USED * SIZE;
const uint TOKENS = CLUSTERS * SIZE;
const uint NOT_A_NUMBER = 0x7FC00000u;

shared float clusters_part[PART];
shared uint clusters_least;
shared uint clusters_broken;

bool is_nan(const float value) {
    return (floatBitsToUint(value) & 0x7FFFFFFFu) > 0x7F800000u;
}

// Orders floats as unsigned integers.
uint key_of(const float value) {
    const uint bits = floatBitsToUint(value);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

float value_of(const uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key);
}

// Returns what stands at the tokens without a product.
float rest_of(const uint row) {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    if (own == 0u) {
        clusters_least = 0xFFFFFFFFu;
        clusters_broken = 0u;
    }
    barrier();
    uint least = 0xFFFFFFFFu;
    bool is_broken = false;
    for (uint i = own; i < PRODUCTS; i += local) {
        const float product = Floats(args.products).at[row * PRODUCTS + i];
        is_broken = is_broken || is_nan(product);
        least = min(least, key_of(product));
    }
    for (uint u = own; u < USED; u += local) {
        is_broken = is_broken || is_nan(Floats(args.shares).at[row * USED + u]);
    }
    atomicMin(clusters_least, least);
    if (is_broken) atomicOr(clusters_broken, 1u);
    barrier();
    return clusters_broken != 0u ? uintBitsToFloat(NOT_A_NUMBER) : value_of(clusters_least) - 1.0;
}

void main() {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    const uint row = gl_WorkGroupID.y;
    if (row >= Words(args.rows).at[0]) return;
    const float rest = rest_of(row);
    for (uint i = own; i < PART; i += local) clusters_part[i] = rest;
    barrier();
    const uint first = gl_WorkGroupID.x * PART;
    for (uint i = own; i < PRODUCTS; i += local) {
        const uint cluster = uint(Floats(args.chosen).at[row * USED + i / SIZE]);
        // Beyond the part for tokens before it, too.
        const uint at = uint(Floats(args.tokens).at[cluster * SIZE + i % SIZE]) - first;
        if (at < PART) clusters_part[at] = Floats(args.products).at[row * PRODUCTS + i];
    }
    barrier();
    for (uint i = own; i < min(PART, TOKENS - first); i += local) {
        Floats(args.logits).at[row * TOKENS + first + i] = clusters_part[i];
    }
}
