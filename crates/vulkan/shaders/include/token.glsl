// The tokens of the step's rows, as the host writes them (crates/vulkan/src/program/frame.rs).

// Returns a row's token.
uint frame_token(const uint64_t frame, const uint row) {
    return Words(frame).at[4u + 4u * row];
}

// Returns whether a token stands for a row that another Plan made.
bool token_is_soft(const uint token) {
    return (token & 0x80000000u) != 0u;
}

// Returns which of these rows it stands for.
uint soft_row(const uint token) {
    return token & 0x7FFFFFFFu;
}
