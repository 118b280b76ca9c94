//! Messages of Ollama's chats, and the calls that their results belong to.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::error::{ApiError, shown};
use crate::reply::warnings::note;
use crate::request::messages::{Draft, role};
use crate::request::parts;

/// The roles of messages.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The text of a message that has none.
static EMPTY: Value = Value::String(String::new());

/// Reads a message as Ollama would: roles are written in small letters, a text that is not there is
/// empty, and the template is given any role. The models here know no others than their own, so
/// others are the user's. Its images stand beside its text, and before it for the model.
///
/// # Errors
/// 400 for a message that is no object or has no role, and for images that are not a list.
pub(super) fn unfold<'a>(
    path: String,
    item: &'a Value,
    open: &mut OpenCalls,
) -> Result<Draft<'a>, ApiError> {
    let field = format!("{path}.role");
    let mut draft = Draft::read(path, item, |name| {
        let small = name.to_lowercase();
        role(&small).filter(|_| ROLES.contains(&&*small)).or_else(|| {
            note(format!("{field} {} is taken as user", shown(name)));
            Some("user")
        })
    })?;
    open.follow(&mut draft);
    if draft.content.is_none() && !draft.extra.contains_key("tool_calls") {
        draft.content = Some(&EMPTY);
    }
    let path = format!("{}.images", draft.path);
    match &item["images"] {
        Value::Null => {}
        Value::Array(images) => {
            let images = images.iter().enumerate();
            let image = |(index, data)| (format!("{path}[{index}]"), parts::Given::Base64(data));
            draft.parts = images.map(image).collect();
        }
        _ => return Err(ApiError::field(&path, format!("{path} must be a list of images"))),
    }
    Ok(draft)
}

/// Calls without a result, in order, found by id and by function without looking at the others: a
/// client may send many.
#[derive(Default)]
pub(super) struct OpenCalls {
    /// Id of each call, or `None` once it has its result.
    ids: Vec<Option<String>>,
    by_id: HashMap<String, VecDeque<usize>>,
    by_function: HashMap<String, VecDeque<usize>>,
    /// Number of calls at the beginning that all have their results.
    first: usize,
}

impl OpenCalls {
    /// Gives each call of a message an id, and a result the id of its call.
    ///
    /// Calls have no ids in answers of this dialect, so that clients make up ids for the results,
    /// or leave them out. A result belongs to the call that it names, to the first open call of the
    /// function that it names, or to the first open call.
    fn follow(&mut self, message: &mut Draft<'_>) {
        let extra = &mut message.extra;
        let calls = extra.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let name = call["function"]["name"].as_str().map(str::to_owned);
            if let Some(call) = call.as_object_mut() {
                let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
                call.insert("id".to_owned(), self.add(id, name).into());
            }
        }
        if message.role != "tool" {
            return;
        }
        let named = extra.get("tool_call_id").and_then(Value::as_str);
        let function = extra.get("tool_name").or_else(|| extra.get("name"));
        match self.take(named, function) {
            Some(id) => drop(extra.insert("tool_call_id".to_owned(), id.into())),
            // It belongs to no open call: it stands for itself, under the name that it has.
            None => drop(extra.shift_remove("tool_call_id")),
        }
    }

    /// Adds a call; returns its id, made up if it has none.
    fn add(&mut self, id: Option<String>, function: Option<String>) -> String {
        let place = self.ids.len();
        let id = id.unwrap_or_else(|| format!("trine-{}", place + 1));
        self.ids.push(Some(id.clone()));
        self.by_id.entry(id.clone()).or_default().push_back(place);
        if let Some(function) = function {
            self.by_function.entry(function).or_default().push_back(place);
        }
        id
    }

    /// Returns the id of the call that a result belongs to, and closes that call.
    fn take(&mut self, named: Option<&str>, function: Option<&Value>) -> Option<String> {
        let ids = &mut self.ids;
        let mut next = |places: Option<&mut VecDeque<usize>>| {
            let places = places?;
            // Each place is looked at once: a call that is taken stays taken.
            std::iter::from_fn(|| places.pop_front()).find_map(|place| ids[place].take())
        };
        let found = named.and_then(|named| next(self.by_id.get_mut(named))).or_else(|| {
            let function = function.and_then(Value::as_str)?;
            next(self.by_function.get_mut(function))
        });
        if found.is_some() || function.is_some() {
            return found;
        }
        while self.first < self.ids.len() {
            self.first += 1;
            if let Some(id) = self.ids[self.first - 1].take() {
                return Some(id);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the ids of the calls that the messages after the first one are results of.
    fn calls_of_results(messages: &[Value]) -> Vec<Option<Value>> {
        let mut open = OpenCalls::default();
        let read = |message| unfold(String::new(), message, &mut open).unwrap();
        let drafts: Vec<Draft<'_>> = messages.iter().map(read).collect();
        drafts[1..].iter().map(|draft| draft.extra.get("tool_call_id").cloned()).collect()
    }

    #[test]
    fn results_belong_to_calls() {
        let call = |id: Option<&str>, function: &str| match id {
            Some(id) => json!({"id": id, "function": {"name": function}}),
            None => json!({"function": {"name": function}}),
        };
        let result = |fields: Value| {
            let mut result = json!({"role": "tool", "content": "x"});
            result.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            result
        };
        let calls = [call(None, "a"), call(Some("own"), "b"), call(None, "a"), call(None, "c")];
        let messages = [
            json!({"role": "assistant", "tool_calls": calls}),
            result(json!({"tool_call_id": "own"})),
            result(json!({"tool_name": "c"})),
            result(json!({"tool_call_id": "unknown", "name": "a"})),
            result(json!({"tool_call_id": "unknown"})),
            result(json!({"tool_call_id": "own", "tool_name": "b"})),
            result(json!({})),
        ];
        let ids = ["own", "trine-4", "trine-1", "trine-3"].map(|id| Some(json!(id)));
        assert_eq!(calls_of_results(&messages), [&ids[..], &[None, None]].concat());
    }

    #[test]
    fn many_calls_cost_no_more_each_than_few() {
        let calls = vec![json!({}); 300_000];
        let result = json!({"role": "tool", "tool_call_id": "unknown", "tool_name": "f"});
        let mut messages = vec![json!({"role": "assistant", "tool_calls": calls})];
        messages.extend(vec![result; 100_000]);
        assert!(calls_of_results(&messages).iter().all(Option::is_none));
    }
}
