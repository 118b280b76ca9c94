#version 460
// Arranges a matrix of weights for the product with tokens as left factors: matmul_turned.comp reads what this writes.
//
// An invocation makes what a lane reads of a group of 128 columns of a tile of 64 rows: lane 4 n + c holds unit c of row n of each
// of eight right factors. Codes: for each word of a unit, of which two products take the codes, the words of factors 0 to 3, then
// of 4 to 7. Scales: eight halves.

#extension GL_GOOGLE_include_directive : require

#include "include/memory.glsl"
#include "include/formats.glsl"
#include "include/arranged.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 128;
// 1: the rows of the gate are followed by those of up.
layout(constant_id = 1) const uint GATED = 0;

layout(push_constant, scalar) uniform Push {
    uint64_t codes;
    uint64_t scales;
    uint64_t arranged;
    uint64_t arranged_scales;
    uint groups;
    uint tiles;
    uint features;
    uint up; // the first row of `up`
} push;

const uint LANES = 32;

uint row_of(const uint tile, const uint j, const uint n) {
    const bool is_up = GATED != 0 && j >= ARRANGED_FACTORS / 2;
    const uint feature = arranged_feature(GATED != 0, tile, is_up ? j - ARRANGED_FACTORS / 2 : j, n);
    return min(feature, push.features - 1) + (is_up ? push.up : 0);
}

void main() {
    const uint lane = gl_LocalInvocationIndex % LANES;
    const uint place = gl_WorkGroupID.x * (LOCAL / LANES) + gl_LocalInvocationIndex / LANES;
    if (place >= push.tiles * push.groups) return;
    const uint tile = place / push.groups;
    const uint unit = place % push.groups * 4 + lane % 4;
    uvec4 codes[ARRANGED_FACTORS];
    uint scales[ARRANGED_FACTORS];
    [[unroll]] for (uint j = 0; j < ARRANGED_FACTORS; j++) {
        const uint at = row_of(tile, j, lane / 4) * (push.groups * 4) + unit;
        codes[j] = ReadQuads(push.codes).at[at];
        scales[j] = uint(ReadShorts(push.scales).at[at]);
    }
    [[unroll]] for (uint word = 0; word < 4; word++) {
        [[unroll]] for (uint i = 0; i < 2; i++) {
            const uint at = ((place * 4 + word) * 2 + i) * LANES + lane;
            const uint j = 4 * i;
            Quads(push.arranged).at[at] = uvec4(codes[j][word], codes[j + 1][word], codes[j + 2][word], codes[j + 3][word]);
        }
    }
    [[unroll]] for (uint j = 0; j < ARRANGED_FACTORS; j += 2) scales[j / 2] = scales[j] | scales[j + 1] << 16;
    Quads(push.arranged_scales).at[place * LANES + lane] = uvec4(scales[0], scales[1], scales[2], scales[3]);
}
