//! The dialect of OpenAI's API, with the extensions that clients of vLLM and llama.cpp send.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod logprobs;
pub(crate) mod models;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::flow::STREAMS;
use crate::reply::generate::{Ended, Reason, Whole};
use crate::reply::warnings::note;
use crate::request::fields::{Fields, Within, rows};

/// `system_fingerprint`: the part of what determines the texts of a seed, besides the request, that
/// is the program. OpenAI's document does not allow null.
pub(crate) const FINGERPRINT: &str = concat!("trine-", env!("CARGO_PKG_VERSION"));

rows! {
    STREAM_OPTIONS {
        /// Needs `"stream": true`.
        OPTIONS: Within = "stream_options", of &[COUNTS];
    }
    COUNTS {
        /// A last chunk has the counts.
        USAGE: bool = "include_usage", or false;
        /// Every chunk has them.
        CONTINUOUS_USAGE: bool = "continuous_usage_stats", or false;
    }
    STORE {
        /// Answers are not kept: true is answered with a warning.
        STORES: Value = "store";
    }
}

/// How an answer is sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Streaming {
    pub(crate) streams: bool,
    /// Whether a last chunk has the counts.
    pub(crate) usage: bool,
    /// Whether every chunk has the counts.
    pub(crate) continuous_usage: bool,
}

impl Streaming {
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ApiError> {
        let streams = fields.read_or(&STREAMS)?;
        let Some(options) = fields.read(&OPTIONS)? else {
            return Ok(Self { streams, ..Self::default() });
        };
        if !streams {
            let message = "stream_options needs \"stream\": true";
            return Err(ApiError::field("stream_options", message));
        }
        let (continuous, usage) = (options.read_or(&CONTINUOUS_USAGE)?, options.read_or(&USAGE)?);
        Ok(Self { streams, usage, continuous_usage: usage && continuous })
    }
}

/// Says that answers are not kept, if a request asks for it.
pub(crate) fn check_store(fields: Fields<'_>) {
    if fields.get(&STORES).is_some_and(|store| store == true) {
        note(
            "store changes nothing: answers are not kept here; send the whole conversation each \
             time",
        );
    }
}

/// Tokens read and written by a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts {
    prompt: usize,
    /// Number of the prompt's tokens that were found in the cache.
    cached: usize,
    generated: usize,
    /// Number of the tokens written that are within thoughts.
    thoughts: usize,
}

impl Counts {
    pub(crate) fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.thoughts},
        })
    }
}

/// Tokens read and written by a request, up to the present if its texts are streamed.
#[derive(Debug)]
pub(crate) struct Tally {
    prompt: usize,
    cached: usize,
    /// Tokens of each text.
    generated: Vec<usize>,
    /// Tokens of thoughts of each text.
    thoughts: Vec<usize>,
}

impl Tally {
    /// Returns a tally of `texts` texts whose prompts have `prompt` tokens together.
    pub(crate) fn new(prompt: usize, texts: usize) -> Self {
        Self { prompt, cached: 0, generated: vec![0; texts], thoughts: vec![0; texts] }
    }

    /// Returns the number of texts.
    pub(crate) fn texts(&self) -> usize {
        self.generated.len()
    }

    /// Notes how many tokens a text has.
    pub(crate) fn grow(&mut self, index: usize, generated: usize) {
        self.generated[index] = generated;
    }

    /// Notes how many tokens of thoughts a text has.
    pub(crate) fn think(&mut self, index: usize, thoughts: usize) {
        self.thoughts[index] = thoughts;
    }

    /// Notes that a text has ended.
    pub(crate) fn end(&mut self, index: usize, ended: &Ended) {
        self.grow(index, ended.generated);
        self.think(index, ended.thoughts);
        self.cached = self.cached.max(ended.reused);
    }

    /// Returns the counts of texts that are complete; those that share a prompt count it once.
    pub(crate) fn counts_of(&self, texts: &[Whole]) -> Counts {
        let cached = texts.iter().map(|text| text.ended.reused).max().unwrap_or(0);
        let generated = texts.iter().map(|text| text.ended.generated).sum();
        let thoughts = texts.iter().map(|text| text.ended.thoughts).sum();
        Counts { prompt: self.prompt, cached: cached.min(self.prompt), generated, thoughts }
    }

    pub(crate) fn counts(&self) -> Counts {
        let Self { prompt, cached, .. } = *self;
        let (generated, thoughts) = (self.generated.iter().sum(), self.thoughts.iter().sum());
        Counts { prompt, cached: cached.min(prompt), generated, thoughts }
    }
}

/// Returns a count of tokens in the form of the Responses API.
pub(crate) fn input_tokens(count: usize) -> Value {
    json!({"object": "response.input_tokens", "input_tokens": count})
}

/// Returns `finish_reason`.
pub(crate) fn finish_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::StopText(_) | Reason::StopId(_) => "stop",
        Reason::Calls => "tool_calls",
        Reason::Length => "length",
    }
}

/// Returns vLLM's `stop_reason`: the stop text that was reached, or the id of `stop_token_ids` that
/// ended the text.
pub(crate) fn stop_reason(reason: &Reason) -> Value {
    match reason {
        Reason::StopText(text) => text.clone().into(),
        Reason::StopId(token) => (*token).into(),
        Reason::Stop | Reason::Calls | Reason::Length => Value::Null,
    }
}
