//! The dialect of OpenAI's Responses API, without state: `/v1/responses`

mod input;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use trine_text::{ReplyPart, ToolCall};

use crate::clock::unix_seconds;
use crate::dialects::openai::{self, STORE};
use crate::error::{ApiError, Dialect};
use crate::flow::{self, STREAM, STREAMS, Talking};
use crate::models::Lease;
use crate::reply::generate::{Ended, Piece, Reason, Whole};
use crate::reply::stream::{Writer, push_event};
use crate::request::body::MODEL;
use crate::request::calling::{self, PARALLEL_CALLS, TOOL_CHOICE};
use crate::request::conversation::Conversation;
use crate::request::fields::{AnyRow, FieldTable, Fields, Harmless, Rows, Unsupported, rows};
use crate::request::open::{Sees, open};
use crate::request::parameters::{
    EVERYWHERE, ParameterFields, Penalties, SAMPLING, TEMPERATURE, TOKENS_MAX, TOP_P,
};
use crate::request::structure::{self, Structure};
use crate::request::thinking::{self, REASONING};
use crate::service::app::App;
use crate::service::guard::random_id;
use crate::service::service_routes::json_response;
use input::Spaces;

/// Fields of the API that need state or other things that this server does not have.
pub(crate) const UNSUPPORTED: [Unsupported; 5] = [
    (
        "previous_response_id",
        Harmless::Off,
        "responses are not kept; send the whole conversation as input",
    ),
    (
        "conversation",
        Harmless::Off,
        "conversations are not kept; send the whole conversation as input",
    ),
    ("prompt", Harmless::Off, "prompts are not kept; send the text as instructions"),
    ("background", Harmless::Off, "use \"stream\": true"),
    ("top_logprobs", Harmless::At(&[0.0]), "use /v1/chat/completions"),
];

/// The fields of a request.
pub(crate) const RESPONSE: FieldTable = &[
    input::INPUT,
    MODEL,
    STREAM,
    SAMPLING,
    CONVERSATION,
    LENGTH,
    structure::RESPONSE_TEXT,
    TRUNCATION,
    STORE,
    structure::OTHERS,
    Rows::Refused(&UNSUPPORTED),
    EVERYWHERE,
    INCLUDE,
];

/// The fields of a request that counts tokens.
pub(crate) const COUNT: FieldTable = &[input::INPUT, MODEL, CONVERSATION];

/// The fields of the conversation, without its input.
const CONVERSATION: Rows =
    Rows::All(&[input::INSTRUCTIONS, input::TOOLS, calling::CHOOSING, thinking::OF_RESPONSES]);

rows! {
    LENGTH {
        /// Absent: until the context is full.
        MAX_OUTPUT_TOKENS: usize = "max_output_tokens", in 1..=TOKENS_MAX;
    }
    TRUNCATION {
        /// Conversations are never cut.
        TRUNCATES: str = "truncation", as default(constant("disabled"), "disabled");
        /// Repeated in the answer.
        METADATA: Value = "metadata";
        /// Repeated in the answer.
        USER: Value = "user";
    }
    INCLUDE {
        /// Log-probabilities are not among it; what else it names no answer has.
        INCLUDES: [Value] = "include", as list(text());
    }
}

/// What `include` may not ask for; its other values are about things that no answer has.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Answers a conversation.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    flow::answer(&app, request, RESPONSE, read).await
}

/// Counts the tokens of a conversation.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let count = |(conversation, _): (Conversation, Spaces), lease: &Arc<Lease>| {
        Ok(conversation.token_ids(lease)?.len())
    };
    let (count, _) = open(&app, request, Sees::Sizes, COUNT, conversation, count).await?;
    Ok(json_response(&openai::input_tokens(count)))
}

/// Reads the conversation, and the names of its functions.
fn conversation(fields: Fields<'_>) -> Result<(Conversation, Spaces), ApiError> {
    let (calling, spaces) = input::calling(fields)?;
    Ok((input::conversation(fields, calling)?, spaces))
}

fn read(fields: Fields<'_>) -> Result<Talking<ResponseEvents>, ApiError> {
    let streams = fields.read_or(&STREAMS)?;
    fields.refuse(&UNSUPPORTED)?;
    if fields.read(&INCLUDES)?.is_some_and(|wanted| wanted.iter().any(|item| item == LOGPROBS)) {
        return Err(ApiError::unsupported("include", "use /v1/chat/completions for logprobs"));
    }
    if fields.read(&TRUNCATES)?.is_some_and(|truncation| truncation != "disabled") {
        return Err(ApiError::unsupported("truncation", "conversations are never cut"));
    }
    let mut parameters = ParameterFields::begin(fields)?;
    parameters.read_sampling(fields, Penalties::OfAnswer)?;
    parameters.max_tokens = fields.read(&MAX_OUTPUT_TOKENS)?;
    parameters.structure = Structure::of_response(fields, input::updated_format(fields))?;
    openai::check_store(fields);
    let (conversation, spaces) = conversation(fields)?;
    let echoed = echoed(fields);
    let writer = |ids: Vec<u32>, _: &ParameterFields, lease: &Arc<Lease>| {
        let answer = ResponseParts {
            id: random_id("resp_"),
            created: unix_seconds(),
            model: Arc::clone(&lease.name),
            prompt_tokens: ids.len(),
            echoed,
            spaces,
        };
        ResponseEvents { answer, sequence: 0, items: Vec::new(), text: None, thought: None }
    };
    Ok(Talking { parameters, conversation, logprobs: None, streams, writer: Box::new(writer) })
}

