//! Functions to describe a JSON value (JSON Schema, draft 2020-12).

use serde_json::{Map, Value, json};

/// A name and the schema of its value.
pub(super) type Field = (&'static str, Value);

pub(super) fn any() -> Value {
    json!({})
}

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn boolean() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn integer(least: impl Into<i64>, most: impl Into<i64>) -> Value {
    json!({"type": "integer", "minimum": least.into(), "maximum": most.into()})
}

/// Returns a whole number that is at least 0.
pub(super) fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub(super) fn number() -> Value {
    json!({"type": "number"})
}

/// Returns a number within bounds; bounds that are `f32` elsewhere are written with the digits of
/// an `f32`.
pub(super) fn number_from(least: f32, most: f32) -> Value {
    let exact = |bound: f32| bound.to_string().parse::<f64>().expect("a number is written as one");
    json!({"type": "number", "minimum": exact(least), "maximum": exact(most)})
}

pub(super) fn null() -> Value {
    json!({"type": "null"})
}

pub(super) fn constant(value: impl Into<Value>) -> Value {
    json!({"const": value.into()})
}

pub(super) fn choice<const N: usize>(values: [&str; N]) -> Value {
    json!({"type": "string", "enum": values.to_vec()})
}

pub(super) fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

pub(super) fn list_of(items: Value, least: usize, most: usize) -> Value {
    json!({"type": "array", "items": items, "minItems": least, "maxItems": most})
}

/// Returns an object whose names are not known beforehand.
pub(super) fn map(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

pub(super) fn free_object() -> Value {
    json!({"type": "object"})
}

pub(super) fn token_id() -> Value {
    integer(0, u32::MAX)
}

pub(super) fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(super) fn one_of(schemas: Vec<Value>) -> Value {
    json!({"anyOf": schemas})
}

/// Returns the same schema, or null.
pub(super) fn nullable(mut schema: Value) -> Value {
    let Value::Object(map) = &mut schema else { return schema };
    if map.is_empty() || allows_null(map) {
        return schema;
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.push(Value::Null);
    }
    if let Some(Value::Array(schemas)) = map.get_mut("anyOf") {
        schemas.push(null());
    } else if let Some(kind) = map.get("type").cloned() {
        map.insert("type".to_owned(), json!([kind, "null"]));
    } else if map.contains_key("$ref") || map.contains_key("const") {
        // The words about the field stay outside.
        let said = ["default", "description"];
        let said = said.map(|name| map.remove(name).map(|value| (name.to_owned(), value)));
        let inner = std::mem::take(map);
        map.insert("anyOf".to_owned(), vec![Value::from(inner), null()].into());
        map.extend(said.into_iter().flatten());
    }
    schema
}

/// Returns whether a schema without `type` already says that null is allowed.
fn allows_null(map: &Map<String, Value>) -> bool {
    let values = map.get("enum").and_then(Value::as_array);
    map.get("type").is_some_and(|kind| kind == "null")
        || values.is_some_and(|values| values.contains(&Value::Null))
}

/// Returns the same schema with words about it.
pub(super) fn about(mut schema: Value, words: impl Into<String>) -> Value {
    schema["description"] = words.into().into();
    schema
}

/// Returns the same schema with the value that applies if there is none.
pub(super) fn default(mut schema: Value, value: impl Into<Value>) -> Value {
    schema["default"] = value.into();
    schema
}

/// Returns an object that always has the first fields and sometimes the second.
pub(super) fn object(
    always: impl IntoIterator<Item = Field>,
    sometimes: impl IntoIterator<Item = Field>,
) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, schema) in always {
        required.push(name);
        properties.insert(name.to_owned(), schema);
    }
    properties.extend(sometimes.into_iter().map(|(name, schema)| (name.to_owned(), schema)));
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// Returns an object of a request: further fields are ignored, and a field that is null is absent.
pub(super) fn asked(
    always: impl IntoIterator<Item = Field>,
    sometimes: impl IntoIterator<Item = Field>,
) -> Value {
    let sometimes = sometimes.into_iter().map(|(name, schema)| (name, nullable(schema)));
    object(always, sometimes)
}

/// Returns a field that is accepted only at these values, at which it changes nothing.
pub(super) fn refused(remedy: &str, harmless: Value) -> Value {
    about(json!({ "enum": harmless }), format!("Not supported: {remedy}."))
}
