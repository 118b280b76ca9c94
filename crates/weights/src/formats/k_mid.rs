//! Q4_K and Q5_K: 256 elements in 8 runs of 32. Value `d s q - dmin m`.
//!
//! Q4_K, 144 bytes: f16 d; f16 dmin; 12 B scales and minima; 128 B nibbles.
//! Q5_K, 176 bytes: the same with 32 B of fifth bits before the nibbles; the fifth bit of element j
//! of run r is bit r of byte j.
//!
//! Each 32 bytes of nibbles are two runs: run 2k in the low nibbles, run 2k + 1 in the high ones.
//! The 6-bit scale and minimum of run j, from the 12 bytes b: for j < 4 `b[j] & 63` and
//! `b[j+4] & 63`; for the others the low four bits are the nibbles of `b[j+4]` and the top two bits
//! those of `b[j-4]` and `b[j]`.

use super::classic::{Q5_0, Q5_1};
use super::fit::Importance;
use super::halves::{half_at, put_half};
use super::page::{Encoder, HALF_MAX, Page, decode_each, encode_each};
use super::supers::Offsets;

pub(crate) const Q4_K: Page = Page {
    file_type: Some(14),
    fallback: Some(&Q5_0),
    encoder: Some(Encoder {
        // The fitted minimum may exceed the smallest element a little: half of what 63 steps reach.
        magnitude_max: HALF_MAX * 32.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q4_k),
    }),
    ..Page::new("Q4_K", 12, (256, 144), &[0, 2], |bytes, out| decode_each(bytes, out, decode_q4_k))
};

pub(crate) const Q5_K: Page = Page {
    file_type: Some(16),
    fallback: Some(&Q5_1),
    encoder: Some(Encoder {
        magnitude_max: HALF_MAX * 32.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q5_k),
    }),
    ..Page::new("Q5_K", 13, (256, 176), &[0, 2], |bytes, out| decode_each(bytes, out, decode_q5_k))
};

/// Returns the scale and minimum of run `j`.
fn scale_and_minimum(b: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (b[j] & 63, b[j + 4] & 63)
    } else {
        (b[j + 4] & 15 | b[j - 4] >> 6 << 4, b[j + 4] >> 4 | b[j] >> 6 << 4)
    }
}

fn put_scale_and_minimum(b: &mut [u8], j: usize, scale: u8, minimum: u8) {
    if j < 4 {
        b[j] |= scale;
        b[j + 4] |= minimum;
    } else {
        b[j + 4] |= scale & 15 | (minimum & 15) << 4;
        b[j - 4] |= scale >> 4 << 6;
        b[j] |= minimum >> 4 << 6;
    }
}

fn decode_q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    decode_runs(block, &[0; 32], &block[16..], out);
}

fn decode_q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    decode_runs(block, &block[16..48], &block[48..], out);
}

fn decode_runs(block: &[u8], high: &[u8], nibbles: &[u8], out: &mut [f32; 256]) {
    let (d, d_min) = (half_at(block, 0), half_at(block, 2));
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, minimum) = scale_and_minimum(&block[4..16], run);
        let (scale, minimum) = (d * f32::from(scale), d_min * f32::from(minimum));
        let bytes = &nibbles[32 * (run / 2)..][..32];
        let shift = 4 * (run % 2);
        for ((out, byte), high) in out.iter_mut().zip(bytes).zip(high) {
            let q = (byte >> shift & 15) | (high >> run & 1) << 4;
            *out = scale * f32::from(q) - minimum;
        }
    }
}

fn encode_q4_k(input: &[f32; 256], importance: Importance<'_, 256>, block: &mut [u8; 144]) {
    block.fill(0);
    if let Some(choice) = Offsets::fit(input, importance, (63.0, 15.0)) {
        store_scales(&choice, block);
        store_nibbles(&choice, &mut block[16..]);
    }
}

fn encode_q5_k(input: &[f32; 256], importance: Importance<'_, 256>, block: &mut [u8; 176]) {
    block.fill(0);
    if let Some(choice) = Offsets::fit(input, importance, (63.0, 31.0)) {
        store_scales(&choice, block);
        store_nibbles(&choice, &mut block[48..]);
        for (run, integers) in choice.integers.iter().enumerate() {
            for (byte, &q) in block[16..48].iter_mut().zip(integers) {
                *byte |= (q as u8 >> 4) << run;
            }
        }
    }
}

fn store_scales(choice: &Offsets<8, 32>, block: &mut [u8]) {
    put_half(block, 0, choice.d);
    put_half(block, 2, choice.d_min);
    for run in 0..8 {
        let (scale, minimum) = (choice.scales[run] as u8, choice.minima[run] as u8);
        put_scale_and_minimum(&mut block[4..16], run, scale, minimum);
    }
}

/// Stores the low four bits of the integers.
fn store_nibbles(choice: &Offsets<8, 32>, nibbles: &mut [u8]) {
    for (run, integers) in choice.integers.iter().enumerate() {
        for (byte, &q) in nibbles[32 * (run / 2)..][..32].iter_mut().zip(integers) {
            *byte |= (q as u8 & 15) << (4 * (run % 2));
        }
    }
}
