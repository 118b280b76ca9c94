//! Structured output: which tokens may come next so that a reply follows a grammar.
//!
//! A [`GrammarSource`] (JSON schema, regular expression, Lark, GBNF, list of choices) is compiled
//! for a tokenizer by a [`GrammarCompiler`] to a [`Grammar`], which makes a [`Matcher`] for each
//! generation. Before each token the matcher fills a bit mask over the vocabulary; after it, it
//! takes the chosen token. The work is done by the library `llguidance`, which only this module
//! names.
//!
//! Sources are hostile. They are checked here first (`schema.rs`, `gbnf/`, and limits on their
//! size), so that an error names the place; the library's own limits bound what they expand to, and
//! compiling runs on a thread of its own whose stack fits the deepest recursion that these limits
//! allow. Nothing is ever fetched.
//!
//! **It fails closed.** Every failure (a limit, an error, a panic of the library) is a
//! [`GrammarError`], and a matcher that has returned one returns no mask again. Control tokens are
//! never allowed, except those that end a reply, and those only where the grammar may end, whatever
//! a grammar says.

//!
//! Its cost (`examples/grammar_bench.rs` in the development profile, a made-up vocabulary of
//! 262,144 tokens, two cores of a server processor under load): the trie of the tokens takes 1.8 s
//! once and 98 MiB; a schema of ten fields compiles in 4 ms and keeps about 0.15 MiB; a matcher
//! starts in 0.06 ms; a mask takes 25 µs in the median and 6 ms at worst.

mod cache;
mod calls;
mod compiler;
mod error;
mod gbnf;
mod matcher;
mod schema;

use std::sync::Mutex;

pub use cache::GrammarCache;
pub use compiler::GrammarCompiler;
pub use error::GrammarError;
pub use matcher::Matcher;
pub use schema::LeftOut;
pub(crate) use schema::resolve as resolve_reference;

use compiler::Tables;
use std::sync::Arc;

/// The longest JSON schema in bytes.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;

/// The longest grammar or regular expression in bytes. An expression of n parts that may all be
/// empty costs n² steps, which none of the library's limits counts.
pub const MAX_GRAMMAR_BYTES: usize = 16 << 10;

/// The longest total length of a list of choices in bytes.
pub const MAX_CHOICE_BYTES: usize = 64 << 10;

/// The largest number of choices.
pub const MAX_CHOICES: usize = 4096;

/// The form that a reply must have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrammarSource {
    /// JSON that satisfies this JSON schema (draft 2020-12 and its predecessors' spellings). Keys
    /// of an object come in the order of `properties`, and no others come if the schema says
    /// nothing about others. Between elements there is at most one space, or a line break and an
    /// indent.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// Text that the regular expression matches as a whole, in the syntax of Rust's `regex` without
    /// look-around.
    Regex(String),
    /// A Lark grammar in llguidance's dialect, with a rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF, with a rule `root`. Stretches without recursion are matched
    /// greedily, like terminals of Lark.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Tool calls, as [`Tools::grammar`](crate::Tools::grammar) makes it.
    Calls {
        /// Names with the JSON schemas of their arguments. Parts of the schemas that no grammar can
        /// enforce are left out ([`Grammar::relaxed`]).
        calls: Vec<(String, String)>,
        /// The forms that a reply may have.
        shape: CallShape,
    },
}

/// The forms that a reply with tool calls may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallShape {
    /// Whether the reply may also be a list of calls.
    pub parallel: bool,
    /// The forms of a reply without calls.
    pub otherwise: Otherwise,
}

/// The forms that a reply may have instead of tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Otherwise {
    /// None: the reply is a call.
    Nothing,
    /// Text that does not begin like a call.
    Text,
    /// JSON that satisfies this schema.
    Json(String),
}

/// Checks the JSON schema of a tool without compiling it.
///
/// # Errors
/// [`GrammarError::Invalid`] and [`GrammarError::TooLarge`].
pub(crate) fn check_tool_schema(source: &str) -> Result<(), GrammarError> {
    schema::relaxed(source).map(drop)
}

/// A keyword that the grammar of a tool's arguments does not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relaxed {
    /// The tool's name.
    pub tool: String,
    /// The keyword and its place in the schema of the tool's arguments.
    pub left_out: LeftOut,
}

impl GrammarSource {
    /// Returns its kind, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::Gbnf(_) => "GBNF grammar",
            Self::Choice(_) => "list of choices",
            Self::Calls { .. } => "tool calls",
        }
    }
}

/// A grammar compiled for a vocabulary, from which any number of generations can start. Made by
/// [`GrammarCompiler::compile`].
pub struct Grammar {
    /// The start state, which is never advanced. It has a lock because the library's state cannot
    /// be shared.
    start: Mutex<llguidance::Matcher>,
    tables: Arc<Tables>,
    bytes: usize,
    relaxed: Vec<Relaxed>,
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
        let state = compiler::guarded(|| Ok(start.deep_clone()))?;
        Ok(Matcher::new(state, self.tables.clone()))
    }

    /// The parts of the tools' schemas that it does not enforce. Empty for all other grammars,
    /// which enforce everything or are refused.
    pub fn relaxed(&self) -> &[Relaxed] {
        &self.relaxed
    }

    /// The estimated memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
