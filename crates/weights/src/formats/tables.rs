//! IQ4_NL, IQ4_XS and MXFP4: nibbles that index a table of sixteen levels.
//!
//! IQ4_NL, 32 elements, 18 bytes: f16 d; 16 B nibbles. Value `d T[nibble]`.
//!
//! IQ4_XS, 256 elements, 136 bytes: f16 d; u16 high scale bits; 4 B low scale nibbles; 128 B
//! nibbles, 16 per run of 32. Scale of run r: nibble r of the low bytes and bit pair r of the high
//! ones; value `d (scale - 32) T[nibble]`.
//!
//! MXFP4, 32 elements, 17 bytes: u8 exponent e; 16 B nibbles. Value `2^(e - 128) M[nibble]`; M is
//! twice the E2M1 number (OCP Microscaling Formats 1.0), so the power is one lower than the E8M0
//! scale's 2^(e - 127).

use super::halves::half_at;
use super::page::{Page, decode_each};

pub(crate) const IQ4_NL: Page =
    Page::new("IQ4_NL", 20, (32, 18), &[0], |bytes, out| decode_each(bytes, out, decode_iq4_nl));

pub(crate) const IQ4_XS: Page = Page {
    fallback: Some(&IQ4_NL),
    ..Page::new("IQ4_XS", 23, (256, 136), &[0], |bytes, out| decode_each(bytes, out, decode_iq4_xs))
};

pub(crate) const MXFP4: Page =
    Page::new("MXFP4", 39, (32, 17), &[], |bytes, out| decode_each(bytes, out, decode_mxfp4));

/// The levels of IQ4_NL and IQ4_XS.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Twice the E2M1 numbers.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Decodes 32 elements from 16 bytes.
fn look_up(nibbles: &[u8], scale: f32, levels: &[f32; 16], out: &mut [f32]) {
    let (first, second) = out.split_at_mut(16);
    for ((byte, first), second) in nibbles.iter().zip(first).zip(second) {
        *first = scale * levels[usize::from(byte & 15)];
        *second = scale * levels[usize::from(byte >> 4)];
    }
}

fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    look_up(&block[2..], half_at(block, 0), &LEVELS, out);
}

fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = block[4 + run / 2] >> (4 * (run % 2)) & 15;
        let top = (high >> (2 * run) & 3) as u8;
        let scale = d * (f32::from(low | top << 4) - 32.0);
        look_up(&block[8 + 16 * run..][..16], scale, &LEVELS, out);
    }
}

fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let exponent = u32::from(block[0]);
    // 2^(e - 128) as bits: normal for e of at least 2, subnormal below.
    let bits = if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 };
    look_up(&block[1..], f32::from_bits(bits), &E2M1_DOUBLED, out);
}
