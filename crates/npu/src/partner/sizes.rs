//! Sizes of the kernel that is used.

/// Rows of a product that the largest kernel takes at once.
pub const ROWS_MAX: usize = 64;
/// Elements of a row of activations, or of an output's weights, that share a scale.
pub const BLOCK: usize = 2048;
