//! Guesses from the sequence's own prompt and text.

use super::chains::{Chains, LEAST, Match, common_end, hash};
use crate::events::SequenceId;

/// The places of one sequence's tokens.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The sequence; `None` before the first.
    id: Option<SequenceId>,
    chains: Chains,
}

impl Own {
    /// Returns the place where the longest end of the tokens occurred before. Takes note of tokens
    /// that were added since the last call.
    pub(super) fn find(&mut self, id: SequenceId, tokens: &[u32]) -> Option<Match> {
        // Each place has a token that follows, so that the end of the tokens is none.
        let places = tokens.len().saturating_sub(LEAST);
        if self.id != Some(id) || self.chains.len() > places {
            self.chains.clear();
            self.id = Some(id);
        }
        self.chains.extend(places, |place| Some(hash(0, &tokens[place..place + LEAST])));
        let end = tokens.last_chunk::<LEAST>()?;
        self.chains.longest(hash(0, end), |place| common_end(&tokens[..place + LEAST], tokens))
    }

    #[cfg(test)]
    pub(super) fn chains(&self) -> &Chains {
        &self.chains
    }
}

/// Appends `most` tokens that follow `end` to `guesses`. Where the tokens end, the guesses go on:
/// what repeats is repeated.
pub(super) fn follow(tokens: &[u32], end: usize, most: usize, guesses: &mut Vec<u32>) {
    let first = guesses.len();
    for at in end..end + most {
        let guess = tokens.get(at).copied().unwrap_or_else(|| guesses[first + at - tokens.len()]);
        guesses.push(guess);
    }
}
