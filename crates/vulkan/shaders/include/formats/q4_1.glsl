// Q4_1: nibbles as in Q4_0, but unsigned. An f16 scale and an f16 that is added.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define CODE_SPARE 0
#define WORD_LOW(unit, codes, word) ((codes) & 0x0F0F0F0Fu)
#define WORD_HIGH(unit, codes, word) (((codes) >> 4) & 0x0F0F0F0Fu)
#define SHARE_PATTERN 0x64006400u
#define SHARE_BIAS 1024.0
#include "include/pair.glsl"
#include "include/codes.glsl"
