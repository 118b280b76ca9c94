// Weights on the device (crates/vulkan/src/pack.rs draws them): loading a unit of a row and preparing it for a product. FORMAT is
// the name of the format, whose file says what it is; a unit is what 16 bytes of codes hold (32 if FORMAT_MORE).
//
// A format's file defines, before it includes unit.glsl:
//   FORMAT_IS_FLOAT   1 or 0
//   FORMAT_UNIT       elements of a unit; 32 if it is no format of floats
//   FORMAT_HALVES     if its elements are halves; FORMAT_SINGLES, if they are f32
//   FORMAT_MORE       if a unit has 16 more bytes of codes; FORMAT_PAIRS, if it has 8: codes of two bits, a word for each half, or
//                     others; FORMAT_WORDS, if it has 4
//   FORMAT_HIGH       if codes have high bits in a plane of their own: a unit's type, and FORMAT_READ_HIGH, what reads it, or
//                     FORMAT_LOAD_HIGH(high, at), which loads it for unit `at`
//   FORMAT_SCALE_BITS bits of a unit's scale (8 or 32), if they are not 16. 0: there is no plane of scales, and FORMAT_SCALE(unit)
//                     takes the scale from codes and high bits
//   FORMAT_SUPER      if 256 elements share factors; FORMAT_SUPER_PAIRS, if these are 64 bits instead of 32
//   FORMAT_TABLE      if the plane of scales is a table, whose address loads put into `table_address`
//   FORMAT_MINIMUM    if the scale is followed by a minimum that is subtracted; FORMAT_RUNS, if by the scale of the second half; with
//                     both, the halves have minima of their own
//   CODE_HALVES       if codes are numbers of levels: what makes halves of levels of two codes that became halves, and
//                     CODE_VALUES, which subtracts what they are too large by (levels.glsl)
//   SHARE_PATTERN     what codes are XOR-ed with to become halves, and SHARE_BIAS, what those, or levels, are too large by
// and after that how a unit is decoded, itself or by codes.glsl or minimum.glsl: unit_values for floats, otherwise unit_block; decode_unit with DECODES_UNITS, and
// decode_word, after share.glsl, with DECODES_SHARES (dequantize.glsl, share.glsl). Kernels on matrix units define these.

#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_integer_dot_product : require
#extension GL_EXT_control_flow_attributes : require

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

#include "formats/FORMAT.glsl"

#if !FORMAT_IS_FLOAT

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
#ifdef FORMAT_RUNS
    const int first = dot16(block.low, x.high0, 0) * 256 + dot16(block.low, x.low0, 0);
    const int second = dot16(block.high, x.high1, 0) * 256 + dot16(block.high, x.low1, 0);
#ifdef FORMAT_MINIMUM
    const float product = x.scale.x * fma(block.scale, float(first), block.other * float(second));
    // The sum of the first half, which the operand does not have.
    const uvec4 ones = uvec4(0x01010101u);
    const float sum = x.scale.x * float(dot16(ones, x.high0, 0) * 256 + dot16(ones, x.low0, 0));
    return product - block.minima.x * sum - block.minima.y * (x.scale.y - sum);
#else
    return x.scale.x * fma(block.scale, float(first), block.other * float(second));
#endif
#else
    const int high = dot16(block.high, x.high1, dot16(block.low, x.high0, 0));
    const int low = dot16(block.high, x.low1, dot16(block.low, x.low0, 0));
    const float product = x.scale.x * (block.scale * float(high * 256 + low));
#ifdef FORMAT_MINIMUM
    return product - block.other * x.scale.y;
#else
    return product;
#endif
#endif
}

vec4 signed_bytes(const uint word) {
    const int whole = int(word);
    return vec4(
        bitfieldExtract(whole, 0, 8), bitfieldExtract(whole, 8, 8), bitfieldExtract(whole, 16, 8), whole >> 24
    );
}

// Returns four elements of a row from element `first` (a multiple of 4) on, exactly.
vec4 weight_values(const Planes planes, const uint row, const uint first) {
    const Block block = unit_block(load_unit(planes, row, first / 32u));
    const uint part = first % 32u / 4u;
    const uvec4 words = part < 4u ? block.low : block.high;
    const uvec2 two = (part & 2u) == 0u ? words.xy : words.zw;
    const vec4 codes = signed_bytes((part & 1u) == 0u ? two.x : two.y);
#if defined FORMAT_RUNS && defined FORMAT_MINIMUM
    return part < 4u ? block.scale * codes - block.minima.x : block.other * codes - block.minima.y;
#elif defined FORMAT_RUNS
    return (part < 4u ? block.scale : block.other) * codes;
#elif defined FORMAT_MINIMUM
    return block.scale * codes - block.other;
#else
    return block.scale * codes;
#endif
}

#endif
