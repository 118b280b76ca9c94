//! Follows one reply through a grammar.

use std::sync::Arc;

use super::budget::Budget;
use super::error::GrammarError;
use super::library::{failed, guarded, has_stopped};
use super::marks::CallMarks;
use super::numbers::Numbers;
use super::scout::Scout;

/// Classes of tokens, apart from the trie.
pub(super) struct Tables {
    /// One bit for each token of text.
    pub(super) plain: Vec<u32>,
    /// One bit for each token that a grammar may name: those of text, and marks of its own.
    pub(super) text: Vec<u32>,
    /// Tokens that end a reply, ascending.
    pub(super) ends: Vec<u32>,
    /// Tokens of text with a digit.
    pub(super) digits: Arc<[u32]>,
}

impl Tables {
    /// Returns the same with the marks of calls as tokens that a grammar may name.
    ///
    /// # Errors
    /// [`GrammarError::Tokenizer`] if the vocabulary is smaller.
    pub(super) fn with_marks(&self, marks: CallMarks) -> Result<Self, GrammarError> {
        let (mut text, ends) = (self.text.clone(), self.ends.clone());
        for mark in marks.all() {
            let word = text.get_mut(mark as usize / 32);
            let word = word.ok_or_else(|| {
                GrammarError::Tokenizer(format!("it has no token {mark} for calls"))
            })?;
            *word |= 1 << (mark % 32);
        }
        let (plain, digits) = (self.plain.clone(), Arc::clone(&self.digits));
        Ok(Self { plain, text, ends, digits })
    }

    /// Returns whether a token is one of text.
    pub(super) fn is_plain(&self, token: u32) -> bool {
        self.plain.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    pub(super) fn is_text(&self, token: u32) -> bool {
        self.text.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }
}

/// Follows one reply through its grammar: [`Matcher::allowed`] before each token,
/// [`Matcher::accept`] after it.
///
/// It can be moved to another thread. After an error every call returns that error again.
pub struct Matcher {
    state: llguidance::Matcher,
    tables: Arc<Tables>,
    finished: bool,
    failure: Option<GrammarError>,
    scout: Scout,
    budget: Budget,
    /// The numbers of the reply, if it is JSON.
    numbers: Option<Numbers>,
}

impl std::fmt::Debug for Matcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matcher")
            .field("finished", &self.finished)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Matcher {
    pub(super) fn new(
        state: llguidance::Matcher,
        budget: Budget,
        tables: Arc<Tables>,
        numbers: Option<Numbers>,
    ) -> Self {
        Self {
            state,
            tables,
            finished: false,
            failure: None,
            scout: Scout::default(),
            budget,
            numbers,
        }
    }

    /// Returns the number of words of 32 tokens that a mask needs: vocabulary / 32, rounded up.
    pub fn mask_words(&self) -> usize {
        self.tables.text.len()
    }

    /// Writes which tokens may come next: bit `id % 32` of word `id / 32`. Words beyond
    /// [`Matcher::mask_words`], which a model's padded vocabulary may have, are set to 0. At least
    /// one bit is set. Of a number in JSON it forbids digits that make it long, which
    /// [`Matcher::accept`] takes.
    ///
    /// # Errors
    /// [`GrammarError::MaskSize`] for a short mask; [`GrammarError::Finished`] after the end;
    /// [`GrammarError::Failed`] if this mask, or all of the reply together, cost more than is
    /// allowed, or if nothing can follow. The mask is then all 0.
    pub fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        mask.fill(0);
        self.check()?;
        let needed = self.mask_words();
        if mask.len() < needed {
            return Err(GrammarError::MaskSize { words: mask.len(), needed });
        }
        let outcome = guarded(|| {
            has_stopped(&self.state)?;
            let tokens = self.state.compute_mask_or_eos().map_err(|error| failed(&error))?;
            self.budget.count(self.state.last_step_stats().map_err(|error| failed(&error))?)?;
            let may_end = may_end(&mut self.state)?;
            for ((word, tokens), text) in
                mask.iter_mut().zip(tokens.as_slice()).zip(&self.tables.text)
            {
                *word = tokens & text;
            }
            if may_end {
                for &end in &self.tables.ends {
                    mask[end as usize / 32] |= 1 << (end % 32);
                }
            }
            if let Some(numbers) = self.numbers {
                end_numbers(mask, numbers, &self.tables.digits, &self.state)?;
            }
            if mask.iter().all(|&word| word == 0) {
                return Err(GrammarError::Failed("no token can follow".to_owned()));
            }
            Ok(())
        });
        if outcome.is_err() {
            mask.fill(0);
        }
        self.keep(outcome)
    }

