//! Checks a JSON schema before the library sees it, so that an error names the place and the remedy
//! and no schema costs more than its size suggests. Also rewrites the schema for the library.

mod apart;
mod check;
mod close;
mod counts;
mod references;

use serde_json::{Map, Value};

use super::error::GrammarError;
use check::Check;
pub(crate) use references::resolve;

const KIND: &str = "JSON schema";

/// The keywords whose value is one schema.
const SCHEMA: [&str; 2] = ["additionalProperties", "additionalItems"];

/// The keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// The keywords whose value maps names to schemas.
const MAPS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// A keyword of a tool's schema that the grammar does not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The schema that contains it, as a JSON pointer after `#`.
    pub place: String,
    /// The keyword.
    pub keyword: String,
}

/// Returns the schema, parsed, checked and rewritten for the library.
///
/// # Errors
/// Returns an error if it is not a schema, costs too much, or demands what no grammar can enforce.
pub(super) fn digestible(source: &str) -> Result<Value, GrammarError> {
    prepared(source, false).map(|(schema, _)| schema)
}

/// Does the same without the parts that no grammar can enforce, and returns a list of those. Every
/// value that satisfies the schema satisfies the returned one.
///
/// # Errors
/// Returns an error if it is not a schema, or costs too much.
pub(super) fn relaxed(source: &str) -> Result<(Value, Vec<LeftOut>), GrammarError> {
    prepared(source, true)
}

/// Returns a rewritten schema as a part of another one, where it lies at `place`, such as
/// `#/$defs/part`. Its references are changed to lead to the same schemas at their new place.
pub(super) fn moved(mut schema: Value, place: &str) -> Value {
    move_references(&mut schema, place);
    schema
}

fn move_references(schema: &mut Value, place: &str) {
    if let Some(Value::String(reference)) = schema.get_mut("$ref")
        && let Some(rest) = reference.strip_prefix('#')
    {
        *reference = format!("{place}{rest}");
    }
    each_below(schema, &mut |_, below| move_references(below, place));
}

/// Visits everything directly in a schema that may be a schema or a list of schemas, with the way
/// there.
fn each_below(schema: &mut Value, visit: &mut dyn FnMut(&str, &mut Value)) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match (key.as_str(), value) {
                    ("enum" | "const" | "default" | "examples", _) => {}
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
fn add_options(map: &mut Map<String, Value>, options: Value) {
    if !map.contains_key("anyOf") {
        map.insert("anyOf".to_owned(), options);
        return;
    }
    let all = map.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(all) = all {
        all.push(serde_json::json!({ "anyOf": options }));
    }
}

fn prepared(source: &str, relaxes: bool) -> Result<(Value, Vec<LeftOut>), GrammarError> {
    let mut schema = parsed(source)?;
    let root = schema.clone();
    references::check_chains(&root)?;
    let mut check = Check::new(&root, relaxes);
    check.one_of("#", &mut schema)?;
    close::close(&mut schema);
    check.schema("#", &mut schema)?;
    check.multiples(&mut schema)?;
    counts::count(&mut check, &mut schema)?;
    Ok((schema, check.finish()))
}

/// Parses the schema and returns it as an object.
fn parsed(source: &str) -> Result<Value, GrammarError> {
    let schema: Value = serde_json::from_str(source).map_err(|error| {
        let problem = match error.to_string() {
            text if text.contains("recursion limit") => {
                "it is nested more than 127 deep; use $defs and $ref".to_owned()
            }
            text => format!("it is not JSON: {text}"),
        };
        GrammarError::invalid(
            KIND,
            format!("line {}, column {}", error.line(), error.column()),
            problem,
        )
    })?;
    match schema {
        Value::Bool(true) => Ok(Value::Object(Map::new())),
        Value::Bool(false) => {
            Err(GrammarError::invalid(KIND, "#", "`false` allows nothing; use an object"))
        }
        Value::Object(_) => Ok(schema),
        _ => Err(invalid("#", "a schema must be an object or a boolean")),
    }
}

fn invalid(place: &str, problem: impl Into<String>) -> GrammarError {
    let mut place = place.to_owned();
    if place.len() > 200 {
        let end = (0..=200).rev().find(|&end| place.is_char_boundary(end)).unwrap_or(0);
        place.truncate(end);
        place.push_str("...");
    }
    GrammarError::invalid(KIND, place, problem)
}
