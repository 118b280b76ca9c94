// Work on a head between its projection and attention: norm and rotation, and for keys and values the store. One subgroup works
// on a head. What it loads and what it computes from that are separate, so that the including shader can have all loads in
// flight before it waits for anything.
//
// Before the include: kv.glsl, norm.glsl, and the constants SUBGROUP, HEAD_PLACES (heads in shared memory) and HEAD_SIDE: 0 if heads are
// rotated by positions. Else they are rotated by places in a grid, of which a side has so many: the first half of a head by the
// column, the second by the row. With HEAD_HANDED also handed.glsl.
//
// Functions that attend.comp uses return only at their end, because they are inlined when it is compiled.

#include "limits.glsl"

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require

const uint HEAD_HALF = DIM / 2u;
// The distance of elements that rotate together.
const uint HEAD_APART = HEAD_SIDE > 0u ? DIM / 4u : HEAD_HALF;
// An invocation's pairs that rotate together.
const uint HEAD_PAIRS = (HEAD_HALF + SUBGROUP - 1u) / SUBGROUP;
const uint HEAD_QUADS = (DIM + 3u) / 4u;
// Quads that share a scale of an int8 cache.
const uint HEAD_GROUP_QUADS = (KV_GROUP + 3u) / 4u;

shared vec4 head_values[HEAD_PLACES * HEAD_QUADS];

// Positions that are added to the row's, and shares of a full turn; then cosines and sines.
uint head_shift = 0u;
uvec2 head_shares[HEAD_PAIRS];
vec2 head_turns[HEAD_PAIRS];
vec2 head_weights[HEAD_PAIRS];
vec2 head_pairs[HEAD_PAIRS];

uint head_index(const uint i) {
    return i * SUBGROUP + gl_SubgroupInvocationID;
}

bool head_has(const uint i) {
    return HEAD_HALF % SUBGROUP == 0u || head_index(i) < HEAD_HALF;
}

// Returns the first element of a pair; the other one is HEAD_APART after it.
uint head_element(const uint i) {
    const uint pair = head_index(i);
    return HEAD_SIDE > 0u ? pair + pair / HEAD_APART * HEAD_APART : pair;
}

// Returns cosine and sine of the angle by which a pair rotates at a position. `turns` is the part of a full turn by which the
// pair rotates per position, in units of 2^-64, high word first. The product is exact except for whole turns, which do not
// matter.
vec2 head_rotation(const uint position, const uvec2 turns) {
    uint carried, low;
    umulExtended(position, turns.y, carried, low);
    const uint angle = position * turns.x + carried;
    const uint quarter = (angle + 0x20000000u) >> 30;
    // The distance from the nearest quarter turn, at most an eighth of a turn, in radians.
    const float x = float(int(angle - (quarter << 30))) * 1.4629180792671596e-9;
    const float y = x * x;
    const float sine = x + x * y * (-1.6666667e-1 + y * (8.3333333e-3 + y * (-1.9841270e-4 + y * 2.7557319e-6)));
    const float cosine = 1.0 + y * (-0.5 + y * (4.1666667e-2 + y * (-1.3888889e-3 + y * 2.4801587e-5)));
    const vec2 odd = (quarter & 1u) != 0u ? vec2(-sine, cosine) : vec2(cosine, sine);
    return (quarter & 2u) != 0u ? -odd : odd;
}

// Loads the table `rope`, unless it is 0.
void head_ask_shares(const uint64_t rope) {
    if (rope != 0ul) head_shift = Pairs(rope).at[HEAD_APART].x;
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        const uint pair = HEAD_SIDE > 0u ? head_index(i) % HEAD_APART : head_index(i);
        if (rope != 0ul && head_has(i)) head_shares[i] = Pairs(rope).at[pair];
    }
}

// Computes rotations from what was loaded.
void head_turn(const uint position) {
    const uint place = position + head_shift;
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) head_turns[i] = head_rotation(place, head_shares[i]);
}

// The same for a place in a grid.
void head_turn_in_grid(const uint place) {
    const uint side = max(HEAD_SIDE, 1u);
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        const uint at = head_index(i) < HEAD_APART ? place % side : place / side;
        head_turns[i] = head_rotation(at + head_shift, head_shares[i]);
    }
}

// Loads the norm weights of the head, unless 0.
void head_ask_weights(const uint64_t weight) {
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        const uint j = head_element(i);
        head_weights[i] = vec2(1.0);
        if (weight != 0ul && head_has(i)) {
            head_weights[i] = vec2(Floats(weight).at[j], Floats(weight).at[j + HEAD_APART]);
        }
    }
}

// Loads the head.
void head_ask(const uint64_t source) {
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        const uint j = head_element(i);
        head_pairs[i] = vec2(0.0);
        if (head_has(i)) {
            head_pairs[i] = vec2(ActiveFloats(source).at[j], ActiveFloats(source).at[j + HEAD_APART]);
        }
    }
}

#ifdef HEAD_HANDED
// Looks at the loaded head until all of it is there, if the dispatch takes values as they come.
void head_take(const uint64_t link, const uint64_t source) {
    bool again = handed_flag(link, HANDED_TAKES);
    for (uint looks = 1u; again; ++looks) {
        bool here = true;
        [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
            const uint j = head_element(i);
            if (head_has(i) && !handed_here(head_pairs[i])) {
                head_pairs[i] = vec2(HandedFloats(source).at[j], HandedFloats(source).at[j + HEAD_APART]);
                here = false;
            }
        }
        again = handed_again_together(link, here, looks);
    }
}
#endif

