// NVFP4: numbers of twice the E2M1 numbers. Halves have scales of their own: E4M3 numbers without signs; an f32 factor of the row.
//
// At one row of activations 36 operations take nibbles apart and bytes together, 64 compute levels, 16 are dot products and 12
// prepare scales: 128. An H200 issues 114 while 18.5 bytes come from memory (uneven.glsl), a Radeon 780M 427.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_SUPER
#define FORMAT_RUNS
#define FORMAT_SCALES scales_of_e4m3
#include "include/e2m1.glsl"

// As the upper bits of a half an E4M3 number is 2^-8 of itself, numbers below 2^-6 included.
vec4 scales_of_e4m3(const uint scale, const uint super) {
    const vec2 both = unpackHalf2x16(((scale & 0xFFu) << 7) | ((scale & 0xFF00u) << 15)) * 128.0 * uintBitsToFloat(super);
    return vec4(both.x, 0.0, both.y, 0.0);
}

#include "include/codes.glsl"
