//! Errors of the engine.

use thiserror::Error;
use trine_backend::BackendError;
use trine_backend::sampling::NoToken;

/// Why the engine could not do what was requested.
#[derive(Debug, Error)]
pub enum EngineError {
    /// A request has no token to start from.
    #[error("the prompt is empty; give at least one token (a text's first is <bos>)")]
    EmptyPrompt,
    /// A request is longer than a sequence may become.
    #[error(
        "the prompt has {prompt} tokens, more than the context of {context}; \
         shorten it or raise --context (up to what the model was made for)"
    )]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Positions per sequence.
        context: usize,
    },
    /// A request is longer than a sequence may become, however it is cut into tokens.
    #[error(
        "the prompt has at least {least} tokens, more than the context of {context}; \
         shorten it or raise --context (up to what the model was made for)"
    )]
    PromptFarTooLong {
        /// Fewest tokens that the prompt can have.
        least: usize,
        /// Positions per sequence.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error(
        "token id {id} at index {index} of the prompt is outside the vocabulary of {vocabulary}; \
         use this model's own tokenizer"
    )]
    UnknownToken {
        /// The id.
        id: u32,
        /// Its index in the prompt.
        index: usize,
        /// Entries in the vocabulary.
        vocabulary: usize,
    },
    /// A sampling parameter has a value that makes no sense.
    #[error("{field} is {found}; use {expected}")]
    BadSampling {
        /// Name of the parameter.
        field: &'static str,
        /// The value given.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A request or the engine's options hold a number that is out of range.
    #[error("{option} is {found}; use {expected}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// The value given.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// Every sequence is in use.
    #[error("all {sequences} sequences are busy; wait for one to finish or allow more at once")]
    NoFreeSequence {
        /// Sequences the engine was made for.
        sequences: usize,
    },
    /// The queue is full.
    #[error(
        "{waiting} requests with {tokens} prompt tokens are waiting, no more are taken; try again \
         later"
    )]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
        /// Their prompt tokens.
        tokens: usize,
    },
    /// The engine accepts no more requests, because it is about to end.
    #[error("no more requests are taken: the engine is being stopped")]
    Draining,
    /// An embedding was requested of an engine that was not made for them.
    #[error("the model is loaded only to generate text")]
    NoEmbeddings,
    /// A text was requested of a model that makes vectors of texts only.
    #[error(
        "the model makes embeddings of texts and writes none: ask /v1/embeddings or /api/embed for \
         them, and another model for texts"
    )]
    OnlyEmbeds,
    /// A request has pictures, and the engine's model no vision tower.
    #[error("the model is loaded without a vision tower and takes no images")]
    NoPictures,
    /// The pictures of a request and the places of soft tokens in its prompt disagree.
    #[error(
        "image {index} of the prompt has {soft_tokens} soft tokens from index {at} on; these are \
         not the prompt's next places for images"
    )]
    PicturePlaces {
        /// The index of the picture; the number of pictures if places are left.
        index: usize,
        /// The index of its first soft token in the prompt.
        at: usize,
        /// Its soft tokens.
        soft_tokens: usize,
    },
    /// Pictures that no step has room for.
    #[error(
        "an image, or several without text between them, has {soft_tokens} soft tokens, and a step \
         takes {most}; put text between the images, or give fewer or smaller ones"
    )]
    PictureTooWide {
        /// Soft tokens without another token between them.
        soft_tokens: usize,
        /// The most rows in a step.
        most: usize,
    },
    /// The model returned logits that are infinite or not numbers.
    #[error(
        "the logits are not finite (token id {id} has {found}); the model file is damaged or its \
         values overflow: download it again, or try --device reference to rule the device out"
    )]
    NonFiniteLogits {
        /// Lowest token id with such a logit.
        id: usize,
        /// Its logit.
        found: f32,
    },
    /// A constraint leaves no token that may be generated.
    #[error("the grammar allows no token here that the model may generate; simplify it")]
    NothingAllowed,
    /// The pool of KV blocks is used up.
    #[error(
        "no KV block is free for sequence slot {slot}; use a shorter context or fewer sequences"
    )]
    OutOfBlocks {
        /// The slot that wanted one.
        slot: usize,
    },
    /// The device could not be loaded or failed while running.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl EngineError {
    /// Returns an [`EngineError::BadOption`] from anything printable.
    pub(crate) fn option(
        option: &'static str,
        found: impl ToString,
        expected: impl ToString,
    ) -> Self {
        EngineError::BadOption { option, found: found.to_string(), expected: expected.to_string() }
    }
}

impl From<NoToken> for EngineError {
    fn from(error: NoToken) -> Self {
        match error {
            NoToken::NotFinite { token, logit } => {
                Self::NonFiniteLogits { id: token as usize, found: logit }
            }
            NoToken::NothingAllowed => Self::NothingAllowed,
        }
    }
}
