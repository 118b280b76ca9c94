//! Guesses from earlier answers of the same scope.

use super::chains::{Chains, LEAST, Match, common_end, hash};
use crate::scope::Scope;

/// The most tokens in a generation of texts.
pub(super) const GENERATION: usize = 1 << 18;
/// The tokens of a prompt that are kept with its answer, so that its first tokens can be guessed.
pub(super) const CONTEXT: usize = 16;

/// Earlier answers, in two generations: when the younger one is full, the older one is forgotten
/// and the younger one takes its place.
///
/// A generation of [`GENERATION`] tokens takes 12 bytes a token and 40 a text, which has at least
/// three tokens: at most 6.7 MB, and 3.3 MB with answers of a hundred tokens. Lists that grow may
/// take up to twice as much.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    younger: Generation,
    older: Generation,
}

impl Earlier {
    /// Keeps a text whose tokens from `answer` on are an answer.
    pub(super) fn learn(&mut self, scope: Scope, tokens: &[u32], answer: usize) {
        let Some(length) = tokens.len().checked_sub(answer).filter(|&length| length > 0) else {
            return;
        };
        let length = (length + answer.min(CONTEXT)).min(GENERATION);
        let text = &tokens[tokens.len() - length..];
        if text.len() <= LEAST {
            return;
        }
        if self.younger.tokens.len() + text.len() > GENERATION {
            std::mem::swap(&mut self.younger, &mut self.older);
            self.younger.clear();
        }
        self.younger.learn(scope, text);
    }

    /// Returns the tokens that followed the longest end of `tokens` in a text of this scope, at
    /// most `most` and at least one, and the length of the match.
    pub(super) fn find(
        &self,
        scope: Scope,
        tokens: &[u32],
        most: usize,
    ) -> Option<(usize, &[u32])> {
        let found = |generation: &Generation| generation.find(scope, tokens);
        let younger = found(&self.younger).map(|found| (&self.younger, found));
        let older = found(&self.older).map(|found| (&self.older, found));
        let (generation, Match { end, length }) = match (younger, older) {
            (Some(younger), Some(older)) if older.1.length > younger.1.length => older,
            (younger, older) => younger.or(older)?,
        };
        let text_end = generation.end_of_text(end - 1);
        Some((length, &generation.tokens[end..text_end.min(end.saturating_add(most))]))
    }
}

/// A text in a generation.
#[derive(Debug)]
struct Text {
    /// Its first token.
    from: usize,
    /// The requests that may see it.
    scope: Scope,
}

/// Texts one after the other.
#[derive(Debug, Default)]
struct Generation {
    tokens: Vec<u32>,
    texts: Vec<Text>,
    chains: Chains,
}

impl Generation {
    fn clear(&mut self) {
        self.tokens.clear();
        self.texts.clear();
        self.chains.clear();
    }

    fn learn(&mut self, scope: Scope, text: &[u32]) {
        self.texts.push(Text { from: self.tokens.len(), scope });
        self.tokens.extend_from_slice(text);
        let mut chains = std::mem::take(&mut self.chains);
        chains.extend(self.tokens.len(), |place| self.hash_at(place));
        self.chains = chains;
    }

    /// Returns the hash of what stands at a place; `None` if nothing follows it in its text.
    fn hash_at(&self, place: usize) -> Option<u64> {
        let follows = place + LEAST < self.end_of_text(place);
        follows.then(|| hash(seed(self.text(place).scope), &self.tokens[place..place + LEAST]))
    }

    fn find(&self, scope: Scope, tokens: &[u32]) -> Option<Match> {
        let hash = hash(seed(scope), tokens.last_chunk::<LEAST>()?);
        self.chains.longest(hash, |place| {
            // Hashes of different scopes may be equal.
            let text = self.text(place);
            let is_visible = text.scope == scope;
            if is_visible { common_end(&self.tokens[text.from..place + LEAST], tokens) } else { 0 }
        })
    }

    /// Returns the text that a token belongs to.
    fn text(&self, at: usize) -> &Text {
        &self.texts[self.texts.partition_point(|text| text.from <= at) - 1]
    }

    /// Returns the end of the text that a token belongs to.
    fn end_of_text(&self, at: usize) -> usize {
        let next = self.texts.partition_point(|text| text.from <= at);
        self.texts.get(next).map_or(self.tokens.len(), |text| text.from)
    }
}

/// Returns the beginning of the hashes of a scope.
fn seed(scope: Scope) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *scope.bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
