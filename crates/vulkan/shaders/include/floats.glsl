// Rows of a matrix of floats as they lie on a device: padded to whole groups of 128. Before the include: memory.glsl.

const uint FLOATS_F32 = 0u;
const uint FLOATS_F16 = 1u;

// Returns the elements of a row from 4 * quad on. `format`: 0 f32, 1 f16, 2 bf16.
vec4 floats_quad(const uint64_t matrix, const uint format, const uint columns, const uint row, const uint quad) {
    const uint at = row * ((columns + 127u) / 128u) * 32u + quad;
    if (format == FLOATS_F32) return Vec4s(matrix).at[at];
    const uvec2 two = Pairs(matrix).at[at];
    if (format == FLOATS_F16) return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
}
