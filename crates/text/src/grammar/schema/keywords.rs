//! Keywords of JSON schemas, and ways through schemas.

use serde_json::{Map, Value};

use crate::grammar::error::GrammarError;

/// What a schema is, for messages.
pub(super) const KIND: &str = "JSON schema";

/// The keywords whose value is one schema.
pub(super) const SCHEMA: [&str; 2] = ["additionalProperties", "additionalItems"];

/// The keywords whose value is a list of schemas.
pub(super) const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// The keywords whose value maps names to schemas.
pub(super) const MAPS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// The bytes of a place that a message shows.
pub(super) const PLACE_BYTES: usize = 200;

/// Returns whether the value of a keyword is data: what looks like a schema in it is none.
pub(crate) fn is_data(key: &str) -> bool {
    matches!(key, "enum" | "const" | "default" | "examples")
}

/// A keyword of a tool's schema that the grammar does not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The schema that contains it, as a JSON pointer after `#`.
    pub place: String,
    /// The keyword.
    pub keyword: String,
}

/// Visits everything directly in a schema that may be a schema or a list of schemas, with the way
/// there.
pub(super) fn each_below(schema: &mut Value, visit: &mut dyn FnMut(&str, &mut Value)) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match (key.as_str(), value) {
                    (key, _) if is_data(key) => {}
                    (key, Value::Object(named)) if MAPS.contains(&key) => {
                        for (name, value) in named.iter_mut() {
                            visit(&format!("{key}/{name}"), value);
                        }
                    }
                    (key, value) => visit(key, value),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                visit(&index.to_string(), item);
            }
        }
        _ => {}
    }
}

/// Adds a list of alternatives to a schema, which may have one already.
pub(super) fn add_options(map: &mut Map<String, Value>, options: Value) {
    if !map.contains_key("anyOf") {
        map.insert("anyOf".to_owned(), options);
        return;
    }
    let all = map.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(all) = all {
        all.push(serde_json::json!({ "anyOf": options }));
    }
}

/// Returns the error of a schema that is wrong at `place`, which is cut to a bearable length.
pub(super) fn invalid(place: &str, problem: impl Into<String>) -> GrammarError {
    let mut place = place.to_owned();
    if place.len() > PLACE_BYTES {
        let end = (0..=PLACE_BYTES).rev().find(|&end| place.is_char_boundary(end)).unwrap_or(0);
        place.truncate(end);
        place.push_str("...");
    }
    GrammarError::invalid(KIND, place, problem)
}
