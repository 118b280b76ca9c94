//! Messages of requests: each dialect says what stands where in its own form, and here that becomes
//! what templates read.

use serde_json::{Map, Value, json};
use trine_text::{Content, Message, Part, Tools};

use crate::error::{ApiError, shown};
use crate::request::calling;
use crate::request::fields::{Fields, rows, wrong};
use crate::request::history::{LeftOuts, Missing, Turn, Turns, in_lines, reason};
use crate::request::parts::{self, Given};
use crate::request::pictures::Sent;

/// Most messages in a conversation.
pub(crate) const MESSAGES_MAX: usize = 1 << 14;

rows! {
    MESSAGES {
        ITEMS! [Value] = "messages", as list_of(schema("Message"), 1, MESSAGES_MAX);
    }
    /// The fields of a message that are read here; `shapes` of the document has the others.
    MESSAGE {
        ROLE! str = "role";
        CONTENT! Value = "content";
    }
}

/// Messages, the pictures of their parts, in order, and what the model is not shown.
#[derive(Debug, Default)]
pub(crate) struct ChatInput {
    pub(crate) messages: Vec<Message>,
    pub(crate) pictures: Sent,
    pub(crate) left_out: LeftOuts,
}

impl From<Vec<Message>> for ChatInput {
    fn from(messages: Vec<Message>) -> Self {
        Self { messages, ..Self::default() }
    }
}

/// A message whose content is still that of the request. Its fields are named as the client wrote
/// them.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    /// Its field in the request.
    pub(crate) path: String,
    /// `system`, `user`, `assistant`, `model` or `tool`.
    pub(crate) role: &'static str,
    /// What is shown before its content, each part with its field.
    pub(crate) parts: Vec<(String, Given<'a>)>,
    pub(crate) content: Option<&'a Value>,
    /// The name of its field with its content.
    pub(crate) content_name: &'static str,
    /// The name of its field with the id of the call whose result it is.
    pub(crate) id_name: &'static str,
    /// What it has beside its content, as templates read it.
    pub(crate) extra: Map<String, Value>,
}

/// A call that a message makes.
pub(crate) struct Call<'a> {
    /// The name of its field with its id.
    pub(crate) id_name: &'static str,
    pub(crate) id: &'a Value,
    pub(crate) name: Value,
    pub(crate) arguments: Value,
}

impl<'a> Draft<'a> {
    /// Makes one without content.
    pub(crate) fn new(path: String, role: &'static str) -> Self {
        let (parts, extra) = (Vec::new(), Map::new());
        let (content_name, id_name) = ("content", "tool_call_id");
        Self { path, role, parts, content: None, content_name, id_name, extra }
    }

    /// Makes the result at `path` of the call whose id is a field there.
    ///
    /// # Errors
    /// 400 if there is no id.
    pub(crate) fn result(
        path: String,
        id_name: &'static str,
        item: &Value,
    ) -> Result<Self, ApiError> {
        let Some(id) = item[id_name].as_str() else {
            let path = format!("{path}.{id_name}");
            return Err(ApiError::field(&path, format!("{path} must be a text")));
        };
        let extra = Map::from_iter([("tool_call_id".to_owned(), id.into())]);
        Ok(Self { id_name, extra, ..Self::new(path, "tool") })
    }

    /// Reads the fields of a message in the form of chats, but not its images; `role` knows the
    /// names of roles.
    ///
    /// # Errors
    /// 400 if it is no object, or has no role that is known.
    pub(crate) fn read(
        path: String,
        item: &'a Value,
        role: impl FnOnce(&str) -> Option<&'static str>,
    ) -> Result<Self, ApiError> {
        let Value::Object(map) = item else {
            return Err(ApiError::field(&path, format!("{path} must be an object")));
        };
        let prefix = format!("{path}.");
        let fields = Fields::within(map, &prefix, &[MESSAGE]);
        let role = fields
            .read(&ROLE)?
            .and_then(role)
            .ok_or_else(|| fields.wrong("role", "system, developer, user, assistant or tool"))?;
        let refusal = map.get("refusal").filter(|refusal| refusal.is_string());
        let content = map.get("content").filter(|_| fields.get(&CONTENT).is_some());
        let content = content.filter(|text| refusal.is_none() || text.as_str() != Some(""));
        let is_read = |key: &str| matches!(key, "role" | "content" | "refusal" | "images");
        let extra = map.iter().filter(|(key, value)| !is_read(key) && !value.is_null());
        let extra = extra.map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(Self { content: content.or(refusal), extra, ..Self::new(path, role) })
    }

