#version 460
// Chooses a token of each row, and tells what its log-probability takes, as backend/src/sampling.rs says. Many workgroups pass over
// a row, and one of it draws the conclusion, in turn: the largest; what is kept of top-k, or the first race; up to three times the
// race of what is before a winner that top-p may exclude. After that, and where top-k keeps very many, one workgroup goes on alone.
//
// Bound: the bytes of the logits, read twice, once more for top-p and for the rank of a log-probability; for one row the latency of
// ten launches.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/memory.glsl"
#include "include/numbers.glsl"
#include "include/draw.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint MODE = 0;
// Tokens that a workgroup passes over.
layout(constant_id = 2) const uint CHUNK = 2048;

// Passes of many workgroups, and conclusions of one.
const uint SCAN = 0u;
const uint PLAN = 1u;
const uint PASS = 2u;
const uint DECIDE = 3u;
const uint AGAIN = 4u;
const uint END = 5u;
// The last of these.
const uint LAST = 6u;


// What is wanted of a row: `Draw` of the backend.
struct Row {
    // Addresses: the row of logits; bits of tokens, 0 if all may be chosen as they are; changes.
    uint64_t logits;
    uint64_t mask;
    uint64_t changes;
    uint64_t key;
    uint change_count;
    uint top_k;
    uint share;
    uint given;
    float scale;
    float least;
    float of_positive;
    float of_others;
    uint tells;
    uint padding;
};

// A token that has no bit in the mask and may be chosen with another logit. The highest bit of `token` says that it is repeated.
struct Change {
    uint token;
    float bias;
    float less;
};

struct Outcome {
    uint token;
    // The first token whose logit is not finite, and its logit.
    uint broken;
    uint broken_bits;
    uint rank;
    uint64_t sum;
    float logit;
    float largest;
};

// What is known of a row between the launches.
struct State {
    // What is to be done, one of the constants below.
    uint kind;
    // The token that is chosen, or may be; the key of its changed logit.
    uint token;
    uint key;
    // The first in rank.
    uint high;
    uint high_token;
    uint high_raw;
    // The least key that is collected, and how many reach it.
    uint floor_key;
    uint found;
    // Tokens before this one in rank are left by top-k; all if it is (0, 0).
    uint limit_key;
    uint limit_token;
    // The sum of weights that top-p keeps.
    uint64_t goal;
};

