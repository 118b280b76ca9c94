//! Follows a whole reply: what a grammar says, and thoughts between.

use std::sync::Arc;

use super::compiled::Grammar;
use super::error::GrammarError;
use super::marks::{CallMarks, ThoughtMarks};
use super::matcher::{Matcher, Tables};

/// How a model may think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thoughts {
    /// The tokens around a thought.
    pub marks: ThoughtMarks,
    /// Whether the reply may have thoughts at all.
    pub allowed: bool,
    /// The most tokens of all thoughts together; after them the thought is ended.
    pub budget: Option<usize>,
    /// Whether the prompt has opened one.
    pub is_open: bool,
}

/// Follows one reply: [`Course::allowed`] before each token, [`Course::accept`] after it.
///
/// The grammar holds from the first token of the answer on, or, if words may come before calls,
/// from the first mark of a call on; until then no mask is computed. A thought may come at the
/// beginning and wherever the reply may end: before, between and after words and calls. In a
/// thought any text may come, until it is ended: by its mark, by its budget, by the mark of a call
/// where one may come, or by the end of the reply where that may come.
#[derive(Debug)]
pub struct Course {
    thoughts: Option<Thoughts>,
    /// Tokens of thoughts so far. One without any counts as one, or there would be no end to them.
    spent: usize,
    /// Tokens of thoughts when the present one began.
    spent_before: usize,
    /// What may end the thought that the reply is in.
    thought: Option<Exits>,
    guide: Option<Guide>,
}

/// What ends a thought besides its own mark.
#[derive(Debug, Clone, Copy, Default)]
struct Exits {
    /// The mark of a call.
    call: Option<u32>,
    /// The end of the reply.
    ends: bool,
}

/// A grammar of the answer.
struct Guide {
    matcher: Matcher,
    tables: Arc<Tables>,
    /// The tokens of calls, if calls stand between marks.
    marks: Option<CallMarks>,
    /// Whether any words may come before the first call, and that has not come.
    is_lazy: bool,
    has_begun: bool,
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").field("matcher", &self.matcher).finish_non_exhaustive()
    }
}

impl Course {
    /// Returns the course of a reply; `None` if all tokens may come. A model that is not to think
    /// is held to that only by a grammar: a mask for each token would cost more than a thought that
    /// comes all the same.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the grammar's library fails.
    pub fn start(
        grammar: Option<&Grammar>,
        thoughts: Option<Thoughts>,
    ) -> Result<Option<Self>, GrammarError> {
        let is_free = thoughts.is_none_or(|thoughts| thoughts.budget.is_none());
        if grammar.is_none() && is_free {
            return Ok(None);
        }
        let guide = match grammar {
            None => None,
            Some(grammar) => Some(Guide {
                matcher: grammar.matcher()?,
                tables: Arc::clone(&grammar.tables),
                marks: grammar.marks,
                is_lazy: grammar.is_lazy,
                has_begun: false,
            }),
        };
        let mut course = Self { thoughts, spent: 0, spent_before: 0, thought: None, guide };
        if thoughts.is_some_and(|thoughts| thoughts.is_open) {
            course.thought = Some(course.exits()?);
        }
        Ok(Some(course))
    }

