//! The dialect of OpenAI's Responses API, without state: `/v1/responses`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Map, Value, json};
use trine_text::Message;

use crate::app::{App, unix_seconds};
use crate::body::read_object;
use crate::conversation::{Rendering, prompt, read_messages};
use crate::error::{ApiError, Dialect};
use crate::generate::{Ask, Choices, Ended, Piece, Reason, collect};
use crate::guard::random_id;
use crate::json::Fields;
use crate::models::Lease;
use crate::parameters::{Parameters, read_sampling};
use crate::service_routes::json_response;
use crate::stream::{Writer, push_comment, push_event, respond};
use crate::structure::Structure;

/// Largest `max_output_tokens`.
const TOKENS_MAX: usize = i32::MAX as usize;

/// Fields of the API that need state, tools or other things that this server has not.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("previous_response_id", "responses are not kept; send the whole conversation as input"),
    ("conversation", "conversations are not kept; send the whole conversation as input"),
    ("prompt", "prompts are not kept; send the text as instructions"),
    ("background", "use \"stream\": true"),
    ("tools", "leave it out"),
    ("top_logprobs", "use /v1/chat/completions"),
];

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
    let (ask, echoed) = app.work(move || Ok((read(&object, &reading)?, echoed(&object)))).await?;
    let prompt_tokens = ask.prompt.len();
    let metrics = app.metrics.model(&lease.name);
    let choices = Choices::start(&lease, vec![ask], &app.lifecycle, &metrics)?;
    let answer = Answer {
        id: random_id("resp_"),
        item: random_id("msg_"),
        created: unix_seconds(),
        model: Arc::clone(&lease.name),
        prompt_tokens,
        echoed,
    };
    if streams {
        return respond(choices, Events { answer, sequence: 0, text: String::new() }).await;
    }
    let wholes = collect(choices, 1).await?;
    Ok(json_response(&answer.whole(&wholes[0].text, wholes[0].ended.as_ref())))
}

fn read(object: &Map<String, Value>, lease: &Lease) -> Result<Ask, ApiError> {
    let (fields, model) = (Fields::new(object), &*lease.model);
    for (name, remedy) in UNSUPPORTED {
        let is_off = match fields.get(name) {
            None | Some(Value::Bool(false)) => true,
            Some(Value::Array(items)) => items.is_empty(),
            Some(value) => value.as_u64() == Some(0),
        };
        if !is_off {
            return Err(ApiError::unsupported(name, remedy));
        }
    }
    if fields.text("truncation")?.is_some_and(|truncation| truncation != "disabled") {
        return Err(ApiError::unsupported("truncation", "conversations are never cut"));
    }
    let mut parameters = Parameters::of_model(model);
    let vocabulary = model.service.limits().vocabulary;
    read_sampling(fields, &mut parameters.sampling, vocabulary)?;
    parameters.max_tokens = fields.count("max_output_tokens", 1, TOKENS_MAX)?;
    parameters.follow(Structure::of_response(fields)?, model)?;
    let ids = prompt(model, conversation(fields)?, &Rendering::default())?;
    let mut asks = parameters.asks(&ids, None, model);
    asks.pop().ok_or_else(|| ApiError::internal("there is no text to write"))
}

fn conversation(fields: Fields<'_>) -> Result<Vec<Message>, ApiError> {
    let mut messages = match fields.get("input") {
        Some(Value::String(text)) => vec![Message::new("user", text.as_str())],
        Some(Value::Array(items)) => {
            let kind = |item: &Value| item.get("type").and_then(Value::as_str).map(str::to_owned);
            let other = items.iter().filter_map(kind).find(|kind| kind != "message");
            if let Some(kind) = other {
                let path = format!("input items of type {}", crate::error::shown(&kind));
                return Err(ApiError::unsupported("input", &format!("{path} are not taken")));
            }
            let items = items.iter().cloned().map(|mut item| {
                if let Some(map) = item.as_object_mut() {
                    map.retain(|key, _| matches!(&**key, "role" | "content"));
                }
                item
            });
            let map = Map::from_iter([("messages".to_owned(), items.collect())]);
            let read = read_messages(Fields::new(&map));
            read.map_err(|error| ApiError { param: Some("input".to_owned()), ..error })?
        }
        _ => return Err(fields.wrong("input", "a text or a list of messages")),
    };
    if let Some(instructions) = fields.text("instructions")? {
        messages.insert(0, Message::new("system", instructions));
    }
    Ok(messages)
}

