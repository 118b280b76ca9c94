//! Quantisation for any processor.

use super::block::{BLOCK, QuantizedBlock, scale_of};

/// Quantises whole blocks.
pub(super) fn quantize_blocks(input: &[[f32; BLOCK]], output: &mut [QuantizedBlock]) {
    for (values, block) in input.iter().zip(output) {
        // Comparing the bits of magnitudes orders NaN above infinity above every number.
        let largest = values.iter().map(|value| value.abs().to_bits()).max().unwrap_or(0);
        let (scale, inverse) = scale_of(f32::from_bits(largest));
        let mut codes = [0_i8; BLOCK];
        for (code, value) in codes.iter_mut().zip(values) {
            // A NaN inverse gives NaN, which casts to zero.
            *code = (value * inverse).round_ties_even() as i8;
        }
        let sum = |codes: &[i8]| codes.iter().map(|&code| i32::from(code)).sum::<i32>();
        let (low, all) = (sum(&codes[..16]), sum(&codes));
        *block = QuantizedBlock {
            codes,
            scale,
            scaled_sum: scale * all as f32,
            scaled_low_sum: scale * low as f32,
            minus_eight_sums: -8 * all,
        };
    }
}

/// Computes what the blocks leave of a row.
#[inline(always)]
pub(super) fn subtract_blocks(row: &[f32], blocks: &[QuantizedBlock], output: &mut [f32]) {
    for ((values, rest), block) in row.chunks(BLOCK).zip(output.chunks_mut(BLOCK)).zip(blocks) {
        for ((rest, value), &code) in rest.iter_mut().zip(values).zip(&block.codes) {
            *rest = value - block.scale * f32::from(code);
        }
    }
}
