//! Errors of grammars, from their sources to single tokens.

use thiserror::Error;

/// An error of a grammar: of its source when it is compiled, or of its use later.
///
/// After an error of use the [`Matcher`](crate::Matcher) returns no further masks: the generation
/// has to end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The source is not valid, or demands something that cannot be guaranteed.
    #[error("{kind}, {place}: {problem}")]
    Invalid {
        /// The kind of the source: `JSON schema`, `regular expression`, ...
        kind: &'static str,
        /// The place: a JSON pointer, a line, a position in characters.
        place: String,
        /// The problem, and what to write instead.
        problem: String,
    },
    /// The source, or its expansion, is larger than one request may cost.
    #[error("{kind}: {what} exceeds the limit of {limit}; use a smaller or simpler one")]
    TooLarge {
        /// The kind of the source.
        kind: &'static str,
        /// The exhausted resource.
        what: String,
        /// The resource's bound.
        limit: u64,
    },
    /// Finding out what it allows takes more work than one request may cost.
    #[error(
        "{kind}: it takes more work than trine allows; simplify its expressions, and combine fewer \
         of them for one text"
    )]
    TooMuchWork {
        /// The kind of the source.
        kind: &'static str,
    },
    /// The schema of a tool's arguments is at fault.
    #[error("the tool `{tool}`: {error}")]
    Tool {
        /// The tool's name.
        tool: String,
        /// The problem of the schema.
        error: Box<GrammarError>,
    },
    /// The tokenizer cannot be constrained.
    #[error(
        "this model's tokenizer cannot follow a grammar: {0}; ask without a response format, or \
         use another model"
    )]
    Tokenizer(String),
    /// The mask given to [`Matcher::allowed`](crate::Matcher::allowed) is too short.
    #[error("the mask has {words} words of 32 tokens, the vocabulary needs {needed}")]
    MaskSize {
        /// The number of words given.
        words: usize,
        /// The number of words needed.
        needed: usize,
    },
    /// The grammar does not allow the given token.
    #[error("the grammar does not allow token {token} here")]
    TokenRefused {
        /// The token's id.
        token: u32,
    },
    /// A token was given, or a mask requested, after the reply had ended.
    #[error("the reply had ended already")]
    Finished,
    /// The grammar needs more work for one token than is allowed, or the library failed.
    #[error("the grammar cannot be followed any further: {0}; use a simpler one")]
    Failed(String),
}

impl GrammarError {
    /// Makes a [`GrammarError::Invalid`].
    pub(crate) fn invalid(
        kind: &'static str,
        place: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Invalid { kind, place: place.into(), problem: problem.into() }
    }

    /// Makes a [`GrammarError::TooLarge`].
    pub(crate) fn too_large(kind: &'static str, what: impl Into<String>, limit: u64) -> Self {
        Self::TooLarge { kind, what: what.into(), limit }
    }
}
