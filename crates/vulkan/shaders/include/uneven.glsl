// The levels of IQ4_NL and IQ4_XS: -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.
//
// Of 32 elements at one row of activations, 36 operations take nibbles apart and bytes together, 80 compute levels, 16 are dot
// products: 132. While 18 bytes come from memory an H200 issues 111 (132 multiprocessors x 128 lanes x 1.755 GHz, 4.8 TB/s), so it
// is bound by operations, at most at 0.84 of its memory's speed. A Radeon 780M issues 416 (768 lanes x 2.7 GHz, 89.6 GB/s).

#define SHARE_PATTERN 0x64006400u
#include "include/levels.glsl"

f16vec2 levels(const f16vec2 codes) {
    const f16vec2 t = codes - f16vec2(1031.0hf);
    f16vec2 sum = fma(t, f16vec2(0.0012845993hf), f16vec2(0.07824707hf));
    sum = fma(sum, t, f16vec2(-0.24353027hf));
    sum = fma(sum, t, f16vec2(11.609375hf));
    return fma(sum, t, f16vec2(1270.0hf));
}
