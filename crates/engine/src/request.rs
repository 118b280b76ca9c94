//! What goes into the engine and what comes out.

use std::fmt;

use crate::sampling::SamplingParams;

/// Names one request from [`submit`](crate::Engine::submit) on; never used twice by an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub(crate) u64);

impl fmt::Display for SequenceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "sequence {}", self.0)
    }
}

/// A prompt to be continued.
#[derive(Debug, Clone)]
pub struct Request {
    /// All token ids, `<bos>` and earlier turns included.
    pub prompt: Vec<u32>,
    /// How the next token is chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; 0 only fills the cache with the prompt.
    pub max_tokens: usize,
    /// Token ids that end the generation.
    pub stop_ids: Vec<u32>,
    /// Whether stop ids are generated like other tokens, for measurements of fixed length.
    pub ignore_stop: bool,
}

/// Something that happened to a sequence. The last event of each is [`Event::Finished`], or [`Event::Token`] with a
/// finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Part of the prompt was run.
    Prefill {
        /// Whose.
        sequence: SequenceId,
        /// Prompt tokens in the cache, the reused ones included.
        done: usize,
        /// Prompt tokens.
        total: usize,
    },
    /// A token was sampled.
    Token {
        /// Whose.
        sequence: SequenceId,
        /// The token; a stop id is reported too, with [`Finish::Stop`].
        token: u32,
        /// Why it is the last one, if it is.
        finish: Option<Finish>,
    },
    /// The sequence ended without another token.
    Finished {
        /// Which.
        sequence: SequenceId,
        /// Why.
        finish: Finish,
    },
}

impl Event {
    /// The sequence it is about.
    pub fn sequence(&self) -> SequenceId {
        match *self {
            Event::Prefill { sequence, .. }
            | Event::Token { sequence, .. }
            | Event::Finished { sequence, .. } => sequence,
        }
    }

    /// Why the sequence ended, if this is its last event.
    pub fn finish(&self) -> Option<Finish> {
        match *self {
            Event::Prefill { .. } => None,
            Event::Token { finish, .. } => finish,
            Event::Finished { finish, .. } => Some(finish),
        }
    }
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop id was sampled.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context, or the memory for it, is full.
    Context,
    /// [`cancel`](crate::Engine::cancel) was called.
    Cancelled,
    /// The model gave logits for this sequence that are infinite or not numbers; other sequences go on.
    NonFiniteLogits,
    /// The device failed in a step; every sequence ended with it.
    DeviceFailed,
}

impl fmt::Display for Finish {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Finish::Stop => "the model ended its text",
            Finish::Length => "the token limit is reached; raise --max-tokens for more",
            Finish::Context => "the context is full; raise --context or start anew",
            Finish::Cancelled => "cancelled",
            Finish::NonFiniteLogits => {
                "the model gave logits that are not finite; its file is damaged or its values overflow, \
                 fetch it again or try --device reference"
            }
            Finish::DeviceFailed => "the device failed; start again or use another --device",
        })
    }
}

/// What a sequence has cost. A step's time counts in full for each sequence that took part in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Statistics {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the cache already and not run.
    pub reused_tokens: usize,
    /// Tokens sampled, a stop id included.
    pub generated_tokens: usize,
    /// Steps that ran rows of the prompt; the last of them gives the first token.
    pub prefill_steps: usize,
    /// Steps that ran a generated token.
    pub decode_steps: usize,
    /// Seconds of the steps that ran rows of the prompt.
    pub prefill_seconds: f64,
    /// Seconds of the steps that ran a generated token.
    pub decode_seconds: f64,
    /// Seconds from the submission to the first token.
    pub first_token_seconds: Option<f64>,
}

impl Statistics {
    /// Prompt tokens run per second, if any were.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.prompt_tokens.saturating_sub(self.reused_tokens), self.prefill_seconds)
    }

    /// Tokens per second after the first one, if there were any.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decode_steps, self.decode_seconds)
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
