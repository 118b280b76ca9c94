//! The kinds of guesses, whose acceptance is kept apart.

use super::depth::acceptance::{Acceptance, Average};
use super::lookup;

/// The number of kinds: those of [`Lookup`](lookup::Lookup), then a model's.
const KINDS: usize = lookup::KINDS + 1;
/// The kind of a model's guesses.
pub(crate) const MODEL: usize = lookup::KINDS;

/// Where a sequence's guesses in a step come from, and what for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DraftOrigin {
    pub(crate) kind: usize,
    /// Whether they only look whether guessing pays.
    pub(crate) is_look: bool,
    /// Whether the guess after them is missing, or the first if there are none: the text cannot
    /// have it there, or its drafter had none. It counts as wrong.
    pub(crate) is_cut: bool,
}

/// How often guesses for a sequence were right, by kind; `None` before the first.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Acceptances([Option<Acceptance>; KINDS]);

/// How often guesses for all sequences were right, by kind: where new sequences start.
#[derive(Debug, Default)]
pub(crate) struct Averages([Average; KINDS]);

impl Acceptances {
    /// Returns the expected share of right guesses of a kind.
    pub(crate) fn rate(&self, kind: usize, averages: &Averages) -> f64 {
        self.0[kind].unwrap_or_else(|| averages.0[kind].start()).rate()
    }

    /// Takes note of guesses that were compared with the text, of which the first `confirmed` were
    /// right.
    pub(crate) fn note(
        &mut self,
        kind: usize,
        averages: &mut Averages,
        compared: usize,
        confirmed: usize,
    ) {
        let start = averages.0[kind].start();
        averages.0[kind].note(compared, confirmed);
        self.0[kind].get_or_insert(start).note(compared, confirmed);
    }
}
