// The experts of a row, from the logits of its router: those with the largest logits, in falling order, and their shares. A
// logit's place is the number of those that are larger, or equal and before it: EXPERTS^2 comparisons of a workgroup.
//
// Before the include: memory.glsl, and the constants EXPERTS, USED and FACTORS (whether shares are multiplied by a factor of the
// expert).

// Numbers in the order of the logits, four at a time. Beyond the last they are 0, which no place counts.
const uint CHOICE_QUADS = (EXPERTS + 3u) / 4u;
shared uvec4 choice_keys[CHOICE_QUADS];
shared uint choice_chosen[USED];
shared uint choice_broken;

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

float choice_logit(const uint place) {
    const uint expert = choice_chosen[place];
    const uint key = choice_keys[expert / 4u][expert % 4u];
    return uintBitsToFloat((key & 0x80000000u) != 0u ? key & 0x7FFFFFFFu : ~key);
}

// All invocations of the workgroup call it.
void choose(const ChoiceArgs args, const uint row) {
    const uint own = gl_LocalInvocationID.x;
    const uint local = gl_WorkGroupSize.x;
    if (own == 0u) choice_broken = 0u;
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
    for (uint e = own; e < EXPERTS; e += local) {
        const uint key = choice_keys[e / 4u][e % 4u];
        uint place = 0u;
        for (uint quad = 0u; quad < CHOICE_QUADS; ++quad) {
            const uvec4 those = choice_keys[quad];
            [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                place += uint(those[k] > key || (those[k] == key && 4u * quad + k < e));
            }
        }
        if (place < USED) choice_chosen[place] = e;
    }
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
