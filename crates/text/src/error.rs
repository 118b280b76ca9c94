//! What can go wrong between text and tokens.

use thiserror::Error;

/// An error of this crate: what is wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer file contradicts itself or exceeds a bound.
    #[error("{place}: {problem}; fetch the tokenizer files again or use another copy of the model")]
    InvalidTokenizer {
        /// File and key, for example `tokenizer.json: model.merges[3]`.
        place: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A tokenizer file uses a component that Gemma tokenizers do not have.
    #[error(
        "{place}: {found} is not supported; trine reads byte-fallback BPE tokenizers as Gemma models have them"
    )]
    UnsupportedTokenizer {
        /// File and key.
        place: String,
        /// The component found there.
        found: String,
    },
    /// A checkpoint has no tokenizer at all.
    #[error("{place} holds no tokenizer; {remedy}")]
    MissingTokenizer {
        /// The file or folder searched.
        place: String,
        /// Where a tokenizer is expected.
        remedy: String,
    },
    /// A metadata value has the wrong type or a file cannot be read; the text says which and what to do.
    #[error("{0}")]
    Checkpoint(String),
    /// A text is longer than the encoder takes in one piece.
    #[error("the text has {bytes} bytes, the limit is {limit}; shorten it or split it")]
    TextTooLong {
        /// Length of the text in bytes.
        bytes: usize,
        /// Largest length in bytes.
        limit: usize,
    },
    /// The chat template refused the conversation with `raise_exception`.
    #[error("the model's chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// The template's own message.
        message: String,
    },
    /// The chat template is not valid or failed while it was rendered.
    #[error("chat template, line {line}: {problem}; correct the template or choose another one")]
    Template {
        /// Line in the template source, from 1; 0 when unknown.
        line: usize,
        /// The engine's description.
        problem: String,
    },
    /// The system gives no thread with the stack that a template may need.
    #[error(
        "the system gives no thread to render the chat template on ({problem}); free memory, or raise the limit on it or on processes"
    )]
    TemplateThread {
        /// What the system says.
        problem: String,
    },
    /// The chat template asked for more work, memory or output than is allowed.
    #[error(
        "the chat template exceeds the limit for {what} ({limit}); use a simpler template or a shorter conversation"
    )]
    TemplateLimit {
        /// The exhausted resource.
        what: &'static str,
        /// Its bound.
        limit: u64,
    },
    /// An option given for rendering is not acceptable.
    #[error("chat template argument `{name}`: {problem}")]
    TemplateArgument {
        /// Name of the argument.
        name: String,
        /// Why it is refused.
        problem: String,
    },
}

impl TextError {
    /// An [`TextError::InvalidTokenizer`] at `place`.
    pub(crate) fn invalid(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidTokenizer { place: place.into(), problem: problem.into() }
    }

    /// An [`TextError::UnsupportedTokenizer`] at `place`.
    pub(crate) fn unsupported(place: impl Into<String>, found: impl Into<String>) -> Self {
        Self::UnsupportedTokenizer { place: place.into(), found: found.into() }
    }
}