    /// Adds a call at `path` of the request, whose id and name are fields there.
    ///
    /// # Errors
    /// 400 if they are not texts. An id may be absent.
    pub(crate) fn call(&mut self, path: &str, call: Call<'_>) -> Result<(), ApiError> {
        let Call { id_name, id, name, arguments } = call;
        let no_text = |field: &str| {
            let path = format!("{path}.{field}");
            ApiError::field(&path, format!("{path}: it must be text"))
        };
        if !(id.is_null() || id.is_string()) {
            return Err(no_text(id_name));
        }
        if !name.is_string() {
            return Err(no_text("name"));
        }
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        let calls = self.extra.entry("tool_calls").or_insert_with(|| json!([]));
        if let Value::Array(calls) = calls {
            calls.push(call);
        }
        Ok(())
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.extra.contains_key("tool_calls") || self.extra.contains_key("function_call")
    }

    /// Makes the message; `talk` takes pictures and what is left out.
    fn finish(mut self, turn: Turn, talk: &mut ChatInput) -> Result<Message, ApiError> {
        let path = format!("{}.{}", self.path, self.content_name);
        let has_parts = !self.parts.is_empty();
        match self.content {
            Some(Value::String(text)) if has_parts => {
                self.parts.push((path.clone(), Given::Words(text)));
            }
            Some(Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.parts.extend(parts::read(item, &format!("{path}[{index}]"))?);
                }
            }
            _ => {}
        }
        let mut thoughts = String::new();
        let parts = std::mem::take(&mut self.parts);
        let parts = PartPlace { role: self.role, turn }.read(parts, &mut thoughts, talk)?;
        let content = match self.content {
            Some(Value::String(text)) if !has_parts => text.as_str().into(),
            Some(Value::Array(_) | Value::String(_)) => Content::Parts(parts),
            None if parts.is_empty() && self.has_calls() => Content::Absent(()),
            None if has_parts => Content::Parts(parts),
            // Some servers answer so after thoughts.
            None if matches!(self.role, "assistant" | "model" | "tool") => "".into(),
            found => return Err(wrong(&path, found, "a text, or a list of parts")),
        };
        read_thoughts(&mut self.extra, thoughts);
        read_calls(&mut self.extra);
        Ok(Message { role: self.role.to_owned(), content, extra: self.extra })
    }
}

impl ChatInput {
    /// Makes messages of drafts.
    ///
    /// # Errors
    /// 400 naming the invalid message, content of the newest turn that no model takes, or a result
    /// of a call that was not made.
    pub(crate) fn of(drafts: Vec<Draft<'_>>) -> Result<Self, ApiError> {
        let turns = Turns::of(drafts.iter().map(|draft| draft.role).collect());
        let mut talk = Self::default();
        let mut fields = Vec::with_capacity(drafts.len());
        for (index, draft) in drafts.into_iter().enumerate() {
            fields.push((draft.path.clone(), draft.id_name));
            let message = draft.finish(turns.turn(index), &mut talk)?;
            talk.messages.push(message);
        }
        let field = |index: usize, within: &str| match &fields[index] {
            (path, id_name) if within == "tool_call_id" => format!("{path}.{id_name}"),
            (path, _) => format!("{path}.{within}"),
        };
        Tools::check_calls(&talk.messages, field).map_err(calling::refused)?;
        Ok(talk)
    }
}

