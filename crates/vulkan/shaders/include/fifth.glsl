// Codes of five bits: nibbles as in Q4_0, but unsigned, and a word of fifth bits, whose bits (x >> k) & 0x01010101 are those of
// elements 4 k..4 k + 3.

#define FORMAT_HIGH uint
#define FORMAT_READ_HIGH ReadWords
#define WORD_LOW(unit, codes, word) (((codes) & 0x0F0F0F0Fu) | (((unit).high << (4u - (word))) & 0x10101010u))
#define WORD_HIGH(unit, codes, word) ((((codes) >> 4) & 0x0F0F0F0Fu) | (((unit).high >> (word)) & 0x10101010u))
