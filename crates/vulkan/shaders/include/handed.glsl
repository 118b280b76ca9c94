// Values that dispatches of one row hand on in a chain, and that say themselves that they are there: the lowest bit of a float's
// mantissa is 1, in memory that was 0. crates/vulkan/src/chain/handed.rs says which dispatches do so. Before the include:
// memory.glsl and chain.glsl.

#extension GL_KHR_shader_subgroup_vote : require

// In the lowest bits of a link's address.
// It looks at the values that it takes instead of the counter.
const uint HANDED_TAKES = 1u;
// It looks at the residual stream too.
const uint HANDED_RESIDUAL = 2u;
// Its values have the bit. Nobody counts on a fence or a count.
const uint HANDED_GIVES = 4u;

layout(buffer_reference, scalar, buffer_reference_align = 4) volatile coherent buffer HandedFloats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) volatile coherent buffer HandedVec4s { vec4 at[]; };

bool handed_flag(const uint64_t link, const uint flag) {
    return (uint(link) & flag) != 0u;
}

uint64_t handed_link(const uint64_t link) {
    return link & ~7ul;
}

// Waits for the dispatch before, unless its values are looked at. All invocations of the workgroup call it.
void handed_wait(const uint64_t link) {
    if (!handed_flag(link, HANDED_TAKES)) chain_wait(handed_link(link));
}

// Signals that this workgroup is done, unless its values say so. All its invocations call it.
void handed_signal(const uint64_t link) {
    if (!handed_flag(link, HANDED_GIVES)) chain_signal(handed_link(link));
}

// Returns whether to look again at values of which some were not there, after `looks` looks. Invocations may leave their loop one
// by one if the whole workgroup has entered it: they have met again after it.
bool handed_again(const uint64_t link, const uint looks) {
    return looks % CHAIN_LOOKS != 0u || looks == 0u || chain_goes_on(handed_link(link), looks / CHAIN_LOOKS);
}

// Returns the same to all invocations of a subgroup, of which each says whether its values are `here`. All of them call it after
// each look. Where only a subgroup has entered a loop, Vulkan does not promise that those which leave it one by one have met again
// before the subgroup's next operation.
bool handed_again_together(const uint64_t link, const bool here, const uint looks) {
    bool again = subgroupAny(!here);
    // Others may fail the chain between the looks of two invocations.
    if (again && looks % CHAIN_LOOKS == 0u) again = subgroupAll(chain_goes_on(handed_link(link), looks / CHAIN_LOOKS));
    return again;
}

bool handed_here(const vec2 values) {
    const uvec2 words = floatBitsToUint(values);
    return (words.x & words.y & 1u) != 0u;
}

bool handed_here(const vec4 values) {
    const uvec4 words = floatBitsToUint(values);
    return (words.x & words.y & words.z & words.w & 1u) != 0u;
}

// Returns a value as it is handed on: with the bit, if somebody looks at it.
float handed_on(const uint64_t link, const float value) {
    return uintBitsToFloat(floatBitsToUint(value) | (handed_flag(link, HANDED_GIVES) ? 1u : 0u));
}

vec4 handed_on(const uint64_t link, const vec4 value) {
    return uintBitsToFloat(floatBitsToUint(value) | uvec4(handed_flag(link, HANDED_GIVES) ? 1u : 0u));
}