/// Reads the messages of a field in the form of chats.
///
/// # Errors
/// 400 for too many or none, and as [`ChatInput::of`].
pub(crate) fn read_messages(fields: Fields<'_>) -> Result<ChatInput, ApiError> {
    let items = fields.read(&ITEMS)?.ok_or_else(|| {
        ApiError::field("messages", "messages is missing; use a list of messages")
    })?;
    check_count("messages", items.len())?;
    let drafts = items.iter().enumerate();
    let drafts = drafts.map(|(index, item)| Draft::read(format!("messages[{index}]"), item, role));
    ChatInput::of(drafts.collect::<Result<_, _>>()?)
}

/// Returns the role that a name stands for.
pub(crate) fn role(name: &str) -> Option<&'static str> {
    match name {
        "system" | "developer" => Some("system"),
        // `function`: its name before there were several calls in a message.
        "tool" | "function" => Some("tool"),
        "user" => Some("user"),
        "assistant" => Some("assistant"),
        "model" => Some("model"),
        _ => None,
    }
}

/// Refuses a list of messages by its length.
///
/// # Errors
/// 400 if there are none or too many.
pub(crate) fn check_count(field: &str, count: usize) -> Result<(), ApiError> {
    if (1..=MESSAGES_MAX).contains(&count) {
        return Ok(());
    }
    Err(ApiError::field(field, format!("{field} holds {count} messages; use 1 to {MESSAGES_MAX}")))
}

/// The fields of a message with what the model thought before it, in several dialects.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

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
struct PartPlace<'a> {
    role: &'a str,
    turn: Turn,
}

impl PartPlace<'_> {
    /// Reads the parts of a message; `talk` takes pictures and what is left out.
    fn read(
        &self,
        parts: Vec<(String, Given<'_>)>,
        thoughts: &mut String,
        talk: &mut ChatInput,
    ) -> Result<Vec<Part>, ApiError> {
        let mut pieces: Vec<(Part, bool)> = Vec::with_capacity(parts.len());
        for (path, given) in parts {
            if let Given::Thought(text) = &given
                && !text.is_empty()
            {
                let line_break = if thoughts.is_empty() { "" } else { "\n" };
                thoughts.push_str(line_break);
                thoughts.push_str(text);
            }
            pieces.extend(self.shown(path, given, talk)?);
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
        talk: &mut ChatInput,
    ) -> Result<Option<(Part, bool)>, ApiError> {
        let missing = |what: &str, about: String, why: String, param: String| Missing {
            what: what.to_owned(),
            about,
            why,
            param,
        };
        let is_unknown = matches!(given, Given::Unknown(_));
        let is_bare = matches!(given, Given::Base64(_));
        let missing = match given {
            Given::Words(text) => return Ok(Some((Part::text(text), false))),
            Given::Lines(text) => return Ok(Some((Part::text(text), true))),
            Given::Thought(_) | Given::Sealed => return Ok(None),
            Given::Image(part) | Given::Base64(part) => {
                let about = parts::about_image(part);
                // Templates read other messages as one text.
                if !matches!(self.role, "user" | "tool") {
                    let why = "only messages of users and results of tools have images here";
                    missing("image", about, why.to_owned(), path)
                } else {
                    let read = if is_bare { Sent::read_base64 } else { Sent::read };
                    match read(&mut talk.pictures, part, &path, self.turn, &about) {
                        Ok(()) => return Ok(Some((Part::picture(), false))),
                        Err(error) if self.turn == Turn::Newest => return Err(error),
                        Err(error) => missing("image", about, reason(&error), path),
                    }
                }
            }
            Given::Foreign { what, about } if self.turn == Turn::Newest => {
                let about = if about.is_empty() { about } else { format!(" ({about})") };
                let message = format!(
                    "{path} is a {what}{about}, neither text nor an image; this server takes \
                     nothing else"
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