/// Returns the fields of the request that a response repeats.
fn echoed(fields: Fields<'_>) -> Map<String, Value> {
    let always: [&dyn AnyRow; 5] =
        [&input::INSTRUCTION, &MAX_OUTPUT_TOKENS, &METADATA, &TEMPERATURE, &TOP_P];
    let value = |row: &dyn AnyRow| fields.get(row).cloned().unwrap_or_default();
    let mut echoed: Map<String, Value> =
        always.iter().map(|row| (row.name().to_owned(), value(*row))).collect();
    let given: [&dyn AnyRow; 4] = [&input::TOOL_LIST, &TOOL_CHOICE, &PARALLEL_CALLS.row, &USER];
    for row in given {
        if let Some(value) = fields.get(row) {
            echoed.insert(row.name().to_owned(), value.clone());
        }
    }
    if let Some(text) = fields.get(&structure::TEXT).filter(|text| text["format"].is_object()) {
        echoed.insert("text".to_owned(), text.clone());
    }
    if let Some(own) = fields.get(&REASONING) {
        let word = |name: &str| own[name].as_str();
        let reasoning = json!({"effort": word("effort"), "summary": word("summary")});
        echoed.insert("reasoning".to_owned(), reasoning);
    }
    echoed
}

/// The parts that all forms of a response share.
struct ResponseParts {
    id: String,
    created: u64,
    model: Arc<str>,
    prompt_tokens: usize,
    echoed: Map<String, Value>,
    spaces: Spaces,
}

impl ResponseParts {
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
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null},
            "store": false,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
        });
        for (name, value) in &self.echoed {
            response[name] = value.clone();
        }
        if let Some(ended) = ended {
            response["usage"] = json!({
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": ended.reused},
                "output_tokens": ended.generated,
                "output_tokens_details": {"reasoning_tokens": ended.thoughts},
                "total_tokens": self.prompt_tokens + ended.generated,
            });
        }
        response
    }

    fn whole(&self, items: Vec<Value>, ended: &Ended) -> Value {
        let mut response = self.response(item_status(ended), items.into(), Some(ended));
        if is_cut(ended) {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response
    }

    fn function_call(
        &self,
        ids: &CallIds,
        status: &str,
        call: &ToolCall,
        arguments: &str,
    ) -> Value {
        let mut item = json!({
            "id": ids.item, "type": "function_call", "status": status,
            "call_id": ids.call, "arguments": arguments,
        });
        self.spaces.name(&call.name, &mut item);
        item
    }
}

fn is_cut(ended: &Ended) -> bool {
    ended.reason == Reason::Length
}

fn item_status(ended: &Ended) -> &'static str {
    if is_cut(ended) { "incomplete" } else { "completed" }
}

fn message(id: &str, status: &str, content: Value) -> Value {
    json!({"id": id, "type": "message", "role": "assistant", "status": status, "content": content})
}

