//! Names of schemas. References by `$id` and `$anchor` (JSON Schema 2020-12, 8.2) become references
//! by place, which is all that the rest of this crate and the library follow.

use std::collections::HashMap;

use serde_json::Value;

use super::keywords::{MAPS, PLACE_BYTES, each_below, invalid, is_data};
use super::references::resolve;
use crate::grammar::error::GrammarError;

/// The most bytes of all names with their places, and of all that references become and are looked
/// up with. A short name or reference may stand for a long place.
const MAX_BYTES: usize = 4 << 20;

/// Replaces references by name where the name is one of this schema's. What is left is refused, or
/// left out, as a reference that leads elsewhere.
///
/// # Errors
/// Returns an error if names and references stand for more than can be kept: a reference that is
/// not understood would mean another place.
pub(super) fn replace(schema: &mut Value) -> Result<(), GrammarError> {
    let mut names = Names { room: Room(MAX_BYTES), ..Names::default() };
    names.resources.push(Resource::default());
    names.collect(schema, 0, &mut Vec::new())?;
    if names.anchors.is_empty() && names.resources.len() == 1 && names.resources[0].uri.is_empty() {
        return Ok(());
    }
    let mut room = Room(MAX_BYTES);
    let places = names.references.iter().map(|reference| names.place(schema, reference, &mut room));
    let places: Vec<Option<String>> = places.collect::<Result<_, _>>()?;
    rewrite(schema, &mut places.into_iter());
    Ok(())
}

/// The bytes that may still be kept or made.
#[derive(Default)]
struct Room(usize);

impl Room {
    /// Takes room for what stands in the schema at `place`.
    fn take(&mut self, bytes: usize, place: impl FnOnce() -> String) -> Result<(), GrammarError> {
        match self.0.checked_sub(bytes) {
            Some(left) => self.0 = left,
            None => {
                let problem = format!(
                    "all names and references, with the places that they stand for, have more than \
                     {MAX_BYTES} bytes; use shorter names, or $ref with a place in $defs"
                );
                return Err(invalid(&format!("#{}", place()), problem));
            }
        }
        Ok(())
    }
}

/// A schema with a name of its own, from which references in it are counted.
#[derive(Default)]
struct Resource {
    uri: String,
    place: String,
}

/// A reference in the schema.
struct Reference {
    /// The resource in which it is.
    resource: usize,
    text: String,
    /// The place of the schema that has it, cut to what a message shows.
    place: String,
}

#[derive(Default)]
struct Names {
    /// The first one is the whole schema.
    resources: Vec<Resource>,
    /// The first resource of each URI.
    by_uri: HashMap<String, usize>,
    /// Places, by the resource and the name in it.
    anchors: HashMap<(usize, String), String>,
    /// All references in the order of a visit.
    references: Vec<Reference>,
    room: Room,
}

impl Names {
    /// Collects the names and references in a schema. Recursion is bounded by the parser's limit on
    /// nesting.
    fn collect(
        &mut self,
        schema: &Value,
        resource: usize,
        path: &mut Vec<String>,
    ) -> Result<(), GrammarError> {
        let mut resource = resource;
        if let Some(id) = id_of(schema) {
            match id.strip_prefix('#') {
                // Before draft 2019-09 an anchor is an `$id`.
                Some(name) => self.name(resource, name, path)?,
                None => resource = self.resource(resource, id, path)?,
            }
        }
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = schema.get(key).and_then(Value::as_str) {
                self.name(resource, name, path)?;
            }
        }
        if let Some(text) = schema.get("$ref").and_then(Value::as_str) {
            let (text, place) = (text.to_owned(), shown(path));
            self.references.push(Reference { resource, text, place });
        }
        let mut outcome = Ok(());
        each(schema, &mut |way, below| {
            if outcome.is_ok() {
                path.push(way);
                outcome = self.collect(below, resource, path);
                path.pop();
            }
        });
        outcome
    }

    /// Notes a schema with a name, and returns its number.
    fn resource(&mut self, outer: usize, id: &str, path: &[String]) -> Result<usize, GrammarError> {
        let base = &self.resources[outer].uri;
        self.room.take(base.len() + id.len() + length(path), || shown(path) + "/$id")?;
        let uri = absolute(base, id);
        let number = if path.is_empty() { 0 } else { self.resources.len() };
        self.by_uri.entry(uri.clone()).or_insert(number);
        if path.is_empty() {
            self.resources[0].uri = uri;
        } else {
            self.resources.push(Resource { uri, place: joined(path) });
        }
        Ok(number)
    }

    fn name(&mut self, resource: usize, name: &str, path: &[String]) -> Result<(), GrammarError> {
        self.room.take(name.len() + length(path), || shown(path) + "/$anchor")?;
        self.anchors.entry((resource, name.to_owned())).or_insert_with(|| joined(path));
        Ok(())
    }

    /// Returns the place that a reference leads to; `None` for one that stays as it is.
    fn place(
        &self,
        root: &Value,
        reference: &Reference,
        room: &mut Room,
    ) -> Result<Option<String>, GrammarError> {
        let mut take = |bytes| room.take(bytes, || format!("{}/$ref", reference.place));
        let (uri, fragment) = reference.text.split_once('#').unwrap_or((&reference.text, ""));
        let target = match uri {
            "" => reference.resource,
            uri => {
                let base = &self.resources[reference.resource].uri;
                take(base.len() + uri.len())?;
                let Some(target) = self.by_uri.get(&absolute(base, uri)) else { return Ok(None) };
                *target
            }
        };
        if !fragment.is_empty() && !fragment.starts_with('/') {
            let place = self.anchors.get(&(target, fragment.to_owned()));
            take(place.map_or(0, String::len))?;
            return Ok(place.cloned());
        }
        let place = &self.resources[target].place;
        take(place.len() + fragment.len())?;
        let place = format!("{place}{fragment}");
        // Many count the places of all references from the whole schema.
        let is_there = !uri.is_empty() || resolve(root, &format!("#{place}")).is_some();
        Ok(is_there.then_some(place))
    }
}