// What a workgroup has found in its part of a row.
struct Part {
    uint64_t sum;
    uint64_t raw_sum;
    uvec4 best;
    uint broken;
    uint broken_bits;
    uint high_raw;
    uint rank;
};

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Rows { Row at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Changes { Change at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Outcomes { Outcome at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer States { State at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Parts { Part at[]; };

layout(push_constant, scalar) uniform Args {
    uint64_t count;
    uint64_t rows;
    uint64_t outcomes;
    uint64_t states;
    // (rows, chunks)
    uint64_t parts;
    // (rows, maxima_count): keys.
    uint64_t maxima;
    // (rows, ROOM): key and token.
    uint64_t found;
    // Logits of a row, and the workgroups that pass over them.
    uint vocabulary;
    uint chunks;
    // Maxima of a row: one for each subgroup that has passed over it.
    uint maxima_count;
} args;

// The token is known, and all that is wanted of it.
const uint DONE = 0u;
// The tokens that reach a key are collected.
const uint COLLECT = 1u;
// All race.
const uint RACE = 2u;
// The token is known, and its rank and the sum of weights are wanted.
const uint TELL = 3u;

const uint NONE = 0xFFFFFFFFu;
// The value of `tells` that asks for the sum of the keys of all scores in the place of the rank.
const uint TRIAL = 2u;
// Places for the tokens that are left of a row.
const uint ROOM = 1024u;

shared uvec2 room[ROOM];
// Results of subgroups, of which each may have 4 invocations or more.
shared uvec4 bests[256];
shared uint64_t sums[256];

Row row;
// The tokens and the changes that this workgroup passes over.
uint first_token = 0u;
uint end_token = 0u;
uint first_change = 0u;
uint change_step = 0u;
// How many tokens are left of the row, if they are in the room as key and token; otherwise 0.
uint room_count = 0u;

// Orders finite floats as unsigned integers above 0; -0 equals 0.
uint key_of(float value) {
    const uint bits = floatBitsToUint(value);
    if (bits == 0x80000000u) return 0x80000000u;
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

float value_of(uint key) {
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key);
}

// Returns 0 for what is too small for a normal number, as the device may.
float settled(float value) {
    return (floatBitsToUint(value) & 0x7F800000u) == 0u ? 0.0 : value;
}

float changed(Change change, float logit) {
    precise float value = settled(logit) + settled(change.bias);
    value = settled(value);
    if ((change.token & 0x80000000u) != 0u) {
        value = settled(value * (value > 0.0 ? row.of_positive : row.of_others));
    }
    precise float result = value - settled(change.less);
    return settled(result);
}

void take_better(inout uvec4 best, uvec4 other) {
    if (other.x > best.x || (other.x == best.x && other.y < best.y)) best = other;
}

// Combines values of a subgroup: the sum of `sum`, and of `best` the one with the largest x, of these with the smallest y.
void combine_subgroup(inout uint64_t sum, inout uvec4 best) {
    // Three parts whose sums cannot overflow.
    const uvec3 digits = subgroupAdd(uvec3(sum & 0x1FFFFFul, (sum >> 21) & 0x1FFFFFul, sum >> 42));
    sum = uint64_t(digits.x) + (uint64_t(digits.y) << 21) + (uint64_t(digits.z) << 42);
    const uint most = subgroupMax(best.x);
    const uint first = subgroupMin(best.x == most ? best.y : NONE);
    const bool is_it = best.x == most && best.y == first;
    best = uvec4(most, first, subgroupMax(is_it ? best.zw : uvec2(0u)));
}

// Does the same for all invocations, which all have to call it.
void combine(inout uint64_t sum, inout uvec4 best) {
    // Results of the call before may still be read, and invocations may have left a loop apart.
    barrier();
    combine_subgroup(sum, best);
    if (subgroupElect()) {
        sums[gl_SubgroupID] = sum;
        bests[gl_SubgroupID] = best;
    }
    barrier();
    sum = 0ul;
    best = uvec4(0u, NONE, 0u, 0u);
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) {
        sum += sums[i];
        take_better(best, bests[i]);
    }
    combine_subgroup(sum, best);
}

// What passes over the tokens that are left take and give.
// The first in rank of this invocation's tokens, later of all.
uint high = 0u;
uint high_token = NONE;
// The first logit that is not finite.
uint broken = NONE;
uint broken_bits = 0u;
// The largest key of all logits, whether they may be chosen or not.
uint high_raw = 0u;
// How many may be chosen.
uint kept = 0u;
// The least key that is collected.
uint floor_key = 0u;
// Tokens before this one in rank race; all if it is (0, 0).
uint limit_key = 0u;
uint limit_token = 0u;
// Sums of a race, and the best: key of the score, token, key of the logit.
uint64_t sum = 0ul;
uvec4 best = uvec4(0u, NONE, 0u, 0u);
// A search for the token of a rank: the token that is looked at, and the tokens before and after which it is known to be.
uint pivot_key = 0u;
uint pivot_token = 0u;
uint lower_key = 0u;
uint lower_token = 0u;
uint upper_key = NONE;
uint upper_token = NONE;
uvec4 other = uvec4(0u, NONE, 0u, 0u);
// The largest logit and its key.
float largest = 0.0;

bool is_before(uint key, uint token, uint other_key, uint other_token) {
    return key > other_key || (key == other_key && token < other_token);
}

void scan(uint key, uint token) {
    ++kept;
    if (is_before(key, token, high, high_token)) {
        high = key;
        high_token = token;
    }
}

void collect(uint key, uint token) {
    if (key < floor_key) return;
    const uint place = atomicAdd(States(args.states).at[gl_WorkGroupID.y].found, 1u);
    if (place < ROOM) Pairs(args.found).at[gl_WorkGroupID.y * ROOM + place] = uvec2(key, token);
}

void race(uint key, uint token) {
    if (!is_before(key, token, limit_key, limit_token)) return;
    const float exponent = exponent_of(value_of(key), largest, row.scale);
    if (exponent < LEAST) return;
    if (row.share < WHOLE) sum += weight_of(exponent);
    const uint64_t bits = bits_of(row.key, token);
    // Keys of floats have their order.
    if (exponent < row.least || key_of(exponent + gumbel_most(bits)) < best.x) return;
    precise float score = exponent + gumbel_of(bits);
    const uint score_key = key_of(score);
    if (score_key > best.x || (score_key == best.x && token < best.y)) best = uvec4(score_key, token, key, 0u);
}

// Counts tokens between the borders up to the pivot, and picks one on each side of it by chance.
void look(uint key, uint token) {
    if (!is_before(key, token, lower_key, lower_token) || !is_before(upper_key, upper_token, key, token)) return;
    const uint chance = uint(bits_of(~row.key, token) >> 33) + 1u;
    if (is_before(pivot_key, pivot_token, key, token)) {
        if (chance > other.x || (chance == other.x && token < other.y)) other = uvec4(chance, token, key, 0u);
        return;
    }
    ++sum;
    if (key == pivot_key && token == pivot_token) return;
    if (chance > best.x || (chance == best.x && token < best.y)) best = uvec4(chance, token, key, 0u);
}

const uint TO_SCAN = 0u;
const uint TO_COLLECT = 1u;
const uint TO_RACE = 2u;
const uint TO_LOOK = 3u;

void visit(const uint phase, uint key, uint token) {
    if (phase == TO_SCAN) scan(key, token);
    if (phase == TO_COLLECT) collect(key, token);
    if (phase == TO_RACE) race(key, token);
    if (phase == TO_LOOK) look(key, token);
}

// Notes a logit that is not finite.
void check(uint token, float logit) {
    if (is_number(logit) || token >= broken) return;
    broken = token;
    broken_bits = floatBitsToUint(logit);
}

// Visits the tokens that are left.
void pass(const uint phase) {
    const uint local = gl_LocalInvocationID.x;
    const uint size = gl_WorkGroupSize.x;
    if (room_count > 0u) {
        for (uint i = local; i < room_count; i += size) visit(phase, room[i].x, room[i].y);
        return;
    }
    // Four at once, so that their reads overlap.
    for (uint from = first_token + local; from < end_token; from += 4u * size) {
        float logits[4];
        uint words[4];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            const uint token = min(from + i * size, end_token - 1u);
            logits[i] = Floats(row.logits).at[token];
            words[i] = row.mask == 0ul ? NONE : Words(row.mask).at[token / 32u];
        }
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            const uint token = from + i * size;
            if (token >= end_token) continue;
            if (phase == TO_SCAN) {
                check(token, logits[i]);
                high_raw = max(high_raw, key_of(logits[i]));
            }
            if ((words[i] >> (token % 32u) & 1u) == 1u) visit(phase, key_of(logits[i]), token);
        }
    }
    for (uint i = first_change + local; i < row.change_count; i += change_step) {
        const Change change = Changes(row.changes).at[i];
        const uint token = change.token & 0x7FFFFFFFu;
        const float logit = changed(change, Floats(row.logits).at[token]);
        if (phase == TO_SCAN) check(token, logit);
        visit(phase, key_of(logit), token);
    }
}

// Runs a race. Afterwards all invocations know its sum and winner.
void hold_race() {
    sum = 0ul;
    best = uvec4(0u, NONE, 0u, 0u);
    pass(TO_RACE);
    combine(sum, best);
}

// Leaves only the `count` first in rank to later races, of more tokens than that.
void limit_to(uint count) {
    pivot_key = high;
    pivot_token = high_token;
    // In expectation, twice the logarithm of the number of tokens.
    while (true) {
        sum = 0ul;
        best = uvec4(0u, NONE, 0u, 0u);
        other = best;
        pass(TO_LOOK);
        combine(sum, best);
        uint64_t nothing = 0ul;
        combine(nothing, other);
        const uint found = uint(sum);
        if (found == count) break;
        if (found > count) {
            lower_key = pivot_key;
            lower_token = pivot_token;
            pivot_key = best.z;
            pivot_token = best.y;
        } else {
            count -= found;
            upper_key = pivot_key;
            upper_token = pivot_token;
            pivot_key = other.z;
            pivot_token = other.y;
        }
    }
    limit_key = pivot_key;
    limit_token = pivot_token + 1u;
}

// Returns the `wanted`-th largest of the row's maxima, which that many tokens reach at least; 1 if there are fewer.
uint floor_of(uint wanted) {
    uint prefix = 0u;
    for (int shift = 28; shift >= 0; shift -= 4) {
        barrier();
        if (gl_LocalInvocationID.x < 16u) bests[gl_LocalInvocationID.x].x = 0u;
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < args.maxima_count; i += gl_WorkGroupSize.x) {
            const uint key = Words(args.maxima).at[gl_WorkGroupID.y * args.maxima_count + i];
            const bool is_same = shift == 28 || key >> (shift + 4) == prefix >> (shift + 4);
            if (is_same) atomicAdd(bests[(key >> shift) & 15u].x, 1u);
        }
        barrier();
        uint digit = 15u;
        while (digit > 0u && bests[digit].x < wanted) {
            wanted -= bests[digit].x;
            --digit;
        }
        prefix |= digit << shift;
    }
    barrier();
    // 0 belongs to no token.
    return max(prefix, 1u);
}

