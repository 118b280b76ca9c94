// What the kernels share that hold weights in the registers of matrix units (share.glsl): outputs in halves, and tiles that
// several workgroups make parts of. Included after matmul.glsl and the push constants.

// Counters at the front of the scratch memory.
const uint COUNTERS = 4096;

shared uint finished;

// Barriers make what is written visible: no access needs to bypass a cache by itself.
layout(buffer_reference, scalar, buffer_reference_align = 16) nonprivate buffer Parts { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counters { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) nonprivate buffer OutputHalves { float16_t at[]; };

// Stores an output as a half, unless it is beyond the edges. If lanes swapped theirs to store two at a time, that would take
// registers that cost a workgroup its place: 77 instead of 54 us for gate and up of Gemma 3 27B and 16 tokens on an H200.
void store_half(const uint feature, const uint token, const float value) {
    if (feature < push.args.features && token < push.args.tokens) {
        OutputHalves(matmul_half(push.args, feature, token)).at[0] = float16_t(value);
        if (feature == 0) MatmulFloats(push.args.out1).at[token] = push.args.unit;
    }
}

Parts parts() {
    return Parts(push.args.scratch + COUNTERS * 4);
}

// Returns whether this is the last of the `sharers` workgroups with a counter to get here; all its invocations then see what
// the others wrote. The barriers order a workgroup's accesses with those of its first invocation, the atomic orders that one's
// with those of the device: each device-wide fence takes about half a microsecond.
bool is_last(const uint counter, const uint sharers) {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    if (gl_LocalInvocationIndex == 0) {
        Counters counters = Counters(push.args.scratch);
        const uint before = atomicAdd(counters.at[counter], 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                                      gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
        finished = before + 1;
        // The next dispatch counts from 0 again.
        if (finished == sharers) counters.at[counter] = 0;
    }
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
    return finished == sharers;
}
