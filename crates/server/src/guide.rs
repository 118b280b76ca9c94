//! What a reply may say, between the text that knows and the engine that asks.

use trine_engine::Constraint;
use trine_text::{Course, Grammar, GrammarError, Thoughts};

/// A grammar, and limits on thoughts, that guide one reply.
#[derive(Debug)]
pub struct Guide(Course);

impl Guide {
    /// Returns a guide at the beginning of a reply; `None` if it needs none.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the grammar's library fails.
    pub fn start(
        grammar: Option<&Grammar>,
        thoughts: Option<Thoughts>,
    ) -> Result<Option<Self>, GrammarError> {
        Ok(Course::start(grammar, thoughts)?.map(Self))
    }
}

impl Constraint for Guide {
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        self.0.allowed(mask).map_err(|error| error.to_string())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0.accept(token).map_err(|error| error.to_string())
    }

    fn follow(&mut self, guesses: &[u32]) -> usize {
        self.0.follow(guesses)
    }
}