// Leaves only the `count` first in rank of the room, which has more.
void limit_room(uint count) {
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < room_count; i += gl_WorkGroupSize.x) {
        uint rank = 0u;
        for (uint j = 0u; j < room_count; ++j) rank += uint(is_before(room[j].x, room[j].y, room[i].x, room[i].y));
        if (rank + 1u == count) bests[0] = uvec4(room[i], 0u, 0u);
    }
    barrier();
    limit_key = bests[0].x;
    limit_token = bests[0].y + 1u;
}

// Goes on from the winner `best` to winners before it until the weights before one sum to less than the goal. Sets `best` to the
// first that does.
void settle(uint64_t goal) {
    uvec4 winner = best;
    bool is_open = true;
    while (is_open) {
        limit_key = winner.z;
        limit_token = winner.y;
        hold_race();
        is_open = sum >= goal && best.y != NONE;
        if (is_open) winner = best;
    }
    best = winner;
}

// Adds up the weights at temperature 1 of the logits as they are, and, with `ranks`, how many are larger than a token's.
void tell(State state, const bool weighs, const bool ranks, inout uint64_t weights, inout uint rank) {
    const float top = value_of(state.high_raw);
    const uint own = key_of(Floats(row.logits).at[min(state.token, args.vocabulary - 1u)]);
    const uint size = gl_WorkGroupSize.x;
    for (uint from = first_token + gl_LocalInvocationID.x; from < end_token; from += 4u * size) {
        float logits[4];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) logits[i] = Floats(row.logits).at[min(from + i * size, end_token - 1u)];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            const uint token = from + i * size;
            if (token >= end_token) continue;
            if (weighs) {
                const float exponent = exponent_of(logits[i], top, 1.442695);
                if (exponent >= LEAST) weights += weight_of(exponent);
                if (row.tells == TRIAL) {
                    precise float score = exponent + gumbel_of(bits_of(row.key, token));
                    rank += key_of(score);
                }
            }
            if (ranks && row.tells != TRIAL) rank += uint(key_of(logits[i]) > own);
        }
    }
}