    /// Takes the chosen token.
    ///
    /// # Errors
    /// [`GrammarError::TokenRefused`] for a token that the mask forbids; [`GrammarError::Finished`]
    /// after the end; [`GrammarError::Failed`] as for [`Matcher::allowed`].
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.check()?;
        let outcome = guarded(|| {
            if self.tables.ends.binary_search(&token).is_ok() {
                let may_end = may_end(&mut self.state)?;
                self.finished = may_end;
                return if may_end { Ok(()) } else { Err(GrammarError::TokenRefused { token }) };
            }
            if !self.tables.is_text(token) || has_stopped(&self.state)? {
                return Err(GrammarError::TokenRefused { token });
            }
            match self.state.try_consume_tokens(&[token]) {
                Ok(1) => {
                    self.scout.note(token);
                    if let Some(numbers) = &mut self.numbers {
                        let environment = self.state.tok_env().map_err(|error| failed(&error))?;
                        numbers.take(token, environment.tok_trie().token(token));
                    }
                    Ok(())
                }
                Ok(_) => Err(GrammarError::TokenRefused { token }),
                Err(error) => Err(failed(&error)),
            }
        });
        self.keep(outcome)
    }

    /// Returns how many of these tokens, from the first on, [`Matcher::accept`] would take one
    /// after the other. Changes nothing: masks and errors that follow are the same as without this
    /// call.
    ///
    /// The first call copies the state, which takes about as long as making a matcher. Returns 0 if
    /// the library fails, and always after it has failed three times in this.
    pub fn follow(&mut self, tokens: &[u32]) -> usize {
        if tokens.is_empty() || self.check().is_err() {
            return 0;
        }
        let tables = &self.tables;
        let text = tokens.iter().take_while(|&&token| tables.is_text(token)).count();
        let after = tokens.get(text);
        let then_end = after.is_some_and(|token| tables.ends.binary_search(token).is_ok());
        let outcome = guarded(|| self.scout.follow(&self.state, &tokens[..text], then_end));
        outcome.unwrap_or_else(|_| {
            self.scout.fail();
            0
        })
    }

    /// Returns a copy that shares nothing that changes. It has nothing to follow guesses with until
    /// it [succeeds](Matcher::succeed) the original.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the library fails.
    pub(super) fn copy(&self) -> Result<Self, GrammarError> {
        Ok(Self {
            state: guarded(|| Ok(self.state.deep_clone()))?,
            tables: Arc::clone(&self.tables),
            finished: self.finished,
            failure: self.failure.clone(),
            scout: Scout::default(),
            budget: self.budget.clone(),
            numbers: self.numbers,
        })
    }

    /// Takes the place of the matcher that it was copied from.
    pub(super) fn succeed(&mut self, other: &mut Self) {
        self.scout.succeed(&mut other.scout);
    }

    /// Returns what its masks have cost, in units of about a nanosecond.
    pub(super) fn spent(&self) -> u64 {
        self.budget.spent()
    }

    /// Returns whether the reply so far satisfies the grammar, so that it may end here.
    pub fn is_complete(&mut self) -> bool {
        self.failure.is_none()
            && (self.finished || guarded(|| may_end(&mut self.state)).unwrap_or(false))
    }

    /// Returns whether the next mask is likely to take long: about a millisecond or more.
    pub fn is_costly(&self) -> bool {
        self.budget.is_costly()
    }

    fn check(&self) -> Result<(), GrammarError> {
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None if self.finished => Err(GrammarError::Finished),
            None => Ok(()),
        }
    }

    fn keep(&mut self, outcome: Result<(), GrammarError>) -> Result<(), GrammarError> {
        self.failure = outcome.as_ref().err().cloned();
        outcome
    }
}

/// Returns whether the reply may end here.
fn may_end(state: &mut llguidance::Matcher) -> Result<bool, GrammarError> {
    Ok(has_stopped(state)? || state.is_accepting().map_err(|error| failed(&error))?)
}

/// Forbids digits that make a number too long, as long as anything else may come. If a number has
/// to go on, it goes on with a digit that is not 0, so that a number that must be above 0 may end.
fn end_numbers(
    mask: &mut [u32],
    numbers: Numbers,
    digits: &[u32],
    state: &llguidance::Matcher,
) -> Result<(), GrammarError> {
    let environment = state.tok_env().map_err(|error| failed(&error))?;
    let trie = environment.tok_trie();
    let is_set = |mask: &[u32], token: u32| mask[token as usize / 32] >> (token % 32) & 1 == 1;
    let beyond = |token: &u32| is_set(mask, *token) && !numbers.fit(trie.token(*token));
    let beyond: Vec<u32> = digits.iter().copied().filter(beyond).collect();
    if beyond.is_empty() {
        return Ok(());
    }
    let turn = |mask: &mut [u32], chosen: &dyn Fn(u32) -> bool| {
        for token in beyond.iter().copied().filter(|&token| chosen(token)) {
            mask[token as usize / 32] ^= 1 << (token % 32);
        }
        mask.iter().any(|&word| word != 0)
    };
    let ends_in_zero = |token: u32| trie.token(token).ends_with(b"0");
    if !turn(mask, &|_| true) && !turn(mask, &|token| !ends_in_zero(token)) {
        turn(mask, &ends_in_zero);
    }
    Ok(())
}
