// IQ4_NL: numbers of levels. An f16 scale.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#include "include/uneven.glsl"
#include "include/codes.glsl"
