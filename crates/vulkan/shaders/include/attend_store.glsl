// Stores what attention of many rows on matrix units makes. The including shader defines HALVES, HEADS, DIM and push, and includes
// memory.glsl, kv.glsl and operand.glsl before.

// Stores sixteen elements of a vector from column `column` of the row on, given as those from 0 and from 8 on.
void store(const uint row, const uint column, const float low[8], const float high[8]) {
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        const uint from = i % 2u * 4u;
        const vec4 four = i < 2u ? vec4(low[from], low[from + 1u], low[from + 2u], low[from + 3u])
                                 : vec4(high[from], high[from + 1u], high[from + 2u], high[from + 3u]);
        if (HALVES == 0u) {
            Vec4s(push.target).at[(row * (HEADS * DIM) + column) / 4u + i] = four;
        } else if (HALVES == 1u) {
            // Means of what an f16 cache holds are halves without a factor.
            const uvec2 both = uvec2(packHalf2x16(four.xy), packHalf2x16(four.zw));
            Pairs(push.target).at[(row * (HEADS * DIM) + column) / 4u + i] = both;
        } else {
            const uint at = operand_fragment(row, column + 4u * i, HEADS * DIM / 128u);
            const uvec2 halves = operand_in_order(four);
            Words(push.target).at[at] = halves.x;
            Words(push.target).at[at + 2u] = halves.y;
        }
    }
}
