//! The arithmetic of products on other hardware, for measurements of what it costs.

use half::bf16;

/// How products of rows of prompts and texts compute. Those for logits are always exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Products {
    /// Weights as they are, sums in f64.
    #[default]
    Exact,
    /// Weights and activations in bf16. Sums over `block` elements are exact and rounded to bf16;
    /// their own sum is in f32.
    Bf16 {
        /// Elements of a sum, at least 1.
        block: usize,
    },
    /// Activations in int8 with a scale for each row and block of `block` elements, weights in int8
    /// with a scale for each output and block. Sums over a block are exact; their own is in f32.
    Int8 {
        /// Elements that share a scale, at least 1.
        block: usize,
        /// How many int8 terms an activation has, 1 or 2: the second holds what the first leaves.
        terms: u8,
    },
}

impl Products {
    /// Rounds a row of activations as the hardware would read them.
    pub(super) fn round_input(self, row: &mut [f32]) {
        match self {
            Self::Exact => {}
            Self::Bf16 { .. } => round_bf16(row),
            Self::Int8 { block, terms } => {
                row.chunks_mut(block).for_each(|part| round_int8(part, terms));
            }
        }
    }

    /// Rounds an output's row of the matrix.
    pub(super) fn round_weights(self, row: &mut [f32]) {
        match self {
            Self::Exact => {}
            Self::Bf16 { .. } => round_bf16(row),
            Self::Int8 { block, .. } => row.chunks_mut(block).for_each(|part| round_int8(part, 1)),
        }
    }

    /// Returns the product of rounded rows.
    pub(super) fn dot(self, input: &[f32], weights: &[f32]) -> f32 {
        let exact = |input: &[f32], weights: &[f32]| -> f64 {
            input.iter().zip(weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
        };
        let blocks = |block| input.chunks(block).zip(weights.chunks(block));
        match self {
            Self::Exact => exact(input, weights) as f32,
            Self::Bf16 { block } => {
                blocks(block).map(|(x, w)| bf16::from_f64(exact(x, w)).to_f32()).sum()
            }
            Self::Int8 { block, .. } => blocks(block).map(|(x, w)| exact(x, w) as f32).sum(),
        }
    }
}

fn round_bf16(row: &mut [f32]) {
    row.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
}

/// Rounds to the multiples of one scale that int8 can hold, from -127 to 127; with two terms what
/// is left to those of a finer one.
fn round_int8(part: &mut [f32], terms: u8) {
    let largest = part.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    // Zeros stay, and what is no number stays none.
    if largest == 0.0 || !largest.is_finite() {
        return;
    }
    let coarse = largest / 127.0;
    let fine = coarse / 254.0;
    for value in part {
        let first = (*value / coarse).round() * coarse;
        let rest = if terms > 1 { ((*value - first) / fine).round() * fine } else { 0.0 };
        *value = first + rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int8_rounds_by_the_largest_of_a_block() {
        let products = |terms| Products::Int8 { block: 3, terms };
        let mut row = [1.27, -0.004, 0.006, 0.0, 0.0, 0.0, f32::NAN];
        products(1).round_input(&mut row);
        let expected = [1.27, 0.0, 0.01, 0.0, 0.0, 0.0];
        assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{row:?}");
        assert!(row[6].is_nan());
        let mut row = [1.27, -0.004, 0.006];
        products(2).round_input(&mut row);
        assert!((row[1] + 0.004).abs() < 0.01 / 508.0 + 1e-7, "{row:?}");
    }

    #[test]
    fn sums_are_rounded_by_blocks() {
        let (input, weights) = ([1.0, 1.0 / 512.0, 1.0, 0.0], [1.0; 4]);
        assert_eq!(Products::Exact.dot(&input, &weights), 2.0 + 1.0 / 512.0);
        assert_eq!(Products::Bf16 { block: 2 }.dot(&input, &weights), 2.0);
        assert_eq!(Products::Bf16 { block: 1 }.dot(&input, &weights), 2.0 + 1.0 / 512.0);
    }
}