    /// Writes which tokens may come next: bit `id % 32` of word `id / 32`. At least one bit is set.
    ///
    /// # Errors
    /// As [`Matcher::allowed`].
    pub fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        if let (Some(exits), Some(thoughts)) = (self.thought, self.thoughts) {
            if self.is_spent() {
                mask.fill(0);
                return set(mask, thoughts.marks.close, true);
            }
            match &self.guide {
                Some(guide) => guide.text(mask, exits.ends)?,
                None => mask.fill(u32::MAX),
            }
            exits.call.map_or(Ok(()), |call| set(mask, call, true))?;
            // Models open a thought again that the prompt has opened.
            set(mask, thoughts.marks.open, thoughts.allowed)?;
            return set(mask, thoughts.marks.close, true);
        }
        let may_end = match &mut self.guide {
            None => {
                mask.fill(u32::MAX);
                true
            }
            Some(guide) => guide.allowed(mask)?,
        };
        let Some(thoughts) = self.thoughts else { return Ok(()) };
        let begins = self.guide.as_ref().is_some_and(|guide| !guide.has_begun);
        if may_end || begins {
            set(mask, thoughts.marks.open, thoughts.allowed && !self.is_spent())?;
        }
        // A mark that ends nothing does no harm, and models write it.
        if may_end { set(mask, thoughts.marks.close, true) } else { Ok(()) }
    }

    /// Takes the chosen token.
    ///
    /// # Errors
    /// As [`Matcher::accept`].
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if let Some(Thoughts { marks, .. }) = self.thoughts {
            match self.thought {
                Some(_) if token == marks.close => {
                    self.spent += usize::from(self.spent == self.spent_before);
                    self.thought = None;
                    return Ok(());
                }
                Some(exits) if exits.call == Some(token) => self.thought = None,
                Some(_) => {
                    self.spent += 1;
                    return Ok(());
                }
                None if token == marks.open => {
                    self.thought = Some(self.exits()?);
                    self.spent_before = self.spent;
                    return Ok(());
                }
                None if token == marks.close => return Ok(()),
                None => {}
            }
        }
        let Some(guide) = &mut self.guide else { return Ok(()) };
        if guide.is_lazy && guide.call() != Some(token) {
            return Ok(());
        }
        guide.is_lazy = false;
        guide.has_begun = true;
        guide.matcher.accept(token)
    }

    /// Returns how many of these tokens, from the first on, [`Course::accept`] would take one after
    /// the other, or fewer. Changes nothing.
    pub fn follow(&mut self, tokens: &[u32]) -> usize {
        let marks = self.thoughts.map(|thoughts| thoughts.marks);
        let is_mark =
            |token: &u32| marks.is_some_and(|marks| [marks.open, marks.close].contains(token));
        if self.thought.is_some() {
            let left = self.thoughts.and_then(|thoughts| thoughts.budget);
            let left = left.map_or(usize::MAX, |budget| budget.saturating_sub(self.spent));
            let is_text = |token: &&u32| {
                !is_mark(token)
                    && self.guide.as_ref().is_none_or(|guide| guide.tables.is_plain(**token))
            };
            return tokens.iter().take_while(is_text).count().min(left);
        }
        match &mut self.guide {
            None => tokens.iter().take_while(|token| !is_mark(token)).count(),
            Some(guide) if guide.is_lazy => {
                tokens.iter().take_while(|token| guide.tables.is_plain(**token)).count()
            }
            Some(guide) => guide.matcher.follow(tokens),
        }
    }

    /// Returns [`Course::allowed`] of a mask of its own.
    pub(super) fn mask(&mut self) -> Result<Vec<u32>, GrammarError> {
        let mut mask = vec![0; self.mask_words()];
        self.allowed(&mut mask).map(|()| mask)
    }

    /// Returns a copy that shares nothing that changes.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the grammar's library fails.
    pub(super) fn copy(&self) -> Result<Self, GrammarError> {
        let Self { thoughts, spent, spent_before, thought, ref guide } = *self;
        let guide = guide.as_ref().map(Guide::copy).transpose()?;
        Ok(Self { thoughts, spent, spent_before, thought, guide })
    }

    /// Takes the place of the course that it was copied from, which is over.
    pub(super) fn succeed(&mut self, other: &mut Self) {
        if let (Some(guide), Some(other)) = (&mut self.guide, &mut other.guide) {
            guide.matcher.succeed(&mut other.matcher);
        }
    }

    /// Returns what its masks have cost, in units of about a nanosecond.
    pub(super) fn spent(&self) -> u64 {
        self.guide.as_ref().map_or(0, |guide| guide.matcher.spent())
    }

    /// Returns whether a token is one of those that end replies.
    pub(super) fn ends_with(&self, token: u32) -> bool {
        let ends = self.guide.as_ref().map(|guide| &guide.tables.ends);
        ends.is_some_and(|ends| ends.binary_search(&token).is_ok())
    }

    /// Returns the number of words of 32 tokens that a mask needs; 0 if only thoughts are limited.
    pub fn mask_words(&self) -> usize {
        self.guide.as_ref().map_or(0, |guide| guide.matcher.mask_words())
    }

    /// Returns whether the next [`Course::allowed`] is likely to take long: about a millisecond or
    /// more.
    pub fn is_costly(&self) -> bool {
        // Before the first call of a lazy one any text may come.
        self.guide.as_ref().is_some_and(|guide| !guide.is_lazy && guide.matcher.is_costly())
    }

    /// Returns what may end a thought that begins here.
    fn exits(&mut self) -> Result<Exits, GrammarError> {
        match &mut self.guide {
            None => Ok(Exits { call: None, ends: true }),
            Some(guide) => guide.exits(),
        }
    }

    /// Returns whether the budget of thoughts is used up.
    fn is_spent(&self) -> bool {
        let budget = self.thoughts.and_then(|thoughts| thoughts.budget);
        budget.is_some_and(|budget| self.spent >= budget)
    }
}

