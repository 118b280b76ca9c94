// Nibbles in two's complement, from -7 to 7, that are numbers of levels: twice the E2M1 numbers, 0, 1, 2, 3, 4, 6, 8, 12 and their
// negatives.

#define SHARE_PATTERN 0x64086408u
#include "include/levels.glsl"

f16vec2 levels(const f16vec2 codes) {
    const f16vec2 t = codes - f16vec2(1032.0hf);
    const f16vec2 slope = fma(t * t, f16vec2(0.019226074hf), f16vec2(0.7114258hf));
    return fma(slope, t, f16vec2(1280.0hf));
}