/// Puts places in the stead of references, in the order of a visit, and takes names away.
fn rewrite(schema: &mut Value, places: &mut std::vec::IntoIter<Option<String>>) {
    if let Some(map) = schema.as_object_mut() {
        if let Some(Value::String(reference)) = map.get_mut("$ref")
            && let Some(place) = places.next().flatten()
        {
            *reference = format!("#{place}");
        }
        for key in ["$id", "$anchor"] {
            if map.get(key).is_some_and(Value::is_string) {
                map.shift_remove(key);
            }
        }
    }
    each_below(schema, &mut |_, below| rewrite(below, places));
}

/// Returns the `$id` of a schema without an empty fragment.
fn id_of(schema: &Value) -> Option<&str> {
    let id = schema.get("$id").and_then(Value::as_str)?;
    let id = id.strip_suffix('#').unwrap_or(id);
    (!id.is_empty()).then_some(id)
}

/// Returns a URI in full. Of the ways of RFC 3986 to shorten one it knows those that schemas use: a
/// path from the root, and a name beside the base.
fn absolute(base: &str, reference: &str) -> String {
    let scheme = reference.split_once(':').map_or("", |(scheme, _)| scheme);
    let has_scheme = !scheme.is_empty() && !scheme.contains(['/', '?', '#']);
    let host = base.find("://").map_or(0, |at| at + 3);
    let path = base[host..].find('/').map_or(base.len(), |at| host + at);
    if has_scheme || base.is_empty() {
        reference.to_owned()
    } else if reference.starts_with('/') {
        format!("{}{reference}", &base[..path])
    } else {
        match base[path..].rfind('/') {
            Some(at) => format!("{}/{reference}", &base[..path + at]),
            None if host == 0 => reference.to_owned(),
            None => format!("{base}/{reference}"),
        }
    }
}

fn length(path: &[String]) -> usize {
    path.iter().map(|way| way.len() + 1).sum()
}

fn joined(path: &[String]) -> String {
    path.iter().flat_map(|way| ["/", way.as_str()]).collect()
}

/// Returns the beginning of a place, as much as a message shows.
fn shown(path: &[String]) -> String {
    let mut text = String::new();
    for way in path {
        text.push('/');
        text.extend(way.chars().take(PLACE_BYTES));
        if text.len() > PLACE_BYTES {
            break;
        }
    }
    text
}

/// Visits what [`each_below`] visits, in the same order, with the way there as a JSON pointer in a
/// fragment.
fn each(schema: &Value, visit: &mut dyn FnMut(String, &Value)) {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1").replace('%', "%25");
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    (key, _) if is_data(key) => {}
                    (key, Value::Object(named)) if MAPS.contains(&key) => {
                        for (name, value) in named {
                            visit(format!("{key}/{}", escaped(name)), value);
                        }
                    }
                    (key, value) => visit(escaped(key), value),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                visit(index.to_string(), item);
            }
        }
        _ => {}
    }
}
