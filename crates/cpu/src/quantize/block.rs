//! One block of quantised activations.

use bytemuck::{Pod, Zeroable};

/// Elements per block.
pub const BLOCK: usize = 32;

/// The largest magnitude that counts as zero; its reciprocal still fits a float.
const TINY: f32 = 1e-30;

/// 32 quantised activations.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct QuantizedBlock {
    /// The codes, -127..=127.
    pub codes: [i8; BLOCK],
    /// The value of one code step.
    pub scale: f32,
    /// `scale` times the sum of all codes.
    pub scaled_sum: f32,
    /// `scale` times the sum of the first 16 codes.
    pub scaled_low_sum: f32,
    /// -8 times the sum of all codes: the contribution of the offset of a 4-bit weight code.
    pub minus_eight_sums: i32,
}

impl QuantizedBlock {
    /// Returns the value of element `index` (0..32).
    pub fn value(&self, index: usize) -> f32 {
        f32::from(self.codes[index]) * self.scale
    }
}

/// Returns the scale and its inverse for a block whose largest magnitude is `largest`.
#[inline]
pub(super) fn scale_of(largest: f32) -> (f32, f32) {
    if largest < TINY {
        (0.0, 0.0)
    } else if largest.is_finite() {
        (largest / 127.0, 127.0 / largest)
    } else {
        (f32::NAN, 0.0)
    }
}
