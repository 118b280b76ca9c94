//! Q6_K: 256 elements in 16 runs of 16. Value `d s (q - 32)`.
//!
//! 210 bytes: 128 B low nibbles; 64 B high bit pairs; 16 signed scales; f16 d. Each half of 128
//! elements uses 64 low bytes and 32 high bytes; elements l, l + 32, l + 64, l + 96 (l < 32) take
//! the low nibbles of low bytes l and l + 32, then their high nibbles, and the four bit pairs of
//! high byte l from the lowest up.

use half::f16;

use super::classic::Q8_0;
use super::fit::{self, weights};
use super::halves::{half_at, put_half};
use super::page::{Encoder, HALF_MAX, Page, decode_each, encode_each};

pub(crate) const Q6_K: Page = Page {
    file_type: Some(18),
    fallback: Some(&Q8_0),
    encoder: Some(Encoder {
        // The fitted minimum may exceed the smallest element a little: half of what 63 steps reach.
        magnitude_max: HALF_MAX * 32.0,
        encode: |input, out| encode_each(input, out, encode_q6_k),
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

/// The numbers that a block stores, before packing.
#[derive(Clone)]
struct KHighNumbers {
    d: f32,                    // representable in half precision
    scales: [f32; 16],         // whole, -128..=127
    integers: [[f32; 16]; 16], // whole, -32..=31
}

/// Encodes a block. Each run is fitted separately. Then the 16 scales are rounded to 8 bits under a
/// common factor, the integers are chosen again, and the factor is fitted again, as long as that
/// lowers the weighted error.
fn encode_q6_k(input: &[f32; 256], block: &mut [u8; 210]) {
    let magnitude = input.iter().fold(0.0_f32, |kept, value| kept.max(value.abs()));
    if magnitude < fit::TINY {
        block.fill(0);
        return;
    }
    let (runs, _) = input.as_chunks::<16>();
    let mut fitted = [0.0_f32; 16];
    let mut weight = [[0.0; 16]; 16];
    for run in 0..16 {
        weight[run] = weights(&runs[run], magnitude);
        fitted[run] = fit::symmetric_scale(&runs[run], &weight[run], 32.0);
    }
    // The largest scale becomes -128, so that the range of the byte is used on its longer side.
    let largest = fitted
        .iter()
        .fold(0.0_f32, |kept, &scale| if scale.abs() > kept.abs() { scale } else { kept });
    let d = fit::half_factor(largest / -128.0);
    let steps = |scale: f32| if d == 0.0 { 0.0 } else { (scale / d).round().clamp(-128.0, 127.0) };
    let mut best = KHighNumbers { d, scales: fitted.map(steps), integers: [[0.0; 16]; 16] };
    let mut best_error = choose_integers(&mut best, runs, &weight);
    for _ in 0..3 {
        let mut next = best.clone();
        refit_factor(&mut next, runs, &weight);
        let error = choose_integers(&mut next, runs, &weight);
        if error >= best_error {
            break;
        }
        (best, best_error) = (next, error);
    }
    store(&best, block);
}

/// Chooses the nearest integers under the chosen scales and returns the weighted squared error.
fn choose_integers(choice: &mut KHighNumbers, runs: &[[f32; 16]], weight: &[[f32; 16]; 16]) -> f64 {
    let mut error = 0.0;
    for run in 0..16 {
        let scale = choice.d * choice.scales[run];
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut run_error = 0.0;
        for j in 0..16 {
            let q = fit::nearest((runs[run][j] * inverse).clamp(-32.0, 31.0));
            choice.integers[run][j] = q;
            let miss = scale * q - runs[run][j];
            run_error += weight[run][j] * miss * miss;
        }
        error += f64::from(run_error);
    }
    error
}

/// Fits the factor of `x = d (s q)` over the whole block by least squares, with the integers fixed.
fn refit_factor(choice: &mut KHighNumbers, runs: &[[f32; 16]], weight: &[[f32; 16]; 16]) {
    let [mut aa, mut ax] = [0.0_f64; 2];
    for run in 0..16 {
        for j in 0..16 {
            let w = f64::from(weight[run][j]);
            let a = f64::from(choice.scales[run] * choice.integers[run][j]);
            aa += w * a * a;
            ax += w * a * f64::from(runs[run][j]);
        }
    }
    if aa > 0.0 {
        let d = f16::from_f64(ax / aa).to_f32();
        if d != 0.0 && d.is_finite() {
            choice.d = d;
        }
    }
}

fn store(choice: &KHighNumbers, block: &mut [u8; 210]) {
    block.fill(0);
    put_half(block, 208, choice.d);
    for (run, &scale) in choice.scales.iter().enumerate() {
        block[192 + run] = scale as i8 as u8;
    }
    for run in 0..8 {
        let (half, quarter) = (run / 4, run % 4);
        for l in 0..32 {
            let q = (choice.integers[2 * run + l / 16][l % 16] + 32.0) as u8;
            block[64 * half + 32 * (quarter % 2) + l] |= (q & 15) << (4 * (quarter / 2));
            block[128 + 32 * half + l] |= (q >> 4) << (2 * quarter);
        }
    }
}
