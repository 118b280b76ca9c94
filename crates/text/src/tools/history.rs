//! Earlier calls and results in messages of the OpenAI form.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::error::ToolError;
use crate::template::Message;
use crate::vocabulary::shortened;

/// A call that an earlier message made.
pub(crate) struct EarlierCall {
    pub(crate) id: Option<String>,
    pub(crate) name: String,
    /// The text of a JSON object, as it came. Another model may have broken off in it, or written
    /// something else: then it is shown as the text that it is.
    pub(crate) arguments: String,
}

impl EarlierCall {
    /// Returns the arguments as JSON: an object, or else their text.
    pub(crate) fn value(&self) -> Value {
        match serde_json::from_str::<Map<String, Value>>(&self.arguments) {
            Ok(map) => map.into(),
            Err(_) => self.arguments.as_str().into(),
        }
    }
}

/// Returns the calls in `tool_calls` of the message at `place`.
///
/// # Errors
/// Returns a [`ToolError`] for calls of a wrong shape.
pub(crate) fn calls_of(place: &str, message: &Message) -> Result<Vec<EarlierCall>, ToolError> {
    let calls = match message.extra.get("tool_calls") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(calls)) => calls,
        Some(_) => {
            return Err(ToolError::new(
                format!("{place}.tool_calls"),
                "it must be a list of calls",
            ));
        }
    };
    let read = |(index, call): (usize, &Value)| {
        let place = format!("{place}.tool_calls[{index}]");
        let id = text_of(&place, call.get("id"), "id")?.map(str::to_owned);
        let place = format!("{place}.function");
        let function = call.get("function").and_then(Value::as_object);
        let function = function.ok_or_else(|| ToolError::new(&place, "it is missing"))?;
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            return Err(ToolError::new(format!("{place}.name"), "it must be text"));
        };
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        Ok(EarlierCall { id, name: name.to_owned(), arguments })
    };
    calls.iter().enumerate().map(read).collect()
}

/// Returns a field that has to be text, if it is there.
fn text_of<'a>(
    place: &str,
    value: Option<&'a Value>,
    name: &str,
) -> Result<Option<&'a str>, ToolError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(ToolError::new(format!("{place}.{name}"), "it must be text")),
    }
}

/// Returns the name of the tool whose result the message at `place` is, if it says so. `names` are
/// those of the calls before it, by id.
///
/// # Errors
/// Returns a [`ToolError`] for the result of a call that was not made, and for names and ids that
/// are not text.
pub(crate) fn result_name(
    place: &str,
    message: &Message,
    names: &HashMap<String, String>,
) -> Result<Option<String>, ToolError> {
    let field = |key: &str| text_of(place, message.extra.get(key), key);
    let (id, name, tool) = (field("tool_call_id")?, field("name")?, field("tool_name")?);
    let Some(id) = id else { return Ok(name.or(tool).map(str::to_owned)) };
    names.get(id).cloned().map(Some).ok_or_else(|| {
        let problem = format!("no call before it has the id `{}`", shortened(id));
        ToolError::new(format!("{place}.tool_call_id"), problem)
    })
}

/// Returns whether a message is a result.
pub(crate) fn is_result(message: &Message) -> bool {
    matches!(message.role.as_str(), "tool" | "function")
}

/// Checks calls and results in a conversation. `field` names a field within the message of an
/// index.
///
/// # Errors
/// Returns a [`ToolError`] for calls and results of a wrong shape, and for results of calls that
/// were not made.
pub(super) fn check(
    messages: &[Message],
    field: impl Fn(usize, &str) -> String,
) -> Result<(), ToolError> {
    let mut names: HashMap<String, String> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        let named = |error: ToolError| {
            let within = error.param.trim_start_matches('.');
            ToolError { param: field(index, within), ..error }
        };
        let calls = calls_of("", message).map_err(named)?.into_iter();
        if is_result(message) {
            result_name("", message, &names).map_err(named)?;
        } else {
            names.extend(calls.filter_map(|call| Some((call.id?, call.name))));
        }
    }
    Ok(())
}
