//! Checks a JSON schema before the library sees it, so that an error names the place and the remedy
//! and no schema costs more than its size suggests. Also rewrites the schema for the library.

mod apart;
mod check;
mod close;
mod counts;
mod identifiers;
mod keywords;
mod meeting;
mod numbers;
pub(crate) mod readable;
pub(crate) mod references;

use serde_json::{Map, Value};

use super::error::GrammarError;
use check::Check;
use keywords::{KIND, each_below, invalid};

pub use keywords::LeftOut;
pub(crate) use keywords::is_data;
pub(super) use numbers::digits_named;

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

/// Checks that a schema which the library is given as it is costs no more than others.
///
/// # Errors
/// Returns an error if it is not a schema, or costs too much.
pub(super) fn check_bounds(schema: &Value) -> Result<(), GrammarError> {
    relaxed(&schema.to_string()).map(drop)
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

fn prepared(source: &str, relaxes: bool) -> Result<(Value, Vec<LeftOut>), GrammarError> {
    let mut schema = parsed(source)?;
    identifiers::replace(&mut schema)?;
    let root = schema.clone();
    references::check_chains(&root)?;
    meeting::check(&root)?;
    let mut check = Check::new(&root, relaxes);
    check.one_of("#", &mut schema)?;
    close::close(&mut schema);
    check.schema("#", &mut schema)?;
    check.elsewhere(&mut schema)?;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_that_only_references_make_schemas_are_checked() {
        let deep = format!("{}a{}", "(".repeat(300), ")".repeat(300));
        for (part, problem) in [
            (json!({"required": vec!["a"; 6000]}), "the number of required names"),
            (json!({"enum": vec![1; 20_000]}), "the number of enumerated values"),
            (json!({"properties": {"v": {"pattern": "["}}}), "#/parts/p/properties/v/pattern"),
            (json!({"pattern": deep}), "exceed the maximum number of nested"),
            (json!({"$ref": "#/parts/next"}), "#/parts/next/type"),
        ] {
            let parts = json!({"p": part, "next": {"type": "what"}});
            let schema =
                json!({"properties": {"a": {"$ref": "#/parts/p"}}, "parts": parts}).to_string();
            let error = digestible(&schema).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let schema = json!({
            "properties": {"a": {"$ref": "#/parts/p"}},
            "parts": {"p": {"type": "array", "uniqueItems": true}},
        });
        let (relaxed, left_out) = relaxed(&schema.to_string()).unwrap();
        assert_eq!(relaxed["parts"]["p"], json!({"type": "array"}));
        assert_eq!(left_out.len(), 1);
        assert_eq!(left_out[0].place, "#/parts/p");
    }
}
