//! Several schemas for one value as one schema.

use serde_json::{Map, Value};

use crate::grammar::schema::LeftOut;

/// Adds the demands of `other` to `map`. What cannot be said together is left out of the result,
/// and noted: every value that satisfies both satisfies the result.
pub(super) fn merge(
    map: &mut Map<String, Value>,
    other: &Map<String, Value>,
    place: &str,
    left_out: &mut Vec<LeftOut>,
) {
    for (key, value) in other {
        let Some(own) = map.get_mut(key) else {
            map.insert(key.clone(), value.clone());
            continue;
        };
        if own == value {
            continue;
        }
        match (key.as_str(), own, value) {
            ("properties", Value::Object(own), Value::Object(more)) => {
                for (name, schema) in more {
                    match own.get_mut(name) {
                        Some(first) if first == schema => {}
                        Some(first) => {
                            let both = vec![first.take(), schema.clone()];
                            *first = serde_json::json!({ "allOf": both });
                        }
                        None => drop(own.insert(name.clone(), schema.clone())),
                    }
                }
            }
            ("required" | "allOf", Value::Array(own), Value::Array(more)) => {
                let new: Vec<Value> =
                    more.iter().filter(|name| !own.contains(name)).cloned().collect();
                own.extend(new);
            }
            ("type", own, more) => {
                let kinds = types(own);
                let both = kinds.into_iter().filter(|kind| types(more).contains(kind));
                *own = both.collect();
            }
            ("enum", Value::Array(own), Value::Array(more)) => {
                own.retain(|value| more.contains(value));
            }
            (
                "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties",
                own,
                _,
            ) => {
                if value.as_f64() > own.as_f64() {
                    *own = value.clone();
                }
            }
            (
                "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties",
                own,
                _,
            ) => {
                if value.as_f64() < own.as_f64() {
                    *own = value.clone();
                }
            }
            ("additionalProperties", own, Value::Bool(false)) => *own = Value::Bool(false),
            ("additionalProperties", Value::Bool(_), _) => {}
            ("title" | "description" | "default" | "examples" | "$comment", _, _) => {}
            _ => left_out.push(LeftOut { place: place.to_owned(), keyword: key.clone() }),
        }
    }
}

/// Returns the names of types; `integer` is a `number` too.
pub(super) fn types(value: &Value) -> Vec<Value> {
    let mut kinds = match value {
        Value::Array(kinds) => kinds.clone(),
        kind => vec![kind.clone()],
    };
    if kinds.iter().any(|kind| kind == "number") && !kinds.iter().any(|kind| kind == "integer") {
        kinds.push("integer".into());
    }
    kinds
}
