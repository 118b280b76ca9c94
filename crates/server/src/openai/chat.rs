//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};

use super::{Counts, FINGERPRINT, Streaming, Tally, finish_reason, logprobs, stop_reason};
use crate::app::{App, unix_seconds};
use crate::calling::openai_call;
use crate::conversation::Conversation;
use crate::error::{ApiError, Dialect};
use crate::generate::{Ask, Choices, Ended, Piece, TokenText, Whole, collect};
use crate::guard::random_id;
use crate::json::Fields;
use crate::models::Lease;
use crate::open::open;
use crate::parameters::{ParameterFields, Penalties, read_chat_logprobs};
use crate::service_routes::json_response;
use crate::stream::{Writer, push_event, respond};

/// What a request asks for.
struct Asked {
    parameters: ParameterFields,
    conversation: Conversation,
    logprobs: Option<usize>,
    streaming: Streaming,
}

/// A request ready for the model.
struct Chat {
    asks: Vec<Ask>,
    prompt_tokens: usize,
    prompt_logprobs: bool,
    logprobs: bool,
    streaming: Streaming,
}

/// What stands in every chunk.
struct Head {
    id: String,
    created: u64,
    model: Arc<str>,
}

/// Answers a conversation.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let dialect = Dialect::of(request.uri().path());
    let (chat, lease) = open(&app, request, read, Asked::prepare).await?;
    let count = chat.asks.len();
    let choices = Choices::start(&app, &lease, chat.asks)?;
    let head = Head {
        id: random_id("chatcmpl-"),
        created: unix_seconds(),
        model: Arc::clone(&lease.name),
    };
    if chat.streaming.streams {
        let writer = Chunks {
            head,
            dialect,
            lease,
            streaming: chat.streaming,
            logprobs: chat.logprobs,
            tally: Tally::new(chat.prompt_tokens, count),
        };
        return respond(choices, writer).await;
    }
    let wholes = collect(choices, count).await?;
    let counts = Counts::of(chat.prompt_tokens, &wholes);
    let choices = wholes.iter().enumerate();
    let choices: Value =
        choices.map(|(index, whole)| choice(&lease, index, whole, chat.logprobs)).collect();
    let mut answer = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": &*head.model,
        "choices": choices,
        "usage": counts.json(),
        "system_fingerprint": FINGERPRINT,
    });
    if chat.prompt_logprobs {
        let known = &wholes[0].prompt;
        answer["prompt_logprobs"] = logprobs::vllm_prompt(&lease.model.tokenizer, known);
    }
    Ok(json_response(&answer))
}

/// Counts the tokens of a conversation.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let count = |conversation: Conversation, lease: &Arc<Lease>| conversation.token_ids(lease);
    let (ids, _) = open(&app, request, Conversation::read, count).await?;
    Ok(json_response(&super::input_tokens(ids.len())))
}

fn read(fields: Fields<'_>) -> Result<Asked, ApiError> {
    let streaming = Streaming::read(fields)?;
    let parameters = ParameterFields::read(fields, Penalties::OfAnswer)?;
    if streaming.streams && parameters.prompt_logprobs.is_some() {
        let remedy =
            "log-probabilities of the prompt come with whole answers; use \"stream\": false";
        return Err(ApiError::unsupported("prompt_logprobs", remedy));
    }
    let logprobs = read_chat_logprobs(fields)?;
    Ok(Asked { parameters, conversation: Conversation::read(fields)?, logprobs, streaming })
}

impl Asked {
    fn prepare(self, lease: &Arc<Lease>) -> Result<Chat, ApiError> {
        let mut parameters = self.parameters.over(lease)?;
        let ids = self.conversation.prompt(&mut parameters, lease)?;
        Ok(Chat {
            asks: parameters.asks(&ids, self.logprobs, lease),
            prompt_tokens: ids.len(),
            prompt_logprobs: parameters.fields.prompt_logprobs.is_some(),
            logprobs: self.logprobs.is_some(),
            streaming: self.streaming,
        })
    }
}

fn choice(lease: &Lease, index: usize, whole: &Whole, wants_logprobs: bool) -> Value {
    let (text, reason) = (whole.text(), &whole.ended.reason);
    let known = wants_logprobs.then(|| logprobs::chat(&lease.model.tokenizer, &whole.tokens));
    let mut message = json!({"role": "assistant", "content": text, "refusal": null});
    let calls: Vec<Value> = whole.calls().map(openai_call).collect();
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
        if text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": known,
        "finish_reason": finish_reason(reason),
        "stop_reason": stop_reason(reason),
    })
}

/// Writes chunks.
struct Chunks {
    head: Head,
    dialect: Dialect,
    lease: Arc<Lease>,
    streaming: Streaming,
    logprobs: bool,
    tally: Tally,
}

impl Chunks {
    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": &*self.head.model,
            "choices": choices,
            "system_fingerprint": FINGERPRINT,
        });
        // Clients that did not ask for counts need not know the field.
        if self.streaming.usage {
            chunk["usage"] = usage;
        }
        chunk
    }

    fn delta(
        &self,
        index: usize,
        delta: Value,
        tokens: &[TokenText],
        ended: Option<&Ended>,
    ) -> Value {
        let known = self.logprobs && !tokens.is_empty();
        let known = known.then(|| logprobs::chat(&self.lease.model.tokenizer, tokens));
        let mut choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": known,
            "finish_reason": ended.map(|ended| finish_reason(&ended.reason)),
        });
        if let Some(ended) = ended {
            choice["stop_reason"] = stop_reason(&ended.reason);
        }
        let usage = self.streaming.continuous_usage.then(|| self.tally.counts().json());
        self.chunk(json!([choice]), usage.unwrap_or_default())
    }
}

impl Writer for Chunks {
    fn begin(&mut self, out: &mut Vec<u8>) {
        for index in 0..self.tally.texts() {
            let delta = json!({"role": "assistant", "content": ""});
            push_event(out, None, &self.delta(index, delta, &[], None));
        }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, tokens, generated } => {
                self.tally.grow(index, generated);
                let delta = json!({ "content": text });
                push_event(out, None, &self.delta(index, delta, &tokens, None));
            }
            Piece::End(ended) => {
                self.tally.end(index, &ended);
                push_event(out, None, &self.delta(index, json!({}), &[], Some(&ended)));
            }
            Piece::Call(call) => {
                let mut value = openai_call(&call);
                value["index"] = call.index.into();
                let delta = json!({ "tool_calls": [value] });
                push_event(out, None, &self.delta(index, delta, &[], None));
            }
            Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.streaming.usage {
            push_event(out, None, &self.chunk(json!([]), self.tally.counts().json()));
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        push_event(out, None, &error.body(self.dialect));
    }
}
