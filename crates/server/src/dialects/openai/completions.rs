//! `POST /v1/completions`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;
use serde_json::{Value, json};
use trine_engine::LOGPROBS_MAX;

use super::logprobs::{Legacy, PromptLogprobs};
use super::{Counts, FINGERPRINT, STREAM_OPTIONS, Streaming, Tally, finish_reason, stop_reason};
use crate::clock::unix_seconds;
use crate::error::ApiError;
use crate::flow::{self, Prepared, STREAM};
use crate::models::Lease;
use crate::reply::generate::{Ask, Piece, Whole, check_queue};
use crate::reply::stream::{Writer, push_event};
use crate::request::body::MODEL;
use crate::request::calling;
use crate::request::fields::{FieldTable, Fields, Rows, rows};
use crate::request::parameters::{PARAMETERS, ParameterFields, Penalties};
use crate::request::pictures::Pictured;
use crate::request::prompts::{Prompt, read_prompts};
use crate::request::{thinking, unsupported};
use crate::service::app::App;
use crate::service::guard::random_id;

/// Tokens written if the request does not say, as in OpenAI's API.
pub(crate) const TOKENS_DEFAULT: usize = 16;
/// Most prompts in a request, and most texts for all of them.
pub(crate) const PROMPTS_MAX: usize = 256;
const TEXTS_MAX: usize = 256;

/// The fields of a request.
pub(crate) const COMPLETION: FieldTable =
    &[PROMPT, MODEL, STREAM, STREAM_OPTIONS, PARAMETERS, ECHO, UNSUPPORTED];

/// The fields of conversations, of which texts have nothing.
pub(crate) const UNSUPPORTED: Rows = Rows::All(&[
    Rows::Refused(&unsupported::TOOLS),
    Rows::Refused(&unsupported::PICTURES),
    thinking::UNTHINKING,
]);

rows! {
    PROMPT {
        /// A text, a list of texts, a list of token ids and texts, or a list of such lists. All
        /// prompts together have at most 256 texts.
        PROMPTS! Value = "prompt", as texts_or_ids(PROMPTS_MAX);
    }
    ECHO {
        /// Whether the prompt stands before the text.
        ECHOES: bool = "echo", or false;
        /// Log-probabilities, with this number of alternatives; with `echo` those of the prompt
        /// too.
        LOGPROBS: usize = "logprobs", in 0..=LOGPROBS_MAX;
    }
}

/// A prompt's token ids and its text, if the text is to be repeated.
pub(crate) struct Encoded {
    pub(crate) ids: Vec<u32>,
    text: String,
}

/// What a request asks for.
struct CompletionRequest {
    parameters: ParameterFields,
    prompts: Vec<Prompt>,
    echo: bool,
    logprobs: Option<usize>,
    streaming: Streaming,
}

/// Continues texts.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    flow::answer(&app, request, COMPLETION, read).await
}

fn read(fields: Fields<'_>) -> Result<CompletionRequest, ApiError> {
    let streaming = Streaming::read(fields)?;
    calling::refuse(fields)?;
    thinking::refuse(fields)?;
    let mut parameters = ParameterFields::read(fields, Penalties::OfAnswer)?;
    parameters.default_tokens = Some(TOKENS_DEFAULT);
    let echo = fields.read_or(&ECHOES)?;
    let logprobs = fields.read(&LOGPROBS)?;
    let prompt_logprobs = parameters.prompt_logprobs.is_some();
    if streaming.streams && (prompt_logprobs || (echo && logprobs.is_some())) {
        let param = if prompt_logprobs { "prompt_logprobs" } else { "logprobs" };
        let remedy =
            "log-probabilities of the prompt come with whole answers; use \"stream\": false";
        return Err(ApiError::unsupported(param, remedy));
    }
    let prompts = read_texts(fields, parameters.n)?;
    Ok(CompletionRequest { parameters, prompts, echo, logprobs, streaming })
}

