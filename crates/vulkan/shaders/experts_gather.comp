#version 460
// Brings rows of activations into the order of places, which entries sorted by expert have (experts_sort.comp), as the operand of
// matrix units. A workgroup takes 16 places of a group, or some of their columns. Places without an entry stay as they are, but
// for zeros where 16 bytes of fragments are shared with an entry.
//
// Bound: the bytes of the rows, from memory once and from a cache for each entry, f32 twice; and of the places' halves, written.
// Lanes that write fragments read blocks of 32 columns of two rows and write 16 bytes next to one another: whole sectors of 32 bytes.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "include/memory.glsl"
#include "include/operand.glsl"

layout(local_size_x_id = 0) in;
// Of a row: whole blocks of 32.
layout(constant_id = 1) const uint COLUMNS = 32;
// Entries that share a row.
layout(constant_id = 2) const uint SHARED = 1;
// What the rows are, and what they become. 0: f32, 2: halves, 3: halves in fragment order.
layout(constant_id = 3) const uint SOURCE = 0;
layout(constant_id = 4) const uint OPERAND = 3;

layout(push_constant, scalar) uniform Args {
    uint64_t source;
    uint64_t source_scales;
    uint64_t groups;   // (expert, first place, number of entries, 0)
    uint64_t entries;  // of each place
    uint64_t codes;
    uint64_t scales;
} args;

const uint PLACES = 16u;
const uint GROUPS = (COLUMNS + 127u) / 128u;
const uint PADDED = 128u * GROUPS;
// Loads of an invocation that looks for the largest magnitude of a row, at the same time.
const uint TOGETHER = 8u;

// The largest magnitude of each row in f32, as bits, which have the same order.
shared uint gather_highest[PLACES];

// The first place of the workgroup, and how many have an entry.
uint first;
uint count;

uint row_of(const uint place) {
    return Words(args.entries).at[first + place] / SHARED;
}

void find_highest() {
    const uint own = gl_LocalInvocationID.x;
    const uint readers = gl_WorkGroupSize.x / PLACES;
    if (own < PLACES) gather_highest[own] = 0u;
    barrier();
    const uint place = own / readers;
    if (place < count) {
        const uint row = row_of(place);
        float high = 0.0;
        for (uint c = 4u * (own % readers); c < COLUMNS; c += 4u * readers * TOGETHER) {
            vec4 loaded[TOGETHER];
            [[unroll]] for (uint i = 0u; i < TOGETHER; ++i) {
                loaded[i] = Vec4s(args.source).at[(row * COLUMNS + min(c + 4u * readers * i, COLUMNS - 4u)) / 4u];
            }
            [[unroll]] for (uint i = 0u; i < TOGETHER; ++i) high = max(high, operand_magnitude(loaded[i]));
        }
        atomicMax(gather_highest[place], floatBitsToUint(high));
    }
    barrier();
}

bool is_finite(const uint place) {
    return gather_highest[place] < floatBitsToUint(OPERAND_INFINITE);
}

int exponent_of(const uint place) {
    return operand_exponent(uintBitsToFloat(gather_highest[place]));
}

// Returns eight columns of the row of a place as halves.
uvec4 eight_of(const uint place, const uint row, const uint c) {
    if (SOURCE == 2u) return Quads(args.source).at[(row * PADDED + c) / 8u];
    uvec4 halves = uvec4(0u);
    if (c < COLUMNS && is_finite(place)) {
        const float inverse = operand_power(-exponent_of(place));
        const vec4 low = Vec4s(args.source).at[(row * COLUMNS + c) / 4u] * inverse;
        const vec4 high = Vec4s(args.source).at[(row * COLUMNS + c) / 4u + 1u] * inverse;
        halves = uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy), packHalf2x16(high.zw));
    }
    return halves;
}

// Returns four halves in fragment order.
uvec2 in_order(const uvec2 four) {
    return uvec2(four.x & 0xFFFFu | four.y << 16, four.x >> 16 | four.y & 0xFFFF0000u);
}

// Writes a block of 32 columns of a place, and of the one eight places on.
void give_fragments(const uint place, const uint c) {
    uvec4 upper[4];
    uvec4 lower[4];
    const uint row = row_of(place);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        upper[i] = eight_of(place, row, c + 8u * i);
        lower[i] = uvec4(0u);
    }
    if (place + 8u < count) {
        const uint other = row_of(place + 8u);
        [[unroll]] for (uint i = 0u; i < 4u; ++i) lower[i] = eight_of(place + 8u, other, c + 8u * i);
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const uint at = operand_fragment(first + place, c + 8u * i, GROUPS) / 4u;
        const uint next = operand_fragment(first + place, c + 8u * i + 4u, GROUPS) / 4u;
        Quads(args.codes).at[at] = uvec4(in_order(upper[i].xy), in_order(lower[i].xy)).xzyw;
        Quads(args.codes).at[next] = uvec4(in_order(upper[i].zw), in_order(lower[i].zw)).xzyw;
    }
}

void give_scale(const uint place) {
    float scale = uintBitsToFloat(0x7FC00000u);
    if (SOURCE == 2u) scale = Floats(args.source_scales).at[row_of(place)];
    else if (is_finite(place)) scale = operand_power(exponent_of(place));
    Floats(args.scales).at[first + place] = scale;
}

void main() {
    const uvec4 group = Quads(args.groups).at[gl_WorkGroupID.y];
    const uint before = PLACES * gl_WorkGroupID.x;
    if (before >= group.z) return;
    first = group.y + before;
    count = min(group.z - before, PLACES);
    if (SOURCE == 0u) find_highest();

    const uint own = gl_WorkGroupID.z * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    const uint all = gl_NumWorkGroups.z * gl_WorkGroupSize.x;
    if (own < count) give_scale(own);
    if (OPERAND == 3u) {
        for (uint at = own; at < 32u * GROUPS; at += all) {
            const uint place = at % 32u / 4u;
            if (place < count) give_fragments(place, at / 32u * 128u + at % 4u * 32u);
        }
    } else {
        for (uint at = own; at < count * (PADDED / 8u); at += all) {
            const uint place = at / (PADDED / 8u);
            const uint c = at % (PADDED / 8u) * 8u;
            Quads(args.codes).at[((first + place) * PADDED + c) / 8u] = eight_of(place, row_of(place), c);
        }
    }
}
