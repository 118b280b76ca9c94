//! The dialect of Anthropic's API: `/v1/messages`.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use trine_text::{Content, Declaration, Message, Part, ReplyPart, ToolCall, ToolChoice};

use crate::error::{ApiError, Code, Dialect, shown};
use crate::flow::{self, STREAM, STREAMS, Talking};
use crate::models::Lease;
use crate::reply::generate::{Piece, Reason, Whole};
use crate::reply::stream::{Writer, push_event};
use crate::reply::warnings::note;
use crate::request::body::MODEL;
use crate::request::calling::{Calling, Offered, arguments};
use crate::request::conversation::{Conversation, Rendering};
use crate::request::fields::{FieldTable, Fields, Harmless, Rows, Unsupported, Within, rows};
use crate::request::messages::{Call, ChatInput, Draft, check_count, role};
use crate::request::open::{Sees, open};
use crate::request::parameters::{
    EVERYWHERE, ParameterFields, Penalties, SAMPLING, TOKENS_MAX, read_stops,
};
use crate::request::parts::{self, Given};
use crate::request::structure::{self, Structure};
use crate::request::thinking::{self, Thinking};
use crate::service::app::App;
use crate::service::guard::random_id;
use crate::service::service_routes::json_response;

/// Fields of the API that this server does not support.
pub(crate) const UNSUPPORTED: [Unsupported; 2] =
    [("mcp_servers", Harmless::Off, "leave it out"), ("container", Harmless::Off, "leave it out")];

/// The fields of a request.
pub(crate) const MESSAGE: FieldTable = &[
    LENGTH,
    MESSAGES,
    MODEL,
    STREAM,
    SAMPLING,
    STOPS,
    structure::CONFIG,
    structure::BETA_FORMAT,
    thinking::OF_MESSAGES,
    structure::OTHERS,
    Rows::Refused(&UNSUPPORTED),
    EVERYWHERE,
    CONVERSATION,
];

/// The fields of a request that counts tokens.
pub(crate) const COUNT: FieldTable =
    &[MESSAGES, MODEL, structure::CONFIG, thinking::OF_MESSAGES, CONVERSATION];

rows! {
    LENGTH {
        /// Most tokens that are written.
        MAX_TOKENS! usize = "max_tokens", in 0..=TOKENS_MAX;
    }
    MESSAGES {
        ITEMS! [Value] = "messages", as anthropic_messages();
    }
    STOPS {
        /// Texts that end the answer: at most 64, of at most 4096 bytes each.
        STOP_SEQUENCES: Value = "stop_sequences", as stops();
    }
    /// The fields of a conversation beside its messages.
    CONVERSATION {
        /// Not supported: no messages are kept; send the whole conversation.
        THREAD: Value = "thread", as json!({"enum": [null]});
        /// What stands before the conversation.
        SYSTEM: Value = "system", as one_of(vec![text(), list(asked([("text", text())], []))]);
        TOOLS: [Value] = "tools", as list(schema("AnthropicTool"));
        CHOICE: Within = "tool_choice", of &[CHOICES], as schema("AnthropicToolChoice");
    }
    CHOICES {
        TYPE! str = "type", as choice(["auto", "any", "none", "tool"]);
        /// The tool that has to be called, with the type `tool`.
        NAME: str = "name";
        /// Whether an answer has one call at most.
        IS_SERIAL: bool = "disable_parallel_tool_use", or false;
    }
}

/// The signature of a block of thoughts. Clients want one and send it back; nothing depends on it.
const SIGNATURE: &str = "trine";

/// Answers a conversation.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    flow::answer(&app, request, MESSAGE, read).await
}

/// Counts the tokens of a conversation.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let read = |fields: Fields<'_>| {
        check_thread(fields)?;
        // A conversation that ends with the assistant's words is counted like any other.
        let rendering =
            Rendering { thinking: Thinking::of_message(fields)?, ..Rendering::default() };
        conversation(fields, rendering)
    };
    let count =
        |conversation: Conversation, lease: &Arc<Lease>| Ok(conversation.token_ids(lease)?.len());
    let (count, _) = open(&app, request, Sees::Sizes, COUNT, read, count).await?;
    Ok(json_response(&json!({"input_tokens": count})))
}

/// Refuses threads of messages, of which nothing is kept. Anthropic's SDKs go on by themselves with
/// the whole conversation if the error has these codes (anthropic 2.14.0, `lib/threads`).
fn check_thread(fields: Fields<'_>) -> Result<(), ApiError> {
    let Some(thread) = fields.get(&THREAD) else { return Ok(()) };
    if thread["type"] == "continue" {
        let message = "thread: no messages are kept here, so none can be continued; send the whole \
            conversation";
        let error = ApiError::new(StatusCode::NOT_FOUND, Code::NotFound, message);
        return Err(error.with_details(json!({"error_code": "thread_not_found"})));
    }
    let error =
        ApiError::unsupported("thread", "no messages are kept; send the whole conversation");
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    Err(error.with_details(details))
}

