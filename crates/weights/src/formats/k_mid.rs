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

use half::f16;

use super::classic::{Q5_0, Q5_1};
use super::fit::{self, weights};
use super::halves::{half_at, put_half};
use super::page::{Encoder, HALF_MAX, Page, decode_each, encode_each};

pub(crate) const Q4_K: Page = Page {
    file_type: Some(14),
    fallback: Some(&Q5_0),
    encoder: Some(Encoder {
        // The fitted minimum may exceed the smallest element a little: half of what 63 steps reach.
        magnitude_max: HALF_MAX * 32.0,
        encode: |input, out| encode_each(input, out, encode_q4_k),
    }),
    ..Page::new("Q4_K", 12, (256, 144), &[0, 2], |bytes, out| decode_each(bytes, out, decode_q4_k))
};

pub(crate) const Q5_K: Page = Page {
    fallback: Some(&Q5_1),
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

/// The numbers that a Q4_K block stores, before packing.
#[derive(Clone)]
struct KMidNumbers {
    d: f32, // representable in half precision, as is d_min
    d_min: f32,
    scales: [f32; 8], // whole, 0..=63, as are the minima
    minima: [f32; 8],
    integers: [[f32; 32]; 8], // whole, 0..=15
}

/// Encodes a block. Each run is fitted separately. Then the 8 scales and minima are rounded to 6
/// bits under common factors, the integers are chosen again for the rounded ones, and the factors
/// are fitted again to those, as long as that lowers the weighted error.
fn encode_q4_k(input: &[f32; 256], block: &mut [u8; 144]) {
    let magnitude = input.iter().fold(0.0_f32, |kept, value| kept.max(value.abs()));
    if magnitude < fit::TINY {
        block.fill(0);
        return;
    }
    let (runs, _) = input.as_chunks::<32>();
    let mut fitted = [(0.0, 0.0); 8];
    let mut weight = [[0.0; 32]; 8];
    for run in 0..8 {
        weight[run] = weights(&runs[run], magnitude);
        fitted[run] = fit::scale_and_minimum(&runs[run], &weight[run], 15.0);
    }
    let top = |values: [f32; 8]| values.into_iter().fold(0.0_f32, f32::max);
    let d = fit::half_factor(top(fitted.map(|(scale, _)| scale)) / 63.0);
    let d_min = fit::half_factor(top(fitted.map(|(_, minimum)| minimum)) / 63.0);
    let steps = |value: f32, unit: f32| {
        if unit == 0.0 { 0.0 } else { (value / unit).round().clamp(0.0, 63.0) }
    };
    let mut best = KMidNumbers {
        d,
        d_min,
        scales: fitted.map(|(scale, _)| steps(scale, d)),
        minima: fitted.map(|(_, minimum)| steps(minimum, d_min)),
        integers: [[0.0; 32]; 8],
    };
    let mut best_error = choose_integers(&mut best, runs, &weight);
    for _ in 0..3 {
        let mut next = best.clone();
        refit_factors(&mut next, runs, &weight);
        let error = choose_integers(&mut next, runs, &weight);
        if error >= best_error {
            break;
        }
        (best, best_error) = (next, error);
    }
    store(&best, block);
}

/// Chooses the nearest integers under the chosen scales and returns the weighted squared error.
fn choose_integers(choice: &mut KMidNumbers, runs: &[[f32; 32]], weight: &[[f32; 32]; 8]) -> f64 {
    let mut error = 0.0;
    for run in 0..8 {
        let scale = choice.d * choice.scales[run];
        let minimum = choice.d_min * choice.minima[run];
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut run_error = 0.0;
        for j in 0..32 {
            let q = fit::nearest(((runs[run][j] + minimum) * inverse).clamp(0.0, 15.0));
            choice.integers[run][j] = q;
            let miss = scale * q - minimum - runs[run][j];
            run_error += weight[run][j] * miss * miss;
        }
        error += f64::from(run_error);
    }
    error
}

/// Fits the factors of `x = d (s q) - dmin m` over the whole block by least squares, with the
/// integers fixed.
fn refit_factors(choice: &mut KMidNumbers, runs: &[[f32; 32]], weight: &[[f32; 32]; 8]) {
    let [mut aa, mut ab, mut bb, mut ax, mut bx] = [0.0_f64; 5];
    for run in 0..8 {
        let b = f64::from(-choice.minima[run]);
        for j in 0..32 {
            let (w, x) = (f64::from(weight[run][j]), f64::from(runs[run][j]));
            let a = f64::from(choice.scales[run] * choice.integers[run][j]);
            aa += w * a * a;
            ab += w * a * b;
            bb += w * b * b;
            ax += w * a * x;
            bx += w * b * x;
        }
    }
    let determinant = aa * bb - ab * ab;
    let (d, d_min) = if determinant > 1e-9 * aa * bb {
        ((ax * bb - bx * ab) / determinant, (aa * bx - ab * ax) / determinant)
    } else if aa > 0.0 {
        ((ax - ab * f64::from(choice.d_min)) / aa, f64::from(choice.d_min))
    } else {
        return;
    };
    if d > 0.0 && d_min >= 0.0 {
        choice.d = f16::from_f64(d).to_f32();
        choice.d_min = f16::from_f64(d_min).to_f32();
    }
}

fn store(choice: &KMidNumbers, block: &mut [u8; 144]) {
    block.fill(0);
    put_half(block, 0, choice.d);
    put_half(block, 2, choice.d_min);
    for run in 0..8 {
        let (scale, minimum) = (choice.scales[run] as u8, choice.minima[run] as u8);
        put_scale_and_minimum(&mut block[4..16], run, scale, minimum);
        let nibbles = &mut block[16 + 32 * (run / 2)..][..32];
        for (byte, &q) in nibbles.iter_mut().zip(&choice.integers[run]) {
            *byte |= (q as u8) << (4 * (run % 2));
        }
    }
}