// Keeps the head within limits.
void head_limit(const vec2 limits) {
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        const vec2 pair = vec2(within(head_pairs[i].x, limits), within(head_pairs[i].y, limits));
        head_pairs[i] = head_has(i) ? pair : vec2(0.0);
    }
}

// Adds the weights to the head instead of multiplying with them.
void head_add_weights() {
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        head_pairs[i] += head_has(i) ? head_weights[i] : vec2(0.0);
        head_weights[i] = vec2(1.0);
    }
}

// Applies norm, rotation and the factor `scale` to the head. A sum that is not finite is noted at the weights `noted` if `notes`. The
// eight bytes before these are there in any case, because some software reads what a condition excludes.
void head_prepare(
    const bool norms,
    const bool notes,
    const uint64_t noted,
    const bool rotates,
    const float epsilon,
    const float scale
) {
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        const vec2 pair = head_pairs[i];
        squares += dot(pair, pair);
    }
    const float total = subgroupAdd(squares);
    const float square = total / float(DIM);
    if (norms && notes && !is_number(square)) norm_note(noted);
    const float factor = norms ? norm_factor(square, epsilon) * scale : scale;
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        vec2 pair = head_pairs[i] * head_weights[i];
        const vec2 turn = head_turns[i];
        if (rotates) pair = vec2(pair.x * turn.x - pair.y * turn.y, pair.y * turn.x + pair.x * turn.y);
        head_pairs[i] = pair * factor;
    }
}

// Puts the head into shared memory.
void head_stage(const uint place) {
    [[unroll]] for (uint i = 0u; i < HEAD_PAIRS; ++i) {
        if (!head_has(i)) continue;
        const uint j = head_element(i);
        const uint other = j + HEAD_APART;
        head_values[place * HEAD_QUADS + j / 4u][j % 4u] = head_pairs[i].x;
        head_values[place * HEAD_QUADS + other / 4u][other % 4u] = head_pairs[i].y;
    }
}

// Returns four elements of a staged head; those beyond it are 0.
vec4 head_quad(const uint place, const uint quad) {
    const vec4 values = head_values[place * HEAD_QUADS + quad];
    return DIM % 4u == 0u || quad < HEAD_QUADS - 1u ? values : vec4(values.xy, 0.0, 0.0);
}

// Returns the scale of the group that a quad of a staged head is in, and its inverse: (NaN, 0) for a group that is not finite,
// so that it stays broken.
vec2 head_scaling(const uint place, const uint quad) {
    const uint first = quad / HEAD_GROUP_QUADS * HEAD_GROUP_QUADS;
    uvec4 high = uvec4(0u);
    for (uint k = 0u; k < HEAD_GROUP_QUADS; ++k) {
        high = max(high, floatBitsToUint(head_quad(place, first + k)) & 0x7FFFFFFFu);
    }
    // Magnitudes have the order of their bits, with those that are not finite at the end.
    const uint highest = max(max(high.x, high.y), max(high.z, high.w));
    const float scale = kv_half(kv_part_of_127(uintBitsToFloat(highest)));
    const vec2 scaling = vec2(scale, scale > 0.0 ? kv_inverse(scale) : 0.0);
    return highest < 0x7F800000u ? scaling : vec2(uintBitsToFloat(0x7FC00000u), 0.0);
}

// Returns a quad of a staged head as it would be read back from the cache; with `stores` also stores it at position `at` of a
// part.
vec4 head_keep(const uint place, const uint quad, const bool stores, const uint64_t part, const uint at) {
    vec4 value = head_quad(place, quad);
    const bool whole = DIM % 4u == 0u || quad < HEAD_QUADS - 1u;
    const uint index = at * HEAD_HALF + 2u * quad;
    if (KV == KV_F32) {
        if (stores) ActiveVec2s(part).at[index] = value.xy;
        if (stores && whole) ActiveVec2s(part).at[index + 1u] = value.zw;
    } else if (KV == KV_F16) {
        const uvec4 bits = uvec4(kv_half_bits(value.x), kv_half_bits(value.y), kv_half_bits(value.z), kv_half_bits(value.w));
        const uvec2 words = bits.xz | bits.yw << 16;
        if (stores) ActiveWords(part).at[index] = words.x;
        if (stores && whole) ActiveWords(part).at[index + 1u] = words.y;
        value = vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
    } else {
        const vec2 scaling = head_scaling(place, quad);
        const ivec4 codes = kv_codes_of(value, scaling.y);
        if (stores) {
            const uvec4 bytes = uvec4(codes) & 0xFFu;
            KvStores(part).at[index] = uint16_t(bytes.x | bytes.y << 8);
            if (whole) KvStores(part).at[index + 1u] = uint16_t(bytes.z | bytes.w << 8);
            if (quad % HEAD_GROUP_QUADS == 0u) {
                const uint scale = KV_BLOCK * HEAD_HALF + at * KV_GROUPS + quad / HEAD_GROUP_QUADS;
                KvStores(part).at[scale] = uint16_t(kv_half_bits(scaling.x));
            }
        }
        value = vec4(codes) * scaling.x;
    }
    return value;
}