impl Guide {
    fn copy(&self) -> Result<Self, GrammarError> {
        let Self { ref matcher, ref tables, marks, is_lazy, has_begun } = *self;
        Ok(Self { matcher: matcher.copy()?, tables: Arc::clone(tables), marks, is_lazy, has_begun })
    }

    /// Writes which tokens may come next outside of thoughts. Returns whether the reply may end.
    fn allowed(&mut self, mask: &mut [u32]) -> Result<bool, GrammarError> {
        if self.is_lazy {
            self.text(mask, true)?;
            self.call().map_or(Ok(()), |call| set(mask, call, true))?;
            return Ok(true);
        }
        self.matcher.allowed(mask)?;
        Ok(self.tables.ends.iter().any(|&end| has(mask, end)))
    }

    fn exits(&mut self) -> Result<Exits, GrammarError> {
        let mut mask = vec![0; self.matcher.mask_words()];
        let ends = self.allowed(&mut mask)?;
        Ok(Exits { call: self.call().filter(|&call| has(&mask, call)), ends })
    }

    /// Returns the token that begins a call, if calls stand between marks.
    fn call(&self) -> Option<u32> {
        self.marks.map(|marks| marks.open)
    }

    /// Allows every text, and with `ends` the end of the reply. The mark of strings is text: models
    /// write it for a quotation mark.
    fn text(&self, mask: &mut [u32], ends: bool) -> Result<(), GrammarError> {
        let needed = self.tables.plain.len();
        if mask.len() < needed {
            return Err(GrammarError::MaskSize { words: mask.len(), needed });
        }
        mask.fill(0);
        mask[..needed].copy_from_slice(&self.tables.plain);
        self.marks.map_or(Ok(()), |marks| set(mask, marks.quote, true))?;
        let ends = self.tables.ends.iter().filter(|_| ends);
        ends.copied().try_for_each(|end| set(mask, end, true))
    }
}

/// Returns whether the bit of a token is set.
pub(super) fn has(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Sets or clears the bit of a token.
fn set(mask: &mut [u32], token: u32, is_set: bool) -> Result<(), GrammarError> {
    let words = mask.len();
    let word = mask.get_mut(token as usize / 32);
    let needed = token as usize / 32 + 1;
    let word = word.ok_or(GrammarError::MaskSize { words, needed })?;
    let bit = 1 << (token % 32);
    *word = if is_set { *word | bit } else { *word & !bit };
    Ok(())
}
