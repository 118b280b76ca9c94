//! What the keywords of a schema say: whether anything, and of values of which type.

use serde_json::{Map, Value};

/// Returns whether a schema says anything of values.
pub(super) fn demands(map: &Map<String, Value>) -> bool {
    let says_nothing = |key: &String| {
        matches!(
            &**key,
            "title"
                | "description"
                | "default"
                | "examples"
                | "$comment"
                | "$schema"
                | "$id"
                | "$defs"
                | "definitions"
                | "deprecated"
                | "readOnly"
                | "writeOnly"
                | "nullable"
        )
    };
    !map.keys().all(says_nothing)
}

/// Returns the type of the values that a schema without a type is about.
pub(super) fn implied(map: &Map<String, Value>) -> Option<&'static str> {
    let about: [(&str, &[&str]); 4] = [
        (
            "object",
            &[
                "properties",
                "required",
                "additionalProperties",
                "patternProperties",
                "minProperties",
                "maxProperties",
            ],
        ),
        ("array", &["items", "prefixItems", "minItems", "maxItems"]),
        ("string", &["minLength", "maxLength", "pattern", "format"]),
        ("number", &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    ];
    let speaks = |keys: &[&str]| keys.iter().any(|key| map.contains_key(*key));
    about.iter().find(|(_, keys)| speaks(keys)).map(|(kind, _)| *kind)
}

/// Returns whether a value is of one of these types.
pub(super) fn is_of(value: &Value, kinds: &[Value]) -> bool {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    kinds.iter().any(|name| name == kind)
}
