//! Follows a whole reply: thoughts first, then what a grammar says.

use std::sync::Arc;

use super::compiled::Grammar;
use super::error::GrammarError;
use super::marks::ThoughtMarks;
use super::matcher::{Matcher, Tables};

/// How a model may think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thoughts {
    /// The tokens around a thought.
    pub marks: ThoughtMarks,
    /// Whether it may think at all.
    pub allowed: bool,
    /// The most tokens of all thoughts together; after them the thought is ended.
    pub budget: Option<usize>,
}

/// Follows one reply: [`Course::allowed`] before each token, [`Course::accept`] after it.
///
/// In a thought any text may come, until its mark or its budget ends it. The grammar holds from the
/// first token of the answer on, or, if words may come before calls, from the first mark of a call
/// on. Until then no mask is computed.
#[derive(Debug)]
pub struct Course {
    thoughts: Option<Thoughts>,
    /// Tokens of thoughts so far.
    spent: usize,
    in_thought: bool,
    guide: Option<Guide>,
}

/// A grammar of the answer.
struct Guide {
    matcher: Matcher,
    tables: Arc<Tables>,
    /// The token that begins what the grammar holds, until it has come.
    lazy: Option<u32>,
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
                lazy: grammar.lazy,
                has_begun: false,
            }),
        };
        Ok(Some(Self { thoughts, spent: 0, in_thought: false, guide }))
    }

    /// Writes which tokens may come next: bit `id % 32` of word `id / 32`. At least one bit is set.
    ///
    /// # Errors
    /// As [`Matcher::allowed`].
    pub fn allowed(&mut self, mask: &mut [u32]) -> Result<(), GrammarError> {
        if let (true, Some(thoughts)) = (self.in_thought, self.thoughts) {
            if self.is_spent() {
                mask.fill(0);
                return set(mask, thoughts.marks.close, true);
            }
            match &self.guide {
                Some(guide) => guide.text(mask, false)?,
                None => mask.fill(u32::MAX),
            }
            return set(mask, thoughts.marks.close, true);
        }
        let begins = match &mut self.guide {
            None => {
                mask.fill(u32::MAX);
                true
            }
            Some(guide) => {
                match guide.lazy {
                    Some(mark) => {
                        guide.text(mask, true)?;
                        set(mask, mark, true)?;
                    }
                    None => guide.matcher.allowed(mask)?,
                }
                !guide.has_begun
            }
        };
        match self.thoughts {
            Some(thoughts) if begins => {
                let may_think = thoughts.allowed && !self.is_spent();
                set(mask, thoughts.marks.open, may_think)
            }
            _ => Ok(()),
        }
    }

    /// Takes the chosen token.
    ///
    /// # Errors
    /// As [`Matcher::accept`].
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        if let Some(thoughts) = self.thoughts {
            if self.in_thought {
                self.in_thought = token != thoughts.marks.close;
                self.spent += usize::from(self.in_thought);
                return Ok(());
            }
            let begins = self.guide.as_ref().is_none_or(|guide| !guide.has_begun);
            if begins && token == thoughts.marks.open {
                self.in_thought = true;
                return Ok(());
            }
        }
        let Some(guide) = &mut self.guide else { return Ok(()) };
        match guide.lazy {
            Some(mark) if token != mark => return Ok(()),
            _ => {}
        }
        guide.lazy = None;
        guide.has_begun = true;
        guide.matcher.accept(token)
    }

    /// Returns how many of these tokens, from the first on, [`Course::accept`] would take one after
    /// the other, or fewer. Changes nothing.
    pub fn follow(&mut self, tokens: &[u32]) -> usize {
        let marks = self.thoughts.map(|thoughts| thoughts.marks);
        let is_mark =
            |token: &u32| marks.is_some_and(|marks| [marks.open, marks.close].contains(token));
        if self.in_thought {
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
            Some(guide) => match guide.lazy {
                Some(_) => tokens.iter().take_while(|token| guide.tables.is_plain(**token)).count(),
                None => guide.matcher.follow(tokens),
            },
        }
    }

    /// Returns whether the budget of thoughts is used up.
    fn is_spent(&self) -> bool {
        let budget = self.thoughts.and_then(|thoughts| thoughts.budget);
        budget.is_some_and(|budget| self.spent >= budget)
    }
}

impl Guide {
    /// Allows every text, and with `ends` the end of the reply.
    fn text(&self, mask: &mut [u32], ends: bool) -> Result<(), GrammarError> {
        let needed = self.tables.plain.len();
        if mask.len() < needed {
            return Err(GrammarError::MaskSize { words: mask.len(), needed });
        }
        mask.fill(0);
        mask[..needed].copy_from_slice(&self.tables.plain);
        let ends = self.tables.ends.iter().filter(|_| ends);
        ends.copied().try_for_each(|end| set(mask, end, true))
    }
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
