//! The half-precision numbers within a block.

use half::f16;

/// Returns the half-precision number at byte `at` of a block, widened.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores `value` as half precision at byte `at` of a block.
pub(super) fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}
