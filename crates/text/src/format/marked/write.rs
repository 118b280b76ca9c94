//! Writes conversations for templates that show tools, calls and results between marks.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::format::seam::{Offer, Written};
use crate::template::{Content, Message, Part, ResultsIn};
use crate::tools::{ToolError, calls_of, is_result, result_name, with_pictures};

/// How a template shows results.
#[derive(Debug, Clone, Copy)]
pub(super) struct Results {
    pub(super) way: ResultsIn,
    /// Whether a question after them needs an answer before it.
    pub(super) want_answer: bool,
}

/// The names of properties that the family's templates take for keywords, and do not show.
const HIDDEN: [&str; 5] = ["description", "type", "properties", "required", "nullable"];

/// The fields in which clients send back the thoughts of an earlier message.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// The result of a call.
struct Told {
    /// The place of the call among those of its message; results without an id come last.
    call: usize,
    message: Message,
}

/// Writes calls with arguments that are JSON, results with the names of their calls where the
/// template looks for them, and tools as a variable of the template. Results follow the message
/// with their calls, in the order of the calls, wherever and in whatever order they came. Their
/// images stand with them, in the field form after all of them.
pub(super) fn write(
    messages: Vec<Message>,
    offer: &Offer<'_>,
    results: Results,
) -> Result<Written, ToolError> {
    let mut written = Written::default();
    let mut names: HashMap<String, String> = HashMap::new();
    // For each message, the results of its calls, with the place of the call and of the result.
    let mut told: Vec<(Message, Vec<Told>)> = Vec::new();
    let mut owners: HashMap<String, (usize, usize)> = HashMap::new();
    for (index, mut message) in messages.into_iter().enumerate() {
        let place = format!("messages[{index}]");
        if !is_result(&message) {
            let ids = calls(&place, &mut message, &mut names)?;
            let own = ids.into_iter().enumerate().map(|(call, id)| (id, (told.len(), call)));
            owners.extend(own);
            answer(&mut message);
            told.push((message, Vec::new()));
            continue;
        }
        let name = result_name(&place, &message, &names)?.unwrap_or_else(|| "unknown".to_owned());
        let text = message.content.text();
        message.role = "tool".to_owned();
        message.content = with_pictures(text, &message.content);
        message.extra.insert("name".to_owned(), name.into());
        let id = message.extra.get("tool_call_id").and_then(Value::as_str);
        let latest = told.iter().rposition(|(message, _)| has_calls(message));
        match id.and_then(|id| owners.get(id).copied()).or(latest.map(|at| (at, usize::MAX))) {
            Some((owner, call)) => told[owner].1.push(Told { call, message }),
            None => told.push((message, Vec::new())),
        }
    }
    let mut after_results = false;
    for (mut message, mut own) in told {
        own.sort_by_key(|told| told.call);
        let own = own.into_iter().map(|told| told.message);
        if after_results && !is_model(&message) && results.want_answer {
            written.messages.push(Message::new("assistant", ""));
        }
        after_results = own.len() > 0;
        if results.way == ResultsIn::Field && has_calls(&message) && own.len() > 0 {
            let mut images = Vec::new();
            let response = |told: Message| {
                images.extend(told.content.pictures().cloned());
                let text = told.content.text();
                json!({"name": told.extra.get("name"), "response": text})
            };
            let responses: Vec<Value> = own.map(response).collect();
            message.extra.insert("tool_responses".to_owned(), responses.into());
            if !images.is_empty() {
                let said = message.content.text();
                let said = (!said.is_empty()).then(|| Part::text(said));
                let own = message.content.pictures().cloned().collect::<Vec<_>>();
                let parts = said.into_iter().chain(own).chain(images);
                message.content = Content::Parts(parts.collect());
            }
            written.messages.push(message);
        } else {
            written.messages.push(message);
            written.messages.extend(own);
        }
    }
    if offer.is_open() {
        let tools = offer.tools.declared();
        written.left_out = tools.iter().filter_map(hidden).collect();
        written.variables.insert("tools".to_owned(), tools.into());
    }
    Ok(written)
}

fn is_model(message: &Message) -> bool {
    matches!(&*message.role, "assistant" | "model")
}

fn has_calls(message: &Message) -> bool {
    message.extra.contains_key("tool_calls")
}

/// Writes the calls of a message, each with an id; `names` learns them. Returns the ids.
fn calls(
    place: &str,
    message: &mut Message,
    names: &mut HashMap<String, String>,
) -> Result<Vec<String>, ToolError> {
    let made = calls_of(place, message)?;
    message.extra.shift_remove("tool_calls");
    if made.is_empty() {
        return Ok(Vec::new());
    }
    let mut ids = Vec::with_capacity(made.len());
    let write = |(index, call): (usize, crate::tools::EarlierCall)| {
        let arguments = call.value();
        let id = call.id.unwrap_or_else(|| format!("{place}.{index}"));
        let function = json!({"name": call.name, "arguments": arguments});
        names.insert(id.clone(), call.name);
        ids.push(id.clone());
        json!({"id": id, "type": "function", "function": function})
    };
    let calls: Vec<Value> = made.into_iter().enumerate().map(write).collect();
    message.extra.insert("tool_calls".to_owned(), calls.into());
    Ok(ids)
}

/// Takes thoughts out of the words of a model, and puts thoughts of a field under the name that
/// templates know. Leaves other speakers' messages as they are.
pub(super) fn answer(message: &mut Message) {
    if !is_model(message) {
        return;
    }
    let thoughts = THOUGHTS.iter().find_map(|name| match message.extra.get(*name) {
        Some(Value::String(text)) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        _ => None,
    });
    THOUGHTS.iter().for_each(|name| drop(message.extra.shift_remove(*name)));
    if let Some(thoughts) = thoughts {
        message.extra.insert("reasoning_content".to_owned(), thoughts.into());
    }
    match &mut message.content {
        Content::Text(text) => without_thoughts(text),
        Content::Parts(parts) => {
            parts.iter_mut().filter_map(|part| part.text.as_mut()).for_each(without_thoughts);
        }
        Content::Absent(()) => {}
    }
}

/// Removes what stands in channels. The template would do it, but it does not recognise the marks
/// in a text that is marked as untrusted.
fn without_thoughts(text: &mut String) {
    if text.contains("<|channel>") || text.contains("<channel|>") {
        let stretches = text.split("<channel|>");
        let before = |stretch: &str| stretch.split("<|channel>").next().map(str::to_owned);
        *text = stretches.filter_map(before).collect();
    }
}

/// Returns what the template does not show of a tool.
fn hidden(tool: &Value) -> Option<String> {
    let function = &tool["function"];
    let mut found = Vec::new();
    collect(&function["parameters"], &mut found);
    let name = function["name"].as_str().unwrap_or_default();
    found.sort_unstable();
    found.dedup();
    (!found.is_empty()).then(|| {
        format!(
            "the tool {name}: the model's template does not show properties named {}; rename them",
            found.join(", ")
        )
    })
}

fn collect<'a>(schema: &'a Value, found: &mut Vec<&'a str>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flat_map(Map::iter) {
        found.extend(HIDDEN.iter().find(|hidden| *hidden == name));
        collect(property, found);
    }
    if let Some(items) = schema.get("items") {
        collect(items, found);
    }
}
