//! Activations in one or two 8-bit terms.
//!
//! A product with a quantised matrix takes its input as 8-bit blocks. One term has a relative error
//! of about 0.5 %, the same that llama.cpp works with. A second term, the quantised residual of the
//! first, reduces it to about 2e-5. It doubles the integer arithmetic but not the weights read, and
//! for few rows reading the weights takes most of the time. So the rows of long prompts
//! ([`Batch::bulk_from`]) get one term, and all others two: generation, short prompts and the
//! verification of drafts have the accuracy of the weights. Rows that give logits get two terms in
//! the product that computes the logits.

use std::ops::Range;

use trine_backend::Batch;
use trine_model::Rows;

use crate::isa::Isa;
use crate::quantize::{QuantizedBlock, QuantizedRows, quantize_row, subtract_blocks};

/// The most rows with two terms that are multiplied together.
pub(super) const TWO_TERM_ROWS: usize = 64;

/// The rows of a product's input: those with two terms, then those with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InputRows {
    /// The number of all rows.
    pub(super) rows: usize,
    /// The number of rows with two terms.
    pub(super) fine: usize,
}

impl InputRows {
    /// Returns the input rows of a batch for a buffer with one row for each of `kind`.
    pub(super) fn of(batch: &Batch<'_>, kind: Rows) -> Self {
        let rows = batch.rows(kind);
        let fine = match kind {
            Rows::Tokens => batch.bulk_from.min(rows),
            Rows::Outputs | Rows::Soft => rows,
        };
        Self { rows, fine }
    }

    /// Returns the rows with one term.
    pub(super) fn bulk(self) -> Range<usize> {
        self.fine..self.rows
    }

    /// Returns only the rows with two terms.
    pub(super) fn without_bulk(self) -> Self {
        Self { rows: self.fine, fine: self.fine }
    }

    /// The number of terms of a row.
    pub(super) fn terms(self, row: usize) -> usize {
        if row < self.fine { 2 } else { 1 }
    }

    /// The number of terms of all rows before `row`. The terms of a row are adjacent, row after
    /// row.
    pub(super) fn terms_before(self, row: usize) -> usize {
        row + row.min(self.fine)
    }

    /// Returns the rows in groups that are multiplied together, each group with its number of
    /// terms.
    pub(super) fn groups(self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let Self { rows, fine } = self;
        let fine_groups = (0..fine)
            .step_by(TWO_TERM_ROWS)
            .map(move |start| (start..(start + TWO_TERM_ROWS).min(fine), 2));
        fine_groups.chain((fine < rows).then_some((fine..rows, 1)))
    }

    /// Returns the range of a group's blocks among those of all rows, with `columns` values in a
    /// row.
    pub(super) fn blocks_of(self, group: &Range<usize>, columns: usize) -> Range<usize> {
        let per_row = QuantizedRows::blocks_per_row(columns);
        self.terms_before(group.start) * per_row..self.terms_before(group.end) * per_row
    }
}

/// Quantises a run of whole blocks of a row into one or two terms. `second` is empty if there is
/// one term; `residual` is working memory of at least the run's length.
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
    fn groups_cover_each_row_once_and_its_terms() {
        for (rows, fine) in [(1, 1), (5, 0), (64, 64), (65, 65), (200, 3), (200, 130), (7, 7)] {
            let input = InputRows { rows, fine };
            let (mut next, mut block) = (0, 0);
            for (group, terms) in input.groups() {
                assert!(group.start == next && !group.is_empty());
                assert!(terms == 1 || group.len() <= TWO_TERM_ROWS);
                assert!(group.clone().all(|row| input.terms(row) == terms));
                let blocks = input.blocks_of(&group, 33);
                assert_eq!((blocks.start, blocks.len()), (block, 2 * terms * group.len()));
                (next, block) = (group.end, blocks.end);
            }
            assert_eq!((next, block), (rows, 2 * (rows + fine)));
        }
    }
}
