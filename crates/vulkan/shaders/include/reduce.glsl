// Reductions over a workgroup: in subgroups first, then over their results in shared memory. The subgroup may have as few
// as 4 invocations. Every invocation of the workgroup has to call them.
//
// REDUCE_QUADS, defined before the include, gives the sums of six values, once in a kernel, which take turns 0 and 1.

#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

// One row for each reduction of a kernel, so that no barrier is needed between two of them: `turn` is the row, and no two calls
// in a kernel may use the same one.
#ifdef REDUCE_QUADS
shared float reduce_parts[5][256];
#else
shared float reduce_parts[3][256];
#endif

float workgroup_sum(float value, uint turn) {
    float part = subgroupAdd(value);
    if (subgroupElect()) reduce_parts[turn][gl_SubgroupID] = part;
    barrier();
    float total = 0.0;
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) total += reduce_parts[turn][i];
    return subgroupAdd(total);
}

// Returns the sum of the first of two values, and the largest of the second, which are not negative.
vec2 workgroup_sum_max(vec2 values, uint turn, uint other_turn) {
    vec2 part = vec2(subgroupAdd(values.x), subgroupMax(values.y));
    if (subgroupElect()) {
        reduce_parts[turn][gl_SubgroupID] = part.x;
        reduce_parts[other_turn][gl_SubgroupID] = part.y;
    }
    barrier();
    vec2 all = vec2(0.0);
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) {
        all = vec2(all.x + reduce_parts[turn][i], max(all.y, reduce_parts[other_turn][i]));
    }
    return vec2(subgroupAdd(all.x), subgroupMax(all.y));
}

float workgroup_max(float value, uint turn) {
    float part = subgroupMax(value);
    if (subgroupElect()) reduce_parts[turn][gl_SubgroupID] = part;
    barrier();
    float high = reduce_parts[turn][0];
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) high = max(high, reduce_parts[turn][i]);
    return subgroupMax(high);
}

#ifdef REDUCE_QUADS
shared vec4 reduce_quads[256];

// Returns the sums of four values; `others` become their sums.
vec4 workgroup_sums(vec4 values, inout vec2 others) {
    const vec4 part = subgroupAdd(values);
    const vec2 other_part = subgroupAdd(others);
    if (subgroupElect()) {
        reduce_quads[gl_SubgroupID] = part;
        reduce_parts[0][gl_SubgroupID] = other_part.x;
        reduce_parts[1][gl_SubgroupID] = other_part.y;
    }
    barrier();
    vec4 totals = vec4(0.0);
    others = vec2(0.0);
    for (uint i = gl_SubgroupInvocationID; i < gl_NumSubgroups; i += gl_SubgroupSize) {
        totals += reduce_quads[i];
        others += vec2(reduce_parts[0][i], reduce_parts[1][i]);
    }
    others = subgroupAdd(others);
    return subgroupAdd(totals);
}
#endif
