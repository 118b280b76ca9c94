//! A bound on the result of a gated product and of an activated one, from their weights.
//!
//! The input of a gated product is a norm: x = y w, where y has a mean square of at most 1 over n
//! columns and w is the norm's factors. By the Cauchy-Schwarz inequality:
//!
//! ```text
//! |gate_j| = |sum over k of G_jk w_k y_k| <= sqrt(n) |G_j w|     the same of up
//! |gelu(gate_j) up_j| <= |gate_j| |up_j| <= n |G_j w| |U_j w|
//! ```
//!
//! The input of an activated one is a layer norm: x = y w + v, with y as above, so that
//!
//! ```text
//! |x| <= sqrt(n) max |w| + |v|     |gelu(W_j x + b_j)| <= |W_j| |x| + |b_j|
//! ```
//!
//! So a power of two is known before the first token in whose units every result fits into a half.
//! The bound need not be close: the largest result of random weights with 5376 columns is about
//! 2^12 below it, and halves keep all their bits down to 2^29 below it.

use std::sync::atomic::{AtomicU32, Ordering};

use trine_model::{BufferId, Op, Plan, WeightId};

use crate::kernels::operand::SCALE_BLOCK;
use crate::pack::Format;
use crate::pack::magnitudes::Magnitudes;

/// Returns the norm whose result is the input of the gated product with this gate, wherever that is
/// used, or `None` if something else may be.
pub(crate) fn norm_before(plan: &Plan, gate: WeightId) -> Option<WeightId> {
    let uses = plan.steps.iter().enumerate().filter_map(|(index, step)| match step.op {
        Op::GatedMatMul { input, gate: found, .. } if found == gate => Some((index, input)),
        _ => None,
    });
    let mut norms = uses.map(|(index, input)| norm_that_wrote(plan, index, input));
    let first = norms.next()??;
    norms.all(|norm| norm == Some(first)).then_some(first)
}

/// Returns the factors of the norm that was the last to write a buffer before a step.
fn norm_that_wrote(plan: &Plan, step: usize, buffer: BufferId) -> Option<WeightId> {
    match *step_that_wrote(plan, step, buffer)? {
        Op::Norm { weight, .. } => Some(weight),
        Op::NormAddNorm { next_weight, output, .. } if output == buffer => Some(next_weight),
        _ => None,
    }
}

/// Returns the operation that was the last to write a buffer before a step.
fn step_that_wrote(plan: &Plan, step: usize, buffer: BufferId) -> Option<&Op> {
    let mut before = plan.steps[..step].iter().rev();
    before.find(|step| step.op.writes().contains(&buffer)).map(|step| &step.op)
}

/// The vectors that bound an activated product: the gelu of a product of one matrix with a layer
/// norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Activated {
    /// Factors of the norm.
    norm: WeightId,
    /// What the norm adds.
    norm_bias: WeightId,
    /// What is added to the product.
    bias: WeightId,
}

/// Returns what bounds the activated product with a matrix, or `None` if other products use it,
/// too.
pub(crate) fn activated(plan: &Plan, matrix: WeightId) -> Option<Activated> {
    let multiplies = |op: &Op| match op {
        Op::MatMul { products, .. } => products.iter().any(|product| product.weight == matrix),
        _ => false,
    };
    let mut uses = (0..plan.steps.len()).filter(|&index| multiplies(&plan.steps[index].op));
    let (index, None) = (uses.next()?, uses.next()) else { return None };
    let Op::MatMul { input, products } = &plan.steps[index].op else { return None };
    let [product] = &products[..] else { return None };
    let op = |after: usize| plan.steps.get(index + after).map(|step| &step.op);
    let bias = match (op(1)?, op(2)?) {
        (&Op::Bias { buffer, weight }, &Op::Gelu { buffer: activated })
            if buffer == product.output && activated == product.output =>
        {
            weight
        }
        _ => return None,
    };
    match step_that_wrote(plan, index, *input)? {
        &Op::LayerNorm { weight: norm, bias: norm_bias, .. } => {
            Some(Activated { norm, norm_bias, bias })
        }
        _ => None,
    }
}

impl Activated {
    /// Returns the power of two in whose units the results fit into halves. `vector` returns a
    /// vector's values, `reach` is that of the matrix with factors of 1.
    pub(super) fn unit(&self, reach: &Reach, vector: impl Fn(WeightId) -> Vec<f32>) -> f32 {
        let square = |&x: &f32| f64::from(x) * f64::from(x);
        let factors = vector(self.norm);
        let highest = largest(factors.iter().map(|x| f64::from(x.abs())));
        let shift = vector(self.norm_bias).iter().map(square).sum::<f64>().sqrt();
        let input = (factors.len() as f64).sqrt() * highest + shift;
        let biases = vector(self.bias);
        let results = reach.rows().zip(&biases);
        unit_of(largest(results.map(|(row, bias)| row * input + f64::from(bias.abs()))))
    }
}

