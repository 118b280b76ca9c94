//! Structured output: which tokens may come next so that a reply follows a grammar.
//!
//! A [`GrammarSource`] (JSON schema, regular expression, Lark, GBNF, list of choices) is compiled
//! for a tokenizer by a [`GrammarCompiler`] to a [`Grammar`], which makes a [`Matcher`] for each
//! generation. Before each token the matcher fills a bit mask over the vocabulary; after it, it
//! takes the chosen token. The work is done by the library `llguidance`, which only this module
//! names.
//!
//! Sources are hostile. They are checked here first (`schema.rs`, `gbnf/`, `lark.rs`, and limits
//! on their size), so that an error names the place; the library's own limits bound what they
//! expand to, and compiling runs on a thread of its own whose stack fits the deepest recursion
//! that these limits allow. Nothing is ever fetched.
//!
//! **It fails closed.** Every failure (a limit, an error, a panic of the library) is a
//! [`GrammarError`], and a matcher that has returned one returns no mask again. Control tokens are
//! never allowed, except those that end a reply, and those only where the grammar may end, whatever
//! a grammar says.

//!
//! Its cost (`examples/grammar_bench.rs` in the development profile, a made-up vocabulary of
//! 262,144 tokens, two cores of a server processor under load): the trie of the tokens takes 1.8 s
//! once and 98 MiB; a schema of ten fields compiles in 4 ms and keeps about 0.15 MiB; a matcher
//! starts in 0.06 ms; a mask takes 25 µs in the median and 6 ms at worst; following seven guesses
//! takes 4 µs in the median, and 0.1 ms the first time.

mod budget;
mod cache;
mod calls;
mod compiled;
mod compiler;
mod course;
mod error;
mod gbnf;
mod lark;
mod library;
mod marked;
mod marks;
mod matcher;
mod numbers;
mod outlook;
mod relaxing;
pub(crate) mod schema;
mod scout;
mod source;

pub use cache::GrammarCache;
pub(crate) use calls::ARGUMENTS;
pub use compiled::{Grammar, Relaxed};
pub use compiler::GrammarCompiler;
pub use course::{Course, Thoughts};
pub use error::GrammarError;
pub use marks::{CallMarks, MarkedShape, Otherwise, ThoughtMarks};
pub use matcher::Matcher;
pub use outlook::Outlook;
pub use schema::LeftOut;
pub use source::{
    CallShape, GrammarSource, MAX_CHOICE_BYTES, MAX_CHOICES, MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES,
};

/// Checks the JSON schema of a tool without compiling it.
///
/// # Errors
/// [`GrammarError::Invalid`] and [`GrammarError::TooLarge`].
pub(crate) fn check_tool_schema(source: &str) -> Result<(), GrammarError> {
    schema::relaxed(source).map(drop)
}
