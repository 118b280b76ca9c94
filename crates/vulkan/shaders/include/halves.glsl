// Two halves in a word.

f16vec2 halves_of(const uint bits) {
    return unpackFloat2x16(bits);
}
