// Dispatches that follow one another without a barrier. Workgroups of one start as soon as the device has room for them, do
// what does not depend on the dispatch before, and wait until all its workgroups have counted themselves out.
// crates/vulkan/src/chain.rs draws the memory and says what happens if the wait does not end.

#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require

layout(buffer_reference, scalar, buffer_reference_align = 16) volatile coherent buffer ChainLink {
    uint left;
    uint patience;   // rounds of looks before the wait is given up
    uint64_t failed; // address of a ChainFailed
};
layout(buffer_reference, scalar, buffer_reference_align = 4) volatile coherent buffer ChainFailed { uint word; };

// Bytes from one link to the next: no two share a line of a cache.
const uint CHAIN_LINK_BYTES = 256u;
// Looks at a counter or at values between two looks at whether the chain has failed; each look takes up to a microsecond.
const uint CHAIN_LOOKS = 1u << 10;

// With CHAIN_MEMORY_MODEL defined, a shader uses the terms of the Vulkan memory model, as those with cooperative matrices do,
// and states that other workgroups see what it writes and the other way round. What it passes on is then nonprivate, and
// coherent otherwise (memory.glsl).
#ifdef CHAIN_MEMORY_MODEL
#extension GL_KHR_memory_scope_semantics : require
const int CHAIN_SEMANTICS = gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible;
void chain_fence() {
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, CHAIN_SEMANTICS);
}
void chain_meet() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, CHAIN_SEMANTICS);
}
#else
void chain_fence() {
    memoryBarrierBuffer();
}
void chain_meet() {
    barrier();
}
#endif

// Returns whether to go on waiting after a round of CHAIN_LOOKS looks. The last round that there is patience for fails the chain.
bool chain_goes_on(const uint64_t link, const uint round) {
    ChainFailed failed = ChainFailed(ChainLink(link).failed);
    if (round == ChainLink(link).patience) failed.word = 1u;
    return failed.word == 0u;
}

// Waits until the dispatch before this one is done. All invocations of the workgroup call it. Outside a chain the link is 0.
void chain_wait(const uint64_t link) {
    if (link != 0ul) {
        if (gl_LocalInvocationIndex == 0u) {
            uint left = ChainLink(link).left;
            bool waits = left != 0u;
            for (uint round = 1u; waits; ++round) {
                for (uint look = 0u; left != 0u && look < CHAIN_LOOKS; ++look) left = ChainLink(link).left;
                waits = left != 0u && chain_goes_on(link, round);
            }
            chain_fence();
        }
        chain_meet();
    }
}

// Signals that this workgroup is done. All its invocations call it.
void chain_signal(const uint64_t link) {
    if (link != 0ul) {
#ifdef CHAIN_MEMORY_MODEL
        // After meeting all others, the invocation that counts passes on what they have written.
        chain_meet();
        if (gl_LocalInvocationIndex == 0u) chain_fence();
#else
        chain_fence();
        chain_meet();
#endif
        if (gl_LocalInvocationIndex == 0u) atomicAdd(ChainLink(link + uint64_t(CHAIN_LINK_BYTES)).left, 0xFFFFFFFFu);
    }
}
