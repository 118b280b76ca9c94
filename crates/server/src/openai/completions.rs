//! `POST /v1/completions`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Map, Value, json};
use trine_engine::LOGPROBS_MAX;
use trine_text::Specials;

use super::logprobs::{Legacy, vllm_prompt};
use super::{Counts, FINGERPRINT, Streaming, Tally, finish_reason, stop_reason};
use crate::app::{App, unix_seconds};
use crate::calling;
use crate::error::{ApiError, Dialect};
use crate::generate::{Ask, Choices, Piece, Whole, collect};
use crate::guard::random_id;
use crate::json::{Fields, token_id};
use crate::models::{Lease, LoadedModel};
use crate::parameters::Parameters;
use crate::service_routes::json_response;
use crate::stream::{Writer, push_event, respond};

/// Tokens written where the request does not say, as OpenAI has it.
pub(crate) const TOKENS_DEFAULT: usize = 16;
/// Most prompts in a request, and most texts for all of them.
pub(crate) const PROMPTS_MAX: usize = 256;
const TEXTS_MAX: usize = 256;

/// A prompt and its text, if the text is to be repeated.
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    text: String,
}

/// A request understood.
struct Completion {
    prompts: Vec<Prompt>,
    asks: Vec<Ask>,
    /// Texts for each prompt.
    n: usize,
    echo: bool,
    logprobs: Option<usize>,
    prompt_logprobs: bool,
    streaming: Streaming,
}

/// Continues texts.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let dialect = Dialect::of(request.uri().path());
    let (object, lease) = app.open(request).await?;
    let reading = Arc::clone(&lease);
    let mut completion = app.work(move || read(&object, &reading)).await?;
    let asks = std::mem::take(&mut completion.asks);
    let count = asks.len();
    let choices = Choices::start(&app, &lease, asks)?;
    let (id, created) = (random_id("cmpl-"), unix_seconds());
    let prompt_tokens = completion.prompts.iter().map(|prompt| prompt.ids.len()).sum();
    if completion.streaming.streams {
        let writer = Chunks {
            id,
            created,
            dialect,
            lease,
            tally: Tally::new(prompt_tokens, count),
            completion,
        };
        return respond(choices, writer).await;
    }
    let wholes = collect(choices, count).await?;
    let counts = Counts::of(prompt_tokens, &wholes);
    let choices = wholes.iter().enumerate();
    let choices: Value =
        choices.map(|(index, whole)| completion.choice(&lease.model, index, whole)).collect();
    Ok(json_response(&json!({
        "id": id,
        "object": "text_completion",
        "created": created,
        "model": &*lease.name,
        "choices": choices,
        "usage": counts.json(),
        "system_fingerprint": FINGERPRINT,
    })))
}

fn read(object: &Map<String, Value>, lease: &Lease) -> Result<Completion, ApiError> {
    let (fields, model) = (Fields::new(object), &*lease.model);
    let streaming = Streaming::read(fields)?;
    calling::refuse(fields)?;
    let mut parameters = Parameters::read(fields, lease)?;
    parameters.compile(model)?;
    let is_open = ["max_tokens", "max_completion_tokens", "n_predict"]
        .iter()
        .all(|name| fields.get(name).is_none());
    if is_open && parameters.max_tokens.is_none() {
        parameters.max_tokens = Some(TOKENS_DEFAULT.max(parameters.min_tokens));
    }
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let logprobs = fields.count("logprobs", 0, LOGPROBS_MAX)?;
    let prompt_logprobs = parameters.prompt_logprobs.is_some();
    if echo && logprobs.is_some() {
        parameters.prompt_logprobs = parameters.prompt_logprobs.max(logprobs);
        // Clients that score texts ask for one token and cut it off: it has to be there, even if it ends the text.
        parameters.ignore_eos |= parameters.max_tokens == Some(1);
    }
    if streaming.streams && (prompt_logprobs || (echo && logprobs.is_some())) {
        let param = if prompt_logprobs { "prompt_logprobs" } else { "logprobs" };
        let remedy =
            "log-probabilities of the prompt come with whole answers; use \"stream\": false";
        return Err(ApiError::unsupported(param, remedy));
    }
    let prompts = read_prompts(fields, model, echo, parameters.n)?;
    let asks = prompts.iter().flat_map(|prompt| parameters.asks(&prompt.ids, logprobs, model));
    Ok(Completion {
        asks: asks.collect(),
        prompts,
        n: parameters.n,
        echo,
        logprobs,
        prompt_logprobs,
        streaming,
    })
}

