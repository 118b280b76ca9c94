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

    /// Returns whether a sequence whose prompt has the precision `prompt`, and whose first `common`
    /// tokens are those of this one, may use these positions.
    ///
    /// Prompts of the same precision may. Others may only use a sequence beyond its prompt, as the
    /// long prompt of a chat does that repeats a short prompt and the answer to it: those positions
    /// are more exact than its own rows would be.
    pub(super) fn serves(self, prompt: Precision, common: usize) -> bool {
        self.precision == prompt || common > self.other_from
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

    #[test]
    fn prompts_of_one_precision_share_any_beginning() {
        for tokens in [BULK_ROWS, LONG] {
            assert!(Computed::with_prompt(tokens).serves(Precision::of_prompt(tokens), 1));
        }
    }

    #[test]
    fn a_long_prompt_uses_a_short_one_only_with_its_answer() {
        let short = Computed::with_prompt(20);
        assert!(!short.serves(Precision::Bulk, 20));
        assert!(short.serves(Precision::Bulk, 21));
    }

    #[test]
    fn restored_positions_serve_no_other_prompt_that_the_sequence_itself_would_not() {
        // The prompt may have had any length up to the limit.
        let exact = Computed::restored(Precision::Exact, 4 * BULK_ROWS);
        assert!(exact.serves(Precision::Exact, 1));
        assert!(!exact.serves(Precision::Bulk, BULK_ROWS));
        assert!(exact.serves(Precision::Bulk, LONG));
        // A piece of a short prompt has no answer.
        let piece = Computed::restored(Precision::Exact, BULK_ROWS / 2);
        assert!(!piece.serves(Precision::Bulk, BULK_ROWS / 2));
        // All of it may be the prompt.
        let bulk = Computed::restored(Precision::Bulk, 4 * BULK_ROWS);
        assert!(bulk.serves(Precision::Bulk, 1));
        assert!(!bulk.serves(Precision::Exact, 4 * BULK_ROWS));
    }
}
