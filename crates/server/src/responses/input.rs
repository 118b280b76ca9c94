//! The tools and the conversation of a request of the Responses API.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use trine_text::Message;

use crate::calling::{Calling, LeftOut};
use crate::conversation::{Conversation, Rendering, Talk, read_messages};
use crate::error::{ApiError, shown};
use crate::json::Fields;
use crate::places::Places;
use crate::thinking::Thinking;
use crate::warnings::Warnings;

/// Functions that are declared in namespaces, by the names under which the model knows them.
#[derive(Debug, Default)]
pub(super) struct Spaces(HashMap<String, (String, String)>);

impl Spaces {
    /// Adds the fields that name a function in the client's words.
    pub(super) fn name(&self, function: &str, item: &mut Value) {
        match self.0.get(function) {
            Some((space, name)) => {
                item["name"] = name.as_str().into();
                item["namespace"] = space.as_str().into();
            }
            None => item["name"] = function.into(),
        }
    }
}

/// Returns the name under which the model knows a function of a namespace.
fn joined(space: &str, name: &str) -> String {
    format!("{space}.{name}")
}

/// Returns the name of a call or choice under which the model knows its function.
fn name_of(item: &Value) -> Value {
    match (item["namespace"].as_str(), item["name"].as_str()) {
        (Some(space), Some(name)) => joined(space, name).into(),
        _ => item["name"].clone(),
    }
}

/// Reads functions, which have no object `function` of their own here, those of namespaces among
/// the others. Tools of other kinds are left out.
pub(super) fn calling(
    fields: Fields<'_>,
    warnings: &mut Warnings,
) -> Result<(Calling, Spaces), ApiError> {
    let mut places = Places::default();
    places.add("tool_choice.function", "tool_choice");
    let mut offered = Offered { tools: Vec::new(), places, left_out: LeftOut::default(), warnings };
    let mut spaces = Spaces::default();
    for (index, tool) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let place = format!("tools[{index}]");
        match tool.get("type").and_then(Value::as_str) {
            Some("namespace") => add_space(&place, tool, &mut offered, &mut spaces)?,
            kind => offered.add(kind, tool, None, place),
        }
    }
    let choice = match fields.get("tool_choice") {
        Some(choice) if choice["namespace"].is_string() => {
            json!({"type": "function", "name": name_of(choice)})
        }
        Some(choice) => choice.clone(),
        None => Value::Null,
    };
    let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
    let Offered { tools, places, left_out, warnings } = offered;
    Ok((Calling::without(&left_out, tools, &choice, parallel, places, warnings)?, spaces))
}

/// Adds the functions of a namespace, each under the name of both.
fn add_space(
    place: &str,
    tool: &Value,
    offered: &mut Offered<'_>,
    spaces: &mut Spaces,
) -> Result<(), ApiError> {
    let wrong = |field: &str, words: &str| {
        let param = format!("{place}.{field}");
        ApiError::field(&param, format!("{param} must be {words}"))
    };
    let space = tool["name"].as_str().ok_or_else(|| wrong("name", "the namespace's name"))?;
    let within = tool["tools"].as_array().ok_or_else(|| wrong("tools", "a list of functions"))?;
    for (index, tool) in within.iter().enumerate() {
        let name = tool["name"].as_str().unwrap_or_default();
        let full = joined(space, name);
        let place = format!("{place}.tools[{index}]");
        offered.add(tool.get("type").and_then(Value::as_str), tool, Some(&full), place);
        spaces.0.insert(full, (space.to_owned(), name.to_owned()));
    }
    Ok(())
}

/// The tools of a request; those that can be called are in the form of chats.
struct Offered<'a> {
    tools: Vec<Value>,
    places: Places,
    left_out: LeftOut,
    warnings: &'a mut Warnings,
}

impl Offered<'_> {
    /// Adds the tool at a place, under another name if one is given; leaves it out with a warning
    /// if it is not a function.
    fn add(&mut self, kind: Option<&str>, tool: &Value, name: Option<&str>, place: String) {
        match kind {
            Some(kind) if kind != "function" => {
                let name = name.or(tool["name"].as_str());
                let named = name.map_or(String::new(), |name| format!(" {}", shown(name)));
                self.warnings.push(format!(
                    "the tool{named} of type {} is left out: only functions can be called here",
                    shown(kind)
                ));
                self.left_out.add(kind, name);
            }
            _ => {
                let mut function = tool.clone();
                if let (Some(name), Some(map)) = (name, function.as_object_mut()) {
                    map.insert("name".to_owned(), name.into());
                }
                let field = format!("tools[{}]", self.tools.len());
                self.places.add(format!("{field}.function"), place.as_str());
                self.places.add(field, place);
                self.tools.push(json!({"type": kind, "function": function}));
            }
        }
    }
}

