#version 460
// Chooses a token of each row, and tells what its log-probability takes, as backend/src/sampling.rs says. Many workgroups pass over
// a row, and the last of it that ends draws the conclusion. The passes look for the largest; for what is kept of top-k, or hold the
// first race; up to three times, the race of what is before a winner that top-p may exclude. After that, and where top-k keeps very
// many, one workgroup goes on alone.
//
// Bound: the bytes of the logits, read twice, once more for top-p and for the rank of a log-probability; for one row the latency of
// two to five launches.

#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#include "include/memory.glsl"
#include "include/numbers.glsl"
#include "include/draw.glsl"

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint MODE = 0;

// The passes.
const uint SCAN = 0u;
const uint PASS = 1u;
const uint AGAIN = 2u;
// The last one, after which a row is done.
const uint LAST = 3u;

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
    // Workgroups that have ended the pass; 0 between launches, and before the first one.
    uint arrived;
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
    uint padding;
    // The sum of weights that top-p keeps.
    uint64_t goal;
    // The sum of weights at temperature 1.
    uint64_t raw_sum;
};

// What is found in tokens.
struct Found {
    // Sums of weights: of a race, and at temperature 1.
    uint64_t sum;
    uint64_t raw_sum;
    // Of a scan the key of the first in rank and the token. Of a race key of the score, token, key of the logit.
    uvec4 best;
    // How many may be chosen, or have larger logits than a token.
    uint count;
    // The largest key of all logits, whether they may be chosen or not.
    uint most;
    // The first token whose logit is not finite, and its logit.
    uint broken;
    uint broken_bits;
};

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Rows { Row at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Changes { Change at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer Outcomes { Outcome at[]; };
// The workgroup that ends last reads what others wrote.
layout(buffer_reference, scalar, buffer_reference_align = 8) coherent buffer States { State at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) coherent buffer Parts { Found at[]; };

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
    // Logits of a row, the workgroups that pass over them, and how many each does.
    uint vocabulary;
    uint chunks;
    uint chunk;
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

// Logits that an invocation reads at once.
const uint AT_ONCE = 8u;

// The tokens that are left of a row, as key and token.
shared uvec2 room[ROOM];
// Results of subgroups, of which each has 4 invocations or more.
shared Found of_subgroups[64];
shared uint bins[16];
shared uvec2 border;
shared bool ends_last;

Row row;
// The tokens and the changes that this workgroup passes over.
uint first_token = 0u;
uint end_token = 0u;
uint first_change = 0u;
uint change_step = 0u;
// How many tokens are left of the row, if they are in the room; otherwise 0.
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

Found nothing() {
    return Found(0ul, 0ul, uvec4(0u, NONE, 0u, 0u), 0u, 0u, NONE, 0u);
}

void add(inout Found to, Found other) {
    to.sum += other.sum;
    to.raw_sum += other.raw_sum;
    take_better(to.best, other.best);
    to.count += other.count;
    to.most = max(to.most, other.most);
    if (other.broken < to.broken) {
        to.broken = other.broken;
        to.broken_bits = other.broken_bits;
    }
}

uint64_t subgroup_sum(uint64_t value) {
    // Three parts whose sums cannot overflow.
    const uvec3 digits = subgroupAdd(uvec3(value & 0x1FFFFFul, (value >> 21) & 0x1FFFFFul, value >> 42));
    return uint64_t(digits.x) + (uint64_t(digits.y) << 21) + (uint64_t(digits.z) << 42);
}

// Returns what a subgroup has found.
Found of_subgroup(Found own) {
    Found all;
    all.sum = subgroup_sum(own.sum);
    all.raw_sum = subgroup_sum(own.raw_sum);
    const uint largest = subgroupMax(own.best.x);
    const uint first = subgroupMin(own.best.x == largest ? own.best.y : NONE);
    const bool is_it = own.best.x == largest && own.best.y == first;
    all.best = uvec4(largest, first, subgroupMax(is_it ? own.best.z : 0u), 0u);
    all.count = subgroupAdd(own.count);
    all.most = subgroupMax(own.most);
    all.broken = subgroupMin(own.broken);
    all.broken_bits = subgroupMax(own.broken == all.broken ? own.broken_bits : 0u);
    return all;
}

// What passes over the tokens that are left take and give.
// What this invocation has found, later all.
Found found = nothing();
// The first in rank.
uint high = 0u;
uint high_token = NONE;
// The least key that is collected.
uint floor_key = 0u;
// Tokens before this one in rank race; all if it is (0, 0).
uint limit_key = 0u;
uint limit_token = 0u;
// A search for the token of a rank: the token that is looked at, and the tokens before and after which it is known to be.
uint pivot_key = 0u;
uint pivot_token = 0u;
uint lower_key = 0u;
uint lower_token = 0u;
uint upper_key = NONE;
uint upper_token = NONE;
uvec4 other = uvec4(0u, NONE, 0u, 0u);
// The largest logit that may be chosen, and the keys of the largest of all and of the one whose rank is wanted.
float largest = 0.0;
uint raw_key = 0u;
uint rank_key = 0u;

// Makes `found` what all invocations have found, which all have to call it.
void combine() {
    // Results of the call before may still be read, and invocations may have left a loop apart.
    barrier();
    found = of_subgroup(found);
    if (subgroupElect()) of_subgroups[gl_SubgroupID] = found;
    barrier();
    found = of_subgroups[0];
    for (uint i = 1u; i < gl_NumSubgroups; ++i) add(found, of_subgroups[i]);
}

bool is_before(uint key, uint token, uint other_key, uint other_token) {
    return key > other_key || (key == other_key && token < other_token);
}

void scan(uint key, uint token) {
    ++found.count;
    if (is_before(key, token, found.best.x, found.best.y)) found.best = uvec4(key, token, 0u, 0u);
}

void collect(uint key, uint token) {
    if (key < floor_key) return;
    const uint place = atomicAdd(States(args.states).at[gl_WorkGroupID.y].found, 1u);
    if (place < ROOM) ActivePairs(args.found).at[gl_WorkGroupID.y * ROOM + place] = uvec2(key, token);
}

void race(uint key, uint token) {
    if (!is_before(key, token, limit_key, limit_token)) return;
    const float exponent = exponent_of(value_of(key), largest, row.scale);
    if (exponent < LEAST) return;
    if (row.share < WHOLE) found.sum += weight_of(exponent);
    const uint64_t bits = bits_of(row.key, token);
    // Keys of floats have their order.
    if (exponent < row.least || key_of(exponent + gumbel_most(bits)) < found.best.x) return;
    precise float score = exponent + gumbel_of(bits);
    const uint score_key = key_of(score);
    take_better(found.best, uvec4(score_key, token, key, 0u));
}

// Counts tokens between the borders up to the pivot, and picks one on each side of it by chance.
void look(uint key, uint token) {
    if (!is_before(key, token, lower_key, lower_token) || !is_before(upper_key, upper_token, key, token)) return;
    const uint chance = uint(bits_of(~row.key, token) >> 33) + 1u;
    const uvec4 chosen = uvec4(chance, token, key, 0u);
    if (is_before(pivot_key, pivot_token, key, token)) {
        take_better(other, chosen);
        return;
    }
    ++found.count;
    if (key != pivot_key || token != pivot_token) take_better(found.best, chosen);
}

const uint TO_SCAN = 0u;
const uint TO_COLLECT = 1u;
const uint TO_RACE = 2u;
const uint TO_LOOK = 3u;
const uint TO_TELL = 4u;

void visit(const uint phase, uint key, uint token) {
    if (phase == TO_SCAN) scan(key, token);
    if (phase == TO_COLLECT) collect(key, token);
    if (phase == TO_RACE) race(key, token);
    if (phase == TO_LOOK) look(key, token);
}

// Notes a logit that is not finite.
void check(uint token, float logit) {
    if (is_number(logit) || token >= found.broken) return;
    found.broken = token;
    found.broken_bits = floatBitsToUint(logit);
}

// Adds the weight at temperature 1 of a logit as it is.
void weigh(uint token, float logit) {
    const float exponent = exponent_of(logit, value_of(raw_key), 1.442695);
    if (exponent >= LEAST) found.raw_sum += weight_of(exponent);
    if (row.tells == TRIAL) {
        precise float score = exponent + gumbel_of(bits_of(row.key, token));
        found.count += key_of(score);
    }
}

// Visits the tokens that are left. What is told of the row, as it is, is added up too: weights, or how many are larger.
void pass(const uint phase, const bool weighs, const bool ranks) {
    const uint local = gl_LocalInvocationID.x;
    const uint size = gl_WorkGroupSize.x;
    if (room_count > 0u) {
        for (uint i = local; i < room_count; i += size) visit(phase, room[i].x, room[i].y);
        return;
    }
    for (uint start = first_token; start < end_token; start += AT_ONCE * size) {
        // Reads of several overlap.
        float logits[AT_ONCE];
        uint words[AT_ONCE];
        [[unroll]] for (uint i = 0u; i < AT_ONCE; ++i) {
            const uint token = min(start + i * size + local, end_token - 1u);
            logits[i] = Floats(row.logits).at[token];
            words[i] = row.mask == 0ul ? NONE : Words(row.mask).at[token / 32u];
        }
        uint most = 0u;
        [[unroll]] for (uint i = 0u; i < AT_ONCE; ++i) {
            const uint token = start + i * size + local;
            if (token >= end_token) continue;
            const uint key = key_of(logits[i]);
            const bool may_be = (words[i] >> (token % 32u) & 1u) == 1u;
            if (phase == TO_SCAN) {
                check(token, logits[i]);
                found.most = max(found.most, key);
                if (may_be) most = max(most, key);
            }
            if (weighs) weigh(token, logits[i]);
            if (ranks) found.count += uint(key > rank_key);
            if (may_be) visit(phase, key, token);
        }
        if (phase == TO_SCAN) {
            most = subgroupMax(most);
            const uint place = (start / (AT_ONCE * size)) * gl_NumSubgroups + gl_SubgroupID;
            if (subgroupElect()) ActiveWords(args.maxima).at[gl_WorkGroupID.y * args.maxima_count + place] = most;
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

// Runs a race of all tokens that are left. Afterwards all invocations know its sum and winner.
void hold_race() {
    found = nothing();
    pass(TO_RACE, false, false);
    combine();
}

// Leaves only the `count` first in rank to later races, of more tokens than that.
void limit_to(uint count) {
    pivot_key = high;
    pivot_token = high_token;
    // In expectation, twice the logarithm of the number of tokens.
    while (true) {
        found = nothing();
        other = found.best;
        pass(TO_LOOK, false, false);
        combine();
        const Found before = found;
        found = nothing();
        found.best = other;
        combine();
        if (before.count == count) break;
        if (before.count > count) {
            lower_key = pivot_key;
            lower_token = pivot_token;
            pivot_key = before.best.z;
            pivot_token = before.best.y;
        } else {
            count -= before.count;
            upper_key = pivot_key;
            upper_token = pivot_token;
            pivot_key = found.best.z;
            pivot_token = found.best.y;
        }
    }
    limit_key = pivot_key;
    limit_token = pivot_token + 1u;
}

// Returns a key that at least `wanted` of the row's maxima reach, and few more: the `wanted`-th largest of them but for its lowest
// bits; 1 if there are fewer.
uint floor_of(uint wanted) {
    uint prefix = 0u;
    for (int shift = 28; shift >= 12; shift -= 4) {
        barrier();
        if (gl_LocalInvocationID.x < 16u) bins[gl_LocalInvocationID.x] = 0u;
        barrier();
        for (uint i = gl_LocalInvocationID.x; i < args.maxima_count; i += gl_WorkGroupSize.x) {
            const uint key = ActiveWords(args.maxima).at[gl_WorkGroupID.y * args.maxima_count + i];
            const bool is_same = shift == 28 || key >> (shift + 4) == prefix >> (shift + 4);
            if (is_same) atomicAdd(bins[(key >> shift) & 15u], 1u);
        }
        barrier();
        uint digit = 15u;
        while (digit > 0u && bins[digit] < wanted) {
            wanted -= bins[digit];
            --digit;
        }
        prefix |= digit << shift;
    }
    // 0 belongs to no token.
    return max(prefix, 1u);
}

// Leaves only the `count` first in rank of the room, which has more.
void limit_room(uint count) {
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < room_count; i += gl_WorkGroupSize.x) {
        uint rank = 0u;
        for (uint j = 0u; j < room_count; ++j) rank += uint(is_before(room[j].x, room[j].y, room[i].x, room[i].y));
        if (rank + 1u == count) border = room[i];
    }
    barrier();
    limit_key = border.x;
    limit_token = border.y + 1u;
}

// Goes on from the winner that was found to winners before it until the weights before one sum to less than the goal, and returns
// that one.
uvec4 settle(uint64_t goal) {
    uvec4 winner = found.best;
    uvec4 next = winner;
    while (next.y != NONE) {
        winner = next;
        limit_key = winner.z;
        limit_token = winner.y;
        hold_race();
        next = found.sum >= goal ? found.best : uvec4(NONE);
    }
    return winner;
}

// Writes what is known of the row.
void write_outcome(State state, uint token, uint rank) {
    if (gl_LocalInvocationID.x > 0u) return;
    Outcome outcome;
    outcome.token = token;
    outcome.broken = NONE;
    outcome.broken_bits = 0u;
    outcome.rank = rank;
    outcome.sum = state.raw_sum;
    outcome.logit = token == NONE ? 0.0 : Floats(row.logits).at[token];
    outcome.largest = value_of(state.high_raw);
    Outcomes(args.outcomes).at[gl_WorkGroupID.y] = outcome;
}

// Writes that a logit is not finite.
void write_broken() {
    if (gl_LocalInvocationID.x > 0u) return;
    const Outcome outcome = Outcome(NONE, found.broken, found.broken_bits, 0u, 0ul, 0.0, 0.0);
    Outcomes(args.outcomes).at[gl_WorkGroupID.y] = outcome;
}

// Decides what is to be done with a row.
State plan() {
    high = found.best.x;
    high_token = found.best.y;
    State state = State(DONE, 0u, NONE, high, high, high_token, found.most, 0u, 0u, 0u, 0u, 0u, 0ul, 0ul);
    const uint count = found.count;
    if (found.broken != NONE) {
        write_broken();
    } else if (row.given == NONE && high == 0u) {
        write_outcome(state, NONE, 0u);
    } else if (row.given != NONE || row.scale == 0.0) {
        state.token = row.given != NONE ? row.given : high_token;
        state.kind = row.tells != 0u ? TELL : DONE;
        if (state.kind == DONE) write_outcome(state, state.token, 0u);
    } else {
        state.kind = RACE;
        if (row.top_k > 0u) {
            // The host knows by the same rule that nothing is left to do after what was collected.
            if (2u * row.top_k <= args.maxima_count && row.top_k <= ROOM) {
                state.kind = COLLECT;
                state.floor_key = row.top_k < count ? floor_of(row.top_k) : 1u;
            } else if (row.top_k < count) {
                limit_to(row.top_k);
                state.limit_key = limit_key;
                state.limit_token = limit_token;
            }
        }
    }
    return state;
}

// Collects from a part of a row, or holds its race, and adds up what is told whatever the token is.
void pass_part(State state) {
    const bool tells = row.tells != 0u;
    rank_key = state.kind == TELL && row.tells != TRIAL ? key_of(Floats(row.logits).at[state.token]) : NONE;
    floor_key = state.floor_key;
    if (state.kind == COLLECT) pass(TO_COLLECT, tells, false);
    if (state.kind == RACE) pass(TO_RACE, tells, false);
    if (state.kind == TELL) pass(TO_TELL, true, true);
}

// Chooses a token of what was collected.
void choose_collected(State state) {
    if (state.found <= ROOM) {
        for (uint i = gl_LocalInvocationID.x; i < state.found; i += gl_WorkGroupSize.x) {
            room[i] = ActivePairs(args.found).at[gl_WorkGroupID.y * ROOM + i];
        }
        room_count = state.found;
        barrier();
    }
    if (room_count > row.top_k) limit_room(row.top_k);
    if (room_count == 0u) limit_to(row.top_k);
    hold_race();
}

// Decides after the first race of a row.
State decide(State state) {
    state.raw_sum = found.raw_sum;
    if (state.kind == TELL) {
        write_outcome(state, state.token, found.count);
        state.kind = DONE;
        return state;
    }
    if (state.kind == COLLECT) choose_collected(state);
    uvec4 winner = found.best;
    if (row.share < WHOLE) {
        state.goal = part_of(found.sum, row.share);
        if (state.kind == COLLECT) winner = settle(state.goal);
    }
    state.token = winner.y;
    state.key = winner.z;
    if (state.kind == COLLECT || row.share >= WHOLE) {
        state.kind = row.tells != 0u ? TELL : DONE;
        if (state.kind == DONE) write_outcome(state, state.token, 0u);
    }
    return state;
}

// Holds the race of what is before a winner in a part of a row, and counts its rank.
void again_part(State state) {
    const bool tells = row.tells != 0u;
    rank_key = key_of(Floats(row.logits).at[state.token]);
    if (state.kind == RACE) {
        limit_key = state.key;
        limit_token = state.token;
        pass(TO_RACE, false, tells);
    } else {
        pass(TO_TELL, false, tells);
    }
}

// Decides after a race of what is before a winner.
State end(State state) {
    const bool is_open = state.kind == RACE && found.sum >= state.goal && found.best.y != NONE;
    if (is_open && MODE == AGAIN) {
        state.token = found.best.y;
        state.key = found.best.z;
        return state;
    }
    if (is_open) {
        state.token = settle(state.goal).y;
        found = nothing();
        rank_key = key_of(Floats(row.logits).at[state.token]);
        if (row.tells != 0u) pass(TO_TELL, false, true);
        combine();
    }
    write_outcome(state, state.token, found.count);
    state.kind = DONE;
    return state;
}

// Returns whether all other workgroups of the row have ended the pass. What they wrote can be read then.
bool is_last() {
    memoryBarrierBuffer();
    barrier();
    if (gl_LocalInvocationID.x == 0u) {
        ends_last = atomicAdd(States(args.states).at[gl_WorkGroupID.y].arrived, 1u) + 1u == args.chunks;
    }
    barrier();
    memoryBarrierBuffer();
    return ends_last;
}

void main() {
    const uint index = gl_WorkGroupID.y;
    if (index >= Words(args.count).at[0]) return;
    row = Rows(args.rows).at[index];
    State state;
    if (MODE != SCAN) {
        state = States(args.states).at[index];
        if (state.kind == DONE) return;
        high = state.high;
        high_token = state.high_token;
        largest = value_of(state.high);
        raw_key = state.high_raw;
        limit_key = state.limit_key;
        limit_token = state.limit_token;
    }
    first_token = gl_WorkGroupID.x * args.chunk;
    end_token = min(first_token + args.chunk, args.vocabulary);
    first_change = gl_WorkGroupID.x * gl_WorkGroupSize.x;
    change_step = gl_WorkGroupSize.x * args.chunks;
    if (MODE == SCAN) pass(TO_SCAN, false, false);
    if (MODE == PASS) pass_part(state);
    if (MODE == AGAIN || MODE == LAST) again_part(state);
    combine();
    if (gl_LocalInvocationID.x == 0u) Parts(args.parts).at[index * args.chunks + gl_WorkGroupID.x] = found;
    if (!is_last()) return;

    // The whole row.
    first_token = 0u;
    end_token = args.vocabulary;
    first_change = 0u;
    change_step = gl_WorkGroupSize.x;
    found = nothing();
    for (uint i = gl_LocalInvocationID.x; i < args.chunks; i += gl_WorkGroupSize.x) {
        add(found, Parts(args.parts).at[index * args.chunks + i]);
    }
    combine();
    if (MODE == SCAN) state = plan();
    if (MODE == PASS) {
        state.found = States(args.states).at[index].found;
        state = decide(state);
    }
    if (MODE == AGAIN || MODE == LAST) state = end(state);
    state.arrived = 0u;
    if (gl_LocalInvocationID.x == 0u) States(args.states).at[index] = state;
}
