//! Guesses of the next tokens of running sequences, and how many of them a step verifies. Pure: no
//! clock, no thread, no device. [Decision 034](../../../docs/decisions/034-drafts.md) says why
//! guesses are only tokens.

pub(crate) mod depth;
pub(crate) mod lookup;

use crate::events::SequenceId;
use crate::scope::Scope;

/// A running sequence whose next tokens are to be guessed.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Its identifier, which no other request has. Its tokens only ever grow.
    pub id: SequenceId,
    /// Where it keeps its cache in the model that is drafted for: no two asks of a step share one.
    /// Below the number of slots.
    pub slot: usize,
    /// The requests that may learn from it.
    pub scope: Scope,
    /// Prompt and answer so far, at least one token.
    pub tokens: &'a [u32],
    /// The most guesses wanted, at least one.
    pub most: usize,
}