/// The meaning of an item of the input.
enum Item {
    /// A message of a chat.
    Message(Value),
    /// What a model thought before the next item.
    Thought(String),
    /// An item that the model is not told of.
    LeftOut,
}

/// Returns an error about a field that has to be a text.
fn no_text(path: &str) -> ApiError {
    ApiError::field(path, format!("{path} must be a text"))
}

fn unfold(place: &str, item: &Value, warnings: &mut Warnings) -> Result<Item, ApiError> {
    let call = |name: Value, arguments: Value| {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": item["call_id"], "type": "function", "function": function});
        Item::Message(json!({"role": "assistant", "content": null, "tool_calls": [call]}))
    };
    match item.get("type").and_then(Value::as_str) {
        Some("function_call") => Ok(call(name_of(item), item["arguments"].clone())),
        // A call from another server: its input is a text, not JSON.
        Some("custom_tool_call") => Ok(call(name_of(item), json!({"input": item["input"]}))),
        // Another one, which the client has answered with a screenshot.
        Some("computer_call") => Ok(call("computer".into(), actions(item))),
        Some("function_call_output" | "custom_tool_call_output") => {
            Ok(Item::Message(result(place, item, item["output"].clone())?))
        }
        Some("computer_call_output") => {
            let screenshot = screenshot(place, &item["output"])?;
            Ok(Item::Message(result(place, item, json!([screenshot]))?))
        }
        None | Some("message") => {
            let mut item = item.clone();
            if let Some(map) = item.as_object_mut() {
                map.retain(|key, _| matches!(&**key, "role" | "content"));
            }
            Ok(Item::Message(item))
        }
        Some("reasoning") => Ok(Item::Thought(thought(place, item)?)),
        // Work that another server has done by itself; the answer that it gave after that is an
        // item of its own.
        Some(kind) if is_hosted(kind) => {
            let kind = shown(kind);
            warnings
                .push(format!("items of type {kind} are left out: this server has no such tool"));
            Ok(Item::LeftOut)
        }
        Some(kind) => {
            let what = format!("items of type {} are not taken", shown(kind));
            Err(ApiError::unsupported("input", &what))
        }
    }
}

/// Returns the message with the result of a call.
fn result(place: &str, item: &Value, content: Value) -> Result<Value, ApiError> {
    if !item["call_id"].is_string() {
        return Err(no_text(&format!("{place}.call_id")));
    }
    Ok(json!({"role": "tool", "tool_call_id": item["call_id"], "content": content}))
}

/// Returns what a call of a computer does: one action, or several.
fn actions(item: &Value) -> Value {
    let fields = ["action", "actions"].into_iter();
    let own = fields.filter_map(|field| Some((field.to_owned(), item.get(field)?.clone())));
    Value::Object(own.collect())
}

/// Returns the picture of a computer's screen as a part of a message.
fn screenshot(place: &str, output: &Value) -> Result<Value, ApiError> {
    match output.get("type").and_then(Value::as_str) {
        Some("computer_screenshot" | "input_image") => {
            let mut part = output.clone();
            part["type"] = "input_image".into();
            Ok(part)
        }
        _ => {
            let param = format!("{place}.output");
            let what = "it must be an object of the type computer_screenshot with image_url";
            Err(ApiError::field(&param, format!("{param}: {what}")))
        }
    }
}

/// Returns what an item of thoughts says: its content, or else its summary.
fn thought(place: &str, item: &Value) -> Result<String, ApiError> {
    let texts = |field: &str| -> Result<Vec<&str>, ApiError> {
        let path = format!("{place}.{field}");
        let parts = match item.get(field) {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(parts)) => parts,
            Some(_) => {
                return Err(ApiError::field(&path, format!("{path} must be a list of texts")));
            }
        };
        let texts = parts.iter().enumerate().map(|(index, part)| {
            let text = part.get("text").and_then(Value::as_str);
            text.ok_or_else(|| no_text(&format!("{path}[{index}].text")))
        });
        texts.collect()
    };
    let (content, summary) = (texts("content")?, texts("summary")?);
    Ok(if content.is_empty() { summary.join("\n") } else { content.join("\n") })
}

