//! Activations in one or two 8-bit terms.
//!
//! A product with a quantised matrix takes its input as 8-bit blocks. One term has a relative error of about 0.5 %, which
//! is what llama.cpp works with too. A second term, the quantised residual of the first, brings it to about 2e-5. It
//! doubles the integer arithmetic but not the weights read, and for few rows those are what takes the time; so
//! [`TWO_TERM_ROWS`] rows or fewer get two terms. That keeps generation, short prompts and the verification of drafts
//! at the accuracy of the weights, and the same for every number of rows up to there.

use crate::isa::Isa;
use crate::quantize::{QuantizedBlock, quantize_row, subtract_blocks};

/// Most rows of a product whose activations have two terms.
pub(super) const TWO_TERM_ROWS: usize = 64;

/// Terms of the activations in a product of `rows` rows.
pub(super) fn terms(rows: usize) -> usize {
    if rows <= TWO_TERM_ROWS { 2 } else { 1 }
}

/// Most terms that any product of at most `rows` rows needs: what memory is reserved for.
pub(super) fn terms_of_all_rows(rows: usize) -> usize {
    rows.max(2 * rows.min(TWO_TERM_ROWS))
}

/// Quantises a run of whole blocks of a row into one term or two. `second` is empty where there is one term;
/// `residual` is working memory of at least the run's length.
pub(super) fn quantize_terms(
    isa: Isa,
    run: &[f32],
    residual: &mut [f32],
    first: &mut [QuantizedBlock],
    second: &mut [QuantizedBlock],
) {
    quantize_row(isa, run, first);
    if !second.is_empty() {
        let residual = &mut residual[..run.len()];
        subtract_blocks(isa, run, first, residual);
        quantize_row(isa, residual, second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::QuantizedRows;

    fn largest_error(row: &[f32], blocks: &[QuantizedBlock]) -> f32 {
        let per_row = QuantizedRows::blocks_per_row(row.len());
        let value = |index: usize| -> f32 {
            let term = |term: &[QuantizedBlock]| term[index / 32].value(index % 32);
            blocks.chunks(per_row).map(term).sum()
        };
        row.iter().enumerate().map(|(index, x)| (x - value(index)).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn the_second_term_takes_up_what_the_first_leaves() {
        let row: Vec<f32> = (0..77).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let per_row = QuantizedRows::blocks_per_row(row.len());
        let mut residual = vec![f32::NAN; 80];
        let mut one = vec![QuantizedBlock::default(); per_row];
        let mut two = vec![QuantizedBlock::default(); 2 * per_row];
        quantize_terms(Isa::detect(), &row, &mut residual, &mut one, &mut []);
        let (first, second) = two.split_at_mut(per_row);
        quantize_terms(Isa::detect(), &row, &mut residual, first, second);
        let (coarse, fine) = (largest_error(&row, &one), largest_error(&row, &two));
        assert!(coarse > 0.01 && coarse <= 18.5 / 254.0 * 1.001, "{coarse}");
        assert!(fine <= coarse / 200.0, "{fine} against {coarse}");
    }

    #[test]
    fn broken_activations_stay_broken() {
        for poison in [f32::NAN, f32::INFINITY] {
            let [mut first, mut second] = [[QuantizedBlock::default(); 1]; 2];
            let row = [1.0, poison, 2.0];
            quantize_terms(Isa::detect(), &row, &mut [0.0; 3], &mut first, &mut second);
            assert!(first[0].scale.is_nan());
        }
    }

    #[test]
    fn memory_covers_every_number_of_rows() {
        for rows in 1..200 {
            let needed = (1..=rows).map(|rows| terms(rows) * rows).max();
            assert_eq!(Some(terms_of_all_rows(rows)), needed);
        }
    }
}
