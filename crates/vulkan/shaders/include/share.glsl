// Units of weights (formats.glsl) as an invocation holds them in a left factor of 16 x 16, without shared memory. Included
// by the file of a format; roundings and order are those of dequantize.glsl.
//
// Word w of a unit's 16 bytes of codes holds elements 4w..4w+3 and 16+4w..19+4w (in Q8_0 each of two words): two products of
// 16 columns, of which an invocation has four in each row.
//
// Loaded values stay 32 bits wide: compilers pack two 16-bit values of a loop into one register, and wait for both to do so.

#include "permute.glsl"

struct Share {
    UnitCodes codes;
#ifdef FORMAT_MORE
    uvec4 more;
#endif
#ifdef FORMAT_HIGH
    FORMAT_HIGH high;
#endif
#ifdef HAS_SCALES
    uint scales; // of the neighbours that share a word
#endif
#ifdef FORMAT_SUPER
    UnitSuper super;
#endif
};

Share load_share(const Planes planes, const uint row, const uint unit) {
    const uint at = row * (planes.groups * UNITS_OF_GROUP) + unit;
    TAKE_TABLE(planes);
    Share loaded;
#ifdef FORMAT_MORE
    const uint first = (at & ~3u) * 2u + (at & 3u);
    loaded.codes = ReadQuads(planes.codes).at[first];
    loaded.more = ReadQuads(planes.codes).at[first + 4u];
#else
    loaded.codes = READ_CODES(planes.codes).at[at];
#endif
#ifdef FORMAT_HIGH
    loaded.high = FORMAT_LOAD_HIGH(planes.high, at);
#endif
#ifdef HAS_SCALES
    loaded.scales = ReadWords(planes.scales).at[at / SCALES_OF_WORD];
#endif
#ifdef FORMAT_SUPER
    loaded.super = READ_SUPERS(planes.supers).at[row * ((planes.groups + 1u) / 2u) + unit / 8u];
#endif
    return loaded;
}

// The values with which codes are XOR-ed to become halves. With them in registers of each lane, a mask and a XOR are one
// instruction; with known constants, or values that a subgroup shares, they would be two.
struct Magic {
    uint low;
    uint high;
    f16vec2 sixteenth;
};

// `zero` is 0. The compiler must not know that, nor that all lanes have the same value.
Magic magic_of(const uint zero) {
#ifdef SHARE_PATTERN_HIGH
    return Magic(SHARE_PATTERN | zero, SHARE_PATTERN_HIGH | zero, halves_of(0x2C002C00u | zero));
#else
    return Magic(SHARE_PATTERN | zero, 0, f16vec2(0.0));
#endif
}

// A unit's scale, prepared for its words. For a K format: factor and addend of the unit's halves, for codes with 1024 and their
// XOR-ed bit added. The addend is exact to 2^-24 of 1056 steps, which is less than the rounding to f16.
#if defined FORMAT_SUPER || defined FORMAT_SCALES
#define UnitScale vec4
#else
#define UnitScale f16vec2
#endif

// The place of a lane's unit among the neighbours that share a word of scales; of two, whether it is the second.
#if FORMAT_SCALE_BITS == 16
#define UnitPlace bool
#define UNIT_PLACE(lane) (((lane) & 1) != 0)
#else
#define UnitPlace uint
#define UNIT_PLACE(lane) ((lane) % SCALES_OF_WORD)
#endif

UnitScale unit_scale(const Share unit, const UnitPlace odd) {
#ifdef FORMAT_SCALES
#ifndef HAS_SCALES
    const uint bits = FORMAT_SCALE(unit);
#elif FORMAT_SCALE_BITS == 16
    const uint bits = (unit.scales >> (odd ? 16 : 0)) & 0xFFFFu;
#else
    const uint bits = bitfieldExtract(unit.scales, int(odd * FORMAT_SCALE_BITS), FORMAT_SCALE_BITS);
#endif
    const vec4 scales = FORMAT_SCALES(bits, SUPER_OF(unit));
    return vec4(scales.x, -SHARE_BIAS * scales.x - scales.y, scales.z, -SHARE_BIAS * scales.z - scales.w);
#elif defined FORMAT_SUPER
    const int both = int(unit.scales >> (odd ? 16 : 0));
    const vec2 super = unpackHalf2x16(unit.super);
#ifdef FORMAT_MINIMUM
    const vec2 scale = super * vec2(float(both & 0xFF), float((both >> 8) & 0xFF));
    return vec4(scale.x, -SHARE_BIAS * scale.x - scale.y, scale.x, -SHARE_BIAS * scale.x - scale.y);
#else
    const vec2 scale = super.x * vec2(float(bitfieldExtract(both, 0, 8)), float(bitfieldExtract(both, 8, 8)));
    return vec4(scale.x, -SHARE_BIAS * scale.x, scale.y, -SHARE_BIAS * scale.y);
#endif
#else
    return halves_of(unit.scales >> (odd ? 16 : 0)).xx;
#endif
}

// Returns a component without an index: registers have none, and a compiler that sees one before it unrolls uses memory
// instead.
uint component(const uvec4 all, const uint index) {
    return index == 0 ? all.x : index == 1 ? all.y : index == 2 ? all.z : all.w;
}

// Decodes four codes in the bytes of a word.
uvec2 share_bytes(const uint word, const uint flip, const vec2 scale) {
    const f16vec2 even = CODE_HALVES((word & 0x00FF00FFu) ^ flip);
    const f16vec2 odd = CODE_HALVES(((word >> 8) & 0x00FF00FFu) ^ flip);
    const vec2 first = fma(vec2(even), vec2(scale.x), vec2(scale.y));
    const vec2 second = fma(vec2(odd), vec2(scale.x), vec2(scale.y));
    return uvec2(packFloat2x16(f16vec2(first)), packFloat2x16(f16vec2(second)));
}

uvec2 share_bytes(const uint word, const uint flip, const f16vec2 scale) {
    const f16vec2 even = CODE_VALUES((word & 0x00FF00FFu) ^ flip, SHARE_BIAS);
    const f16vec2 odd = CODE_VALUES(((word >> 8) & 0x00FF00FFu) ^ flip, SHARE_BIAS);
    return uvec2(packFloat2x16(even * scale), packFloat2x16(odd * scale));
}