/// Returns whether items of a type report what a tool that runs on the server has done.
fn is_hosted(kind: &str) -> bool {
    let tools = [
        "web_search",
        "file_search",
        "computer",
        "image_generation",
        "code_interpreter",
        "local_shell",
        "shell",
        "apply_patch",
        "mcp",
        "tool_search",
    ];
    let tool = kind.strip_suffix("_call").or_else(|| kind.strip_suffix("_call_output"));
    tool.or_else(|| kind.strip_suffix("_output")).is_some_and(|tool| tools.contains(&tool))
        || matches!(kind, "mcp_list_tools" | "mcp_approval_request" | "mcp_approval_response")
}

/// Returns the items as messages, and where each of them is: calls that follow one another, or the
/// words before them, are one message.
fn unfolded(items: &[Value], warnings: &mut Warnings) -> Result<(Vec<Value>, Places), ApiError> {
    let mut messages: Vec<Value> = Vec::with_capacity(items.len());
    let mut places = Places::default();
    let mut thoughts = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let place = format!("input[{index}]");
        let mut message = match unfold(&place, item, warnings)? {
            Item::Message(message) => message,
            Item::Thought(text) => {
                thoughts.push(text);
                continue;
            }
            Item::LeftOut => continue,
        };
        let thoughts = std::mem::take(&mut thoughts);
        if message["role"] == "assistant" && !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.join("\n").into();
        }
        let calls = message.get_mut("tool_calls").map(Value::take);
        match (calls, messages.last_mut()) {
            (Some(Value::Array(calls)), Some(last)) if last["role"] == "assistant" => {
                if let Some(thoughts) = message.get_mut("reasoning_content").map(Value::take) {
                    last["reasoning_content"] = thoughts;
                }
                let before = last.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len);
                match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(before) => before.extend(calls),
                    None => last["tool_calls"] = calls.into(),
                }
                let field = format!("messages[{}].tool_calls[{before}]", messages.len() - 1);
                places.add(format!("{field}.id"), format!("{place}.call_id"));
                places.add(format!("{field}.function"), place.as_str());
                places.add(field, place);
            }
            (calls, _) => {
                let field = format!("messages[{}]", messages.len());
                if let Some(calls) = calls {
                    message["tool_calls"] = calls;
                    let call = format!("{field}.tool_calls[0]");
                    places.add(format!("{call}.id"), format!("{place}.call_id"));
                    places.add(format!("{call}.function"), place.as_str());
                    places.add(call, place.as_str());
                }
                if message.get("tool_call_id").is_some() {
                    places.add(format!("{field}.tool_call_id"), format!("{place}.call_id"));
                    if item["type"] == "computer_call_output" {
                        places.add(format!("{field}.content[0]"), format!("{place}.output"));
                    }
                    places.add(format!("{field}.content"), format!("{place}.output"));
                }
                places.add(field, place);
                messages.push(message);
            }
        }
    }
    places.add("messages", "input");
    Ok((messages, places))
}

/// Reads the conversation, after the instructions.
pub(super) fn conversation(
    fields: Fields<'_>,
    calling: Calling,
    warnings: &mut Warnings,
) -> Result<Conversation, ApiError> {
    let (talk, places) = match fields.get("input") {
        Some(Value::String(text)) => {
            (Ok(Talk::from(vec![Message::new("user", text.as_str())])), Places::default())
        }
        Some(Value::Array(items)) => {
            let (messages, places) = unfolded(items, warnings)?;
            let map = Map::from_iter([("messages".to_owned(), messages.into())]);
            (read_messages(Fields::new(&map)), places)
        }
        _ => return Err(fields.wrong("input", "a text or a list of messages")),
    };
    let rendering = Rendering { thinking: Thinking::of_response(fields)?, ..Rendering::default() };
    let conversation = talk.and_then(|talk| Conversation::new(calling, talk, rendering));
    let conversation = conversation.map_err(|error| error.placed(&places))?;
    Ok(conversation.placed(&places).after(fields.text("instructions")?))
}