fn part_of(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Returns an item with what the model thought.
fn reasoning(id: &str, status: &str, text: &str) -> Value {
    let content = match text {
        "" => json!([]),
        text => json!([thought_of(text)]),
    };
    json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": content})
}

fn thought_of(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

/// The two ids of a call: one as an item, and another by which its result refers to it.
struct CallIds {
    item: String,
    call: String,
}

impl CallIds {
    fn new() -> Self {
        Self { item: random_id("fc_"), call: random_id("call_") }
    }
}

/// Writes events.
struct ResponseEvents {
    answer: ResponseParts,
    sequence: usize,
    /// Items that have ended.
    items: Vec<Value>,
    /// Id and text of the message that has begun and not ended.
    text: Option<(String, String)>,
    /// The same of a thought.
    thought: Option<(String, String)>,
}

impl ResponseEvents {
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

    /// Writes an event about the text of a message.
    fn push_part(&mut self, out: &mut Vec<u8>, kind: &str, item: &str, name: &str, value: Value) {
        let index = self.items.len();
        let mut fields = json!({"item_id": item, "output_index": index, "content_index": 0});
        fields[name] = value;
        if kind.starts_with("response.output_text") {
            fields["logprobs"] = json!([]);
        }
        self.push(out, kind, fields);
    }

    fn push_item(&mut self, out: &mut Vec<u8>, kind: &str, item: &Value) {
        let index = self.items.len();
        self.push(out, kind, json!({"output_index": index, "item": item}));
    }

    /// Adds to the message; begins one if none has begun.
    fn say(&mut self, out: &mut Vec<u8>, text: String) {
        self.close_thought(out);
        let (id, mut said) = self.text.take().unwrap_or_else(|| {
            let id = random_id("msg_");
            self.push_item(
                out,
                "response.output_item.added",
                &message(&id, "in_progress", json!([])),
            );
            self.push_part(out, "response.content_part.added", &id, "part", part_of(""));
            (id, String::new())
        });
        if !text.is_empty() {
            said.push_str(&text);
            self.push_part(out, "response.output_text.delta", &id, "delta", text.into());
        }
        self.text = Some((id, said));
    }

    /// Adds to the thought; begins one if none has begun.
    fn think(&mut self, out: &mut Vec<u8>, text: &str) {
        self.close(out, "completed");
        let (id, mut thought) = self.thought.take().unwrap_or_else(|| {
            let id = random_id("rs_");
            let item = reasoning(&id, "in_progress", "");
            self.push_item(out, "response.output_item.added", &item);
            self.push_part(out, "response.content_part.added", &id, "part", thought_of(""));
            (id, String::new())
        });
        thought.push_str(text);
        self.push_part(out, "response.reasoning_text.delta", &id, "delta", text.into());
        self.thought = Some((id, thought));
    }

    /// Ends the thought, if one has begun.
    fn close_thought(&mut self, out: &mut Vec<u8>) {
        let Some((id, text)) = self.thought.take() else { return };
        self.push_part(out, "response.reasoning_text.done", &id, "text", text.clone().into());
        self.push_part(out, "response.content_part.done", &id, "part", thought_of(&text));
        let item = reasoning(&id, "completed", &text);
        self.push_item(out, "response.output_item.done", &item);
        self.items.push(item);
    }

    /// Ends the message, if one has begun.
    fn close(&mut self, out: &mut Vec<u8>, status: &str) {
        let Some((id, text)) = self.text.take() else { return };
        self.push_part(out, "response.output_text.done", &id, "text", text.clone().into());
        self.push_part(out, "response.content_part.done", &id, "part", part_of(&text));
        let item = message(&id, status, json!([part_of(&text)]));
        self.push_item(out, "response.output_item.done", &item);
        self.items.push(item);
    }

    fn call(&mut self, out: &mut Vec<u8>, call: &ToolCall) {
        self.close_thought(out);
        self.close(out, "completed");
        let (ids, index) = (CallIds::new(), self.items.len());
        let begun = self.answer.function_call(&ids, "in_progress", call, "");
        self.push_item(out, "response.output_item.added", &begun);
        let delta = json!({"item_id": ids.item, "output_index": index, "delta": call.arguments});
        self.push(out, "response.function_call_arguments.delta", delta);
        let item = self.answer.function_call(&ids, "completed", call, &call.arguments);
        let done = json!({
            "item_id": ids.item,
                "output_index": index, "name": item["name"],
                "arguments": call.arguments,
        });
        self.push(out, "response.function_call_arguments.done", done);
        self.push_item(out, "response.output_item.done", &item);
        self.items.push(item);
    }

    fn finish(&mut self, out: &mut Vec<u8>, ended: &Ended) {
        self.close_thought(out);
        if self.items.iter().all(|item| item["type"] == "reasoning") {
            self.say(out, String::new());
        }
        self.close(out, item_status(ended));
        let items = std::mem::take(&mut self.items);
        let response = self.answer.whole(items, ended);
        let kind = if is_cut(ended) { "response.incomplete" } else { "response.completed" };
        self.push(out, kind, json!({ "response": response }));
    }
}

impl Writer for ResponseEvents {
    fn whole<'a>(&'a self, texts: &'a [Whole]) -> impl Serialize {
        let Whole { parts, ended, .. } = &texts[0];
        let status = item_status(ended);
        let item = |(index, part): (usize, &ReplyPart)| match part {
            ReplyPart::Text(text) => {
                let status = if index + 1 == parts.len() { status } else { "completed" };
                message(&random_id("msg_"), status, json!([part_of(text)]))
            }
            ReplyPart::Thought(text) => reasoning(&random_id("rs_"), "completed", text),
            ReplyPart::Call(call) => {
                self.answer.function_call(&CallIds::new(), "completed", call, &call.arguments)
            }
        };
        let mut items: Vec<Value> = parts.iter().enumerate().map(item).collect();
        if items.iter().all(|item| item["type"] == "reasoning") {
            items.push(message(&random_id("msg_"), status, json!([part_of("")])));
        }
        self.answer.whole(items, ended)
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        let response = self.answer.response("in_progress", json!([]), None);
        self.push(out, "response.created", json!({ "response": response }));
        self.push(out, "response.in_progress", json!({ "response": response }));
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, .. } => self.say(out, text),
            Piece::Thought { text, .. } => self.think(out, &text),
            Piece::Call(call) => self.call(out, &call),
            Piece::End(ended) => self.finish(out, &ended),
            Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }

    fn fail(&mut self, error: &ApiError, _dialect: Dialect, out: &mut Vec<u8>) {
        let mut response = self.answer.response("failed", json!([]), None);
        response["error"] = json!({"code": error.code, "message": error.message});
        let fields = json!({"code": error.code, "message": error.message, "param": error.param});
        self.push(out, "error", fields);
        self.push(out, "response.failed", json!({ "response": response }));
    }
}