// Writes what is known of the row.
void write_outcome(uint token, uvec2 first_broken, uint rank, uint64_t weights, uint raw) {
    if (gl_LocalInvocationID.x > 0u) return;
    Outcome outcome;
    outcome.token = token;
    outcome.broken = first_broken.x;
    outcome.broken_bits = first_broken.y;
    outcome.rank = rank;
    outcome.sum = weights;
    outcome.logit = token == NONE ? 0.0 : Floats(row.logits).at[token];
    outcome.largest = value_of(raw);
    Outcomes(args.outcomes).at[gl_WorkGroupID.y] = outcome;
}

// Combines the parts of the row into `sum` and `best`.
void combine_parts() {
    sum = 0ul;
    best = uvec4(0u, NONE, 0u, 0u);
    for (uint i = gl_LocalInvocationID.x; i < args.chunks; i += gl_WorkGroupSize.x) {
        sum += Parts(args.parts).at[gl_WorkGroupID.y * args.chunks + i].sum;
        take_better(best, Parts(args.parts).at[gl_WorkGroupID.y * args.chunks + i].best);
    }
    combine(sum, best);
}

// Writes the outcome of a row whose token is known, after its parts have been told.
void conclude(State state) {
    uint64_t weights = 0ul;
    uint64_t rank = 0ul;
    if (row.tells != 0u) {
        for (uint i = gl_LocalInvocationID.x; i < args.chunks; i += gl_WorkGroupSize.x) {
            weights += Parts(args.parts).at[gl_WorkGroupID.y * args.chunks + i].raw_sum;
            rank += uint64_t(Parts(args.parts).at[gl_WorkGroupID.y * args.chunks + i].rank);
        }
        uvec4 nothing = uvec4(0u);
        combine(weights, nothing);
        combine(rank, nothing);
    }
    write_outcome(state.token, uvec2(NONE, 0u), uint(rank), weights, state.high_raw);
}

