// Of weights that are no floats, each four elements come as 0, 2, 1, 3, which masks of two 16-bit lanes produce without moves. The
// sum of a product does not depend on the order, so the operand is permuted in the same way.

#define PERMUTED (!FORMAT_IS_FLOAT)

// Returns eight halves of the operand in the order of the weights.
uvec4 permute_halves(const uvec4 words) {
#if PERMUTED
    return uvec4((words.x & 0xFFFFu) | (words.y << 16), (words.x >> 16) | (words.y & 0xFFFF0000u),
                 (words.z & 0xFFFFu) | (words.w << 16), (words.z >> 16) | (words.w & 0xFFFF0000u));
#else
    return words;
#endif
}
