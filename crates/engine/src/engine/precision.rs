//! How exactly the rows of a sequence are computed, and what sequences may therefore share.
//!
//! A device may compute the rows of a long prompt less exactly than all others
//! (`docs/decisions/001-two-term-activations.md`). A prompt takes from the cache what its own rows
//! would have produced, so that an answer does not depend on what the cache holds.

use trine_backend::BULK_ROWS;

/// How exactly a row is computed. [`Precision::Exact`] sorts first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precision {
    /// As exactly as the device can: generated tokens and short prompts.
    Exact,
    /// As a [bulk row](trine_backend::Batch::bulk_from): prompts of more than [`BULK_ROWS`] tokens.
    Bulk,
}

impl Precision {
    /// Returns the precision of the rows of a prompt with this number of tokens.
    pub(super) fn of_prompt(tokens: usize) -> Self {
        if tokens > BULK_ROWS { Precision::Bulk } else { Precision::Exact }
    }

    /// Returns whether these are bulk rows.
    pub(super) fn is_bulk(self) -> bool {
        self == Precision::Bulk
    }
}

/// How the positions of one sequence were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Computed {
    /// The precision of the prompt.
    precision: Precision,
    /// The number of leading positions that were computed with `precision` because they are those
    /// of the prompt. The answer follows, which is exact.
    other_from: usize,
}

impl Computed {
    /// Describes a sequence by the number of tokens in its prompt.
    pub(super) fn with_prompt(tokens: usize) -> Self {
        Self { precision: Precision::of_prompt(tokens), other_from: tokens }
    }

    /// Describes a text of any length whose vector has to be as exact as that of a short one.
    pub(super) fn exact(tokens: usize) -> Self {
        Self { precision: Precision::Exact, other_from: tokens }
    }

    /// Describes a sequence of `length` positions that a store returned. The pages tell the
    /// precision of the prompt but not its length: an exact prompt has at most [`BULK_ROWS`]
    /// tokens, a bulk one may go on to the end.
    pub(super) fn restored(precision: Precision, length: usize) -> Self {
        let other_from = match precision {
            Precision::Exact => length.min(BULK_ROWS),
            Precision::Bulk => length,
        };
        Self { precision, other_from }
    }

    /// Returns the precision of the prompt.
    pub(super) fn of_prompt(self) -> Precision {
        self.precision
    }

    /// Returns the precision of a position.
    pub(super) fn at(self, position: usize) -> Precision {
        if position < self.other_from { self.precision } else { Precision::Exact }
    }

    /// Returns the first position from which on all are exact.
    fn exact_from(self) -> usize {
        match self.precision {
            Precision::Exact => 0,
            Precision::Bulk => self.other_from,
        }
    }

    /// Returns how many of these positions a sequence may use that is computed as `asking` and
    /// whose first `common` tokens are the same.
    ///
    /// No sequence uses a position that is less exact than its own row would be. A prompt uses rows
    /// of its own precision, with one exception: a long prompt may use a short prompt with a part
    /// of the answer, as a chat does when it goes on. Those rows are more exact than its own.
    pub(super) fn serves(self, asking: Computed, common: usize) -> usize {
        let bulk = asking.exact_from()..self.exact_from();
        let usable = if bulk.is_empty() { common } else { common.min(bulk.start) };
        let is_short_prompt = self.precision < asking.precision && usable <= self.other_from;
        if is_short_prompt { 0 } else { usable }
    }
}

impl Default for Computed {
    /// Describes a sequence without positions.
    fn default() -> Self {
        Self::with_prompt(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = BULK_ROWS + 1;

    #[test]
    fn prompts_beyond_the_limit_have_bulk_rows() {
        assert_eq!(Precision::of_prompt(BULK_ROWS), Precision::Exact);
        assert_eq!(Precision::of_prompt(LONG), Precision::Bulk);
        assert!(Precision::Bulk.is_bulk() && !Precision::Exact.is_bulk());
    }

    #[test]
    fn answers_are_exact() {
        let long = Computed::with_prompt(LONG);
        assert_eq!((long.at(LONG - 1), long.at(LONG)), (Precision::Bulk, Precision::Exact));
        let short = Computed::with_prompt(BULK_ROWS);
        assert_eq!((short.at(0), short.at(BULK_ROWS)), (Precision::Exact, Precision::Exact));
    }

    /// How many of `common` positions of one sequence another may use.
    #[track_caller]
    fn check(from: Computed, asking: Computed, common: usize, usable: usize) {
        assert_eq!(from.serves(asking, common), usable);
    }

    #[test]
    fn prompts_of_one_precision_share_any_beginning() {
        for tokens in [BULK_ROWS, LONG] {
            let other = Computed::with_prompt(tokens + 100 * (tokens / LONG));
            check(Computed::with_prompt(tokens), other, 1, 1);
            check(other, Computed::with_prompt(tokens), 1, 1);
        }
    }

    #[test]
    fn a_long_prompt_uses_a_short_one_only_with_its_answer() {
        let (short, long) = (Computed::with_prompt(20), Computed::with_prompt(LONG));
        check(short, long, 20, 0);
        check(short, long, 21, 21);
    }

    #[test]
    fn generated_rows_are_never_replaced_by_bulk_rows() {
        // Sequences that lost their memory after a part of the answer, which another prompt
        // repeats.
        let other = Computed::with_prompt(4 * LONG);
        check(other, Computed::with_prompt(20), 3 * LONG, 0);
        check(other, Computed::with_prompt(20), 5 * LONG, 0);
        check(other, Computed::with_prompt(LONG), 3 * LONG, LONG);
        check(other, Computed::with_prompt(LONG), LONG - 1, LONG - 1);
        // The answer of a shorter prompt is as exact as the prompt that repeats it, or more.
        check(Computed::with_prompt(LONG), other, 3 * LONG, 3 * LONG);
    }

    #[test]
    fn restored_positions_serve_no_other_prompt_that_the_sequence_itself_would_not() {
        let (short, long) = (Computed::with_prompt(20), Computed::with_prompt(2 * LONG));
        // The prompt may have had any length up to the limit.
        let exact = Computed::restored(Precision::Exact, 4 * BULK_ROWS);
        check(exact, short, 1, 1);
        check(exact, long, BULK_ROWS, 0);
        check(exact, long, LONG, LONG);
        // A piece of a short prompt has no answer.
        let piece = Computed::restored(Precision::Exact, BULK_ROWS / 2);
        check(piece, long, BULK_ROWS / 2, 0);
        // All of it may be the prompt.
        let bulk = Computed::restored(Precision::Bulk, 4 * LONG);
        check(bulk, long, 1, 1);
        check(bulk, long, 4 * LONG, 2 * LONG);
        check(bulk, short, 4 * LONG, 0);
    }
}
