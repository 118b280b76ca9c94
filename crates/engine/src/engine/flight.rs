//! A step from its submission to its outcome.

use std::time::Duration;

use trine_backend::InFlight;
use trine_model::Goal;

use crate::drafts::kinds::DraftOrigin;
use crate::events::Finish;
use crate::scheduler::Pick;
use crate::sharing::Beginning;

/// A step that was submitted and not yet waited for.
pub(super) struct Flight {
    pub(super) step: InFlight,
    pub(super) picks: Vec<Pick>,
    /// The output of the Plan that it computes.
    pub(super) goal: Goal,
    pub(super) times: Times,
}

impl Flight {
    /// Returns whether nobody reads results of it.
    pub(super) fn is_silent(&self) -> bool {
        self.goal == Goal::Main && self.picks.iter().all(|pick| pick.outputs == 0)
    }
}

/// What is known of a step's time before it has landed.
pub(super) struct Times {
    /// When it was submitted.
    pub(super) since: Duration,
    /// The seconds in which a drafter guessed for it before.
    pub(super) drafting: f64,
    /// The seconds in which a drafter guessed for others while it was the oldest in flight.
    pub(super) overlapped: f64,
    /// The beginning of what the device's partner does, if it has one.
    pub(super) beginning: Option<Beginning>,
}

/// The outcome of a step for a sequence that took part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// Rows of its prompt are left.
    Unfinished,
    /// The sequence has one more token and goes on.
    Goes,
    /// Its last row is run again: its constraint was not ready.
    Late,
    /// Its prompt was run, and nothing else was wanted.
    Filled,
    /// The sequence has ended.
    Ended(Finish),
}

impl StepOutcome {
    /// Returns whether the sequence ends with it.
    pub(super) fn is_end(self) -> bool {
        matches!(self, StepOutcome::Filled | StepOutcome::Ended(_))
    }
}

/// What a step gave one of its sequences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landed {
    pub(super) outcome: StepOutcome,
    /// The sequence's positions in the cache before the step.
    pub(super) context: usize,
    /// Tokens that were sampled.
    pub(super) sampled: usize,
    /// Guesses that were verified.
    pub(super) guessed: usize,
    /// Guesses that were right.
    pub(super) confirmed: usize,
    /// Where the guesses come from.
    pub(super) origin: DraftOrigin,
}

impl Landed {
    /// Describes rows that gave no tokens.
    pub(super) fn without_tokens(outcome: StepOutcome, context: usize) -> Self {
        let origin = DraftOrigin::default();
        Self { outcome, context, sampled: 0, guessed: 0, confirmed: 0, origin }
    }
}
