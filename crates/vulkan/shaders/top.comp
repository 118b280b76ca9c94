#version 460
// The largest logits of each row, so that the host need not see all of them. Three launches: the largest of each of up to 1024
// chunks; of these the TOP-th largest, which at least TOP logits of the row reach; all logits that reach it.
//
// Bound: the bytes of the logits, read twice; for one row latency.

#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/memory.glsl"

layout(local_size_x_id = 0) in;
// 0: largest of the chunks, 1: threshold, 2: collection.
layout(constant_id = 1) const uint MODE = 0;
layout(constant_id = 2) const uint VOCABULARY = 1;
// Logits of a chunk.
layout(constant_id = 3) const uint CHUNK = 1;
layout(constant_id = 4) const uint TOP = 256;
// Places for the logits of a row.
layout(constant_id = 5) const uint ROOM = 1024;

layout(push_constant, scalar) uniform Args {
    uint64_t logits;
    // (rows, chunks): the key of the largest logit and its token, the lowest one if several are equal.
    uint64_t maxima;
    // For each row the threshold's key and the number of logits that reach it.
    uint64_t thresholds;
    // (rows, ROOM): the logit's bits and its token.
    uint64_t found;
    // Number of rows.
    uint64_t rows;
} args;

const uint CHUNKS = (VOCABULARY + CHUNK - 1u) / CHUNK;

// Orders floats as unsigned integers. NaN counts as the largest, so that it is never lost; -0 equals 0.
uint key_of(float value) {
    uint bits = floatBitsToUint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0xFFFFFFFFu;
    if (bits == 0x80000000u) return 0x80000000u;
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

shared uint bins[16];

void largest(uint row) {
    uint chunk = gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
    if (chunk >= CHUNKS) return;
    // No key is 0.
    uint high = 0u;
    uint first = 0xFFFFFFFFu;
    for (uint i = gl_SubgroupInvocationID; i < CHUNK; i += gl_SubgroupSize) {
        uint token = chunk * CHUNK + i;
        uint key = token < VOCABULARY ? key_of(Floats(args.logits).at[row * VOCABULARY + token]) : 0u;
        if (key > high) {
            high = key;
            first = token;
        }
    }
    uint most = subgroupMax(high);
    first = subgroupMin(high == most ? first : 0xFFFFFFFFu);
    if (subgroupElect()) Pairs(args.maxima).at[row * CHUNKS + chunk] = uvec2(most, first);
}

// Finds the TOP-th largest key by four bits at a time; 0 if there are fewer.
void threshold(uint row) {
    uint prefix = 0u;
    uint wanted = TOP;
    for (int shift = 28; shift >= 0; shift -= 4) {
        if (gl_LocalInvocationID.x < 16u) bins[gl_LocalInvocationID.x] = 0u;
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < CHUNKS; i += gl_WorkGroupSize.x) {
            uint key = Pairs(args.maxima).at[row * CHUNKS + i].x;
            bool same = shift == 28 || key >> (shift + 4) == prefix >> (shift + 4);
            if (same) atomicAdd(bins[(key >> shift) & 15u], 1u);
        }
        barrier();
        uint digit = 15u;
        while (digit > 0u && bins[digit] < wanted) {
            wanted -= bins[digit];
            --digit;
        }
        prefix |= digit << shift;
        barrier();
    }
    if (gl_LocalInvocationID.x == 0u) {
        Words(args.thresholds).at[2u * row] = CHUNKS <= TOP ? 0u : prefix;
        Words(args.thresholds).at[2u * row + 1u] = 0u;
    }
}

void collect(uint row) {
    uint least = Words(args.thresholds).at[2u * row];
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint token = gl_GlobalInvocationID.x; token < VOCABULARY; token += step) {
        float logit = Floats(args.logits).at[row * VOCABULARY + token];
        if (key_of(logit) < least) continue;
        uint place = atomicAdd(Words(args.thresholds).at[2u * row + 1u], 1u);
        if (place < ROOM) Pairs(args.found).at[row * ROOM + place] = uvec2(floatBitsToUint(logit), token);
    }
}

void main() {
    uint row = gl_WorkGroupID.y;
    if (row >= Words(args.rows).at[0]) return;
    if (MODE == 0u) largest(row);
    if (MODE == 1u) threshold(row);
    if (MODE == 2u) collect(row);
}
