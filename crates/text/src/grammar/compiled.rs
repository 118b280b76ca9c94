//! A grammar that is ready for replies.

use std::sync::{Arc, Mutex};

use super::budget::Budget;
use super::error::GrammarError;
use super::library::guarded;
use super::marks::CallMarks;
use super::matcher::{Matcher, Tables};
use super::numbers::Numbers;
use super::schema::LeftOut;

/// A keyword that the grammar of a tool's arguments does not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relaxed {
    /// The tool's name.
    pub tool: String,
    /// The keyword and its place in the schema of the tool's arguments.
    pub left_out: LeftOut,
}

/// A grammar compiled for a vocabulary, from which any number of generations can start. Made by
/// [`GrammarCompiler::compile`](super::GrammarCompiler::compile).
pub struct Grammar {
    /// The start of replies. It has a lock because the library's state cannot be shared.
    pub(super) start: Mutex<Start>,
    pub(super) tables: Arc<Tables>,
    pub(super) bytes: usize,
    pub(super) relaxed: Vec<Relaxed>,
    /// The tokens of calls, if calls stand between marks.
    pub(super) marks: Option<CallMarks>,
    /// Whether a reply has to follow it only from its first call on; before that any text may come.
    pub(super) is_lazy: bool,
    /// The numbers at the start of a reply, if it is JSON.
    pub(super) numbers: Option<Numbers>,
}

/// What replies begin with.
pub(super) struct Start {
    /// The state before the first token, which is never advanced.
    pub(super) state: llguidance::Matcher,
    /// A budget that knows what the first mask costs.
    pub(super) budget: Budget,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Grammar {
    /// Returns a matcher at the start of a reply. It shares no changing state with other matchers:
    /// one reply's failure does not affect others.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the library fails.
    pub fn matcher(&self) -> Result<Matcher, GrammarError> {
        let start = self.start.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let state = guarded(|| Ok(start.state.deep_clone()))?;
        Ok(Matcher::new(state, start.budget.clone(), self.tables.clone(), self.numbers))
    }

    /// Returns the parts of the tools' schemas that it does not enforce. Empty for all other
    /// grammars, which enforce everything or are refused.
    pub fn relaxed(&self) -> &[Relaxed] {
        &self.relaxed
    }

    /// Returns the estimated memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
