//! A step between its submission and its consequences.

use std::time::Duration;

use trine_backend::InFlight;

use crate::events::Finish;
use crate::scheduler::Pick;

/// A step that was submitted and not waited for.
pub(super) struct Flight {
    pub(super) step: InFlight,
    pub(super) picks: Vec<Pick>,
    /// The output of the Plan that it computes.
    pub(super) goal: usize,
    /// Whether all its sequences can do with the largest logits.
    pub(super) takes_top: bool,
    /// When it was submitted.
    pub(super) since: Duration,
}

/// What a step means for a sequence that took part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It has rows of its prompt left.
    Unfinished,
    /// It has one more token.
    Goes,
    /// Its prompt was run, and that was all.
    Filled,
    /// It has ended.
    Ended(Finish),
}

impl Outcome {
    /// Whether a token was sampled.
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