// Looks for the largest in a part of a row.
void scan_part(uint at) {
    pass(TO_SCAN);
    const uint most = subgroupMax(high);
    if (subgroupElect()) {
        const uint place = gl_WorkGroupID.y * args.maxima_count + gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID;
        Words(args.maxima).at[place] = most;
    }
    uint64_t all = uint64_t(kept);
    uvec4 first = uvec4(high, high_token, 0u, 0u);
    combine(all, first);
    uint64_t nothing = 0ul;
    uvec4 first_broken = uvec4(~broken, 0u, broken_bits, 0u);
    combine(nothing, first_broken);
    uvec4 raw = uvec4(high_raw, 0u, 0u, 0u);
    combine(nothing, raw);
    if (gl_LocalInvocationID.x > 0u) return;
    Part part;
    part.sum = all;
    part.raw_sum = 0ul;
    part.best = first;
    part.broken = ~first_broken.x;
    part.broken_bits = first_broken.z;
    part.high_raw = raw.x;
    part.rank = 0u;
    Parts(args.parts).at[at] = part;
}

// Decides what is to be done with a row.
void plan() {
    combine_parts();
    uvec4 first_broken = uvec4(0u);
    uvec4 raw = uvec4(0u);
    for (uint i = gl_LocalInvocationID.x; i < args.chunks; i += gl_WorkGroupSize.x) {
        const Part part = Parts(args.parts).at[gl_WorkGroupID.y * args.chunks + i];
        take_better(first_broken, uvec4(~part.broken, 0u, part.broken_bits, 0u));
        raw.x = max(raw.x, part.high_raw);
    }
    uint64_t nothing = 0ul;
    combine(nothing, first_broken);
    combine(nothing, raw);
    const uint64_t all = sum;
    high = best.x;
    high_token = best.y;
    State state;
    state.kind = DONE;
    state.token = NONE;
    state.key = high;
    state.high = high;
    state.high_token = high_token;
    state.high_raw = raw.x;
    state.floor_key = 0u;
    state.found = 0u;
    state.limit_key = 0u;
    state.limit_token = 0u;
    state.goal = 0ul;
    if (first_broken.x != 0u) {
        write_outcome(NONE, uvec2(~first_broken.x, first_broken.z), 0u, 0ul, raw.x);
    } else if (row.given == NONE && high == 0u) {
        write_outcome(NONE, uvec2(NONE, 0u), 0u, 0ul, raw.x);
    } else if (row.given != NONE || row.scale == 0.0) {
        state.token = row.given != NONE ? row.given : high_token;
        state.kind = row.tells != 0u ? TELL : DONE;
        if (state.kind == DONE) write_outcome(state.token, uvec2(NONE, 0u), 0u, 0ul, raw.x);
    } else {
        state.kind = RACE;
        if (row.top_k > 0u) {
            // The host knows by the same rule that nothing is left to do after what was collected.
            if (2u * row.top_k <= args.maxima_count && row.top_k <= ROOM) {
                state.kind = COLLECT;
                state.floor_key = uint64_t(row.top_k) < all ? floor_of(row.top_k) : 1u;
            } else if (uint64_t(row.top_k) < all) {
                limit_to(row.top_k);
                state.limit_key = limit_key;
                state.limit_token = limit_token;
            }
        }
    }
    if (gl_LocalInvocationID.x == 0u) States(args.states).at[gl_WorkGroupID.y] = state;
}

// Collects from a part of a row, or holds its race, and adds up what is told whatever the token is.
void pass_part(uint at, State state) {
    if (state.kind == COLLECT) {
        floor_key = state.floor_key;
        pass(TO_COLLECT);
    }
    if (state.kind == RACE) {
        hold_race();
        if (gl_LocalInvocationID.x == 0u) {
            Parts(args.parts).at[at].sum = sum;
            Parts(args.parts).at[at].best = best;
        }
    }
    if (row.tells != 0u) {
        uint64_t weights = 0ul;
        uint rank = 0u;
        const bool ranks = state.kind == TELL;
        tell(state, true, ranks, weights, rank);
        uint64_t all = uint64_t(rank);
        uvec4 nothing = uvec4(0u);
        combine(weights, nothing);
        combine(all, nothing);
        if (gl_LocalInvocationID.x == 0u) {
            Parts(args.parts).at[at].raw_sum = weights;
            Parts(args.parts).at[at].rank = uint(all);
        }
    }
}

