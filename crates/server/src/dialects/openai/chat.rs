//! `POST /v1/chat/completions`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::logprobs::PromptLogprobs;
use super::{
    FINGERPRINT, STORE, STREAM_OPTIONS, Streaming, Tally, finish_reason, logprobs, stop_reason,
};
use crate::clock::unix_seconds;
use crate::error::ApiError;
use crate::flow::{self, STREAM, Talking};
use crate::models::Lease;
use crate::reply::generate::{Ended, Piece, TokenText, Whole};
use crate::reply::stream::{Writer, push_event};
use crate::reply::warnings::note;
use crate::request::body::MODEL;
use crate::request::calling::{CALLING, openai_call};
use crate::request::conversation::{CONVERSATION, Conversation, RENDERING};
use crate::request::fields::{FieldTable, Fields, rows};
use crate::request::messages::MESSAGES;
use crate::request::open::{Sees, open};
use crate::request::parameters::{
    CHAT_LOGPROBS, PARAMETERS, ParameterFields, Penalties, read_chat_logprobs,
};
use crate::service::app::App;
use crate::service::guard::random_id;
use crate::service::service_routes::json_response;

/// The fields of a request.
pub(crate) const CHAT: FieldTable = &[
    MESSAGES,
    MODEL,
    STREAM,
    STREAM_OPTIONS,
    PARAMETERS,
    CHAT_LOGPROBS,
    STORE,
    WEB,
    CALLING,
    RENDERING,
];

rows! {
    WEB {
        /// Left out with a warning: this server searches nothing.
        WEB_SEARCH: Value = "web_search_options";
    }
}

/// Answers a conversation.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    flow::answer(&app, request, CHAT, read).await
}

/// Counts the tokens of a conversation.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let count = |conversation: Conversation, lease: &Arc<Lease>| conversation.token_ids(lease);
    let read = Conversation::read;
    let (ids, _) = open(&app, request, Sees::Sizes, CONVERSATION, read, count).await?;
    Ok(json_response(&super::input_tokens(ids.len())))
}

fn read(fields: Fields<'_>) -> Result<Talking<ChatChunks>, ApiError> {
    let streaming = Streaming::read(fields)?;
    let parameters = ParameterFields::read(fields, Penalties::OfAnswer)?;
    if streaming.streams && parameters.prompt_logprobs.is_some() {
        let remedy =
            "log-probabilities of the prompt come with whole answers; use \"stream\": false";
        return Err(ApiError::unsupported("prompt_logprobs", remedy));
    }
    let logprobs = read_chat_logprobs(fields)?;
    super::check_store(fields);
    if fields.get(&WEB_SEARCH).is_some() {
        note("web_search_options is left out: this server has no such tool");
    }
    let conversation = Conversation::read(fields)?;
    let writer = move |ids: Vec<u32>, fields: &ParameterFields, lease: &Arc<Lease>| ChatChunks {
        id: random_id("chatcmpl-"),
        created: unix_seconds(),
        lease: Arc::clone(lease),
        streaming,
        logprobs: logprobs.is_some(),
        tally: Tally::new(ids.len(), fields.n),
        prompt: fields.prompt_logprobs.map(|_| ids),
    };
    let streams = streaming.streams;
    Ok(Talking { parameters, conversation, logprobs, streams, writer: Box::new(writer) })
}

/// Writes answers and chunks.
struct ChatChunks {
    id: String,
    created: u64,
    lease: Arc<Lease>,
    streaming: Streaming,
    logprobs: bool,
    /// The prompt's token ids, if their log-probabilities are wanted.
    prompt: Option<Vec<u32>>,
    tally: Tally,
}

/// An answer that is sent whole.
#[derive(Serialize)]
struct ChatAnswer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChatChoice<'a>>,
    usage: Value,
    system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<PromptLogprobs<'a>>,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: usize,
    message: Value,
    logprobs: Option<logprobs::Chat<'a>>,
    finish_reason: &'static str,
    stop_reason: Value,
}

impl ChatChunks {
    fn logprobs<'a>(&'a self, tokens: &'a [TokenText]) -> logprobs::Chat<'a> {
        logprobs::Chat { tokenizer: &self.lease.model.tokenizer, tokens }
    }

    fn choice<'a>(&'a self, index: usize, whole: &'a Whole) -> ChatChoice<'a> {
        let (text, reason) = (whole.text(), &whole.ended.reason);
        let mut message = json!({"role": "assistant", "content": text, "refusal": null});
        if let Some(thoughts) = whole.thoughts() {
            message["reasoning_content"] = thoughts.into();
        }
        let calls: Vec<Value> = whole.calls().map(openai_call).collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
            if text.is_empty() {
                message["content"] = Value::Null;
            }
        }
        ChatChoice {
            index,
            message,
            logprobs: self.logprobs.then(|| self.logprobs(&whole.tokens)),
            finish_reason: finish_reason(reason),
            stop_reason: stop_reason(reason),
        }
    }

    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": &*self.lease.name,
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
        let known = known.then(|| self.logprobs(tokens));
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

impl Writer for ChatChunks {
    fn whole<'a>(&'a self, texts: &'a [Whole]) -> impl Serialize {
        let tokenizer = &self.lease.model.tokenizer;
        let prompt_logprobs = self.prompt.as_deref().map(|prompt| PromptLogprobs {
            tokenizer,
            prompt,
            logprobs: &texts[0].prompt,
        });
        let choices = texts.iter().enumerate();
        ChatAnswer {
            id: &self.id,
            object: "chat.completion",
            created: self.created,
            model: &self.lease.name,
            choices: choices.map(|(index, whole)| self.choice(index, whole)).collect(),
            usage: self.tally.counts_of(texts).json(),
            system_fingerprint: FINGERPRINT,
            prompt_logprobs,
        }
    }

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
            Piece::Thought { text, generated, thoughts } => {
                self.tally.grow(index, generated);
                self.tally.think(index, thoughts);
                let delta = json!({ "reasoning_content": text });
                push_event(out, None, &self.delta(index, delta, &[], None));
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
}