fn read(fields: Fields<'_>) -> Result<Talking<MessageEvents>, ApiError> {
    check_thread(fields)?;
    let streams = fields.read_or(&STREAMS)?;
    fields.refuse(&UNSUPPORTED)?;
    let mut parameters = ParameterFields::begin(fields)?;
    parameters.read_sampling(fields, Penalties::OfWindow)?;
    let most = fields.read(&MAX_TOKENS)?;
    parameters.max_tokens =
        Some(most.ok_or_else(|| fields.wrong("max_tokens", "a number of tokens"))?);
    parameters.stops = read_stops(fields, &STOP_SEQUENCES)?;
    parameters.structure = Structure::of_message(fields)?;
    let conversation = conversation(fields, rendering(fields)?)?;
    let writer = |ids: Vec<u32>, _: &ParameterFields, lease: &Arc<Lease>| MessageEvents {
        id: random_id("msg_"),
        model: Arc::clone(&lease.name),
        prompt_tokens: ids.len(),
        blocks: 0,
        opened: None,
    };
    Ok(Talking { parameters, conversation, logprobs: None, streams, writer: Box::new(writer) })
}

/// Reads the tools and their choice. Tools that Anthropic's servers run, or know without a schema,
/// are left out.
fn calling(fields: Fields<'_>) -> Result<Calling, ApiError> {
    let mut offered = Offered::default();
    for (index, tool) in fields.read(&TOOLS)?.unwrap_or_default().iter().enumerate() {
        if let Some(tool) = function(tool, format!("tools[{index}]"), &mut offered) {
            offered.add(tool);
        }
    }
    change_tools(fields.read(&ITEMS)?.unwrap_or_default(), &mut offered);
    let name_field = "tool_choice.name";
    let Some(choice) = fields.read(&CHOICE)? else {
        return offered.choose(ToolChoice::Auto, true, name_field);
    };
    let serial = choice.read_or(&IS_SERIAL)?;
    let choice = match choice.read(&TYPE)? {
        Some("auto") => ToolChoice::Auto,
        Some("any") => ToolChoice::Required,
        Some("none") => ToolChoice::None,
        Some("tool") => {
            let name = choice.read(&NAME)?;
            ToolChoice::Named(name.ok_or_else(|| choice.wrong("name", "a tool's name"))?.to_owned())
        }
        _ => return Err(choice.wrong("type", "auto, any, tool or none")),
    };
    offered.choose(choice, !serial, name_field)
}

/// Reads the declaration of a tool; leaves it out if its type says that no client runs it.
fn function(tool: &Value, field: String, offered: &mut Offered) -> Option<Declaration> {
    if let Some(kind) = tool.get("type").and_then(Value::as_str).filter(|kind| *kind != "custom") {
        let remedy = "this server runs no tools itself; declare one with an input_schema";
        offered.leave_out(kind, tool["name"].as_str(), remedy);
        return None;
    }
    Some(Declaration::new(field, tool, "input_schema"))
}

/// Follows the tools through the conversation: blocks `tool_removal` take one back, and blocks
/// `tool_addition` give it again or bring a new one. A summary has the changes of what it stands
/// for.
fn change_tools(messages: &[Value], offered: &mut Offered) {
    let mut removed: HashMap<String, Declaration> = HashMap::new();
    let mut change = |block: &Value, place: String| {
        let tool = &block["tool"];
        let name = tool["name"].as_str().unwrap_or_default();
        match (block["type"].as_str(), tool["type"].as_str()) {
            (Some("tool_removal"), Some("tool_reference")) => {
                removed.extend(offered.remove(name).map(|tool| (name.to_owned(), tool)));
            }
            (Some("tool_addition"), Some("tool_reference")) => {
                if let Some(tool) = removed.remove(name) {
                    offered.replace(tool);
                }
            }
            (Some("tool_addition"), Some("tool_definition")) => {
                let place = format!("{place}.tool.definition");
                if let Some(tool) = function(&tool["definition"], place, offered) {
                    offered.replace(tool);
                }
            }
            _ => {}
        }
    };
    for (index, message) in messages.iter().enumerate() {
        let blocks = message.get("content").and_then(Value::as_array);
        for (block, value) in blocks.into_iter().flatten().enumerate() {
            let place = format!("messages[{index}].content[{block}]");
            if is_change(value) {
                change(value, place);
                continue;
            }
            let changes = value.get("tool_changes").and_then(Value::as_array);
            for (index, value) in changes.into_iter().flatten().enumerate() {
                change(value, format!("{place}.tool_changes[{index}]"));
            }
        }
    }
}

