//! Writes tools, calls and results as messages that any template takes.

use std::collections::HashMap;

use serde_json::Value;

use super::history::{EarlierCall, calls_of, is_result, result_name};
use super::tool::declaration;
use super::{ToolChoice, ToolError, Tools};
use crate::template::{Content, Message, Part};

/// The place of a call: the index of its message, and its own among the calls there.
type Place = (usize, usize);

impl Tools {
    /// Returns the conversation for a template without support for tools: [`Tools::write_calls`],
    /// then [`Tools::declare`].
    ///
    /// Nothing here is marked as untrusted: guard the result ([`Message::guarded`]).
    ///
    /// # Errors
    /// Same as [`Tools::write_calls`].
    pub fn conversation(
        &self,
        messages: Vec<Message>,
        choice: &ToolChoice,
        parallel: bool,
    ) -> Result<Vec<Message>, ToolError> {
        let mut messages = Self::write_calls(messages)?;
        self.declare(&mut messages, choice, parallel);
        Ok(messages)
    }

    /// Writes calls and results as text: `tool_calls` of the assistant in the form of a call,
    /// messages of the role `tool` as a user's. Results that stand together come in the order of
    /// their calls, for nothing else says which call they belong to; those without an id come last.
    /// Several messages of one role may then be adjacent:
    /// [`ChatTemplate::arranged`](crate::ChatTemplate::arranged) makes turns of them.
    ///
    /// # Errors
    /// Returns a [`ToolError`] for calls and results of a wrong shape, and for results of calls
    /// that were not made.
    pub fn write_calls(messages: Vec<Message>) -> Result<Vec<Message>, ToolError> {
        let mut names: HashMap<String, String> = HashMap::new();
        let mut order: HashMap<String, Place> = HashMap::new();
        // With each result, the place of its call.
        let mut written: Vec<(Option<Place>, Message)> = Vec::with_capacity(messages.len());
        for (index, message) in messages.into_iter().enumerate() {
            let place = format!("messages[{index}]");
            written.push(if is_result(&message) {
                let id = message.extra.get("tool_call_id").and_then(Value::as_str);
                let call = id.and_then(|id| order.get(id).copied()).unwrap_or((usize::MAX, 0));
                (Some(call), result_message(&place, &message, &names)?)
            } else {
                (None, call_message((index, &place), message, &mut names, &mut order)?)
            });
        }
        for together in written.chunk_by_mut(|(a, _), (b, _)| a.is_some() && b.is_some()) {
            together.sort_by_key(|(call, _)| *call);
        }
        Ok(written.into_iter().map(|(_, message)| message).collect())
    }

    /// Adds the tools, and how to call them, as a system message after those at the beginning.
    pub fn declare(&self, messages: &mut Vec<Message>, choice: &ToolChoice, parallel: bool) {
        let Some(instructions) = self.instructions(choice, parallel) else { return };
        let is_system = |message: &Message| matches!(&*message.role, "system" | "developer");
        let end = messages.iter().position(|message| !is_system(message));
        messages.insert(end.unwrap_or(messages.len()), Message::new("system", instructions));
    }

    /// Returns the instructions for the model, in the words of Google's documentation of function
    /// calling with Gemma.
    fn instructions(&self, choice: &ToolChoice, parallel: bool) -> Option<String> {
        if self.is_empty() || *choice == ToolChoice::None {
            return None;
        }
        let mut text = match choice {
            ToolChoice::Named(name) => format!(
                "You have access to functions. You MUST invoke the \
                function {name}, in the format of\n"
            ),
            ToolChoice::Required => {
                "You have access to functions. You MUST invoke at least one of \
                them, in the format of\n"
                    .to_owned()
            }
            _ => "You have access to functions. If you decide to invoke any of the function(s), \
                you MUST put it in the format of\n"
                .to_owned(),
        };
        text.push_str(
            "{\"name\": function name, \
             \"parameters\": dictionary of argument name and its value}\n",
        );
        if parallel && !matches!(choice, ToolChoice::Named(_)) {
            text.push_str(
                "To invoke several functions at once, put them in a list: \
                [{\"name\": ...}, {\"name\": ...}]\n",
            );
        }
        text.push_str(
            "\nYou SHOULD NOT include any other text in the response if you call a function\n",
        );
        let functions: Vec<String> = self.tools.iter().map(declaration).collect();
        text.push_str(&format!("[{}]", functions.join(",")));
        Some(text)
    }
}

/// Returns a message with its `tool_calls` written as text. `names` learns the names of calls by
/// their ids, and `order` their places.
fn call_message(
    (index, place): (usize, &str),
    mut message: Message,
    names: &mut HashMap<String, String>,
    order: &mut HashMap<String, Place>,
) -> Result<Message, ToolError> {
    let calls = calls_of(place, &message)?;
    if calls.is_empty() {
        return Ok(message);
    }
    message.extra.shift_remove("tool_calls");
    let mut written = Vec::with_capacity(calls.len());
    for (call, EarlierCall { id, name, arguments }) in calls.into_iter().enumerate() {
        let spelled = Value::from(name.as_str());
        written.push(format!("{{\"name\": {spelled}, \"parameters\": {arguments}}}"));
        if let Some(id) = id {
            order.insert(id.clone(), (index, call));
            names.insert(id, name);
        }
    }
    let calls =
        if written.len() == 1 { written.remove(0) } else { format!("[{}]", written.join(", ")) };
    let said = message.content.text();
    message.content =
        Content::Text(if said.trim().is_empty() { calls } else { format!("{said}\n{calls}") });
    Ok(message)
}

/// Returns a text, and after it the pictures of a content.
pub(crate) fn with_pictures(text: String, content: &Content) -> Content {
    if content.pictures().next().is_none() {
        return Content::Text(text);
    }
    let pictures = content.pictures().cloned();
    Content::Parts([Part::text(text)].into_iter().chain(pictures).collect())
}

/// Returns a result as a user's message, with its pictures after the block. JSON keeps it in one
/// line, so that no result can close its block.
fn result_message(
    place: &str,
    message: &Message,
    names: &HashMap<String, String>,
) -> Result<Message, ToolError> {
    let name = result_name(place, message, names)?;
    let said = message.content.text();
    let content = match serde_json::from_str::<Value>(&said) {
        Ok(value @ (Value::Object(_) | Value::Array(_))) => value,
        _ => Value::String(said),
    };
    let name = name.map(|name| format!("\"name\": {}, ", Value::from(name))).unwrap_or_default();
    let block = format!("```tool_output\n{{{name}\"content\": {content}}}\n```");
    Ok(Message::new("user", with_pictures(block, &message.content)))
}
