//! Limits of values: `shaders/include/limits.glsl`.

use bytemuck::{Pod, Zeroable};

/// The least and the largest value that something may have. A NaN stays one.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct ValueLimits {
    /// The least value.
    pub low: f32,
    /// The largest value, at least `low`.
    pub high: f32,
}

impl ValueLimits {
    /// No limits.
    pub const NONE: Self = Self { low: f32::NEG_INFINITY, high: f32::INFINITY };

    /// Returns whether there are none.
    pub fn are_none(self) -> bool {
        self == Self::NONE
    }
}
