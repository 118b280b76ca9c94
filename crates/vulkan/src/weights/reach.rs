//! How large the result of a gated product can get, from its weights alone.
//!
//! Its input is a norm: x = y w, y with a mean square of at most 1 over n columns, w the norm's factors. Cauchy and Schwarz:
//!
//! ```text
//! |gate_j| = |sum over k of G_jk w_k y_k| <= sqrt(n) |G_j w|     the same of up
//! |gelu(gate_j) up_j| <= |gate_j| |up_j| <= n |G_j w| |U_j w|
//! ```
//!
//! So a power of two is known before the first token in which every result is a half. The bound need not be close: the largest
//! result of random weights with 5376 columns is about 2^12 below it, and halves keep all their bits down to 2^29 below it.

use std::sync::atomic::{AtomicU32, Ordering};

use half::f16;
use trine_model::{BufferId, Op, Plan, WeightId};

use crate::kernels::operand::BLOCK;
use crate::pack::{Format, q4_k_scales};

/// The norm whose result is the input of the gated product with this gate, wherever that is used; none where something else
/// may be.
pub(crate) fn norm_before(plan: &Plan, gate: WeightId) -> Option<WeightId> {
    let uses = plan.steps.iter().enumerate().filter_map(|(index, step)| match step.op {
        Op::GatedMatMul { input, gate: found, .. } if found == gate => Some((index, input)),
        _ => None,
    });
    let mut norms = uses.map(|(index, input)| norm_that_wrote(plan, index, input));
    let first = norms.next()??;
    norms.all(|norm| norm == Some(first)).then_some(first)
}

/// The factors of the norm that wrote a buffer last before a step.
fn norm_that_wrote(plan: &Plan, step: usize, buffer: BufferId) -> Option<WeightId> {
    let last = plan.steps[..step].iter().rev().find(|step| step.op.writes().contains(&buffer))?;
    match last.op {
        Op::Norm { weight, .. } => Some(weight),
        Op::NormAddNorm { next_weight, output, .. } if output == buffer => Some(next_weight),
        _ => None,
    }
}

/// Looks for the largest |W_j w| among rows of a matrix W.
pub(super) struct Reach {
    /// Of each block of columns the sum of the squares of w.
    squares: Vec<f64>,
    /// The largest so far, f32: numbers that are not negative are ordered as their bits are, with NaN above all.
    largest: AtomicU32,
}

impl Reach {
    /// For a norm's factors.
    pub(super) fn new(factors: &[f32]) -> Self {
        let square = |&w: &f32| f64::from(w) * f64::from(w);
        let squares = factors.chunks(BLOCK).map(|block| block.iter().map(square).sum()).collect();
        Self { squares, largest: AtomicU32::new(0) }
    }

    /// Looks at whole rows in the file's format. Of a block it reads the scale: no weight is larger than its largest code makes.
    pub(super) fn see(&self, format: Format, columns: usize, source: &[u8]) {
        let Some(bytes) = format.dtype().row_bytes(columns).filter(|&bytes| bytes > 0) else {
            return;
        };
        for row in source.chunks_exact(bytes) {
            let mut squares = self.squares.iter();
            let mut sum = 0.0;
            highest_of_blocks(format, row, |high| {
                sum += f64::from(high) * f64::from(high) * squares.next().copied().unwrap_or(0.0);
            });
            let bits = (sum.sqrt() as f32).abs().to_bits();
            self.largest.fetch_max(bits, Ordering::Relaxed);
        }
    }

    /// The largest.
    pub(super) fn largest(&self) -> f32 {
        f32::from_bits(self.largest.load(Ordering::Relaxed))
    }
}

