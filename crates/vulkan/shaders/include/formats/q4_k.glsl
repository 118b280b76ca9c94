// Q4_K: nibbles as in Q4_0, but unsigned.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define FORMAT_SUPER
#define FORMAT_MINIMUM
#define WORD_LOW(unit, codes, word) ((codes) & 0x0F0F0F0Fu)
#define WORD_HIGH(unit, codes, word) (((codes) >> 4) & 0x0F0F0F0Fu)
#define CODES_LOW(unit) WORD_LOW(unit, (unit).codes, 0u)
#define CODES_HIGH(unit) WORD_HIGH(unit, (unit).codes, 0u)
#include "include/minimum.glsl"