/// Returns the largest of numbers that are not negative, or NaN if one is.
fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    let keeps = |most: f64, number: f64| most.is_nan() || number <= most;
    numbers.fold(0.0, |most, number| if keeps(most, number) { most } else { number })
}

/// Finds |W_j w| for each row of a matrix W, or a bound of it.
#[derive(Debug)]
pub struct Reach {
    /// The sum of the squares of w for each block of columns.
    squares: Vec<f64>,
    /// The bits of an f32 for each row.
    rows: Vec<AtomicU32>,
}

impl Reach {
    /// Creates it for a norm's factors and a matrix of `rows` rows.
    pub fn new(factors: &[f32], rows: usize) -> Self {
        let square = |&w: &f32| f64::from(w) * f64::from(w);
        let squares =
            factors.chunks(SCALE_BLOCK).map(|block| block.iter().map(square).sum()).collect();
        Self { squares, rows: (0..rows).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Examines whole rows in the file's format, from row `first` on. Of a quantised
    /// block it reads only the scale: no weight is larger than the largest code with that scale.
    pub fn see(&self, format: Format, columns: usize, first: usize, source: &[u8]) {
        let Some(bytes) = format.dtype().row_bytes(columns).filter(|&bytes| bytes > 0) else {
            return;
        };
        let mut magnitudes = Magnitudes::default();
        for (row, reach) in source.chunks_exact(bytes).zip(&self.rows[first..]) {
            let sum = weighted_squares(format.magnitudes(&mut magnitudes, row), &self.squares);
            let mut length = sum.sqrt() as f32;
            if sum.is_finite() {
                // The length of a row of weights beyond 6e37 may exceed what a number in f32 can
                // be.
                length = length.min(f32::MAX);
            }
            reach.store(length.to_bits(), Ordering::Relaxed);
        }
    }

    /// Multiplies what was found of `count` rows from row `first` on by the factors that these have
    /// beside their bytes.
    pub(super) fn multiply(&self, first: usize, count: usize, factor: impl Fn(usize) -> f32) {
        for (at, row) in self.rows[first..first + count].iter().enumerate() {
            let length = f32::from_bits(row.load(Ordering::Relaxed));
            let product = length * factor(at).abs();
            let bounded = if length.is_finite() { product.min(f32::MAX) } else { product };
            row.store(bounded.to_bits(), Ordering::Relaxed);
        }
    }

    /// Returns |W_j w| for each row.
    fn rows(&self) -> impl Iterator<Item = f64> {
        self.rows.iter().map(|bits| f64::from(f32::from_bits(bits.load(Ordering::Relaxed))))
    }
}

/// Returns the sum of the squares of numbers, each times its weight. Eight sums that do not wait
/// for one another take a fraction of the time of one.
fn weighted_squares(numbers: &[f32], weights: &[f64]) -> f64 {
    let count = numbers.len().min(weights.len());
    let (numbers, numbers_left) = numbers[..count].as_chunks::<8>();
    let (weights, weights_left) = weights[..count].as_chunks::<8>();
    let term = |number: f32, weight: f64| f64::from(number) * f64::from(number) * weight;
    let mut sums = [0.0; 8];
    for (numbers, weights) in numbers.iter().zip(weights) {
        for lane in 0..8 {
            sums[lane] += term(numbers[lane], weights[lane]);
        }
    }
    let left = numbers_left.iter().zip(weights_left).map(|(&number, &weight)| term(number, weight));
    sums.iter().sum::<f64>() + left.sum::<f64>()
}

/// Returns the power of two in whose units results of a gated product over `columns` columns fit
/// into halves: none exceeds 2^15 units. Returns NaN if the weights are broken.
pub(super) fn unit(columns: usize, gate: &Reach, up: &Reach) -> f32 {
    let products = gate.rows().zip(up.rows()).map(|(gate, up)| gate * up);
    unit_of(columns as f64 * largest(products))
}

/// Returns the power of two of which no weight of matrices is more than 2^15 times as large, from
/// their reach with factors of 1. Returns NaN if one is not finite.
pub(super) fn unit_of_weights(reaches: &[Reach]) -> f32 {
    unit_of(largest(reaches.iter().flat_map(Reach::rows)))
}

/// Returns the power of two of which a bound is at most 2^15 times as large.
fn unit_of(most: f64) -> f32 {
    if !most.is_finite() {
        return f32::NAN;
    }
    // The cast saturates where the bound is 0. No f32 is larger than 2^15 units of 2^113.
    let exponent = (most.log2().ceil() as i32).saturating_sub(15);
    (exponent.clamp(-100, 113) as f32).exp2()
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use rand::{RngExt, SeedableRng};
    use trine_weights::{DType, blocks};

    use super::*;
    use crate::pack::tests::random_rows;

    /// Rows that are as much like the input as possible reach the bound, but for the slack of
    /// blocks and codes.
    #[test]
    fn no_result_exceeds_the_bound() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let columns = 768;
        for format in Format::ALL {
            for size in [1e-3_f32, 1.0, 100.0] {
                let mut value = |size: f32| (random.random::<f32>() - 0.5) * size;
                let factors: Vec<f32> = (0..columns).map(|_| value(8.0)).collect();
                let rows: Vec<f32> = (0..5 * columns).map(|_| value(size)).collect();
                let mut encoded = Vec::new();
                if blocks::can_encode(format.dtype()) {
                    blocks::encode(format.dtype(), &rows, &mut encoded).unwrap();
                } else {
                    encoded = random_rows(format, 5, columns, 9);
                }
                let mut held = vec![0.0; rows.len()];
                blocks::decode(format.dtype(), &encoded, &mut held).unwrap();
                let reach = Reach::new(&factors, 5);
                // In two parts, as threads see a matrix.
                let (early, late) = encoded.split_at(encoded.len() / 5 * 2);
                reach.see(format, columns, 2, late);
                reach.see(format, columns, 0, early);
                let norm = |row: &[f32]| {
                    let terms = row.iter().zip(&factors).map(|(&a, &w)| f64::from(a * w).powi(2));
                    terms.sum::<f64>().sqrt()
                };
                let exact: Vec<f64> = held.chunks(columns).map(norm).collect();
                for (found, exact) in reach.rows().zip(&exact) {
                    assert!(found >= *exact && found <= 4.0 * exact, "{format:?} {found} {exact}");
                }
                let unit = f64::from(unit(columns, &reach, &reach));
                let largest = exact.iter().copied().fold(0.0, f64::max);
                let most = columns as f64 * largest * largest;
                assert!(most <= 32768.0 * unit && most > 32.0 * unit, "{format:?} {most} {unit}");
            }
        }
    }

    /// Rows that are as much like the input as possible, biases, and a norm's longest row.
    #[test]
    fn no_activated_result_exceeds_the_bound() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        let (rows, columns) = (48, 288);
        for size in [1e-3_f32, 1.0, 100.0] {
            let mut values = |count: usize, size: f32| -> Vec<f32> {
                (0..count).map(|_| (random.random::<f32>() - 0.5) * size).collect()
            };
            let vectors = [values(columns, 8.0), values(columns, 2.0), values(rows, 30.0)];
            let source = values(rows * columns, size);
            let (mut encoded, mut held) = (Vec::new(), vec![0.0; source.len()]);
            blocks::encode(DType::F16, &source, &mut encoded).unwrap();
            blocks::decode(DType::F16, &encoded, &mut held).unwrap();
            let reach = Reach::new(&vec![1.0; columns], rows);
            reach.see(Format::F16Fragments, columns, 0, &encoded);
            let [norm, norm_bias, bias] = [0, 1, 2].map(WeightId);
            let activated = Activated { norm, norm_bias, bias };
            let unit = f64::from(activated.unit(&reach, |id| vectors[id.0].clone()));
            let mut most = 0.0_f64;
            for (row, own) in held.chunks(columns).zip(&vectors[2]) {
                // The row of the norm that is most like the row of the matrix.
                let like: Vec<f64> =
                    row.iter().zip(&vectors[0]).map(|(&a, &w)| f64::from(a * w)).collect();
                let length = like.iter().map(|x| x * x).sum::<f64>().sqrt();
                let normed = like.iter().map(|x| x * x / length).sum::<f64>();
                let shift = row.iter().zip(&vectors[1]).map(|(&a, &v)| f64::from(a * v));
                let result = (columns as f64).sqrt() * normed + shift.sum::<f64>();
                most = most.max((result + f64::from(*own)).abs());
            }
            assert!(most <= 32768.0 * unit && most > 256.0 * unit, "{size}: {most} {unit}");
        }
    }

