//! The dialect of Anthropic's API: `/v1/messages`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, Request, Response};
use serde_json::{Map, Value, json};
use trine_text::Message;

use crate::app::App;
use crate::body::read_object;
use crate::conversation::{Rendering, prompt, read_messages};
use crate::error::{ApiError, Dialect};
use crate::generate::{Ask, Choices, Piece, Reason, collect};
use crate::guard::random_id;
use crate::json::Fields;
use crate::models::Lease;
use crate::parameters::{Parameters, read_sampling, read_stops};
use crate::service_routes::json_response;
use crate::stream::{Writer, push_event, respond};

/// Largest `max_tokens`.
const TOKENS_MAX: usize = i32::MAX as usize;

/// Answers a conversation.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let object = read_object(&app, request).await?;
    let fields = Fields::new(&object);
    let streams = fields.boolean("stream")?.unwrap_or(false);
    let lease = app.model(fields.text("model")?).await?;
    let reading = Arc::clone(&lease);
    let ask = app.work(move || read(&object, &reading)).await?;
    let prompt_tokens = ask.prompt.len();
    let metrics = app.metrics.model(&lease.name);
    let choices = Choices::start(&lease, vec![ask], &app.lifecycle, &metrics)?;
    let id = random_id("msg_");
    let mut response = if streams {
        let model = Arc::clone(&lease.name);
        respond(choices, Events { id: id.clone(), model, prompt_tokens, is_open: false }).await?
    } else {
        let wholes = collect(choices, 1).await?;
        let reason = wholes[0].reason();
        let (reason, sequence) = stop(&reason);
        let ended = wholes[0].ended.as_ref();
        json_response(&json!({
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": &*lease.name,
            "content": [{"type": "text", "text": wholes[0].text}],
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage(prompt_tokens, ended.map_or(0, |ended| ended.reused), wholes[0].generated()),
        }))
    };
    if let Ok(id) = id.parse() {
        response.headers_mut().insert(HeaderName::from_static("request-id"), id);
    }
    Ok(response)
}

/// Tokens of a conversation.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let object = read_object(&app, request).await?;
    let lease = app.model(Fields::new(&object).text("model")?).await?;
    let work = move || {
        let ids = prompt(&lease.model, conversation(&object)?, &Rendering::default())?;
        Ok(json_response(&json!({"input_tokens": ids.len()})))
    };
    app.work(work).await
}

fn read(object: &Map<String, Value>, lease: &Lease) -> Result<Ask, ApiError> {
    let (fields, model) = (Fields::new(object), &*lease.model);
    for (name, remedy) in
        [("tools", "leave it out"), ("mcp_servers", "leave it out"), ("container", "leave it out")]
    {
        if fields.list(name).map_or(true, |items| items.is_some_and(|items| !items.is_empty())) {
            return Err(ApiError::unsupported(name, remedy));
        }
    }
    if fields
        .object("thinking")?
        .is_some_and(|thinking| thinking.get("type") != Some(&"disabled".into()))
    {
        return Err(ApiError::unsupported("thinking", "the models of this server answer at once"));
    }
    let mut parameters = Parameters::of_model(model);
    let vocabulary = model.service.limits().vocabulary;
    read_sampling(fields, &mut parameters.sampling, vocabulary)?;
    let most = fields.count("max_tokens", 0, TOKENS_MAX)?;
    parameters.max_tokens =
        Some(most.ok_or_else(|| fields.wrong("max_tokens", "a number of tokens"))?);
    parameters.stops = read_stops(fields, "stop_sequences")?;
    let ids = prompt(model, conversation(object)?, &rendering(object))?;
    let mut asks = parameters.asks(&ids, None, model);
    asks.pop().ok_or_else(|| ApiError::internal("there is no text to write"))
}

/// A conversation that ends with the assistant's words is one that it goes on with.
fn rendering(object: &Map<String, Value>) -> Rendering {
    let last = object.get("messages").and_then(Value::as_array).and_then(|items| items.last());
    let continues = last.is_some_and(|last| last["role"] == "assistant");
    Rendering { begins_answer: !continues, continues_last: continues, ..Rendering::default() }
}

/// The messages, the system's instructions first.
fn conversation(object: &Map<String, Value>) -> Result<Vec<Message>, ApiError> {
    let fields = Fields::new(object);
    let mut messages = read_messages(fields)?;
    for message in &mut messages {
        flatten(message);
    }
    let system = match fields.get("system") {
        None => return Ok(messages),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| part.get("text").and_then(Value::as_str));
            let texts: Option<Vec<&str>> = texts.collect();
            texts.ok_or_else(|| fields.wrong("system", "a text or a list of texts"))?.join("\n")
        }
        Some(_) => return Err(fields.wrong("system", "a text or a list of texts")),
    };
    messages.insert(0, Message::new("system", system));
    Ok(messages)
}

/// Parts of text to one text: what follows a prompt must be found in it.
fn flatten(message: &mut Message) {
    if let trine_text::Content::Parts(parts) = &message.content {
        let texts = parts.iter().filter_map(|part| part.text.as_deref());
        message.content = texts.collect::<Vec<_>>().join("\n").into();
    }
}

fn stop(reason: &Reason) -> (&'static str, Option<&str>) {
    match reason {
        Reason::Stop => ("end_turn", None),
        Reason::StopText(text) => ("stop_sequence", Some(text)),
        Reason::Length => ("max_tokens", None),
    }
}

fn usage(prompt: usize, cached: usize, generated: usize) -> Value {
    // Input tokens are those that were not in the cache.
    json!({
        "input_tokens": prompt.saturating_sub(cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": generated,
    })
}

/// Writes events.
struct Events {
    id: String,
    model: Arc<str>,
    prompt_tokens: usize,
    /// Whether the block of text has begun.
    is_open: bool,
}

impl Events {
    fn open(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_open, true) {
            let block = json!({"type": "text", "text": ""});
            let data = json!({"type": "content_block_start", "index": 0, "content_block": block});
            push_event(out, Some("content_block_start"), &data);
        }
    }
}

impl Writer for Events {
    const MEDIA_TYPE: &'static str = "text/event-stream; charset=utf-8";

    fn begin(&mut self, out: &mut Vec<u8>) {
        let message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": &*self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage(self.prompt_tokens, 0, 0),
        });
        push_event(
            out,
            Some("message_start"),
            &json!({"type": "message_start", "message": message}),
        );
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, .. } => {
                self.open(out);
                let delta = json!({"type": "text_delta", "text": text});
                let data = json!({"type": "content_block_delta", "index": 0, "delta": delta});
                push_event(out, Some("content_block_delta"), &data);
            }
            Piece::End(ended) => {
                self.open(out);
                let data = json!({"type": "content_block_stop", "index": 0});
                push_event(out, Some("content_block_stop"), &data);
                let (reason, sequence) = stop(&ended.reason);
                let data = json!({
                    "type": "message_delta",
                    "delta": {"stop_reason": reason, "stop_sequence": sequence},
                    "usage": usage(self.prompt_tokens, ended.reused, ended.generated),
                });
                push_event(out, Some("message_delta"), &data);
            }
            Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        push_event(out, Some("message_stop"), &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        push_event(out, Some("error"), &error.body(Dialect::Anthropic));
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        push_event(out, Some("ping"), &json!({"type": "ping"}));
    }
}