/// Returns whether a block changes the tools.
fn is_change(block: &Value) -> bool {
    matches!(block["type"].as_str(), Some("tool_addition" | "tool_removal"))
}

/// Reads a message: its calls stand beside what it says, and each result of a call is a message
/// before it. What tools that run on another server have done is left out.
///
/// # Errors
/// 400 naming what is wrong with the message or a block of it.
fn unfold<'a>(
    path: String,
    message: &'a Value,
    drafts: &mut Vec<Draft<'a>>,
) -> Result<(), ApiError> {
    let mut draft = Draft::read(path, message, role)?;
    let blocks = message["content"].as_array().filter(|blocks| !blocks.is_empty());
    let Some(blocks) = blocks else {
        drafts.push(draft);
        return Ok(());
    };
    draft.content = None;
    for (index, block) in blocks.iter().enumerate() {
        let path = format!("{}.content[{index}]", draft.path);
        match block["type"].as_str().unwrap_or_default() {
            _ if is_change(block) => {}
            kind if is_hosted(kind) => {
                let kind = shown(kind);
                note(format!("blocks of type {kind} are left out: this server has no such tool"));
            }
            "tool_result" => {
                let content = block.get("content").filter(|content| !content.is_null());
                drafts.push(Draft { content, ..Draft::result(path, "tool_use_id", block)? });
            }
            "tool_use" => {
                let (name, arguments) = (block["name"].clone(), block["input"].clone());
                draft.call(&path, Call { id_name: "id", id: &block["id"], name, arguments })?;
            }
            _ => draft.parts.extend(parts::read(block, &path)?),
        }
    }
    let is_thought = |given: &Given<'_>| matches!(given, Given::Thought(_) | Given::Sealed);
    if draft.has_calls() || !draft.parts.iter().all(|(_, given)| is_thought(given)) {
        drafts.push(draft);
    }
    Ok(())
}

/// Returns whether blocks of a type report what a tool that runs on the server has done.
fn is_hosted(kind: &str) -> bool {
    matches!(kind, "server_tool_use" | "mcp_tool_use")
        || (kind.ends_with("_tool_result") && kind != "tool_result")
}

/// Reads how the prompt ends: the model continues a conversation that ends with the assistant's
/// words.
fn rendering(fields: Fields<'_>) -> Result<Rendering, ApiError> {
    let last = fields.read(&ITEMS)?.and_then(<[Value]>::last);
    let continues = last.is_some_and(|last| last["role"] == "assistant");
    Ok(Rendering {
        begins_answer: !continues,
        continues_last: continues,
        thinking: Thinking::of_message(fields)?,
        ..Rendering::default()
    })
}

/// Reads the messages with their tools, after the system's instructions.
fn conversation(fields: Fields<'_>, rendering: Rendering) -> Result<Conversation, ApiError> {
    let calling = calling(fields)?;
    let mut drafts = Vec::new();
    for (index, message) in fields.read(&ITEMS)?.unwrap_or_default().iter().enumerate() {
        unfold(format!("messages[{index}]"), message, &mut drafts)?;
    }
    check_count("messages", drafts.len())?;
    let mut talk = ChatInput::of(drafts)?;
    talk.messages.iter_mut().for_each(flatten);
    Ok(Conversation::new(calling, talk, rendering).after(system(fields)?.as_deref()))
}

/// Reads the system's instructions.
fn system(fields: Fields<'_>) -> Result<Option<String>, ApiError> {
    Ok(Some(match fields.get(&SYSTEM) {
        None => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().enumerate().map(|(index, part)| system_text(index, part));
            texts.collect::<Result<Vec<&str>, _>>()?.join("\n")
        }
        Some(_) => return Err(fields.wrong("system", "a text or a list of texts")),
    }))
}

/// Returns the text of a part of the system's instructions.
///
/// # Errors
/// 400 for a part of another type: the instructions would lack it.
fn system_text(index: usize, part: &Value) -> Result<&str, ApiError> {
    let kind = part.get("type").map_or(Some("text"), Value::as_str);
    match (kind, part.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(text)) => Ok(text),
        _ => {
            let place = format!("system[{index}]");
            let message = format!("{place} is no text; use an object with type text and a text");
            Err(ApiError::field(place, message))
        }
    }
}

/// Joins a message's parts of text that follow one another: the text to be continued must be found
/// in the prompt, and templates write nothing between parts.
fn flatten(message: &mut Message) {
    let Content::Parts(parts) = &mut message.content else { return };
    let mut joined: Vec<Part> = Vec::new();
    for part in std::mem::take(parts) {
        match (joined.last_mut().and_then(|last| last.text.as_mut()), &part.text) {
            (Some(last), Some(text)) => {
                last.push('\n');
                last.push_str(text);
            }
            _ => joined.push(part),
        }
    }
    message.content = match &mut joined[..] {
        [] => Content::Text(String::new()),
        [Part { text: Some(text), .. }] => Content::Text(std::mem::take(text)),
        _ => Content::Parts(joined),
    };
}

