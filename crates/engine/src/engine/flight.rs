//! A step from its submission to its outcome.

use std::time::Duration;

use trine_backend::InFlight;

use crate::events::Finish;
use crate::scheduler::Pick;

/// A step that was submitted and not yet waited for.
pub(super) struct Flight {
    pub(super) step: InFlight,
    pub(super) picks: Vec<Pick>,
    /// The output of the Plan that it computes.
    pub(super) goal: usize,
    /// Whether the largest logits are enough for all its sequences.
    pub(super) takes_top: bool,
    /// When it was submitted.
    pub(super) since: Duration,
}

/// The outcome of a step for a sequence that took part in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Rows of its prompt are left.
    Unfinished,
    /// It has one more token and goes on.
    Goes,
    /// Its prompt was run, and nothing else was wanted.
    Filled,
    /// It has ended.
    Ended(Finish),
}

impl Outcome {
    /// Returns whether a token was sampled.
    pub(super) fn sampled(self) -> bool {
        match self {
            Outcome::Goes => true,
            Outcome::Unfinished | Outcome::Filled => false,
            Outcome::Ended(finish) => {
                matches!(finish, Finish::Stop | Finish::Length | Finish::Context)
            }
        }
    }
}
