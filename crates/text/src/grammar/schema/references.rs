//! References within a schema.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::keywords::{KIND, invalid};
use crate::grammar::error::GrammarError;

/// The longest chain of references that lead only to references.
const MAX_CHAIN: usize = 128;

/// Returns the value that a local reference (`#`, `#/...`) points to.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let mut place = root;
    for name in names(reference)? {
        place = match place {
            Value::Object(map) => map.get(&name)?,
            Value::Array(items) => items.get(name.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(place)
}

/// Returns the value that a reference in the form of [`canonical`] points to.
pub(super) fn resolve_mut<'a>(root: &'a mut Value, reference: &str) -> Option<&'a mut Value> {
    reference.split('/').skip(1).try_fold(root, |place, name| match place {
        Value::Object(map) => map.get_mut(name),
        Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Returns a local reference in the form that the library reads, with names unescaped; `None` if a
/// name in it contains a `/`.
pub(super) fn canonical(reference: &str) -> Option<String> {
    let names = names(reference)?;
    if names.iter().any(|name| name.contains('/')) {
        return None;
    }
    Some(if names.is_empty() { "#".to_owned() } else { format!("#/{}", names.join("/")) })
}

/// Returns the names on the path of a local reference: a JSON pointer (RFC 6901) in a fragment,
/// where `%` escapes bytes and `~` escapes characters.
fn names(reference: &str) -> Option<Vec<String>> {
    let path = reference.strip_prefix('#')?;
    if path.is_empty() || path == "/" {
        return Some(Vec::new());
    }
    path.strip_prefix('/')?.split('/').map(unescaped).collect()
}

fn unescaped(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut left = name.bytes();
    while let Some(byte) = left.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(left.next())?, digit(left.next())?);
        bytes.push((high * 16 + low) as u8);
    }
    let name = String::from_utf8(bytes).ok()?;
    Some(name.replace("~1", "/").replace("~0", "~"))
}

/// Returns the schemas that apply to the same value as `schema`. Without a root, references are not
/// followed.
pub(super) fn in_place<'a>(root: Option<&'a Value>, schema: &'a Value) -> Vec<&'a Value> {
    let Some(map) = schema.as_object() else { return Vec::new() };
    let lists = ["allOf", "anyOf", "oneOf"];
    let mut found: Vec<&Value> =
        lists.iter().filter_map(|key| map.get(*key)?.as_array()).flatten().collect();
    found.extend(["not", "if", "then", "else"].iter().filter_map(|key| map.get(*key)));
    let named = ["dependentSchemas", "dependencies"];
    found.extend(named.iter().filter_map(|key| map.get(*key)?.as_object()).flat_map(Map::values));
    let reference = map.get("$ref").and_then(Value::as_str);
    found.extend(root.and_then(|root| resolve(root, reference?)));
    found
}

/// Refuses references that lead back to themselves through references only, and chains of them that
/// are too long.
pub(super) fn check_chains(root: &Value) -> Result<(), GrammarError> {
    // True while a schema is being visited, false afterwards.
    let mut open: HashMap<*const Value, bool> = HashMap::new();
    let mut starts = vec![root];
    for key in ["$defs", "definitions"] {
        starts.extend(root.get(key).and_then(Value::as_object).into_iter().flat_map(Map::values));
    }
    starts.extend(references(root).into_iter().filter_map(|reference| resolve(root, reference)));
    for start in starts {
        let mut path = vec![(start, in_place(Some(root), start))];
        if open.insert(start, true).is_some() {
            open.insert(start, false);
            continue;
        }
        while let Some((schema, following)) = path.last_mut() {
            let Some(next) = following.pop() else {
                open.insert(*schema, false);
                path.pop();
                continue;
            };
            match open.get(&std::ptr::from_ref(next)) {
                Some(true) => {
                    return Err(invalid(
                        "$ref",
                        "a definition refers to itself with nothing between; remove the cycle",
                    ));
                }
                Some(false) => {}
                None => {
                    open.insert(next, true);
                    path.push((next, in_place(Some(root), next)));
                }
            }
            if path.len() > MAX_CHAIN {
                return Err(GrammarError::too_large(
                    KIND,
                    "the length of a chain of references",
                    MAX_CHAIN as u64,
                ));
            }
        }
    }
    Ok(())
}

/// Returns all local references in a schema.
fn references(root: &Value) -> Vec<&str> {
    let (mut found, mut left) = (Vec::new(), vec![root]);
    while let Some(value) = left.pop() {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str));
                left.extend(map.values());
            }
            Value::Array(items) => left.extend(items),
            _ => {}
        }
    }
    found
}
