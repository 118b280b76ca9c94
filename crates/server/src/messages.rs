//! Messages in the form of OpenAI's chats, into which the other dialects put theirs.

use serde_json::{Map, Value, json};
use trine_text::{Content, Message, Part};

use crate::error::{ApiError, shown};
use crate::history::{LeftOuts, Missing, Turn, Turns, in_lines, reason};
use crate::json::Fields;
use crate::parts::{self, Given};
use crate::pictures::Sent;

/// Most messages in a conversation.
pub(crate) const MESSAGES_MAX: usize = 1 << 14;

/// Messages, the pictures of their parts, in order, and what the model is not shown.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    pub(crate) messages: Vec<Message>,
    pub(crate) pictures: Sent,
    pub(crate) left_out: LeftOuts,
}

impl From<Vec<Message>> for Talk {
    fn from(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// Reads the messages of a field.
///
/// # Errors
/// 400 naming the invalid message, or content of the newest turn that no model takes.
pub(crate) fn read_messages(fields: Fields<'_>) -> Result<Talk, ApiError> {
    let items = fields.list("messages")?.ok_or_else(|| {
        ApiError::field("messages", "messages is missing; use a list of messages")
    })?;
    check_count(items)?;
    let (turns, mut talk) = (Turns::of(items), Talk::default());
    for (index, item) in items.iter().enumerate() {
        let message = read_message(index, item, turns.turn(index), &mut talk)?;
        talk.messages.push(message);
    }
    Ok(talk)
}

/// Refuses a list of messages by its length.
///
/// # Errors
/// 400 if there are none or too many.
pub(crate) fn check_count(messages: &[Value]) -> Result<(), ApiError> {
    if (1..=MESSAGES_MAX).contains(&messages.len()) {
        return Ok(());
    }
    let message = format!("there are {} messages; use 1 to {MESSAGES_MAX}", messages.len());
    Err(ApiError::field("messages", message))
}

/// The fields of a message with what the model thought before it, in several dialects.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

fn read_message(
    index: usize,
    item: &Value,
    turn: Turn,
    talk: &mut Talk,
) -> Result<Message, ApiError> {
    let prefix = format!("messages[{index}].");
    let Value::Object(map) = item else {
        let path = format!("messages[{index}]");
        return Err(ApiError::field(&path, format!("{path} must be an object")));
    };
    let fields = Fields::within(map, &prefix);
    let role = match fields.text("role")? {
        Some("developer") => "system",
        // Its name before there were several calls in a message.
        Some("function") => "tool",
        Some(role @ ("system" | "user" | "assistant" | "tool" | "model")) => role,
        _ => return Err(fields.wrong("role", "system, developer, user, assistant or tool")),
    };
    let is_read = |key: &str| matches!(key, "role" | "content" | "refusal");
    let extra = map.iter().filter(|(key, value)| !is_read(key) && !value.is_null());
    let mut extra: Map<String, Value> =
        extra.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut thoughts = String::new();
    let refusal = map.get("refusal").and_then(Value::as_str);
    let content = match (fields.get("content"), refusal) {
        (Some(Value::String(text)), Some(refusal)) if text.is_empty() => refusal.into(),
        (Some(Value::String(text)), _) => text.as_str().into(),
        (Some(Value::Array(items)), _) => {
            let place = Place { path: fields.path("content"), role, turn };
            Content::Parts(place.read(items, &mut thoughts, talk)?)
        }
        (None, Some(refusal)) => refusal.into(),
        (None, None) if has_calls(&extra) => Content::Absent(()),
        // Some servers answer so after thoughts.
        (None, None) if matches!(role, "assistant" | "model" | "tool") => "".into(),
        _ => return Err(fields.wrong("content", "a text, or a list of parts")),
    };
    read_thoughts(&mut extra, thoughts);
    read_calls(&mut extra);
    Ok(Message { role: role.to_owned(), content, extra })
}

fn has_calls(extra: &Map<String, Value>) -> bool {
    extra.contains_key("tool_calls") || extra.contains_key("function_call")
}

/// Makes texts of thoughts, which some servers send as objects or lists. Those of parts count if no
/// field has any.
fn read_thoughts(extra: &mut Map<String, Value>, of_parts: String) {
    for name in THOUGHTS {
        let Some(value) = extra.get_mut(name) else { continue };
        match parts::thought(value) {
            text if text.is_empty() => drop(extra.shift_remove(name)),
            text => *value = text.into(),
        }
    }
    if !of_parts.is_empty() && !THOUGHTS.iter().any(|name| extra.contains_key(*name)) {
        extra.insert(THOUGHTS[0].to_owned(), of_parts.into());
    }
}

/// Makes calls of functions of other ones: of a tool of the type `custom`, whose input is a text,
/// and of `function_call`.
fn read_calls(extra: &mut Map<String, Value>) {
    if let Some(function) = extra.shift_remove("function_call").filter(Value::is_object)
        && !extra.contains_key("tool_calls")
    {
        let call = json!({"type": "function", "function": function});
        extra.insert("tool_calls".to_owned(), json!([call]));
    }
    let calls = extra.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(Value::Object(own)) = call.shift_remove("custom") {
            let (name, input) = (own.get("name"), own.get("input"));
            let function = json!({"name": name, "arguments": {"input": input}});
            call.insert("type".to_owned(), "function".into());
            call.insert("function".to_owned(), function);
        }
    }
}

/// Where parts stand.
struct Place<'a> {
    path: String,
    role: &'a str,
    turn: Turn,
}

