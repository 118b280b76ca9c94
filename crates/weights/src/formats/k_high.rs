//! Q6_K: 256 elements in 16 runs of 16. Value `d s (q - 32)`.
//!
//! 210 bytes: 128 B low nibbles; 64 B high bit pairs; 16 signed scales; f16 d. Each half of 128
//! elements uses 64 low bytes and 32 high bytes; elements l, l + 32, l + 64, l + 96 (l < 32) take
//! the low nibbles of low bytes l and l + 32, then their high nibbles, and the four bit pairs of
//! high byte l from the lowest up.

use super::classic::Q8_0;
use super::fit::{Importance, Whole};
use super::halves::{half_at, put_half};
use super::page::{Encoder, HALF_MAX, Page, decode_each, encode_each};
use super::supers::Scaled;

pub(crate) const Q6_K: Page = Page {
    file_type: Some(18),
    fallback: Some(&Q8_0),
    encoder: Some(Encoder {
        // A factor times 128 times 32, of which the range of the file's halves is the smaller part.
        magnitude_max: HALF_MAX * 32.0,
        encode: |input, importance, out| encode_each(input, importance, out, encode_q6_k),
    }),
    ..Page::new("Q6_K", 14, (256, 210), &[208], |bytes, out| decode_each(bytes, out, decode_q6_k))
};

fn decode_q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, half) = rest.split_at(16);
    let d = half_at(half, 0);
    for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (low, high, low_shift, high_shift) = pieces(low, high, run);
        for (l, out) in out.iter_mut().enumerate() {
            let q = (low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4;
            let scale = d * f32::from(scales[2 * run + l / 16] as i8);
            *out = scale * (f32::from(q) - 32.0);
        }
    }
}

/// Returns, for elements 32 run .. 32 run + 32, their low and high bytes and the shifts within
/// them.
fn pieces<'a>(low: &'a [u8], high: &'a [u8], run: usize) -> (&'a [u8], &'a [u8], usize, usize) {
    let (half, quarter) = (run / 4, run % 4);
    let low = &low[64 * half + 32 * (quarter % 2)..][..32];
    let high = &high[32 * half..][..32];
    (low, high, 4 * (quarter / 2), 2 * quarter)
}

fn encode_q6_k(input: &[f32; 256], importance: Importance<'_, 256>, block: &mut [u8; 210]) {
    block.fill(0);
    let Some(choice) = Scaled::<16, 16>::fit::<Whole<32>, Whole<128>>(input, importance) else {
        return;
    };
    put_half(block, 208, choice.d);
    for (run, &scale) in choice.scales.iter().enumerate() {
        block[192 + run] = scale as i8 as u8;
    }
    for run in 0..8 {
        let (half, quarter) = (run / 4, run % 4);
        for l in 0..32 {
            let q = (choice.values[2 * run + l / 16][l % 16] + 32.0) as u8;
            block[64 * half + 32 * (quarter % 2) + l] |= (q & 15) << (4 * (quarter / 2));
            block[128 + 32 * half + l] |= (q >> 4) << (2 * quarter);
        }
    }
}
