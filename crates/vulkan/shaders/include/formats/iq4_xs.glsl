// IQ4_XS: numbers of levels. A scale in a signed byte; an f16 factor of 256 elements.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_SCALE_BITS 8
#define FORMAT_SUPER
#define FORMAT_SCALES scale_of_byte
#include "include/uneven.glsl"

vec4 scale_of_byte(const uint scale, const uint super) {
    const float both = unpackHalf2x16(super).x * float(bitfieldExtract(int(scale), 0, 8));
    return vec4(both, 0.0, both, 0.0);
}

#include "include/codes.glsl"