impl Place<'_> {
    /// Reads the parts of a message; `talk` takes pictures and what is left out.
    fn read(
        &self,
        items: &[Value],
        thoughts: &mut String,
        talk: &mut Talk,
    ) -> Result<Vec<Part>, ApiError> {
        let mut pieces: Vec<(Part, bool)> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            for (path, given) in parts::read(item, &format!("{}[{index}]", self.path))? {
                if let Given::Thought(text) = &given {
                    let line_break = if thoughts.is_empty() { "" } else { "\n" };
                    thoughts.push_str(line_break);
                    thoughts.push_str(text);
                }
                pieces.extend(self.shown(path, given, talk)?);
            }
        }
        // In other messages a line break stands between parts anyway.
        match self.role {
            "user" => Ok(in_lines(pieces.into_iter())),
            _ => Ok(pieces.into_iter().map(|(part, _)| part).collect()),
        }
    }

    /// Returns what the model is shown of a part, and whether it stands in lines of its own.
    fn shown(
        &self,
        path: String,
        given: Given<'_>,
        talk: &mut Talk,
    ) -> Result<Option<(Part, bool)>, ApiError> {
        let missing = |what: &str, about: String, why: String, param: String| Missing {
            what: what.to_owned(),
            about,
            why,
            param,
        };
        let is_unknown = matches!(given, Given::Unknown(_));
        let missing = match given {
            Given::Words(text) => return Ok(Some((Part::text(text), false))),
            Given::Lines(text) => return Ok(Some((Part::text(text), true))),
            Given::Thought(_) | Given::Sealed => return Ok(None),
            Given::Image(part) => {
                let about = parts::about_image(part);
                // Templates read other messages as one text.
                if !matches!(self.role, "user" | "tool") {
                    let why = "only messages of users and results of tools have images here";
                    missing("image", about, why.to_owned(), path)
                } else {
                    match talk.pictures.read(part, &path, self.turn, &about) {
                        Ok(()) => return Ok(Some((Part::picture(), false))),
                        Err(error) if self.turn == Turn::Newest => return Err(error),
                        Err(error) => missing("image", about, reason(&error), path),
                    }
                }
            }
            Given::Foreign { what, about } if self.turn == Turn::Newest => {
                let about = if about.is_empty() { about } else { format!(" ({about})") };
                let message = format!(
                    "{path} is a {what}{about}, neither text nor an image; this server takes nothing else"
                );
                return Err(ApiError::field(path, message));
            }
            Given::Foreign { what, about } => {
                missing(what, about, "this model reads none".to_owned(), path)
            }
            Given::Private(kind) => {
                let what = format!("part of type {}", shown(kind));
                let why = "only the server that made it can read it".to_owned();
                talk.left_out.add(missing(&what, String::new(), why, path));
                return Ok(None);
            }
            Given::Unknown(kind) => {
                let what = format!("part of type {}", shown(kind));
                if self.turn == Turn::Newest {
                    let message = format!(
                        "{path} is of the type {}, which is not known here; use texts and images",
                        shown(kind)
                    );
                    return Err(ApiError::field(path, message));
                }
                missing(&what, String::new(), "its type is not known here".to_owned(), path)
            }
        };
        let line = Part::text(missing.line());
        talk.left_out.add(missing);
        // It need not be anything that was said.
        let is_told = !(is_unknown && matches!(self.role, "assistant" | "model"));
        Ok(is_told.then_some((line, true)))
    }
}
