//! The tools and the conversation of a request of the Responses API.

use std::collections::HashMap;

use serde_json::{Map, Value, json};
use trine_text::{Declaration, Message, ToolChoice};

use crate::error::{ApiError, shown};
use crate::reply::warnings::note;
use crate::request::calling::{
    Calling, ONLY_FUNCTIONS, Offered, PARALLEL_CALLS, TOOL_CHOICE, joined, name_field,
};
use crate::request::conversation::{Conversation, Rendering};
use crate::request::fields::{Fields, rows};
use crate::request::history::{Turn, Turns};
use crate::request::messages::{Call, ChatInput, Draft, check_count, role};
use crate::request::parts::{self, Given};
use crate::request::thinking::Thinking;

rows! {
    INPUT {
        /// The user's words, or a conversation.
        INPUTS! Value = "input", as response_input();
    }
    INSTRUCTIONS {
        /// What stands before the conversation.
        INSTRUCTION: str = "instructions";
    }
    TOOLS {
        TOOL_LIST: [Value] = "tools", as list(schema("ResponseTool"));
    }
}

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

/// Returns the name of a call or choice under which the model knows its function.
fn name_of(item: &Value) -> Value {
    match (item["namespace"].as_str(), item["name"].as_str()) {
        (Some(space), Some(name)) => joined(space, name).into(),
        _ => item["name"].clone(),
    }
}

/// Reads functions, which have no object `function` of their own here, those of namespaces among
/// the others, and those that items of the input add. Tools of other kinds are left out.
pub(super) fn calling(fields: Fields<'_>) -> Result<(Calling, Spaces), ApiError> {
    let mut tools =
        Tools { offered: Offered::default(), spaces: Spaces::default(), replaces: false };
    for (index, tool) in fields.read(&TOOL_LIST)?.unwrap_or_default().iter().enumerate() {
        tools.add(tool, format!("tools[{index}]"))?;
    }
    tools.replaces = true;
    for (index, item) in items(fields).iter().enumerate() {
        let added = item.get("tools").filter(|added| adds_tools(item) && !added.is_null());
        let Some(added) = added else { continue };
        let Some(added) = added.as_array() else {
            let place = format!("input[{index}].tools");
            return Err(ApiError::field(&place, format!("{place} must be a list of tools")));
        };
        for (at, tool) in added.iter().enumerate() {
            tools.add(tool, format!("input[{index}].tools[{at}]"))?;
        }
    }
    let name_field = fields.get(&TOOL_CHOICE).map_or("tool_choice.name", name_field);
    let choice = match fields.get(&TOOL_CHOICE) {
        Some(choice) => match (choice["namespace"].as_str(), choice["name"].as_str()) {
            (Some(space), Some(name)) => ToolChoice::Named(joined(space, name)),
            _ => tools.offered.read_choice(choice)?,
        },
        None => ToolChoice::Auto,
    };
    let parallel = fields.read_or(&PARALLEL_CALLS)?;
    Ok((tools.offered.choose(choice, parallel, name_field)?, tools.spaces))
}

