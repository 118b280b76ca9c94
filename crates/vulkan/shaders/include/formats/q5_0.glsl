// Q5_0: codes of five bits in two's complement. An f16 scale.
//
// At one row of activations it is bound by the bytes read, 22 for 32 elements: about 36 operations prepare the codes, 16 are dot
// products.

#define FORMAT_IS_FLOAT 0
#define FORMAT_UNIT 32u
#define CODE_SPARE 3
#define SHARE_PATTERN 0x64106410u
#define SHARE_BIAS 1040.0
#include "include/fifth.glsl"
#include "include/codes.glsl"
