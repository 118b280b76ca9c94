//! Q2_K and Q3_K: 256 elements in 16 runs of 16.
//!
//! Q2_K, 84 bytes: 16 B (low nibble scale, high nibble minimum, one per run); 64 B of 2-bit
//! integers; f16 d; f16 dmin. Value `d s q - dmin m`.
//!
//! Q3_K, 110 bytes: 32 B high bits; 64 B of low 2 bits; 12 B scales; f16 d. Value `d (s - 32) q`,
//! `q = low - (high bit set ? 0 : 4)`. Scale j of 16: low 4 bits are a nibble of byte `j mod 8`
//! (low nibble for j < 8), high 2 bits are in byte `8 + j mod 4`, shifted by `2 (j / 4)`.
//!
//! In both, each 32 bytes of 2-bit integers are 128 elements: four layers of 32, lowest bits first.

use super::classic::Q4_0;
use super::fit::{Importance, Whole};
use super::halves::{half_at, put_half};
use super::page::{Encoder, HALF_MAX, Page, decode_each, encode_each};
use super::supers::{Offsets, Scaled};

pub(crate) const Q2_K: Page = Page {
    file_type: Some(10),
    fallback: Some(&Q4_0),
    encoder: Some(Encoder {
        // The fitted minimum may exceed the smallest element a little: half of what 15 steps reach.
        magnitude_max: HALF_MAX * 7.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q2_k),
    }),
    ..Page::new("Q2_K", 10, (256, 84), &[80, 82], |bytes, out| decode_each(bytes, out, decode_q2_k))
};

pub(crate) const Q3_K: Page = Page {
    file_type: Some(11),
    fallback: Some(&Q4_0),
    encoder: Some(Encoder {
        // The fitted scale may exceed the largest element's a little: half of what 32 steps reach.
        magnitude_max: HALF_MAX * 64.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q3_k),
    }),
    ..Page::new("Q3_K", 11, (256, 110), &[108], |bytes, out| decode_each(bytes, out, decode_q3_k))
};

fn decode_q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, rest) = block.split_at(16);
    let (quants, halves) = rest.split_at(64);
    let (d, d_min) = (half_at(halves, 0), half_at(halves, 2));
    for (run, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[run] & 15);
        let minimum = d_min * f32::from(scales[run] >> 4);
        let (bytes, shift) = two_bit_run(quants, run);
        for (out, byte) in out.iter_mut().zip(bytes) {
            *out = scale * f32::from(byte >> shift & 3) - minimum;
        }
    }
}

fn decode_q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, rest) = block.split_at(32);
    let (quants, rest) = rest.split_at(64);
    let (scales, half) = rest.split_at(12);
    let d = half_at(half, 0);
    for (run, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = scales[run % 8] >> (4 * (run / 8)) & 15;
        let top = scales[8 + run % 4] >> (2 * (run / 4)) & 3;
        let scale = d * (f32::from(low | top << 4) - 32.0);
        let (bytes, shift) = two_bit_run(quants, run);
        let high = &high[16 * (run % 2)..][..16];
        let bit = run / 2; // one bit per 32 elements
        for ((out, byte), high) in out.iter_mut().zip(bytes).zip(high) {
            let q = (byte >> shift & 3) as i8 - if high >> bit & 1 == 1 { 0 } else { 4 };
            *out = scale * f32::from(q);
        }
    }
}

/// Returns the 16 bytes that hold run `run`, and the shift of its two bits.
fn two_bit_run(quants: &[u8], run: usize) -> (&[u8], usize) {
    let bytes = &quants[32 * (run / 8) + 16 * (run % 2)..][..16];
    (bytes, 2 * (run % 8 / 2))
}

fn encode_q2_k(input: &[f32; 256], importance: Importance<'_, 256>, block: &mut [u8; 84]) {
    block.fill(0);
    let Some(choice) = Offsets::<16, 16>::fit(input, importance, (15.0, 3.0)) else { return };
    put_half(block, 80, choice.d);
    put_half(block, 82, choice.d_min);
    for run in 0..16 {
        block[run] = choice.scales[run] as u8 | (choice.minima[run] as u8) << 4;
        store_two_bits(&mut block[16..80], run, choice.integers[run].map(|q| q as u8));
    }
}

fn encode_q3_k(input: &[f32; 256], importance: Importance<'_, 256>, block: &mut [u8; 110]) {
    block.fill(0);
    let Some(choice) = Scaled::<16, 16>::fit::<Whole<4>, Whole<32>>(input, importance) else {
        return;
    };
    put_half(block, 108, choice.d);
    for run in 0..16 {
        let scale = (choice.scales[run] + 32.0) as u8;
        block[96 + run % 8] |= (scale & 15) << (4 * (run / 8));
        block[104 + run % 4] |= (scale >> 4) << (2 * (run / 4));
        let codes = choice.values[run].map(|q| (q + 4.0) as u8);
        store_two_bits(&mut block[32..96], run, codes.map(|code| code & 3));
        for (byte, code) in block[16 * (run % 2)..][..16].iter_mut().zip(codes) {
            *byte |= (code >> 2) << (run / 2);
        }
    }
}

/// Stores the two-bit integers of run `run`.
fn store_two_bits(quants: &mut [u8], run: usize, integers: [u8; 16]) {
    let bytes = &mut quants[32 * (run / 8) + 16 * (run % 2)..][..16];
    for (byte, q) in bytes.iter_mut().zip(integers) {
        *byte |= q << (2 * (run % 8 / 2));
    }
}