/// Returns the items of the input; none if it is a text.
fn items(fields: Fields<'_>) -> &[Value] {
    fields.get(&INPUTS).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn adds_tools(item: &Value) -> bool {
    item["type"] == "additional_tools"
}

/// The tools of a request.
struct Tools {
    offered: Offered,
    spaces: Spaces,
    /// Whether a tool takes the place of an earlier one of its name.
    replaces: bool,
}

impl Tools {
    fn add(&mut self, tool: &Value, place: String) -> Result<(), ApiError> {
        match tool.get("type").and_then(Value::as_str) {
            Some("namespace") => self.add_space(&place, tool),
            kind => self.add_one(kind, tool, None, place),
        }
    }

    /// Adds the functions of a namespace, each under the name of both.
    fn add_space(&mut self, place: &str, tool: &Value) -> Result<(), ApiError> {
        let wrong = |field: &str, words: &str| {
            let param = format!("{place}.{field}");
            ApiError::field(&param, format!("{param} must be {words}"))
        };
        let space = tool["name"].as_str().ok_or_else(|| wrong("name", "the namespace's name"))?;
        let within = tool["tools"].as_array();
        let within = within.ok_or_else(|| wrong("tools", "a list of functions"))?;
        for (index, tool) in within.iter().enumerate() {
            let name = tool["name"].as_str().unwrap_or_default();
            if name.is_empty() && tool["type"] == "function" {
                return Err(wrong(&format!("tools[{index}].name"), "the function's name"));
            }
            let full = joined(space, name);
            let place = format!("{place}.tools[{index}]");
            self.add_one(tool.get("type").and_then(Value::as_str), tool, Some(&full), place)?;
            self.spaces.0.insert(full, (space.to_owned(), name.to_owned()));
        }
        Ok(())
    }

    /// Adds the tool at a field, under another name if one is given; leaves it out if it is not a
    /// function.
    ///
    /// # Errors
    /// 400 for a tool without a type.
    fn add_one(
        &mut self,
        kind: Option<&str>,
        tool: &Value,
        name: Option<&str>,
        field: String,
    ) -> Result<(), ApiError> {
        let Some(kind) = kind else {
            let field = format!("{field}.type");
            let what = "only tools of type \"function\" are supported";
            return Err(ApiError::field(&field, format!("{field}: {what}")));
        };
        if kind != "function" {
            self.offered.leave_out(kind, name.or(tool["name"].as_str()), ONLY_FUNCTIONS);
            return Ok(());
        }
        let mut tool = Declaration::new(field, tool, "parameters");
        tool.name = name.map_or(tool.name, Value::from);
        match self.replaces {
            true => self.offered.replace(tool),
            false => self.offered.add(tool),
        }
        Ok(())
    }
}

/// The meaning of an item of the input.
enum Item<'a> {
    Message(Draft<'a>),
    /// A call of a function, with its name and arguments.
    Call(Value, Value),
    /// What a model thought before the next item.
    Thought(String),
    /// An item that the model is not told of.
    LeftOut,
    /// An item of a type that is not known here.
    Unknown(&'a str),
}

fn unfold(path: String, item: &Value) -> Result<Item<'_>, ApiError> {
    match item.get("type").and_then(Value::as_str) {
        Some("function_call") => Ok(Item::Call(name_of(item), item["arguments"].clone())),
        // A call from another server: its input is a text, not JSON.
        Some("custom_tool_call") => Ok(Item::Call(name_of(item), json!({"input": item["input"]}))),
        // Another one, which the client has answered with a screenshot.
        Some("computer_call") => Ok(Item::Call("computer".into(), actions(item))),
        Some("function_call_output" | "custom_tool_call_output") => {
            let content = Some(&item["output"]).filter(|output| !output.is_null());
            Ok(Item::Message(Draft { content, ..result(path, item)? }))
        }
        Some("computer_call_output") => Ok(Item::Message(screenshot(path, item)?)),
        None if is_reference(item) => Err(not_kept(&path, item)),
        Some("item_reference") => Err(not_kept(&path, item)),
        None | Some("message") => {
            let extra = Map::new();
            Ok(Item::Message(Draft { extra, ..Draft::read(path, item, role)? }))
        }
        // Its content, or else its summary.
        Some("reasoning") => Ok(Item::Thought(parts::thought(item))),
        // Work that another server has done by itself; the answer that it gave after that is an
        // item of its own.
        Some(kind) if is_hosted(kind) => {
            let kind = shown(kind);
            note(format!("items of type {kind} are left out: this server has no such tool"));
            Ok(Item::LeftOut)
        }
        // The tools are offered, and the effort holds.
        Some("additional_tools" | "configuration_update") => Ok(Item::LeftOut),
        Some(kind @ ("compaction" | "program" | "program_output" | "agent_message")) => {
            let kind = shown(kind);
            note(format!("items of type {kind} are left out: only their maker can read them"));
            Ok(Item::LeftOut)
        }
        Some(kind) => Ok(Item::Unknown(kind)),
    }
}

/// Returns whether an item without a type is a reference to one.
fn is_reference(item: &Value) -> bool {
    item["id"].is_string() && item.get("role").is_none() && item.get("content").is_none()
}

/// Returns the error of a reference to an item.
fn not_kept(place: &str, item: &Value) -> ApiError {
    let id = shown(item["id"].as_str().unwrap_or_default());
    let remedy = format!("items are not kept, so {id} is not known; send the item itself");
    ApiError::unsupported(format!("{place}.id"), &remedy)
}

/// Leaves out items of types that are not known: new ones come every month. One in the newest turn
/// may be what a person asks for.
///
/// # Errors
/// 400 for an item in the newest turn.
fn leave_out_unknown(
    unknown: &[(usize, &str, String)],
    drafts: &[Draft<'_>],
) -> Result<(), ApiError> {
    let turns = Turns::of(drafts.iter().map(|draft| draft.role).collect());
    for (index, kind, place) in unknown {
        if turns.turn_before(*index) == Turn::Newest {
            let what = format!("items of type {} are not taken", shown(kind));
            return Err(ApiError::unsupported(place.as_str(), &what));
        }
        let kind = shown(kind);
        note(format!("items of type {kind} are left out: the type is not known here"));
    }
    Ok(())
}

/// Returns the items that change how answers are written, with their indices, the last one first.
fn updates(items: &[Value]) -> impl DoubleEndedIterator<Item = (usize, &Value)> {
    items.iter().enumerate().rev().filter(|(_, item)| item["type"] == "configuration_update")
}

/// Returns whether the model is to think, after what items of the conversation say of it.
///
/// # Errors
/// 400 for an effort that is none.
fn updated_thinking(mut thinking: Thinking, items: &[Value]) -> Result<Thinking, ApiError> {
    for (index, item) in updates(items).rev() {
        if let Some(item) = item.as_object() {
            thinking = thinking.updated(item, &format!("input[{index}]."))?;
        }
    }
    Ok(thinking)
}

/// Returns the form of the text that items of the conversation have set, and its field.
pub(super) fn updated_format(fields: Fields<'_>) -> Option<(String, &Map<String, Value>)> {
    let place = |index: usize| format!("input[{index}].text.format");
    updates(items(fields))
        .find_map(|(index, item)| Some((place(index), item["text"]["format"].as_object()?)))
}

/// Returns the message with the result of a call.
fn result<'a>(path: String, item: &Value) -> Result<Draft<'a>, ApiError> {
    Ok(Draft { content_name: "output", ..Draft::result(path, "call_id", item)? })
}

/// Returns what a call of a computer does: one action, or several.
fn actions(item: &Value) -> Value {
    let fields = ["action", "actions"].into_iter();
    let own = fields.filter_map(|field| Some((field.to_owned(), item.get(field)?.clone())));
    Value::Object(own.collect())
}

/// Returns the message with what a computer answers: the picture of its screen.
fn screenshot(path: String, item: &Value) -> Result<Draft<'_>, ApiError> {
    let (output, param) = (&item["output"], format!("{path}.output"));
    let mut draft = match output {
        Value::Object(_) | Value::String(_) | Value::Array(_) => result(path, item)?,
        _ => {
            let what = "it must be an object of the type computer_screenshot with image_url";
            return Err(ApiError::field(&param, format!("{param}: {what}")));
        }
    };
    match output["type"].as_str() {
        Some("computer_screenshot") => draft.parts.push((param, Given::Image(output))),
        _ if output.is_object() => draft.parts = parts::read(output, &param)?,
        _ => draft.content = Some(output),
    }
    Ok(draft)
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

/// Returns the items as messages: calls that follow one another, or the words before them, are one
/// message.
fn unfolded(items: &[Value]) -> Result<Vec<Draft<'_>>, ApiError> {
    let mut drafts: Vec<Draft<'_>> = Vec::with_capacity(items.len());
    let (mut thoughts, mut unknown) = (Vec::new(), Vec::new());
    for (index, item) in items.iter().enumerate() {
        let path = format!("input[{index}]");
        let call = match unfold(path.clone(), item)? {
            Item::Message(message) => {
                drafts.push(message);
                None
            }
            Item::Call(name, arguments) => {
                if drafts.last().is_none_or(|last| last.role != "assistant") {
                    drafts.push(Draft::new(path.clone(), "assistant"));
                }
                Some((name, arguments))
            }
            Item::Thought(text) => {
                thoughts.extend(Some(text).filter(|text| !text.is_empty()));
                continue;
            }
            Item::LeftOut => continue,
            Item::Unknown(kind) => {
                unknown.push((drafts.len(), kind, path));
                continue;
            }
        };
        let thoughts = std::mem::take(&mut thoughts);
        let Some(last) = drafts.last_mut() else { continue };
        if last.role == "assistant" && !thoughts.is_empty() {
            last.extra.insert("reasoning_content".to_owned(), thoughts.join("\n").into());
        }
        if let Some((name, arguments)) = call {
            let (id_name, id) = ("call_id", &item["call_id"]);
            last.call(&path, Call { id_name, id, name, arguments })?;
        }
    }
    leave_out_unknown(&unknown, &drafts)?;
    Ok(drafts)
}

/// Reads the conversation, after the instructions.
pub(super) fn conversation(fields: Fields<'_>, calling: Calling) -> Result<Conversation, ApiError> {
    let talk = match fields.get(&INPUTS) {
        Some(Value::String(text)) => ChatInput::from(vec![Message::new("user", text.as_str())]),
        Some(Value::Array(items)) => {
            let drafts = unfolded(items)?;
            check_count("input", drafts.len())?;
            ChatInput::of(drafts)?
        }
        _ => return Err(fields.wrong("input", "a text or a list of messages")),
    };
    let thinking = updated_thinking(Thinking::of_response(fields)?, items(fields))?;
    let rendering = Rendering { thinking, ..Rendering::default() };
    let conversation = Conversation::new(calling, talk, rendering);
    Ok(conversation.after(fields.read(&INSTRUCTION)?))
}
