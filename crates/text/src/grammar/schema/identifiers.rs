//! Names of schemas. References by `$id` and `$anchor` (JSON Schema 2020-12, 8.2) become references
//! by place, which is all that the rest of this crate and the library follow.

use std::collections::HashMap;

use serde_json::Value;

use super::keywords::{MAPS, each_below};
use super::references::resolve;

/// The most bytes of all names and places that are kept, and of all that references become. A short
/// reference may lead to a long place.
const MAX_BYTES: usize = 4 << 20;

/// Replaces references by name where the name is one of this schema's. What is left is refused, or
/// left out, as a reference that leads elsewhere.
pub(super) fn replace(schema: &mut Value) {
    let mut names =
        Names { resources: vec![Resource::default()], bytes: MAX_BYTES, ..Names::default() };
    names.collect(schema, 0, &mut Vec::new());
    if names.anchors.is_empty() && names.resources.len() == 1 && names.resources[0].uri.is_empty() {
        return;
    }
    let mut bytes = MAX_BYTES;
    let places = names.references.iter().map(|(resource, reference)| {
        let place = names.place(schema, *resource, reference)?;
        bytes = bytes.checked_sub(place.len())?;
        Some(place)
    });
    let places: Vec<Option<String>> = places.collect();
    rewrite(schema, &mut places.into_iter());
}

/// A schema with a name of its own, from which references in it are counted.
#[derive(Default)]
struct Resource {
    uri: String,
    place: String,
}

#[derive(Default)]
struct Names {
    /// The first one is the whole schema.
    resources: Vec<Resource>,
    /// Places, by the resource and the name in it.
    anchors: HashMap<(usize, String), String>,
    /// All references with the resources in which they are, in the order of a visit.
    references: Vec<(usize, String)>,
    /// The bytes that names and places may still take.
    bytes: usize,
}

impl Names {
    fn has_room(&mut self, bytes: usize) -> bool {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or(0);
        left.is_some()
    }

    /// Collects the names and references in a schema. Recursion is bounded by the parser's limit on
    /// nesting.
    fn collect(&mut self, schema: &Value, resource: usize, path: &mut Vec<String>) {
        let mut resource = resource;
        if let Some(id) = id_of(schema) {
            match id.strip_prefix('#') {
                // Before draft 2019-09 an anchor is an `$id`.
                Some(name) => self.name(resource, name, path),
                None => resource = self.resource(resource, id, path),
            }
        }
        for key in ["$anchor", "$dynamicAnchor"] {
            if let Some(name) = schema.get(key).and_then(Value::as_str) {
                self.name(resource, name, path);
            }
        }
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            self.references.push((resource, reference.to_owned()));
        }
        each(schema, &mut |way, below| {
            path.push(way);
            self.collect(below, resource, path);
            path.pop();
        });
    }

    /// Notes a schema with a name, and returns its number.
    fn resource(&mut self, outer: usize, id: &str, path: &[String]) -> usize {
        let uri = absolute(&self.resources[outer].uri, id);
        if path.is_empty() {
            self.resources[0].uri = uri;
        } else if self.has_room(uri.len() + length(path)) {
            self.resources.push(Resource { uri, place: joined(path) });
            return self.resources.len() - 1;
        }
        outer
    }

    fn name(&mut self, resource: usize, name: &str, path: &[String]) {
        if self.has_room(name.len() + length(path)) {
            self.anchors.entry((resource, name.to_owned())).or_insert_with(|| joined(path));
        }
    }

    /// Returns the place that a reference within `resource` leads to; `None` for one that stays as
    /// it is.
    fn place(&self, root: &Value, resource: usize, reference: &str) -> Option<String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let target = match uri {
            "" => resource,
            uri => {
                let uri = absolute(&self.resources[resource].uri, uri);
                self.resources.iter().position(|resource| resource.uri == uri)?
            }
        };
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&(target, fragment.to_owned())).cloned();
        }
        let place = format!("{}{fragment}", self.resources[target].place);
        // Many count the places of all references from the whole schema.
        let is_there = !uri.is_empty() || resolve(root, &format!("#{place}")).is_some();
        is_there.then_some(place)
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

/// Visits what [`each_below`] visits, in the same order, with the way there as a JSON pointer in a
/// fragment.
fn each(schema: &Value, visit: &mut dyn FnMut(String, &Value)) {
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1").replace('%', "%25");
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("enum" | "const" | "default" | "examples", _) => {}
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
