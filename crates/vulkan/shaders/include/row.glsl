// A row in registers, one workgroup for each: where it is in memory, and how it becomes the operand of a product. Before the
// include: memory.glsl, reduce.glsl, operand.glsl, norm.glsl, and the constants COLUMNS, PER (pieces of four values for each invocation), OPERAND
// (what the row becomes: 0 none, 1 fixed point, 2 halves, 3 halves in fragment order, 4 the same split) and PLAIN (whether it is also written as f32).

#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_control_flow_attributes : require

const uint PADDED = (COLUMNS + 127u) / 128u * 128u;

// Returns four values from column `c` on; those beyond the row are 0.
vec4 load(uint64_t address, uint row, uint c) {
    if (COLUMNS % 4u == 0u) {
        return c < COLUMNS ? ActiveVec4s(address).at[(row * COLUMNS + c) / 4u] : vec4(0.0);
    }
    vec4 v = vec4(0.0);
    for (uint k = 0u; k < 4u; ++k) {
        if (c + k < COLUMNS) v[k] = ActiveFloats(address).at[row * COLUMNS + c + k];
    }
    return v;
}

void store(uint64_t address, uint row, uint c, vec4 v) {
    if (COLUMNS % 4u == 0u) {
        if (c < COLUMNS) ActiveVec4s(address).at[(row * COLUMNS + c) / 4u] = v;
        return;
    }
    for (uint k = 0u; k < 4u; ++k) {
        if (c + k < COLUMNS) ActiveFloats(address).at[row * COLUMNS + c + k] = v[k];
    }
}

uint column(uint i) {
    return 4u * (gl_LocalInvocationID.x + i * gl_WorkGroupSize.x);
}

// The row that is written.
vec4 v[PER];
// Its largest magnitude, if it becomes an operand of halves.
float highest;

// Norms v with the factors of its columns, which are at `address`, or are 1 if it is 0; with `is_result` also finds the largest
// magnitude, in the same reduction.
void norm(
    const vec4 weights[PER],
    const uint64_t address,
    const float epsilon,
    const bool is_result,
    const uint turn,
    const uint other_turn
) {
    float total = 0.0;
    float high = 0.0;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        total += dot(v[i], v[i]);
        v[i] *= weights[i];
        if (is_result) high = max(high, operand_magnitude(v[i]));
    }
    if (is_result) {
        const vec2 both = workgroup_sum_max(vec2(total, high), turn, other_turn);
        total = both.x;
        high = both.y;
    } else {
        total = workgroup_sum(total, turn);
    }
    const float square = total / float(COLUMNS);
    const float factor = address != 0ul ? norm_factor(square, epsilon, address) : norm_factor(square, epsilon);
    [[unroll]] for (uint i = 0u; i < PER; ++i) v[i] *= factor;
    highest = high * factor;
}

void store_row(uint64_t address, uint row) {
    [[unroll]] for (uint i = 0u; i < PER; ++i) store(address, row, column(i), v[i]);
}

// Eight neighbouring invocations hold a block of 32.
void store_fixed(uint64_t codes, uint64_t scales, uint row) {
    const uint groups = PADDED / 128u;
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        float high = operand_magnitude(v[i]);
        float sum = v[i].x + v[i].y + v[i].z + v[i].w;
        for (uint step = 1u; step < 8u; step *= 2u) {
            high = max(high, subgroupShuffleXor(high, step));
            sum += subgroupShuffleXor(sum, step);
        }
        uint c = column(i);
        if (c >= PADDED) continue;
        bool finite = high < OPERAND_INFINITE;
        float scale = finite ? high / 32512.0 : uintBitsToFloat(0x7FC00000u);
        // The inverse of a subnormal scale overflows: such a block counts as 0.
        bool some = finite && high > 1e-30;
        uvec2 bytes = some ? operand_fixed(v[i], 32512.0 / high) : uvec2(0u);
        uint block = c / 32u;
        uint at = (row * groups + block / 4u) * 64u + (c % 32u) / 16u * 16u + block % 4u * 4u + (c % 16u) / 4u;
        ActiveWords(codes).at[at] = bytes.x;
        ActiveWords(codes).at[at + 32u] = bytes.y;
        if (c % 32u == 0u) ActiveVec2s(scales).at[row * groups * 4u + block] = vec2(some || !finite ? scale : 0.0, finite ? sum : scale);
    }
}

// The largest magnitude of the row is known.
void store_halves(uint64_t codes, uint64_t scales, uint row) {
    bool finite = highest < OPERAND_INFINITE;
    int exponent = operand_exponent(highest);
    float inverse = operand_power(-exponent);
    [[unroll]] for (uint i = 0u; i < PER; ++i) {
        uint c = column(i);
        if (c >= PADDED) continue;
        vec4 scaled = finite ? v[i] * inverse : vec4(0.0);
        if (OPERAND == 4u) {
            const uvec2 high = uvec2(packHalf2x16(scaled.xy), packHalf2x16(scaled.zw));
            const vec4 low = operand_rest(scaled, high, row >> 31);
            const uint at = operand_split(row, c, PADDED / 128u);
            ActivePairs(codes).at[at] = high;
            ActivePairs(codes).at[at + OPERAND_REST] = uvec2(packHalf2x16(low.xy), packHalf2x16(low.zw));
        } else if (OPERAND == 3u) {
            const uint at = operand_fragment(row, c, PADDED / 128u);
            const uvec2 halves = operand_in_order(scaled);
            ActiveWords(codes).at[at] = halves.x;
            ActiveWords(codes).at[at + 2u] = halves.y;
        } else {
            ActivePairs(codes).at[(row * PADDED + c) / 4u] = uvec2(packHalf2x16(scaled.xy), packHalf2x16(scaled.zw));
        }
    }
    if (gl_LocalInvocationID.x == 0u) {
        ActiveFloats(scales).at[row] = finite ? operand_power(exponent) : uintBitsToFloat(0x7FC00000u);
    }
}

// Finds the largest magnitude of the row.
void find_highest(const uint turn) {
    float high = 0.0;
    [[unroll]] for (uint i = 0u; i < PER; ++i) high = max(high, operand_magnitude(v[i]));
    highest = workgroup_max(high, turn);
}

// Writes the row in each form that is wanted. `is_known` says that its largest magnitude is known; otherwise it is found.
void give_row(uint64_t plain, uint64_t codes, uint64_t scales, uint row, const bool is_known, const uint turn) {
    if (PLAIN != 0u) store_row(plain, row);
    if (OPERAND == 1u) store_fixed(codes, scales, row);
    if (OPERAND >= 2u) {
        if (!is_known) find_highest(turn);
        store_halves(codes, scales, row);
    }
}
