// Q5_K: unsigned codes of five bits.
//
// At one row of activations it is bound by the bytes read, 22.5 for 32 elements, 1.22 times those of Q4_K: the fifth bits take
// 16 more operations (a shift and an and-or for each word of codes), about 60 with 16 dot products. At many rows it is bound by
// the products, as Q4_K is.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_SUPER
#define FORMAT_MINIMUM
#include "include/fifth.glsl"
#define CODES_LOW(unit) uvec4(WORD_LOW(unit, (unit).codes.x, 0u), WORD_LOW(unit, (unit).codes.y, 1u), \
                              WORD_LOW(unit, (unit).codes.z, 2u), WORD_LOW(unit, (unit).codes.w, 3u))
#define CODES_HIGH(unit) uvec4(WORD_HIGH(unit, (unit).codes.x, 0u), WORD_HIGH(unit, (unit).codes.y, 1u), \
                               WORD_HIGH(unit, (unit).codes.z, 2u), WORD_HIGH(unit, (unit).codes.w, 3u))
#include "include/minimum.glsl"
