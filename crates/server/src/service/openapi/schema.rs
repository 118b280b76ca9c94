//! Functions to describe a JSON value (JSON Schema, draft 2020-12).

use serde_json::{Map, Value, json};

use crate::request::fields::{FieldTable, Harmless, Rows};
use crate::request::thinking::RAW;

/// A name and the schema of its value.
pub(crate) type Field = (&'static str, Value);

pub(crate) fn any() -> Value {
    json!({})
}

pub(crate) fn text() -> Value {
    json!({"type": "string"})
}

pub(crate) fn boolean() -> Value {
    json!({"type": "boolean"})
}

pub(crate) fn integer(least: impl Into<i64>, most: impl Into<i64>) -> Value {
    json!({"type": "integer", "minimum": least.into(), "maximum": most.into()})
}

/// Returns a whole number that is at least 0.
pub(crate) fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

pub(crate) fn number() -> Value {
    json!({"type": "number"})
}

pub(crate) fn number_from(least: f64, most: f64) -> Value {
    json!({"type": "number", "minimum": least, "maximum": most})
}

pub(crate) fn null() -> Value {
    json!({"type": "null"})
}

pub(crate) fn constant(value: impl Into<Value>) -> Value {
    json!({"const": value.into()})
}

pub(crate) fn choice<const N: usize>(values: [&str; N]) -> Value {
    json!({"type": "string", "enum": values.to_vec()})
}

pub(crate) fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

pub(crate) fn list_of(items: Value, least: usize, most: usize) -> Value {
    json!({"type": "array", "items": items, "minItems": least, "maxItems": most})
}

/// Returns an object whose names are not known beforehand.
pub(crate) fn map(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

pub(crate) fn free_object() -> Value {
    json!({"type": "object"})
}

pub(crate) fn token_id() -> Value {
    integer(0, u32::MAX)
}

pub(crate) fn schema(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub(crate) fn one_of(schemas: Vec<Value>) -> Value {
    json!({"anyOf": schemas})
}

/// Returns the same schema, or null.
pub(crate) fn nullable(mut schema: Value) -> Value {
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
pub(crate) fn about(mut schema: Value, words: impl Into<String>) -> Value {
    schema["description"] = words.into().into();
    schema
}

/// Returns the same schema with the value that applies if there is none.
pub(crate) fn default(mut schema: Value, value: impl Into<Value>) -> Value {
    schema["default"] = value.into();
    schema
}

/// Returns an object that always has the first fields and sometimes the second.
pub(crate) fn object(
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
pub(crate) fn asked(
    always: impl IntoIterator<Item = Field>,
    sometimes: impl IntoIterator<Item = Field>,
) -> Value {
    let sometimes = sometimes.into_iter().map(|(name, schema)| (name, nullable(schema)));
    object(always, sometimes)
}

/// Returns a field that is accepted only at these values, at which it changes nothing.
pub(crate) fn refused(remedy: &str, harmless: Value) -> Value {
    about(json!({ "enum": harmless }), format!("Not supported: {remedy}."))
}

/// Returns the schema of an object whose fields are those of a table.
pub(crate) fn body(table: FieldTable) -> Value {
    let (mut always, mut sometimes) = (Vec::new(), Vec::new());
    collect(table, &mut always, &mut sometimes);
    asked(always, sometimes)
}

fn collect(table: FieldTable, always: &mut Vec<Field>, sometimes: &mut Vec<Field>) {
    let others = "Another dialect's word for whether the model thinks, and how long. Counts if \
                  this dialect's own says nothing.";
    let refused = format!("Not supported: {RAW}. Accepted where it asks for no thoughts.");
    for rows in table {
        match rows {
            Rows::Read { rows, .. } => {
                for row in *rows {
                    let (schema, is_needed) = row.described();
                    let fields = if is_needed { &mut *always } else { &mut *sometimes };
                    fields.push((row.name(), schema));
                }
            }
            Rows::Refused(unsupported) => {
                let field = |(name, harmless, remedy)| (name, off(harmless, remedy));
                sometimes.extend(unsupported.iter().copied().map(field));
            }
            Rows::OthersThinking(names) => {
                sometimes.extend(names.iter().map(|name| (*name, about(any(), others))));
            }
            Rows::NoThinking(names) => {
                sometimes.extend(names.iter().map(|name| (*name, about(any(), &*refused))));
            }
            Rows::All(table) => collect(table, always, sometimes),
        }
    }
}

/// Returns the schema of a field that is refused where it is not harmless.
fn off(harmless: Harmless, remedy: &str) -> Value {
    let within = |bound: &str, number: f64| {
        let schema = json!({"type": "number", bound: number});
        about(schema, format!("Not supported: {remedy}. Accepted where it is off."))
    };
    match harmless {
        Harmless::Off => refused(remedy, json!([null, false, "", [], {}])),
        Harmless::Absent => refused(remedy, json!([null])),
        Harmless::NoCall => refused(remedy, json!([null, "none", "auto", []])),
        Harmless::At(numbers) => {
            let values = numbers.iter().map(|&number| number.into());
            refused(remedy, std::iter::once(Value::Null).chain(values).collect())
        }
        Harmless::UpTo(most) => within("maximum", most),
        Harmless::From(least) => within("minimum", least),
        Harmless::Text(texts) => {
            let named = asked([("type", json!({ "enum": texts }))], []);
            let schema = one_of(vec![json!({ "enum": texts }), named]);
            about(schema, format!("Not supported: {remedy}."))
        }
    }
}
