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

use crate::isa::Isa;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "AVX2 intrinsics")]
mod avx2;
mod block;
mod portable;

pub use block::{BLOCK, QuantizedBlock};

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
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => avx2::subtract_blocks(row, blocks, output),
        _ => portable::subtract_blocks(row, blocks, output),
    }
}

fn quantize_blocks(isa: Isa, input: &[[f32; BLOCK]], output: &mut [QuantizedBlock]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => avx2::quantize_blocks(input, output),
        _ => portable::quantize_blocks(input, output),
    }
}

#[cfg(test)]
mod tests;