fn stop(reason: &Reason) -> (&'static str, Option<&str>) {
    match reason {
        Reason::Stop | Reason::StopId(_) => ("end_turn", None),
        Reason::StopText(text) => ("stop_sequence", Some(text)),
        Reason::Calls => ("tool_use", None),
        Reason::Length => ("max_tokens", None),
    }
}

/// Returns the blocks of an answer: none if it has no words, as after a call that was cut off.
/// Anthropic's servers refuse a conversation with an empty text.
fn blocks(parts: &[ReplyPart]) -> Value {
    let block = |part: &ReplyPart| match part {
        ReplyPart::Text(text) => json!({"type": "text", "text": text}),
        ReplyPart::Thought(text) => {
            json!({"type": "thinking", "thinking": text, "signature": SIGNATURE})
        }
        ReplyPart::Call(call) => tool_use(call, arguments(call)),
    };
    let is_empty = |part: &&ReplyPart| matches!(part, ReplyPart::Text(text) if text.is_empty());
    parts.iter().filter(|part| !is_empty(part)).map(block).collect()
}

fn tool_use(call: &ToolCall, input: Value) -> Value {
    json!({"type": "tool_use", "id": random_id("toolu_"), "name": call.name, "input": input})
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

/// Writes messages and events.
struct MessageEvents {
    id: String,
    model: Arc<str>,
    prompt_tokens: usize,
    /// Number of blocks that have ended.
    blocks: usize,
    /// The block that has begun and not ended.
    opened: Option<Block>,
}

/// A block that is written piece by piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
}

impl MessageEvents {
    /// Begins a block, unless it has begun; ends another one that has.
    fn open(&mut self, block: Block, out: &mut Vec<u8>) {
        if self.opened == Some(block) {
            return;
        }
        self.close(out);
        self.opened = Some(block);
        self.push_start(
            out,
            match block {
                Block::Text => json!({"type": "text", "text": ""}),
                Block::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
            },
        );
    }

    fn push_start(&self, out: &mut Vec<u8>, block: Value) {
        let data =
            json!({"type": "content_block_start", "index": self.blocks, "content_block": block});
        push_event(out, Some("content_block_start"), &data);
    }

    fn push_delta(&self, out: &mut Vec<u8>, delta: Value) {
        let data = json!({"type": "content_block_delta", "index": self.blocks, "delta": delta});
        push_event(out, Some("content_block_delta"), &data);
    }

    fn push_stop(&mut self, out: &mut Vec<u8>) {
        let data = json!({"type": "content_block_stop", "index": self.blocks});
        push_event(out, Some("content_block_stop"), &data);
        self.blocks += 1;
    }

    /// Ends the block that has begun, if one has.
    fn close(&mut self, out: &mut Vec<u8>) {
        let Some(block) = self.opened.take() else { return };
        if block == Block::Thinking {
            self.push_delta(out, json!({"type": "signature_delta", "signature": SIGNATURE}));
        }
        self.push_stop(out);
    }
}

impl Writer for MessageEvents {
    fn header(&self) -> Option<(HeaderName, HeaderValue)> {
        Some((HeaderName::from_static("request-id"), self.id.parse().ok()?))
    }

    fn whole<'a>(&'a self, texts: &'a [Whole]) -> impl Serialize {
        let ended = &texts[0].ended;
        let (reason, sequence) = stop(&ended.reason);
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": &*self.model,
            "content": blocks(&texts[0].parts),
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage(self.prompt_tokens, ended.reused, ended.generated),
        })
    }

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
            Piece::Text { text, .. } if text.is_empty() => {}
            Piece::Text { text, .. } => {
                self.open(Block::Text, out);
                self.push_delta(out, json!({"type": "text_delta", "text": text}));
            }
            Piece::Thought { text, .. } => {
                self.open(Block::Thinking, out);
                self.push_delta(out, json!({"type": "thinking_delta", "thinking": text}));
            }
            Piece::Call(call) => {
                self.close(out);
                self.push_start(out, tool_use(&call, json!({})));
                let delta = json!({"type": "input_json_delta", "partial_json": call.arguments});
                self.push_delta(out, delta);
                self.push_stop(out);
            }
            Piece::End(ended) => {
                self.close(out);
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

    fn fail(&mut self, error: &ApiError, dialect: Dialect, out: &mut Vec<u8>) {
        push_event(out, Some("error"), &error.body(dialect));
    }

    fn keep_alive(&mut self, out: &mut Vec<u8>) {
        push_event(out, Some("ping"), &json!({"type": "ping"}));
    }
}