/// Reads prompts after each of which `n` texts are written.
///
/// # Errors
/// 400 for prompts of a wrong shape, and for more texts than a request may ask for.
pub(crate) fn read_texts(fields: Fields<'_>, n: usize) -> Result<Vec<Prompt>, ApiError> {
    let prompts = read_prompts(fields, &PROMPTS, PROMPTS_MAX)?;
    let count = prompts.len();
    if count * n > TEXTS_MAX {
        let message = format!("{count} prompts with n texts each are more than {TEXTS_MAX} texts");
        return Err(ApiError::field("n", message));
    }
    Ok(prompts)
}

impl Pictured for CompletionRequest {}

impl flow::Asked for CompletionRequest {
    type Writer = CompletionChunks;

    fn prepare(self, lease: &Arc<Lease>) -> Result<Prepared<CompletionChunks>, ApiError> {
        let Self { parameters, prompts, echo, logprobs, streaming } = self;
        let mut parameters = parameters.over(lease)?;
        let prompt_logprobs = parameters.fields.prompt_logprobs;
        if echo && logprobs.is_some() {
            parameters.fields.prompt_logprobs = prompt_logprobs.max(logprobs);
            // Clients that score texts ask for one token and cut it off: it has to be there, even
            // if it ends the text.
            parameters.fields.ignore_eos |= parameters.max_tokens == 1;
        }
        let n = parameters.fields.n;
        let prompts = encode_all(prompts, lease, echo, n)?;
        parameters.compile(lease)?;
        let asks = prompts.iter().flat_map(|prompt| parameters.asks(&prompt.ids, logprobs, lease));
        let asks: Vec<Ask> = asks.collect();
        let prompt_tokens = prompts.iter().map(|prompt| prompt.ids.len()).sum();
        let writer = CompletionChunks {
            id: random_id("cmpl-"),
            created: unix_seconds(),
            lease: Arc::clone(lease),
            tally: Tally::new(prompt_tokens, asks.len()),
            prompts,
            n,
            echo,
            logprobs,
            prompt_logprobs: prompt_logprobs.is_some(),
            streaming,
        };
        Ok(Prepared { asks, streams: streaming.streams, writer })
    }
}

/// Returns the token ids of prompts after each of which `n` texts are written. All are looked at
/// before the first one is cut into tokens.
///
/// # Errors
/// 400 if one is longer than the context or has token ids that the model does not have, or if there
/// are more than there is ever room for; as [`Lease::check_room`] otherwise.
pub(crate) fn encode_all(
    prompts: Vec<Prompt>,
    lease: &Lease,
    echo: bool,
    n: usize,
) -> Result<Vec<Encoded>, ApiError> {
    lease.check_room()?;
    let of_prompt = |error: ApiError| error.of_field("prompt");
    let (texts, limits) = (prompts.len() * n, lease.limits());
    let least = prompts.iter().map(|prompt| prompt.check(lease).map_err(of_prompt));
    let least = least.sum::<Result<usize, ApiError>>()?;
    check_queue(texts, least * n, &limits)?;
    let encode = |prompt: Prompt| -> Result<Encoded, ApiError> {
        let ids = prompt.ids(lease, true)?;
        lease.check_prompt(&ids).map_err(of_prompt)?;
        let text = match prompt {
            Prompt::Text(text) => text,
            Prompt::Ids(_) | Prompt::Mixed(_) if echo => lease.tokenizer.decode(&ids, true),
            Prompt::Ids(_) | Prompt::Mixed(_) => String::new(),
        };
        Ok(Encoded { ids, text })
    };
    let encoded = prompts.into_iter().map(encode).collect::<Result<Vec<Encoded>, ApiError>>()?;
    let tokens: usize = encoded.iter().map(|prompt| prompt.ids.len()).sum();
    check_queue(texts, tokens * n, &limits)?;
    Ok(encoded)
}

/// Writes answers and chunks.
struct CompletionChunks {
    id: String,
    created: u64,
    lease: Arc<Lease>,
    tally: Tally,
    prompts: Vec<Encoded>,
    /// Number of texts for each prompt.
    n: usize,
    echo: bool,
    logprobs: Option<usize>,
    prompt_logprobs: bool,
    streaming: Streaming,
}