    #[test]
    fn a_block_of_shorts_is_as_large_as_its_largest_number() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        for columns in [1_usize, 20, 32, 131, 1152] {
            // Also infinities and what is no number.
            let row: Vec<u8> = (0..2 * columns).map(|_| random.random()).collect();
            for (format, number) in [
                (Format::F16, (|bits| f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
                (Format::Bf16, |bits| bf16::from_bits(bits).to_f32()),
            ] {
                let numbers = row.as_chunks::<2>().0.iter().map(|b| number(u16::from_le_bytes(*b)));
                let numbers: Vec<f64> = numbers.map(|number| f64::from(number.abs())).collect();
                let expected = numbers.chunks(SCALE_BLOCK).map(|b| largest(b.iter().copied()));
                let mut magnitudes = Magnitudes::default();
                let found =
                    format.magnitudes(&mut magnitudes, &row).iter().map(|&found| f64::from(found));
                let same = |(a, b): (f64, f64)| a == b || a.is_nan() && b.is_nan();
                assert_eq!(found.len(), columns.div_ceil(SCALE_BLOCK));
                assert!(found.zip(expected).all(same), "{format:?}, {columns} columns");
            }
        }
    }

    fn reach_of(rows: &[f32]) -> Reach {
        let reach = Reach::new(&[1.0; 32], rows.len());
        for (row, bits) in rows.iter().zip(&reach.rows) {
            bits.store(row.to_bits(), Ordering::Relaxed);
        }
        reach
    }

    #[test]
    fn no_weight_exceeds_its_unit() {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(11);
        // The length of a block of the largest ones is beyond f32.
        for size in [1e-20_f32, 1.0, 1e20, f32::MAX] {
            let values: Vec<f32> =
                (0..6 * 160).map(|_| (random.random::<f32>() - 0.5) * size).collect();
            let most = largest(values.iter().map(|value| f64::from(value.abs())));
            for format in [Format::F32, Format::Bf16] {
                let mut encoded = Vec::new();
                blocks::encode(format.dtype(), &values, &mut encoded).unwrap();
                let reaches = [2, 4].map(|rows| Reach::new(&[1.0; 160], rows));
                let (first, second) = encoded.split_at(encoded.len() / 3);
                reaches[0].see(format, 160, 0, first);
                reaches[1].see(format, 160, 0, second);
                let unit = f64::from(unit_of_weights(&reaches));
                assert!(most <= 32768.0 * unit && most > 512.0 * unit, "{format:?} {most} {unit}");
                let end = encoded.len() - 2;
                // The upper bytes of what is no number in both formats.
                encoded[end..].copy_from_slice(&[0xC0, 0x7F]);
                reaches[1].see(format, 160, 0, &encoded[encoded.len() / 3..]);
                assert!(unit_of_weights(&reaches).is_nan(), "{format:?}");
            }
        }
    }

    /// A large row of one matrix and a large row of the other do not make a large result unless
    /// they are the same row.
    #[test]
    fn large_rows_of_both_matrices_count_only_together() {
        assert_eq!(unit(64, &reach_of(&[4096.0, 1.0]), &reach_of(&[1.0, 4096.0])), 8.0);
        assert_eq!(unit(64, &reach_of(&[4096.0, 1.0]), &reach_of(&[4096.0, 1.0])), 32768.0);
    }

    #[test]
    fn units_are_powers_of_two_or_broken() {
        let unit = |gate: f32, up: f32| unit(64, &reach_of(&[gate, 0.0]), &reach_of(&[up, 1.0]));
        assert_eq!(unit(16.0, 32.0), 1.0);
        assert_eq!(unit(16.0, 32.1), 2.0);
        assert!(unit(0.0, 1.0) > 0.0);
        assert!(unit(f32::NAN, 1.0).is_nan() && unit(1.0, f32::INFINITY).is_nan());
        let reach = Reach::new(&[1.0; 32], 1);
        let mut block = [0; 34];
        block[..2].copy_from_slice(&f16::NAN.to_le_bytes());
        reach.see(Format::Q8_0, 32, 0, &block);
        assert!(reach.rows().all(f64::is_nan));
        for format in [Format::F16, Format::F16Fragments, Format::Bf16] {
            let reach = Reach::new(&[1.0; 32], 1);
            let mut row = [0; 64];
            // Not a number in all of these formats.
            row[20..22].copy_from_slice(&[0xFF, 0x7F]);
            reach.see(format, 32, 0, &row);
            assert!(reach.rows().all(f64::is_nan), "{format:?}");
        }
    }
}