/// Fields of the request that a response repeats.
fn echoed(object: &Map<String, Value>) -> Map<String, Value> {
    let names = ["instructions", "max_output_tokens", "metadata", "temperature", "top_p", "user"];
    let value = |name: &str| object.get(name).cloned().unwrap_or_default();
    let mut echoed: Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), value(name))).collect();
    if let Some(text) = object.get("text").filter(|text| text["format"].is_object()) {
        echoed.insert("text".to_owned(), text.clone());
    }
    echoed
}

/// What all forms of a response share.
struct Answer {
    id: String,
    item: String,
    created: u64,
    model: Arc<str>,
    prompt_tokens: usize,
    echoed: Map<String, Value>,
}

impl Answer {
    fn response(&self, status: &str, output: Value, ended: Option<&Ended>) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": &*self.model,
            "output": output,
            "parallel_tool_calls": false,
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "store": false,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "usage": null,
        });
        for (name, value) in &self.echoed {
            response[name] = value.clone();
        }
        if let Some(ended) = ended {
            response["usage"] = json!({
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": ended.reused},
                "output_tokens": ended.generated,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.prompt_tokens + ended.generated,
            });
        }
        response
    }

    fn item(&self, status: &str, content: Value) -> Value {
        json!({"id": self.item, "type": "message", "role": "assistant", "status": status, "content": content})
    }

    fn whole(&self, text: &str, ended: Option<&Ended>) -> Value {
        let is_cut = ended.is_some_and(|ended| ended.reason == Reason::Length);
        let status = if is_cut { "incomplete" } else { "completed" };
        let output = json!([self.item(status, json!([part(text)]))]);
        let mut response = self.response(status, output, ended);
        if is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Writes events.
struct Events {
    answer: Answer,
    sequence: usize,
    text: String,
}

impl Events {
    fn push(&mut self, out: &mut Vec<u8>, kind: &str, fields: Value) {
        let mut data = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        if let Value::Object(fields) = fields {
            for (name, value) in fields {
                data[name] = value;
            }
        }
        push_event(out, Some(kind), &data);
    }

    /// The same about the one part of text there is.
    fn push_part(&mut self, out: &mut Vec<u8>, kind: &str, name: &str, value: Value) {
        let mut fields =
            json!({"item_id": self.answer.item, "output_index": 0, "content_index": 0});
        fields[name] = value;
        if kind.starts_with("response.output_text") {
            fields["logprobs"] = json!([]);
        }
        self.push(out, kind, fields);
    }
}

impl Writer for Events {
    const MEDIA_TYPE: &'static str = "text/event-stream; charset=utf-8";

    fn begin(&mut self, out: &mut Vec<u8>) {
        let response = self.answer.response("in_progress", json!([]), None);
        self.push(out, "response.created", json!({ "response": response }));
        self.push(out, "response.in_progress", json!({ "response": response }));
        let item = self.answer.item("in_progress", json!([]));
        self.push(out, "response.output_item.added", json!({"output_index": 0, "item": item}));
        self.push_part(out, "response.content_part.added", "part", part(""));
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, .. } => {
                self.text.push_str(&text);
                self.push_part(out, "response.output_text.delta", "delta", text.into());
            }
            Piece::End(ended) => {
                let text = std::mem::take(&mut self.text);
                self.push_part(out, "response.output_text.done", "text", text.clone().into());
                self.push_part(out, "response.content_part.done", "part", part(&text));
                let response = self.answer.whole(&text, Some(&ended));
                let item = response["output"][0].clone();
                self.push(
                    out,
                    "response.output_item.done",
                    json!({"output_index": 0, "item": item}),
                );
                let is_cut = ended.reason == Reason::Length;
                let kind = if is_cut { "response.incomplete" } else { "response.completed" };
                self.push(out, kind, json!({ "response": response }));
            }
            Piece::Call(_) | Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }

    fn end(&mut self, _out: &mut Vec<u8>) {}

    fn fail(&mut self, error: &ApiError, out: &mut Vec<u8>) {
        let mut response = self.answer.response("failed", json!([]), None);
        response["error"] = json!({"code": error.code, "message": error.message});
        let body = error.body(Dialect::OpenAi);
        let fields =
            json!({"code": error.code, "message": error.message, "param": body["error"]["param"]});
        self.push(out, "error", fields);
        self.push(out, "response.failed", json!({ "response": response }));
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        push_comment(out);
    }
}