/// An answer that is sent whole.
#[derive(Serialize)]
struct CompletionAnswer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<CompletionChoice<'a>>,
    usage: Value,
    system_fingerprint: &'static str,
}

#[derive(Serialize)]
struct CompletionChoice<'a> {
    index: usize,
    text: String,
    logprobs: Option<Legacy<'a>>,
    finish_reason: &'static str,
    stop_reason: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs<'a>>,
}

impl CompletionChunks {
    fn choice<'a>(&'a self, index: usize, whole: &'a Whole) -> CompletionChoice<'a> {
        let (tokenizer, prompt) = (&self.lease.model.tokenizer, &self.prompts[index / self.n]);
        let reason = &whole.ended.reason;
        let echoed = if self.echo { &*prompt.text } else { "" };
        let known = self.logprobs.map(|alternatives| {
            let mut legacy = Legacy::new(tokenizer, alternatives);
            if self.echo {
                legacy.prompt(&prompt.ids, &whole.prompt);
            }
            legacy.generated(&whole.tokens, echoed.chars().count());
            legacy
        });
        let prompt_logprobs = self.prompt_logprobs.then(|| PromptLogprobs {
            tokenizer,
            prompt: &prompt.ids,
            logprobs: &whole.prompt,
        });
        CompletionChoice {
            index,
            text: format!("{echoed}{}", whole.text()),
            logprobs: known,
            finish_reason: finish_reason(reason),
            stop_reason: stop_reason(reason),
            prompt_logprobs,
        }
    }

    fn chunk(&self, choices: Value, usage: Option<Counts>) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": &*self.lease.name,
            "choices": choices,
        });
        if self.streaming.usage {
            chunk["usage"] = usage.map(Counts::json).unwrap_or_default();
        }
        chunk
    }

    fn text(&self, index: usize, text: &str, known: Option<Legacy<'_>>) -> Value {
        let choice =
            json!({"index": index, "text": text, "logprobs": known, "finish_reason": null});
        let usage = self.streaming.continuous_usage.then(|| self.tally.counts());
        self.chunk(json!([choice]), usage)
    }
}

impl Writer for CompletionChunks {
    fn whole<'a>(&'a self, texts: &'a [Whole]) -> impl Serialize {
        let choices = texts.iter().enumerate();
        CompletionAnswer {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.lease.name,
            choices: choices.map(|(index, whole)| self.choice(index, whole)).collect(),
            usage: self.tally.counts_of(texts).json(),
            system_fingerprint: FINGERPRINT,
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !self.echo {
            return;
        }
        for index in 0..self.tally.texts() {
            let prompt = &self.prompts[index / self.n];
            push_event(out, None, &self.text(index, &prompt.text, None));
        }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, tokens, generated } => {
                self.tally.grow(index, generated);
                let known = self.logprobs.filter(|_| !tokens.is_empty());
                let known = known.map(|alternatives| {
                    let mut legacy = Legacy::new(&self.lease.model.tokenizer, alternatives);
                    // No prompt stands before them: streams with both `echo` and `logprobs` are
                    // refused.
                    legacy.generated(&tokens, 0);
                    legacy
                });
                push_event(out, None, &self.text(index, &text, known));
            }
            Piece::End(ended) => {
                self.tally.end(index, &ended);
                let choice = json!({
                    "index": index,
                    "text": "",
                    "logprobs": null,
                    "finish_reason": finish_reason(&ended.reason),
                    "stop_reason": stop_reason(&ended.reason),
                });
                let usage = self.streaming.continuous_usage.then(|| self.tally.counts());
                push_event(out, None, &self.chunk(json!([choice]), usage));
            }
            Piece::Call(_) | Piece::Thought { .. } | Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.streaming.usage {
            push_event(out, None, &self.chunk(json!([]), Some(self.tally.counts())));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}
