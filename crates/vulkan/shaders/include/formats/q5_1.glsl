// Q5_1: unsigned codes of five bits. An f16 scale and an f16 that is added.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define CODE_SPARE 0
#define SHARE_PATTERN 0x64006400u
#define SHARE_BIAS 1024.0
#include "include/fifth.glsl"
#include "include/pair.glsl"
#include "include/codes.glsl"
