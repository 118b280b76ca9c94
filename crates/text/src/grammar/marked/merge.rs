//! Several schemas for one value as one schema.

use std::collections::HashSet;

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
                let known: HashSet<&Value> = own.iter().collect();
                let is_new = |value: &&Value| !known.contains(value);
                let new: Vec<Value> = more.iter().filter(is_new).cloned().collect();
                own.extend(new);
            }
            ("type", own, more) => {
                let (kinds, more) = (types(own), types(more));
                *own = kinds.into_iter().filter(kept_by(&more)).collect();
            }
            ("enum", Value::Array(own), Value::Array(more)) => own.retain(kept_by(more)),
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

/// Returns whether a list has a value. Lists are as long as a request may be, so that none is
/// searched once for each value of another one.
fn kept_by(list: &[Value]) -> impl Fn(&Value) -> bool {
    let values: HashSet<&Value> = list.iter().collect();
    move |value| values.contains(value)
}

/// Returns the values of a list, each once.
pub(super) fn distinct(list: &[Value]) -> Vec<&Value> {
    let mut seen = HashSet::new();
    list.iter().filter(|value| seen.insert(*value)).collect()
}

/// Returns the names of types, each once; `integer` is a `number` too.
pub(super) fn types(value: &Value) -> Vec<Value> {
    let mut kinds = match value {
        Value::Array(kinds) => distinct(kinds).into_iter().cloned().collect(),
        kind => vec![kind.clone()],
    };
    if kinds.iter().any(|kind| kind == "number") && !kinds.iter().any(|kind| kind == "integer") {
        kinds.push("integer".into());
    }
    kinds
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(own: Value, other: &Value) -> Value {
        let Value::Object(mut map) = own else { panic!("it is an object") };
        let mut left_out = Vec::new();
        merge(&mut map, other.as_object().unwrap(), "", &mut left_out);
        assert!(left_out.is_empty());
        map.into()
    }

    #[test]
    fn lists_are_joined_or_cut() {
        let own = json!({"required": ["a", "b"], "type": ["number", "null"],
            "enum": [1, "a", [2], {"b": 3}]});
        let other = json!({"required": ["b", "c"], "type": ["integer", "text"],
            "enum": [{"b": 3}, [2], 4]});
        let expected =
            json!({"required": ["a", "b", "c"], "type": ["integer"], "enum": [[2], {"b": 3}]});
        assert_eq!(merged(own, &other), expected);
    }

    #[test]
    fn types_are_listed_once() {
        let many = Value::Array(vec!["integer".into(); 100_000]);
        assert_eq!(types(&many), ["integer"]);
        assert_eq!(types(&json!(["number", "null", "number"])), ["number", "null", "integer"]);
    }

    /// Comparing each value with every other one takes time that grows with the square of the
    /// length.
    #[test]
    fn long_lists_are_merged_in_time_that_grows_with_their_length() {
        let names = |first: u32| -> Vec<Value> {
            (first..first + 300_000).map(|index| format!("name {index}").into()).collect()
        };
        for (keyword, count) in [("required", 300_001), ("enum", 299_999), ("type", 299_999)] {
            let [own, other] = [0, 1].map(|first| json!({ keyword: names(first) }));
            assert_eq!(merged(own, &other)[keyword].as_array().unwrap().len(), count, "{keyword}");
        }
    }
}
