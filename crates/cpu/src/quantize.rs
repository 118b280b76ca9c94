//! Activations as 8-bit blocks, the form in which quantised weights are multiplied with them.
//!
//! A row of floats is cut into blocks of 32. Block `b` becomes `x[i] ~ scale * code[i]`,
//! `scale = max|x| / 127`, `code = round(x / scale)` (ties to even), so every code lies in
//! -127..=127 and the error of an element is at most half a scale. A block also holds the sums of
//! its codes, because a weight format with an offset or a minimum needs them once per block instead
//! of once per weight.
//!
//! A block that holds an infinity or a NaN gets a NaN scale, and so every product with it is NaN:
//! a broken activation is never hidden. A block below 1e-30 becomes zero.

use bytemuck::{Pod, Zeroable};

use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "AVX2 intrinsics")]
mod avx2;

/// Elements per block.
pub const BLOCK: usize = 32;

/// The largest magnitude that counts as zero; its reciprocal still fits a float.
const TINY: f32 = 1e-30;

/// 32 quantised activations.
#[repr(C, align(16))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Pod, Zeroable)]
pub struct QuantizedBlock {
    /// The codes, -127..=127.
    pub codes: [i8; BLOCK],
    /// The value of one code step.
    pub scale: f32,
    /// `scale` times the sum of all codes.
    pub scaled_sum: f32,
    /// `scale` times the sum of the first 16 codes.
    pub scaled_low_sum: f32,
    /// -8 times the sum of all codes: the contribution of the offset of a 4-bit weight code.
    pub minus_eight_sums: i32,
}

impl QuantizedBlock {
    /// Returns the value of element `index` (0..32).
    pub fn value(&self, index: usize) -> f32 {
        f32::from(self.codes[index]) * self.scale
    }
}

/// Quantised rows in the caller's memory, row after row. Each row has
/// [`blocks_per_row`](QuantizedRows::blocks_per_row) blocks, the last one filled up with zeros.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRows<'a> {
    blocks: &'a [QuantizedBlock],
    columns: usize,
}

impl<'a> QuantizedRows<'a> {
    /// Views `blocks` as rows of `columns` elements.
    ///
    /// # Panics
    ///
    /// Panics if `columns` is zero or `blocks` is not whole rows.
    pub fn new(blocks: &'a [QuantizedBlock], columns: usize) -> Self {
        assert!(columns > 0, "a row needs elements");
        let per_row = Self::blocks_per_row(columns);
        assert!(
            blocks.len().is_multiple_of(per_row),
            "{} blocks are not whole rows of {per_row}",
            blocks.len()
        );
        QuantizedRows { blocks, columns }
    }

    /// The number of blocks of a row of `columns` elements.
    pub fn blocks_per_row(columns: usize) -> usize {
        columns.div_ceil(BLOCK)
    }

    /// Elements per row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.blocks.len() / Self::blocks_per_row(self.columns)
    }

    /// All blocks, row after row.
    pub fn blocks(&self) -> &'a [QuantizedBlock] {
        self.blocks
    }
}

/// Quantises one row of floats into `blocks_per_row(row.len())` blocks.
///
/// # Panics
///
/// Panics if `output` has another length.
pub fn quantize_row(isa: Isa, row: &[f32], output: &mut [QuantizedBlock]) {
    let needed = QuantizedRows::blocks_per_row(row.len());
    assert_eq!(output.len(), needed, "a row of {} floats needs {needed} blocks", row.len());
    let (whole, tail) = row.as_chunks::<BLOCK>();
    quantize_blocks(isa, whole, &mut output[..whole.len()]);
    if !tail.is_empty() {
        let mut padded = [0.0; BLOCK];
        padded[..tail.len()].copy_from_slice(tail);
        quantize_blocks(isa, &[padded], &mut output[whole.len()..]);
    }
}

/// Quantises `output.len() / blocks_per_row(columns)` rows that start `stride` floats apart.
///
/// # Panics
///
/// Panics if `input` is too short or `output` is not whole rows.
pub fn quantize_rows(
    isa: Isa,
    input: &[f32],
    columns: usize,
    stride: usize,
    output: &mut [QuantizedBlock],
) {
    let per_row = QuantizedRows::blocks_per_row(columns).max(1);
    assert!(output.len().is_multiple_of(per_row), "the output is not whole rows");
    for (index, row) in output.chunks_exact_mut(per_row).enumerate() {
        quantize_row(isa, &input[index * stride..][..columns], row);
    }
}

/// Computes what the blocks leave of a row: `output[i] = row[i] - blocks[i]`.
///
/// # Panics
///
/// Panics if the lengths do not fit each other.
pub fn subtract_blocks(isa: Isa, row: &[f32], blocks: &[QuantizedBlock], output: &mut [f32]) {
    assert_eq!(blocks.len(), QuantizedRows::blocks_per_row(row.len()), "blocks of the row");
    assert_eq!(output.len(), row.len(), "one result for each element");
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512Vnni => avx2::subtract_blocks(row, blocks, output),
        _ => subtract_portable(row, blocks, output),
    }
}

#[inline(always)]
fn subtract_portable(row: &[f32], blocks: &[QuantizedBlock], output: &mut [f32]) {
    for ((values, rest), block) in row.chunks(BLOCK).zip(output.chunks_mut(BLOCK)).zip(blocks) {
        for ((rest, value), &code) in rest.iter_mut().zip(values).zip(&block.codes) {
            *rest = value - block.scale * f32::from(code);
        }
    }
}

fn quantize_blocks(isa: Isa, input: &[[f32; BLOCK]], output: &mut [QuantizedBlock]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512Vnni => avx2::quantize_blocks(input, output),
        _ => quantize_portable(input, output),
    }
}

fn quantize_portable(input: &[[f32; BLOCK]], output: &mut [QuantizedBlock]) {
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

/// Returns the scale and its inverse for a block whose largest magnitude is `largest`.
#[inline]
fn scale_of(largest: f32) -> (f32, f32) {
    if largest < TINY {
        (0.0, 0.0)
    } else if largest.is_finite() {
        (largest / 127.0, 127.0 / largest)
    } else {
        (f32::NAN, 0.0)
    }
}

#[cfg(test)]
mod tests;
