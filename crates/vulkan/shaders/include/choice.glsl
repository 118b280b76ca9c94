// The experts of a row, from the logits of its router: those with the largest logits, in falling order, and their shares. A
// logit's place is the number of those that are larger, or equal and before it: EXPERTS^2 comparisons of a workgroup. Beyond
// CHOICE_MANY logits those that no place is left for are found first, by the bits of the least that has one: 32 barriers, each
// after EXPERTS / local comparisons, and as many additions to a counter.
//
// Before the include: memory.glsl, and the constants EXPERTS, USED and FACTORS (whether shares are multiplied by a factor of the
// expert).

// Numbers in the order of the logits, four at a time. Beyond the last they are 0, which no place counts.
const uint CHOICE_QUADS = (EXPERTS + 3u) / 4u;
shared uvec4 choice_keys[CHOICE_QUADS];
shared uint choice_chosen[USED];
shared uint choice_broken;
// The most logits that are all compared with one another.
const uint CHOICE_MANY = 512u;
const uint CHOICE_KEPT = EXPERTS > CHOICE_MANY ? EXPERTS : 1u;
// How many keys reach the one that is tried for each bit.
shared uint choice_reached[32];
// The experts that may have a place.
shared uint choice_kept[CHOICE_KEPT];
shared uint choice_kept_count;

struct ChoiceArgs {
    uint64_t logits;
    uint64_t factors;
    uint64_t chosen;
    uint64_t shares;
    float scale;
};

uint choice_key(const uint bits) {
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

uint choice_key_at(const uint expert) {
    return choice_keys[expert / 4u][expert % 4u];
}

float choice_logit(const uint place) {
    const uint key = choice_key_at(choice_chosen[place]);
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key);
}

// Chooses by comparisons of all with all.
void choose_of_few() {
    for (uint e = gl_LocalInvocationID.x; e < EXPERTS; e += gl_WorkGroupSize.x) {
        const uint key = choice_key_at(e);
        uint place = 0u;
        for (uint quad = 0u; quad < CHOICE_QUADS; ++quad) {
            const uvec4 those = choice_keys[quad];
            [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                place += uint(those[k] > key || (those[k] == key && 4u * quad + k < e));
            }
        }
        if (place < USED) choice_chosen[place] = e;
    }
}

// Returns the largest key that at least USED keys reach.
uint choice_least() {
    uint least = 0u;
    for (uint bit = 0u; bit < 32u; ++bit) {
        const uint tried = least | (0x80000000u >> bit);
        uint count = 0u;
        for (uint e = gl_LocalInvocationID.x; e < EXPERTS; e += gl_WorkGroupSize.x) count += uint(choice_key_at(e) >= tried);
        if (count > 0u) atomicAdd(choice_reached[bit], count);
        barrier();
        if (choice_reached[bit] >= USED) least = tried;
    }
    return least;
}

// Chooses by comparisons of those with one another that reach the least key with a place.
void choose_of_many() {
    const uint least = choice_least();
    for (uint e = gl_LocalInvocationID.x; e < EXPERTS; e += gl_WorkGroupSize.x) {
        if (choice_key_at(e) >= least) choice_kept[atomicAdd(choice_kept_count, 1u)] = e;
    }
    barrier();
    const uint kept = choice_kept_count;
    for (uint i = gl_LocalInvocationID.x; i < kept; i += gl_WorkGroupSize.x) {
        const uint e = choice_kept[i];
        const uint key = choice_key_at(e);
        uint place = 0u;
        for (uint other = 0u; other < kept; ++other) {
            const uint those = choice_key_at(choice_kept[other]);
            place += uint(those > key || (those == key && choice_kept[other] < e));
        }
        if (place < USED) choice_chosen[place] = e;
    }
}

// All invocations of the workgroup call it.
void choose(const ChoiceArgs args, const uint row) {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    if (own == 0u) {
        choice_broken = 0u;
        choice_kept_count = 0u;
    }
    if (EXPERTS > CHOICE_MANY) {
        for (uint i = own; i < 32u; i += local) choice_reached[i] = 0u;
    }
    barrier();
    for (uint e = own; e < 4u * CHOICE_QUADS; e += local) {
        if (e >= EXPERTS) {
            choice_keys[e / 4u][e % 4u] = 0u;
            continue;
        }
        const uint bits = floatBitsToUint(ActiveFloats(args.logits).at[row * EXPERTS + e]);
        choice_keys[e / 4u][e % 4u] = choice_key(bits);
        if ((bits & 0x7FFFFFFFu) > 0x7F800000u) atomicOr(choice_broken, 1u);
    }
    barrier();
    if (EXPERTS > CHOICE_MANY) choose_of_many();
    else choose_of_few();
    barrier();
    for (uint u = own; u < USED; u += local) {
        uint expert = u;
        float share = uintBitsToFloat(0x7FC00000u);
        if (choice_broken == 0u) {
            expert = choice_chosen[u];
            const float first = choice_logit(0u);
            // Differences from an infinite logit are no numbers.
            const bool is_finite = (floatBitsToUint(first) & 0x7F800000u) != 0x7F800000u;
            float total = 0.0;
            for (uint other = 0u; other < USED; ++other) total += exp(args.scale * (choice_logit(other) - first));
            if (is_finite) share = exp(args.scale * (choice_logit(u) - first)) / total;
            if (FACTORS != 0u) share *= Floats(args.factors).at[expert];
        }
        ActiveFloats(args.chosen).at[row * USED + u] = float(expert);
        ActiveFloats(args.shares).at[row * USED + u] = share;
    }
}
