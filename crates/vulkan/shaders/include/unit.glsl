// A unit of weights. Before the include: the facts of its format (formats.glsl).

// Elements of a unit.
const uint UNIT = FORMAT_UNIT;
const uint UNITS_OF_GROUP = 128u / UNIT;

// What the facts make of it; most formats have codes of 16 bytes, scales of 16 bits, and codes that are numbers.
#ifdef FORMAT_PAIRS
#define UnitCodes uvec2
#define READ_CODES ReadPairs
#elif defined FORMAT_WORDS
#define UnitCodes uint
#define READ_CODES ReadWords
#else
#define UnitCodes uvec4
#define READ_CODES ReadQuads
#endif
#ifndef CODE_HALVES
#define CODE_HALVES(bits) halves_of(bits)
#define CODE_VALUES(bits, bias) halves_of(bits) - f16vec2(bias)
#endif
#ifndef FORMAT_SCALE_BITS
#define FORMAT_SCALE_BITS 16
#endif
#ifdef FORMAT_TABLE
#define TAKE_TABLE(planes) table_address = planes.scales
#else
#define TAKE_TABLE(planes)
#endif
#ifdef FORMAT_SUPER_PAIRS
#define UnitSuper uvec2
#define READ_SUPERS ReadPairs
#else
#define UnitSuper uint
#define READ_SUPERS ReadWords
#endif
#ifndef FORMAT_LOAD_HIGH
#define FORMAT_LOAD_HIGH(high, at) FORMAT_READ_HIGH(high).at[at]
#endif
#if FORMAT_SCALE_BITS == 8 || defined FORMAT_BYTES
#extension GL_EXT_shader_8bit_storage : require
layout(buffer_reference, scalar, buffer_reference_align = 1) readonly restrict buffer ReadBytes { uint8_t at[]; };
#endif
#if FORMAT_SCALE_BITS == 0
#define SCALES_OF_WORD 1u
#elif FORMAT_SCALE_BITS == 8
#define UnitScaleBits uint8_t
#define READ_SCALES ReadBytes
#define SCALES_OF_WORD 4u
#elif FORMAT_SCALE_BITS == 16
#define UnitScaleBits uint16_t
#define READ_SCALES ReadShorts
#define SCALES_OF_WORD 2u
#else
#define UnitScaleBits uint
#define READ_SCALES ReadWords
#define SCALES_OF_WORD 1u
#endif
#if FORMAT_IS_FLOAT || FORMAT_SCALE_BITS == 0
#define SCALE_OF(unit) FORMAT_SCALE(unit)
#else
#define HAS_SCALES
#define SCALE_OF(unit) uint((unit).scale)
#endif

// A unit as it is in memory.
struct Unit {
    UnitCodes codes;
#ifdef FORMAT_MORE
    uvec4 more;
#endif
#ifdef FORMAT_HIGH
    FORMAT_HIGH high;
#endif
#ifdef HAS_SCALES
    UnitScaleBits scale; // not widened before it is used: that would wait for the load
#endif
#ifdef FORMAT_SUPER
    UnitSuper super;
#endif
};

Unit load_unit(const Planes planes, const uint row, const uint unit) {
    const uint at = row * (planes.groups * UNITS_OF_GROUP) + unit;
    TAKE_TABLE(planes);
    Unit loaded;
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
    loaded.scale = READ_SCALES(planes.scales).at[at];
#endif
#ifdef FORMAT_SUPER
    loaded.super = READ_SUPERS(planes.supers).at[row * ((planes.groups + 1u) / 2u) + unit / 8u];
#endif
    return loaded;
}

#if !FORMAT_IS_FLOAT

// A unit prepared for products: signed bytes of elements 0..15 and 16..31, and what their sums stand for.
// value = scale * byte. FORMAT_MINIMUM: value = scale * byte - other. FORMAT_RUNS: `other` is the scale of the second half;
// with FORMAT_MINIMUM, the halves' own minima are subtracted.
struct Block {
    uvec4 low;
    uvec4 high;
    float scale;
    float other;
#if defined FORMAT_RUNS && defined FORMAT_MINIMUM
    vec2 minima;
#endif
};

#endif

#if defined DECODES_UNITS || defined DECODES_SHARES
#include "halves.glsl"
#endif
#ifdef DECODES_UNITS
#include "dequantize.glsl"
#endif
