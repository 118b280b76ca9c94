//! Guesses by what followed the same tokens before, in the sequence itself and in earlier answers
//! of its scope.
//!
//! Memory: 8 to 16 bytes for each token of a running sequence, which its end gives back, and at
//! most 27 MB for earlier answers. A search looks at [`PLACES`](chains::PLACES) places of the
//! sequence and of each of the two generations of earlier answers and compares at most
//! [`LONGEST`](chains::LONGEST) tokens at each.

mod chains;
mod earlier;
mod own;

use super::Ask;
use crate::scope::Scope;
use earlier::Earlier;
use own::Own;

/// Where guesses were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupSource {
    /// In the sequence's own prompt and text.
    Own,
    /// In an earlier answer of the same scope.
    Earlier,
}

/// How guesses were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LookupHit {
    /// The texts in which they were found.
    pub(crate) source: LookupSource,
    /// The number of tokens before the guesses that were the same there: 2 to 64.
    pub(crate) length: usize,
}

/// The number of kinds of matches.
pub(crate) const KINDS: usize = 2 * LENGTHS.len();
/// The shortest lengths of the kinds of matches of a source. Guesses after a longer match are right
/// more often, and after a short one more often if it is in the same text.
const LENGTHS: [usize; 4] = [chains::LEAST, 3, 6, 12];

impl LookupHit {
    /// Returns the kind of match, below [`KINDS`]: by source and length. Guesses of different kinds
    /// are right in different shares of cases.
    pub(crate) fn kind(self) -> usize {
        let longer = LENGTHS[1..].iter().filter(|&&least| least <= self.length).count();
        let source = match self.source {
            LookupSource::Own => 0,
            LookupSource::Earlier => LENGTHS.len(),
        };
        source + longer
    }
}

/// Finds guesses for running sequences.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// The own text of each sequence, by slot.
    own: Vec<Own>,
    earlier: Earlier,
}

impl Lookup {
    /// Creates one for sequences in this many slots.
    pub(crate) fn new(slots: usize) -> Self {
        Self { own: (0..slots).map(|_| Own::default()).collect(), earlier: Earlier::default() }
    }

    /// Appends guesses of the tokens that follow, at most `ask.most`, which are those that followed
    /// the longest match. Returns how they were found; `None` if there are none.
    ///
    /// Takes time for the tokens that were added since the last call for this sequence.
    pub(crate) fn guess(&mut self, ask: &Ask<'_>, guesses: &mut Vec<u32>) -> Option<LookupHit> {
        let Ask { id, slot, scope, tokens, most, .. } = *ask;
        let own = self.own[slot].find(id, tokens);
        let earlier = self.earlier.find(scope, tokens, most);
        let own_length = own.map_or(0, |own| own.length);
        if let Some((length, following)) = earlier.filter(|(length, _)| *length > own_length) {
            guesses.extend_from_slice(following);
            return Some(LookupHit { source: LookupSource::Earlier, length });
        }
        let own = own?;
        own::follow(tokens, own.end, most, guesses);
        Some(LookupHit { source: LookupSource::Own, length: own.length })
    }

    /// Keeps an answer for later sequences of its scope: the tokens from index `answer` on, and a
    /// few of the prompt before it.
    pub(crate) fn learn(&mut self, scope: Scope, tokens: &[u32], answer: usize) {
        self.earlier.learn(scope, tokens, answer);
    }

    /// Gives back the memory of a slot whose sequence has ended.
    pub(crate) fn end(&mut self, slot: usize) {
        self.own[slot] = Own::default();
    }
}

#[cfg(test)]
mod tests;
