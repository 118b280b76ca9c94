//! Errors between text and tokens.

use thiserror::Error;

/// An error of this crate: what is wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer file contradicts itself or exceeds a bound.
    #[error(
        "{place}: {}; fetch the tokenizer files again or use another copy of the model",
        on_one_line(problem)
    )]
    InvalidTokenizer {
        /// The file and key, for example `tokenizer.json: model.merges[3]`.
        place: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A tokenizer file uses a component that Gemma tokenizers do not have.
    #[error(
        "{place}: {} is not supported; trine reads byte-fallback BPE tokenizers as Gemma models \
         have them",
        on_one_line(found)
    )]
    UnsupportedTokenizer {
        /// The file and key.
        place: String,
        /// The unsupported component.
        found: String,
    },
    /// A checkpoint has no tokenizer at all.
    #[error("{place} holds no tokenizer; {remedy}")]
    MissingTokenizer {
        /// The file or folder that was searched.
        place: String,
        /// Where a tokenizer is expected.
        remedy: String,
    },
    /// A metadata value has the wrong type or a file cannot be read. The text says which one and
    /// what to do.
    #[error("{0}")]
    Checkpoint(String),
    /// A text is longer than the encoder accepts in one call.
    #[error("the text has {bytes} bytes, the limit is {limit}; shorten it or split it")]
    TextTooLong {
        /// The length of the text in bytes.
        bytes: usize,
        /// The largest length in bytes.
        limit: usize,
    },
    /// The chat template refused the conversation with `raise_exception`.
    #[error("the model's chat template refuses this conversation: {}", on_one_line(message))]
    TemplateRefused {
        /// The template's own message.
        message: String,
    },
    /// The chat template is not valid, or failed while it was rendered.
    #[error(
        "chat template, line {line}: {}; correct the template or choose another one",
        on_one_line(problem)
    )]
    Template {
        /// The line in the template source, from 1; 0 if unknown.
        line: usize,
        /// The description of the template engine.
        problem: String,
    },
    /// The system cannot create a thread with the stack that a template may need.
    #[error(
        "the system gives no thread to render the chat template on ({problem}); free memory, or \
         raise the limit on it or on processes"
    )]
    TemplateThread {
        /// The error of the system.
        problem: String,
    },
    /// The chat template asked for more work, memory or output than is allowed.
    #[error(
        "the chat template exceeds the limit for {what} ({limit}); use a simpler template or a \
         shorter conversation"
    )]
    TemplateLimit {
        /// The exhausted resource.
        what: &'static str,
        /// The bound of the resource.
        limit: u64,
    },
    /// The chat template does not write one mark for each picture.
    #[error(
        "the model's chat template shows {shown} of {pictures} images; leave images out, or use a \
         template that writes {mark} for each part of the type image"
    )]
    Pictures {
        /// The number of marks in the rendered text.
        shown: usize,
        /// The number of pictures in the conversation.
        pictures: usize,
        /// The mark of the model's family.
        mark: &'static str,
    },
    /// An argument for rendering is not acceptable.
    #[error("chat template argument `{name}`: {problem}")]
    TemplateArgument {
        /// The name of the argument.
        name: String,
        /// Why it is refused.
        problem: String,
    },
}

impl TextError {
    /// Creates a [`TextError::InvalidTokenizer`] at `place`.
    pub(crate) fn invalid(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidTokenizer { place: place.into(), problem: problem.into() }
    }

    /// Creates a [`TextError::UnsupportedTokenizer`] at `place`.
    pub(crate) fn unsupported(place: impl Into<String>, found: impl Into<String>) -> Self {
        Self::UnsupportedTokenizer { place: place.into(), found: found.into() }
    }
}

/// Returns a text from a file for a message: its control characters are escaped.
fn on_one_line(text: &str) -> String {
    let mut line = String::new();
    for character in text.chars() {
        match character.is_control() {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}