// Chooses a token of what was collected.
void choose_collected(State state) {
    uint count = state.found;
    if (count <= ROOM) {
        for (uint i = gl_LocalInvocationID.x; i < count; i += gl_WorkGroupSize.x) {
            room[i] = Pairs(args.found).at[gl_WorkGroupID.y * ROOM + i];
        }
        room_count = count;
        barrier();
    }
    if (room_count > row.top_k) limit_room(row.top_k);
    if (room_count == 0u) limit_to(row.top_k);
    hold_race();
}

void decide(State state) {
    if (state.kind == DONE) return;
    if (state.kind == TELL) {
        conclude(state);
        state.kind = DONE;
    } else {
        if (state.kind == COLLECT) choose_collected(state);
        if (state.kind == RACE) combine_parts();
        if (row.share < WHOLE) {
            state.goal = part_of(sum, row.share);
            if (state.kind == COLLECT) settle(state.goal);
        }
        state.token = best.y;
        state.key = best.z;
        if (state.kind == COLLECT || row.share >= WHOLE) {
            state.kind = row.tells != 0u ? TELL : DONE;
            if (state.kind == DONE) write_outcome(state.token, uvec2(NONE, 0u), 0u, 0ul, state.high_raw);
        }
    }
    barrier();
    if (gl_LocalInvocationID.x == 0u) States(args.states).at[gl_WorkGroupID.y] = state;
}

// Counts the rank of a token in one workgroup, in the place of what the parts have counted.
void recount(State state) {
    uint64_t weights = 0ul;
    uint rank = 0u;
    tell(state, false, true, weights, rank);
    uint64_t all = uint64_t(rank);
    uvec4 nothing = uvec4(0u);
    combine(all, nothing);
    for (uint i = gl_LocalInvocationID.x; i < args.chunks; i += gl_WorkGroupSize.x) {
        Parts(args.parts).at[gl_WorkGroupID.y * args.chunks + i].rank = i == 0u ? uint(all) : 0u;
    }
}

// Holds the race of what is before a winner in a part of a row, and counts its rank.
void again_part(uint at, State state) {
    if (state.kind == RACE) {
        limit_key = state.key;
        limit_token = state.token;
        hold_race();
        if (gl_LocalInvocationID.x == 0u) {
            Parts(args.parts).at[at].sum = sum;
            Parts(args.parts).at[at].best = best;
        }
    }
    if (row.tells != 0u) {
        uint64_t weights = 0ul;
        uint rank = 0u;
        tell(state, false, true, weights, rank);
        uint64_t all = uint64_t(rank);
        uvec4 nothing = uvec4(0u);
        combine(all, nothing);
        if (gl_LocalInvocationID.x == 0u) Parts(args.parts).at[at].rank = uint(all);
    }
}

void end(State state) {
    if (state.kind == RACE) {
        combine_parts();
        bool is_open = sum >= state.goal && best.y != NONE;
        if (MODE == LAST && is_open) {
            settle(state.goal);
            state.token = best.y;
            is_open = false;
            if (row.tells != 0u) recount(state);
        }
        if (is_open) {
            state.token = best.y;
            state.key = best.z;
        } else {
            state.kind = TELL;
        }
    }
    if (state.kind == TELL) {
        conclude(state);
        state.kind = DONE;
    }
    barrier();
    if (gl_LocalInvocationID.x == 0u) States(args.states).at[gl_WorkGroupID.y] = state;
}

void main() {
    const uint index = gl_WorkGroupID.y;
    if (index >= Words(args.count).at[0]) return;
    row = Rows(args.rows).at[index];
    const bool is_part = MODE == SCAN || MODE == PASS || MODE == AGAIN;
    const uint at = index * args.chunks + gl_WorkGroupID.x;
    end_token = args.vocabulary;
    change_step = gl_WorkGroupSize.x;
    if (is_part) {
        first_token = gl_WorkGroupID.x * CHUNK;
        end_token = min(first_token + CHUNK, args.vocabulary);
        first_change = gl_WorkGroupID.x * gl_WorkGroupSize.x;
        change_step *= args.chunks;
    }
    if (MODE == SCAN) {
        scan_part(at);
        return;
    }
    if (MODE == PLAN) {
        plan();
        return;
    }
    const State state = States(args.states).at[index];
    if (state.kind == DONE) return;
    high = state.high;
    high_token = state.high_token;
    largest = value_of(state.high);
    limit_key = state.limit_key;
    limit_token = state.limit_token;
    if (MODE == PASS) pass_part(at, state);
    if (MODE == DECIDE) decide(state);
    if (MODE == AGAIN) again_part(at, state);
    if (MODE == END || MODE == LAST) end(state);
}
