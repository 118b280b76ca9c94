//! TQ1_0 and TQ2_0: 256 elements of -1, 0 and 1, an f16 factor d. Value `d (q - 1)`.
//!
//! TQ1_0, 54 bytes: 48 B and 4 B of digits to base 3; d. A byte b is a fraction of 256, and digit t
//! of its five (of the last 4 B, four) the whole part of `3 (3^t b mod 256) / 256`. Digits t of the
//! first 32 bytes are the t-th 32 elements; those of the next 16 follow in runs of 16, those of the
//! last 4 in runs of 4.
//!
//! TQ2_0, 66 bytes: 64 B of 2-bit integers q; d. Each 32 bytes are 128 elements: four layers of 32,
//! lowest bits first.

use super::halves::half_at;
use super::page::{Page, decode_each};

pub(crate) const TQ1_0: Page =
    Page::new("TQ1_0", 34, (256, 54), &[52], |bytes, out| decode_each(bytes, out, decode_tq1_0));
pub(crate) const TQ2_0: Page =
    Page::new("TQ2_0", 35, (256, 66), &[64], |bytes, out| decode_each(bytes, out, decode_tq2_0));

/// Returns the 256 digits q of a block of TQ1_0.
pub fn digits(block: &[u8]) -> [u8; 256] {
    let mut digits = [0; 256];
    // The bytes of a group, and its first element.
    for (bytes, first) in [(&block[..32], 0), (&block[32..48], 160), (&block[48..52], 240)] {
        for (at, slot) in digits[first..].iter_mut().take(5 * bytes.len()).enumerate() {
            let power = 3_u8.pow((at / bytes.len()) as u32);
            let rest = bytes[at % bytes.len()].wrapping_mul(power);
            *slot = ((u16::from(rest) * 3) >> 8) as u8;
        }
    }
    digits
}

fn decode_tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half_at(block, 52);
    for (out, digit) in out.iter_mut().zip(digits(block)) {
        *out = d * (f32::from(digit) - 1.0);
    }
}

fn decode_tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at(block, 64);
    for (element, out) in out.iter_mut().enumerate() {
        let byte = block[32 * (element / 128) + element % 32];
        *out = d * (f32::from(byte >> (2 * (element % 128 / 32)) & 3) - 1.0);
    }
}
