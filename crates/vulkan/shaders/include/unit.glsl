// A unit of weights. Before the include: the facts of its format (formats.glsl).

// Elements of a unit.
const uint UNIT = FORMAT_UNIT;
const uint UNITS_OF_GROUP = 128u / UNIT;

// A unit as it is in memory.
struct Unit {
    uvec4 codes;
#ifdef FORMAT_MORE
    uvec4 more;
#endif
#ifdef FORMAT_HIGH
    FORMAT_HIGH high;
#endif
#if !FORMAT_IS_FLOAT
    uint16_t scale; // not widened before it is used: that would wait for the load
#endif
#ifdef FORMAT_SUPER
    uint super;
#endif
};

Unit load_unit(const Planes planes, const uint row, const uint unit) {
    const uint at = row * (planes.groups * UNITS_OF_GROUP) + unit;
    Unit loaded;
#ifdef FORMAT_MORE
    const uint first = (at & ~3u) * 2u + (at & 3u);
    loaded.codes = ReadQuads(planes.codes).at[first];
    loaded.more = ReadQuads(planes.codes).at[first + 4u];
#else
    loaded.codes = ReadQuads(planes.codes).at[at];
#endif
#ifdef FORMAT_HIGH
    loaded.high = FORMAT_READ_HIGH(planes.high).at[at];
#endif
#if !FORMAT_IS_FLOAT
    loaded.scale = ReadShorts(planes.scales).at[at];
#endif
#ifdef FORMAT_SUPER
    loaded.super = ReadWords(planes.supers).at[row * ((planes.groups + 1u) / 2u) + unit / 8u];
#endif
    return loaded;
}

#if !FORMAT_IS_FLOAT

// A unit prepared for products: signed bytes of elements 0..15 and 16..31, and what their sums stand for.
// value = scale * byte. FORMAT_MINIMUM: value = scale * byte - other. FORMAT_RUNS: `other` is the scale of the second half.
struct Block {
    uvec4 low;
    uvec4 high;
    float scale;
    float other;
};

#endif

#if defined DECODES_UNITS || defined DECODES_SHARES
#include "halves.glsl"
#endif
#ifdef DECODES_UNITS
#include "dequantize.glsl"
#endif
