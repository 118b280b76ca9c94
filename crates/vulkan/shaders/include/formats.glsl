// The formats of weights on the device (crates/vulkan/src/pack.rs draws them): loading a unit of a row and preparing it for a
// product. FORMAT is one of these. A unit is what 16 bytes of codes hold (32 in Q8_0).

#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_integer_dot_product : require
#extension GL_EXT_control_flow_attributes : require

#define FORMAT_F32 0
#define FORMAT_F16 1
#define FORMAT_BF16 2
#define FORMAT_Q8_0 3
#define FORMAT_Q4_0 4
#define FORMAT_Q4_K 5
#define FORMAT_Q6_K 6

#define FORMAT_IS_FLOAT (FORMAT <= FORMAT_BF16)
#define FORMAT_IS_K (FORMAT >= FORMAT_Q4_K)

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer ReadQuads { uvec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer ReadVec4s { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer ReadPairs { uvec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly restrict buffer ReadVec2s { vec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer ReadWords { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly restrict buffer ReadFloats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) readonly restrict buffer ReadShorts { uint16_t at[]; };

// Addresses of a matrix's planes, and its groups of 128 elements in a row.
struct Planes {
    uint64_t codes;
    uint64_t high;
    uint64_t scales;
    uint64_t supers;
    uint groups;
};

// Elements of a unit.
#if FORMAT == FORMAT_F32
const uint UNIT = 4u;
#elif FORMAT_IS_FLOAT
const uint UNIT = 8u;
#else
const uint UNIT = 32u;
#endif
const uint UNITS_OF_GROUP = 128u / UNIT;

// A unit as it is in memory.
struct Unit {
    uvec4 codes;
#if FORMAT == FORMAT_Q8_0
    uvec4 more;
#endif
#if FORMAT == FORMAT_Q6_K
    uvec2 high;
#endif
#if !FORMAT_IS_FLOAT
    uint16_t scale; // not widened before it is used: that would wait for the load
#endif
#if FORMAT_IS_K
    uint super;
#endif
};

Unit load_unit(const Planes planes, const uint row, const uint unit) {
    const uint at = row * (planes.groups * UNITS_OF_GROUP) + unit;
    Unit loaded;
#if FORMAT == FORMAT_Q8_0
    const uint first = (at & ~3u) * 2u + (at & 3u);
    loaded.codes = ReadQuads(planes.codes).at[first];
    loaded.more = ReadQuads(planes.codes).at[first + 4u];
#else
    loaded.codes = ReadQuads(planes.codes).at[at];
#endif
#if FORMAT == FORMAT_Q6_K
    loaded.high = ReadPairs(planes.high).at[at];
#endif
#if !FORMAT_IS_FLOAT
    loaded.scale = ReadShorts(planes.scales).at[at];
#endif
#if FORMAT_IS_K
    loaded.super = ReadWords(planes.supers).at[row * ((planes.groups + 1u) / 2u) + unit / 8u];
#endif
    return loaded;
}

#if FORMAT_IS_FLOAT

// Returns four elements of a unit from element 4 * part on.
vec4 unit_values(const Unit unit, const uint part) {
#if FORMAT == FORMAT_F32
    return uintBitsToFloat(unit.codes);
#elif FORMAT == FORMAT_F16
    const uvec2 two = part == 0u ? unit.codes.xy : unit.codes.zw;
    return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
#else
    const uvec2 two = part == 0u ? unit.codes.xy : unit.codes.zw;
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
#endif
}

#else

// A unit prepared for products: signed bytes of elements 0..15 and 16..31, and what their sums stand for.
// Q4_0, Q8_0: value = scale * byte. Q4_K: value = scale * byte - other. Q6_K: `other` is the scale of the second half.
struct Block {
    uvec4 low;
    uvec4 high;
    float scale;
    float other;
};

Block unit_block(const Unit unit) {
    const uint scale = uint(unit.scale);
    Block block;
    block.other = 0.0;
#if FORMAT == FORMAT_Q4_0
    // Nibbles in the upper half of a byte: 16 times the value.
    block.low = (unit.codes << 4) & 0xF0F0F0F0u;
    block.high = unit.codes & 0xF0F0F0F0u;
    block.scale = unpackHalf2x16(scale).x * 0.0625;
#elif FORMAT == FORMAT_Q8_0
    block.low = unit.codes;
    block.high = unit.more;
    block.scale = unpackHalf2x16(scale).x;
#elif FORMAT == FORMAT_Q4_K
    block.low = unit.codes & 0x0F0F0F0Fu;
    block.high = (unit.codes >> 4) & 0x0F0F0F0Fu;
    const vec2 super = unpackHalf2x16(unit.super);
    block.scale = super.x * float(scale & 0xFFu);
    block.other = super.y * float(scale >> 8);
#elif FORMAT == FORMAT_Q6_K
    // Four times the value: the nibble in bits 2..5, the high pair in bits 6 and 7.
    const uvec2 h = unit.high;
    const uvec4 first = uvec4(h.x << 6, h.x << 4, h.x << 2, h.x) & 0xC0C0C0C0u;
    const uvec4 second = uvec4(h.y << 6, h.y << 4, h.y << 2, h.y) & 0xC0C0C0C0u;
    block.low = ((unit.codes << 2) & 0x3C3C3C3Cu) | first;
    block.high = ((unit.codes >> 2) & 0x3C3C3C3Cu) | second;
    const float super = unpackHalf2x16(unit.super).x * 0.25;
    block.scale = super * float(bitfieldExtract(int(scale), 0, 8));
    block.other = super * float(bitfieldExtract(int(scale), 8, 8));
#endif
    return block;
}

// 32 elements of a fixed-point operand: high and low bytes of elements 0..15 and 16..31; scale and sum.
struct Operand {
    uvec4 high0;
    uvec4 high1;
    uvec4 low0;
    uvec4 low1;
    vec2 scale;
};

int dot16(const uvec4 a, const uvec4 b, int sum) {
    sum += dotPacked4x8EXT(int(a.x), int(b.x));
    sum += dotPacked4x8EXT(int(a.y), int(b.y));
    sum += dotPacked4x8EXT(int(a.z), int(b.z));
    sum += dotPacked4x8EXT(int(a.w), int(b.w));
    return sum;
}

// The product of 32 weights with 32 elements. The sums in between are exact: 32 * 128 * 32640 is below 2^27.
float block_product(const Block block, const Operand x) {
#if FORMAT == FORMAT_Q6_K
    const int first = dot16(block.low, x.high0, 0) * 256 + dot16(block.low, x.low0, 0);
    const int second = dot16(block.high, x.high1, 0) * 256 + dot16(block.high, x.low1, 0);
    return x.scale.x * fma(block.scale, float(first), block.other * float(second));
#else
    const int high = dot16(block.high, x.high1, dot16(block.low, x.high0, 0));
    const int low = dot16(block.high, x.low1, dot16(block.low, x.low0, 0));
    const float product = x.scale.x * (block.scale * float(high * 256 + low));
#if FORMAT == FORMAT_Q4_K
    return product - block.other * x.scale.y;
#else
    return product;
#endif
#endif
}

#endif

vec4 signed_bytes(const uint word) {
    const int whole = int(word);
    return vec4(
        bitfieldExtract(whole, 0, 8), bitfieldExtract(whole, 8, 8), bitfieldExtract(whole, 16, 8), whole >> 24
    );
}

// Returns four elements of a row from element `first` (a multiple of 4) on, exactly.
vec4 weight_values(const Planes planes, const uint row, const uint first) {
#if FORMAT == FORMAT_F32
    return ReadVec4s(planes.codes).at[row * (planes.groups * 32u) + first / 4u];
#elif FORMAT_IS_FLOAT
    const uvec2 two = ReadPairs(planes.codes).at[row * (planes.groups * 32u) + first / 4u];
#if FORMAT == FORMAT_F16
    return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
#else
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xFFFF0000u, two.y << 16, two.y & 0xFFFF0000u));
#endif
#else
    const uint block = row * (planes.groups * 4u) + first / 32u;
    const uint part = first % 32u / 4u; // of the block's eight runs of four
    const uint scale = uint(ReadShorts(planes.scales).at[block]);
#if FORMAT == FORMAT_Q8_0
    const uint at = block / 4u * 32u + part / 4u * 16u + block % 4u * 4u + part % 4u;
    return unpackHalf2x16(scale).x * signed_bytes(ReadWords(planes.codes).at[at]);
#else
    const uint word = ReadWords(planes.codes).at[block * 4u + part % 4u] >> part / 4u * 4u;
#if FORMAT == FORMAT_Q4_0
    return unpackHalf2x16(scale).x * 0.0625 * signed_bytes((word << 4) & 0xF0F0F0F0u);
#else
    const uint super = ReadWords(planes.supers).at[row * ((planes.groups + 1u) / 2u) + first / 256u];
#if FORMAT == FORMAT_Q4_K
    const vec2 two = unpackHalf2x16(super);
    const vec4 codes = signed_bytes(word & 0x0F0F0F0Fu);
    return two.x * float(scale & 0xFFu) * codes - two.y * float(scale >> 8);
#else
    const uint pairs = ReadWords(planes.high).at[block * 2u + part / 4u] >> part % 4u * 2u;
    const uint code = ((word & 0x0F0F0F0Fu) << 2) | ((pairs & 0x03030303u) << 6);
    const int factor = bitfieldExtract(int(scale), int(part / 4u) * 8, 8);
    return unpackHalf2x16(super).x * float(factor) * (signed_bytes(code) * 0.25);
#endif
#endif
#endif
#endif
}
