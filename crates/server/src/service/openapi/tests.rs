//! Checks that the document is sound and agrees with the routes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::DOCUMENT;
use super::paths::document;
use crate::service::routes::routes;

/// Returns the path at which the document is kept.
fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json")
}

/// Longest line that is not broken.
const COLUMNS: usize = 120;

fn written() -> String {
    let mut text = String::new();
    push(&mut text, &document(), 0, 0);
    text + "\n"
}

/// Writes a value in one line if it fits after `used` columns, else its parts in lines of their
/// own: the change of a field is the change of a line.
fn push(text: &mut String, value: &Value, indent: usize, used: usize) {
    let line = value.to_string();
    let fits = used + line.chars().count() < COLUMNS;
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(map) if !fits => {
            map.iter().map(|(name, value)| (format!("{}: ", json!(name)), value)).collect()
        }
        Value::Array(items) if !fits => items.iter().map(|item| (String::new(), item)).collect(),
        _ => return text.push_str(&line),
    };
    let (open, close) = if value.is_object() { ('{', '}') } else { ('[', ']') };
    text.push(open);
    for (index, (name, part)) in parts.iter().enumerate() {
        text.push_str(if index == 0 { "\n" } else { ",\n" });
        text.extend(std::iter::repeat_n(' ', indent + 1));
        text.push_str(name);
        push(text, part, indent + 1, indent + 1 + name.chars().count());
    }
    text.push('\n');
    text.extend(std::iter::repeat_n(' ', indent));
    text.push(close);
}

#[test]
fn the_document_is_what_is_served() {
    let is_same = written() == DOCUMENT;
    assert!(
        is_same,
        "docs/openapi.json is not what crates/server/src/openapi says; write it with `cargo test \
         -p trine-server --lib -- --ignored write_the_document` and read the difference before \
         committing it"
    );
}

#[test]
#[ignore = "writes docs/openapi.json"]
fn write_the_document() {
    std::fs::write(path(), written()).expect("the repository can be written");
}

#[test]
fn the_routes_are_those_that_are_answered() {
    let answered: BTreeSet<(String, String)> = routes()
        .into_iter()
        .map(|(method, path, _)| (method.as_str().to_lowercase(), path.replace("{*", "{")))
        .collect();
    let document = document();
    let mut described = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            described.insert((method.clone(), path.clone()));
        }
    }
    assert_eq!(answered, described);
}

#[test]
fn schemas_are_sound_and_all_of_them_are_used() {
    let document = document();
    let mut named = BTreeSet::new();
    references(&document, &mut named);
    let components = &document["components"];
    let mut known = BTreeSet::new();
    for kind in ["schemas", "responses", "headers"] {
        for (name, schema) in components[kind].as_object().unwrap() {
            known.insert(format!("#/components/{kind}/{name}"));
            if kind == "schemas" {
                assert!(jsonschema::meta::is_valid(schema), "{name}: {schema}");
            }
        }
    }
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let unused = known.difference(&named).filter(|name| !name.contains("/responses/"));
    assert_eq!(unused.collect::<Vec<_>>(), Vec::<&String>::new());
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(name)) = map.get("$ref") {
                found.insert(name.clone());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}