/// Calls `each` with the largest magnitude that each block of a row may have.
fn highest_of_blocks(format: Format, row: &[u8], mut each: impl FnMut(f32)) {
    let half = |bytes: [u8; 2]| f16::from_le_bytes(bytes).to_f32();
    match format {
        Format::Q8_0 => {
            row.as_chunks::<34>().0.iter().for_each(|b| each(128.0 * half([b[0], b[1]]).abs()));
        }
        Format::Q4_0 => {
            row.as_chunks::<18>().0.iter().for_each(|b| each(8.0 * half([b[0], b[1]]).abs()));
        }
        Format::Q4K => {
            for block in row.as_chunks::<144>().0 {
                let [factor, least] = [0, 2].map(|at| half([block[at], block[at + 1]]));
                for &[scale, minimum] in q4_k_scales(&block[4..16]).as_chunks::<2>().0 {
                    let (step, low) = (factor * f32::from(scale), -least * f32::from(minimum));
                    let high = low + 15.0 * step;
                    each(if low.abs() > high.abs() { low.abs() } else { high.abs() });
                }
            }
        }
        Format::Q6K => {
            for block in row.as_chunks::<210>().0 {
                let factor = half([block[208], block[209]]).abs();
                for &[first, second] in block[192..208].as_chunks::<2>().0 {
                    let scale = [first, second].map(|byte| byte.cast_signed().unsigned_abs());
                    each(32.0 * factor * f32::from(scale[0].max(scale[1])));
                }
            }
        }
        // Products of float weights neither take nor give halves.
        Format::F32 | Format::F16 | Format::Bf16 => {}
    }
}

/// The power of two in which results of a gated product over so many columns are halves: none exceeds 2^15 of it. NaN where
/// the weights are broken.
///
/// `gate` and `up`: the largest |W_j w| of both matrices.
pub(super) fn unit(columns: usize, gate: f32, up: f32) -> f32 {
    let most = columns as f64 * f64::from(gate) * f64::from(up);
    if !most.is_finite() {
        return f32::NAN;
    }
    // The cast saturates where the bound is 0.
    let exponent = (most.log2().ceil() as i32).saturating_sub(15);
    (exponent.clamp(-100, 100) as f32).exp2()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use trine_weights::blocks;

    use super::*;

    /// Rows that are as much like the input as they can be reach the bound but for what blocks and codes leave open.
    #[test]
    fn no_result_exceeds_the_bound() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let columns = 768;
        for format in [Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q6K] {
            for size in [1e-3_f32, 1.0, 100.0] {
                let mut value = |size: f32| (random.random::<f32>() - 0.5) * size;
                let factors: Vec<f32> = (0..columns).map(|_| value(8.0)).collect();
                let rows: Vec<f32> = (0..5 * columns).map(|_| value(size)).collect();
                let mut encoded = Vec::new();
                blocks::encode(format.dtype(), &rows, &mut encoded).unwrap();
                let mut held = vec![0.0; rows.len()];
                blocks::decode(format.dtype(), &encoded, &mut held).unwrap();
                let reach = Reach::new(&factors);
                reach.see(format, columns, &encoded);
                let norm = |row: &[f32]| {
                    let terms = row.iter().zip(&factors).map(|(&a, &w)| f64::from(a * w).powi(2));
                    terms.sum::<f64>().sqrt()
                };
                let exact = held.chunks(columns).map(norm).fold(0.0, f64::max);
                let found = f64::from(reach.largest());
                assert!(found >= exact && found <= 4.0 * exact, "{format:?} {found} {exact}");
                let unit = f64::from(unit(columns, found as f32, found as f32));
                let most = columns as f64 * exact * exact;
                assert!(most <= 32768.0 * unit && most > 32.0 * unit, "{format:?} {most} {unit}");
            }
        }
    }

    #[test]
    fn units_are_powers_of_two_or_broken() {
        assert_eq!(unit(64, 16.0, 32.0), 1.0);
        assert_eq!(unit(64, 16.0, 32.1), 2.0);
        assert!(unit(64, 0.0, 1.0) > 0.0);
        assert!(unit(64, f32::NAN, 1.0).is_nan() && unit(64, 1.0, f32::INFINITY).is_nan());
        let reach = Reach::new(&[1.0; 32]);
        let mut block = [0; 34];
        block[..2].copy_from_slice(&f16::NAN.to_le_bytes());
        reach.see(Format::Q8_0, 32, &block);
        assert!(reach.largest().is_nan());
    }
}