/// A text, a list of texts, a list of token ids, or a list of such lists; `n` texts are written after each.
pub(crate) fn read_prompts(
    fields: Fields<'_>,
    model: &LoadedModel,
    echo: bool,
    n: usize,
) -> Result<Vec<Prompt>, ApiError> {
    let expected = "use a text, a list of texts, a list of token ids or a list of such lists";
    let wrong = |what: &str| ApiError::field("prompt", format!("{what}; {expected}"));
    let tokenizer = &*model.tokenizer;
    let one = |value: &Value| -> Result<Prompt, ApiError> {
        match value {
            Value::String(text) if text.is_empty() => Err(wrong("a prompt is empty")),
            Value::String(text) => {
                let ids = tokenizer.encode_prompt(text, Specials::Parse)?;
                Ok(Prompt { ids, text: text.clone() })
            }
            Value::Array(ids) if !ids.is_empty() => {
                let ids: Option<Vec<u32>> = ids.iter().map(token_id).collect();
                let ids =
                    ids.ok_or_else(|| wrong("a prompt holds something else than token ids"))?;
                let text = if echo { tokenizer.decode(&ids, true) } else { String::new() };
                Ok(Prompt { ids, text })
            }
            Value::Array(_) => Err(wrong("a prompt is empty")),
            _ => Err(wrong("prompt is neither a text nor a list")),
        }
    };
    let value = fields.get("prompt").ok_or_else(|| wrong("prompt is missing"))?;
    let many = match value {
        Value::Array(items) if items.iter().any(|item| item.is_string() || item.is_array()) => {
            Some(items)
        }
        _ => None,
    };
    let count = many.map_or(1, Vec::len);
    if count > PROMPTS_MAX {
        return Err(wrong(&format!("there are more than {PROMPTS_MAX} prompts")));
    }
    if count * n > TEXTS_MAX {
        let message = format!("{count} prompts with n texts each are more than {TEXTS_MAX} texts");
        return Err(ApiError::field("n", message));
    }
    let prompts = match many {
        Some(items) => items.iter().map(one).collect::<Result<Vec<Prompt>, ApiError>>()?,
        None => vec![one(value)?],
    };
    for prompt in &prompts {
        let checked = model.service.limits().check_prompt(&prompt.ids);
        checked.map_err(|error| ApiError::from(error).of_field("prompt"))?;
    }
    Ok(prompts)
}

impl Completion {
    fn choice(&self, model: &LoadedModel, index: usize, whole: &Whole) -> Value {
        let (tokenizer, prompt) = (&model.tokenizer, &self.prompts[index / self.n]);
        let reason = &whole.ended.reason;
        let echoed = if self.echo { &*prompt.text } else { "" };
        let known = self.logprobs.map(|alternatives| {
            let mut legacy = Legacy::default();
            if self.echo {
                legacy.prompt(tokenizer, &prompt.ids, &whole.prompt, alternatives);
            }
            let start = echoed.chars().count();
            legacy.generated(tokenizer, &whole.tokens, start, alternatives);
            legacy.json()
        });
        let mut choice = json!({
            "index": index,
            "text": format!("{echoed}{}", whole.text()),
            "logprobs": known,
            "finish_reason": finish_reason(reason),
            "stop_reason": stop_reason(reason),
        });
        if self.prompt_logprobs {
            choice["prompt_logprobs"] = vllm_prompt(tokenizer, &whole.prompt);
        }
        choice
    }
}

/// Writes chunks.
struct Chunks {
    id: String,
    created: u64,
    dialect: Dialect,
    lease: Arc<Lease>,
    tally: Tally,
    completion: Completion,
}

impl Chunks {
    fn chunk(&self, choices: Value, usage: Option<Counts>) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": &*self.lease.name,
            "choices": choices,
        });
        if self.completion.streaming.usage {
            chunk["usage"] = usage.map(Counts::json).unwrap_or_default();
        }
        chunk
    }

    fn text(&self, index: usize, text: &str, known: Option<Value>) -> Value {
        let choice =
            json!({"index": index, "text": text, "logprobs": known, "finish_reason": null});
        let usage = self.completion.streaming.continuous_usage.then(|| self.tally.counts());
        self.chunk(json!([choice]), usage)
    }
}

impl Writer for Chunks {
    fn begin(&mut self, out: &mut Vec<u8>) {
        if !self.completion.echo {
            return;
        }
        for index in 0..self.tally.texts() {
            let prompt = &self.completion.prompts[index / self.completion.n];
            push_event(out, None, &self.text(index, &prompt.text, None));
        }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, tokens, generated } => {
                self.tally.grow(index, generated);
                let known = self.completion.logprobs.filter(|_| !tokens.is_empty());
                let known = known.map(|alternatives| {
                    let mut legacy = Legacy::default();
                    // No prompt stands before them: streams with both `echo` and `logprobs` are refused.
                    legacy.generated(&self.lease.model.tokenizer, &tokens, 0, alternatives);
                    legacy.json()
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
                let usage = self.completion.streaming.continuous_usage.then(|| self.tally.counts());
                push_event(out, None, &self.chunk(json!([choice]), usage));
            }
            Piece::Call(_) | Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.completion.streaming.usage {
            push_event(out, None, &self.chunk(json!([]), Some(self.tally.counts())));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        push_event(out, None, &error.body(self.dialect));
    }
}
