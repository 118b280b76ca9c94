//! The output of the engine: events.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::pictures::PictureError;
use crate::sharing::SharedStep;

/// The identifier of a request in an engine, which never uses it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(crate) u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sequence {}", self.0)
    }
}

/// Something that happened to a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The sequence.
    pub sequence: SequenceId,
    /// What happened.
    pub update: Update,
}

impl Event {
    /// Returns why the sequence ended, if this is its last event.
    pub fn finish(&self) -> Option<Finish> {
        match self.update {
            Update::Finished { finish, .. } => Some(finish),
            _ => None,
        }
    }
}

/// What happened to a request. The last update of each is [`Update::Finished`].
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// The request left the queue and has its place in the KV cache.
    Started {
        /// The number of prompt tokens whose keys and values were in the cache.
        reused: usize,
        /// The time in the queue.
        waited: Duration,
    },
    /// Part of the prompt was run.
    Prefill {
        /// The number of prompt tokens in the cache, including the reused ones.
        done: usize,
        /// The number of prompt tokens.
        total: usize,
    },
    /// A part of the prompt was run in a step of which the device's partner computed a part
    /// ([`Engine::set_partner`](crate::Engine::set_partner)).
    Shared(Arc<SharedStep>),
    /// Log-probabilities of the prompt tokens that follow those reported before, in order. The
    /// first token of a prompt has none.
    PromptLogprobs(Vec<Logprobs>),
    /// The embedding of the prompt, of length 1 (Euclidean norm).
    Embedding(Vec<f32>),
    /// A token of the text was sampled. A stop id that ends the text is not part of it.
    Token {
        /// The token.
        token: u32,
        /// Its log-probability and those of the most likely tokens, if asked for.
        logprobs: Option<Box<Logprobs>>,
        /// When it was sampled.
        at: Instant,
        /// Guesses for the sequence that were verified, up to the end of this step.
        drafted: usize,
        /// The verified guesses that were right, before this token.
        accepted: usize,
    },
    /// The request ended.
    Finished {
        /// Why it ended.
        finish: Finish,
        /// The stop id that ended it, for which there is no [`Update::Token`]. It is there if and
        /// only if `finish` is [`Finish::Stop`].
        stop: Option<u32>,
        /// Why a picture has no rows. It is there if and only if `finish` is
        /// [`Finish::PictureFailed`].
        picture: Option<PictureError>,
        /// Where values first were not finite, in words. It is there if and only if `finish` is
        /// [`Finish::NonFiniteLogits`].
        overflow: Option<String>,
        /// The cost of the request.
        statistics: Statistics,
    },
}

/// A token's log-probability (natural logarithm of the softmax of the model's logits as they are:
/// before bias, penalties, temperature and constraint), and those of the most likely tokens in its
/// place.
#[derive(Debug, Clone, PartialEq)]
pub struct Logprobs {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// Tokens that are more likely than it.
    pub rank: usize,
    /// The most likely tokens and their log-probabilities, the most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop id was sampled.
    Stop,
    /// `max_tokens` were generated, or the embedding is there.
    Length,
    /// The context, or the memory for it, is full.
    Context,
    /// [`cancel`](crate::Engine::cancel) was called.
    Cancelled,
    /// The request's deadline has passed.
    Deadline,
    /// The constraint could not determine which tokens may come, or allowed none that may be
    /// generated.
    ConstraintFailed,
    /// The model returned logits for this sequence that are infinite or not numbers; other
    /// sequences go on.
    NonFiniteLogits,
    /// The vision tower made no rows of a picture of the prompt; other sequences go on.
    PictureFailed,
    /// The device failed in a step; every sequence ended with it.
    DeviceFailed,
}

impl fmt::Display for Finish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Finish::Stop => "the model ended its text",
            Finish::Length => "the token limit is reached; raise --max-tokens for more",
            Finish::Context => "the context is full; raise --context or start a new conversation",
            Finish::Cancelled => "cancelled",
            Finish::Deadline => "the time allowed for it has passed",
            Finish::ConstraintFailed => {
                "the grammar could not go on, or allows only tokens that the model's files \
                 suppress; simplify the schema or grammar"
            }
            Finish::NonFiniteLogits => {
                "the model gave logits that are not finite; its file is damaged or its values \
                 overflow, download it again or try --device reference"
            }
            Finish::PictureFailed => {
                "the vision tower failed on an image of the prompt; leave the image out or try \
                 another --device"
            }
            Finish::DeviceFailed => "the device failed; start again or use another --device",
        })
    }
}

/// The cost of a sequence. A step's time counts in full for each sequence that took part in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the cache already and not run.
    pub reused_tokens: usize,
    /// Tokens sampled, including a stop id.
    pub generated_tokens: usize,
    /// Steps that ran rows of the prompt; the first token comes from the last of them.
    pub prefill_steps: usize,
    /// Steps that ran a generated token.
    pub decode_steps: usize,
    /// Tokens sampled in those steps.
    pub decode_tokens: usize,
    /// Guesses that were verified.
    pub drafted_tokens: usize,
    /// Guesses that were right: tokens that took no step of their own.
    pub accepted_tokens: usize,
    /// Seconds of the steps that ran rows of the prompt.
    pub prefill_seconds: f64,
    /// Seconds of the steps that ran a generated token.
    pub decode_seconds: f64,
    /// Pictures of the prompt that were run, because the cache did not have them.
    pub pictures: usize,
    /// Seconds that the tower took for them; 0 for those whose rows it had kept.
    pub tower_seconds: f64,
    /// Seconds from the submission to the place in the cache.
    pub queue_seconds: f64,
    /// Times it gave its blocks to another sequence and was run again from its tokens.
    pub preemptions: usize,
    /// Seconds from the submission to the first token.
    pub first_token_seconds: Option<f64>,
}

impl Statistics {
    /// Returns the prompt tokens run per second, if any were run.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens.saturating_sub(self.reused_tokens), self.prefill_seconds)
    }

    /// Returns the tokens per second after the first one, if there were any.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decode_tokens, self.decode_seconds)
    }

    /// Returns the tokens that a step gave after the first one, if there were any: 1 unless guesses
    /// were right.
    pub fn tokens_per_step(&self) -> Option<f64> {
        rate(self.decode_tokens, self.decode_steps as f64)
    }
}

fn rate(tokens: usize, seconds: f64) -> Option<f64> {
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_tokens_and_time() {
        let mut statistics =
            Statistics { prompt_tokens: 12, reused_tokens: 2, ..Statistics::default() };
        assert_eq!(statistics.prefill_rate(), None);
        statistics.prefill_seconds = 2.0;
        assert_eq!(statistics.prefill_rate(), Some(5.0));
        assert_eq!(statistics.decode_rate(), None);
    }
}
