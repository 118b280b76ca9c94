// The KV cache: where a position's key and value are, how they are rounded and how they are read.
// crates/vulkan/src/kernels/attention/cache.rs draws the layout.
//
// The including shader defines the constants KV (a KV_ value), DIM (elements of a head, even) and KV_HEADS.

#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require

layout(buffer_reference, scalar, buffer_reference_align = 2) buffer KvShorts { uint16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer KvBytes { int8_t at[]; };
// What is stored may be read by the next dispatch of a chain.
layout(buffer_reference, scalar, buffer_reference_align = 2) coherent buffer KvStores { uint16_t at[]; };

const uint KV_F32 = 0u;
const uint KV_F16 = 1u;
const uint KV_INT8 = 2u;

// Positions of a block.
const uint KV_BLOCK = 32u;
// Elements that share a scale in an int8 cache, and how many scales a head has.
const uint KV_GROUP = DIM % 32u == 0u ? 32u : DIM;
const uint KV_GROUPS = DIM / KV_GROUP;
const uint KV_HEAD_BYTES = KV == KV_F32 ? 4u * DIM : (KV == KV_F16 ? 2u * DIM : DIM + 2u * KV_GROUPS);
// Keys (or values) of one head in one block.
const uint KV_PART_BYTES = (KV_BLOCK * KV_HEAD_BYTES + 15u) / 16u * 16u;

// Returns a row of the step as the host describes it: token, position, slot with the rows that it sees ahead, first entry in
// the tables.
uvec4 kv_row(const uint64_t frame, const uint row) {
    return Quads(frame).at[1u + row];
}

// Returns the same of a row of a launch. `picks`: the word of the frame from which on the numbers of its rows stand, 0 if they
// are the rows of the step.
uvec4 kv_row(const uint64_t frame, const uint picks, const uint row) {
    return kv_row(frame, picks > 0u ? Words(frame).at[picks + row] : row);
}

// Returns the number of the launch's rows in the step.
uint kv_rows(const uint64_t frame, const uint picks) {
    return Words(frame).at[picks > 0u ? 1u : 0u];
}

// Returns the first position that a row no longer sees. `ahead`: the most rows that the layer lets a row see after its own.
uint kv_end(const uvec4 row, const uint ahead) {
    return row.y + min(row.z >> 16, ahead) + 1u;
}

// Returns the number of the cache's block that holds a sequence's block `index`. `ring`: blocks of a slot's ring, 0 for block
// tables.
uint kv_block(const uvec4 row, const uint64_t tables, const uint ring, const uint index) {
    return ring > 0u ? (row.z & 0xFFFFu) * ring + index % ring : Words(tables).at[row.w + index];
}

// Returns the address of a head's keys in a block; its values follow KV_PART_BYTES later.
uint64_t kv_part(const uint64_t cache, const uint block, const uint head) {
    return cache + uint64_t(block * KV_HEADS + head) * uint64_t(2u * KV_PART_BYTES);
}

// Returns the first position that a row at `position` sees.
uint kv_first(const uint position, const uint window) {
    return position >= window ? position - window + 1u : 0u;
}

// Returns four int8 codes as floats. Adding to the mantissa of 2^23 converts without the slow conversion instruction.
vec4 kv_codes(const uint word) {
    const uint offset = word ^ 0x80808080u;
    const uvec4 bytes = uvec4(offset, offset >> 8, offset >> 16, offset >> 24) & 0xFFu;
    return uintBitsToFloat(bytes | 0x4B000000u) - 8388736.0;
}

// Returns the scale of the element at `element` of a position in an int8 part.
float kv_scale(const uint64_t part, const uint at, const uint element) {
    const uint index = KV_BLOCK * DIM / 2u + at * KV_GROUPS + element / KV_GROUP;
    return unpackHalf2x16(uint(KvShorts(part).at[index])).x;
}

// Returns four elements of a position of a part; those beyond the head are 0.
vec4 kv_slow(const uint64_t part, const uint at, const uint element) {
    vec4 values = vec4(0.0);
    for (uint k = 0u; k < 4u && element + k < DIM; ++k) {
        const uint index = at * DIM + element + k;
        if (KV == KV_F32) values[k] = Floats(part).at[index];
        if (KV == KV_F16) values[k] = unpackHalf2x16(uint(KvShorts(part).at[index])).x;
        if (KV == KV_INT8) values[k] = float(int(KvBytes(part).at[index])) * kv_scale(part, at, element + k);
    }
    return values;
}

// Rounding to the cache, exactly as trine_backend::reference does it. Divisions are done in integers, because Vulkan's float
// division may be off by units in the last place.

// Returns highest / 127 rounded to f32, for normal numbers; smaller ones round to an f16 of 0 in any case.
float kv_part_of_127(const float highest) {
    const uint bits = floatBitsToUint(highest);
    const uint mantissa = (bits & 0x007FFFFFu) | 0x00800000u;
    const uint whole = mantissa / 127u;
    const uint shift = whole >= (1u << 17) ? 6u : 7u;
    const uint rest = (mantissa % 127u) << shift;
    const uint quotient = (whole << shift) + rest / 127u + (2u * (rest % 127u) > 127u ? 1u : 0u);
    // quotient * 2^(exponent - 150 - shift), exponent as stored.
    const int exponent = int(bits >> 23) - 150 - int(shift);
    const float part = exponent < -126 ? 0.0 : float(quotient) * uintBitsToFloat(uint(exponent + 127) << 23);
    return bits >= 0x7F800000u ? highest : (bits < 0x00800000u ? 0.0 : part);
}

// Returns 1 / scale rounded to f32, for a positive f16.
float kv_inverse(const float scale) {
    const uint bits = floatBitsToUint(scale);
    // An f16 has 11 bits.
    const uint mantissa = ((bits & 0x007FFFFFu) | 0x00800000u) >> 13;
    const uint whole = 0x80000000u / mantissa;
    const uint shift = whole >= (1u << 21) ? 2u : 3u;
    const uint rest = (0x80000000u % mantissa) << shift;
    const uint quotient = (whole << shift) + rest / mantissa + (2u * (rest % mantissa) > mantissa ? 1u : 0u);
    // scale = mantissa * 2^(exponent - 137), so the inverse is quotient * 2^(-31 - shift) * 2^(137 - exponent).
    const int exponent = 106 - int(shift) - int(bits >> 23);
    return bits >= 0x7F800000u ? 0.0 : float(quotient) * uintBitsToFloat(uint(exponent + 127) << 23);
}

// Returns a value as the bits of an f16, rounded to even: drivers differ in how their conversion rounds. NaN for what is too
// large: an infinite key would have a score of negative infinity, and so no weight.
uint kv_half_bits(const float value) {
    const uint bits = floatBitsToUint(value);
    const uint size = bits & 0x7FFFFFFFu;
    uint rounded;
    if (size >= 0x477FF000u) {
        rounded = 0x7E00u;
    } else if (size < 0x38800000u) {
        // The last bit of 0.5 counts 2^-24, as that of a subnormal f16 does: the addition rounds.
        rounded = floatBitsToUint(uintBitsToFloat(size) + 0.5) - 0x3F000000u;
    } else {
        rounded = (size - 0x38000000u + 0xFFFu + (size >> 13 & 1u)) >> 13;
    }
    return rounded | (bits >> 16 & 0x8000u);
}

// Returns what an f16 keeps of a value.
float kv_half(const float value) {
    return unpackHalf2x16(kv_half_bits(value)).x;
}

// Returns the codes of four values, for the inverse of their scale.
ivec4 kv_codes_of(const vec4 values, const float inverse) {
    return inverse > 0.0 ? ivec4(clamp(roundEven(values * inverse), vec4(-127.0), vec4(127.0))) : ivec4(0);
}
