//! Closes objects: they may have the properties that they declare and no others, unless their
//! schema says something about others.
//!
//! JSON Schema allows any property that a schema does not mention. An author who declares some does
//! not want a model to make up more, and small models do little else once they may.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::keywords::{MAPS, each_below, is_data};
use super::references::{in_place, resolve};

/// The deepest nesting of schemas for one value from which names are collected.
const MAX_DEPTH: usize = 64;

/// The most names that are added to an object from the schemas merged with it.
const MAX_ADDED: usize = 4096;

/// Closes every object of a schema that can be closed.
pub(super) fn close(schema: &mut Value) {
    let original = schema.clone();
    Merged::of(&original).close(schema, &original, &mut 0);
}

/// The schemas that apply to a value together with others. They cannot be closed themselves: each
/// knows only its own properties.
pub(super) struct Merged<'a> {
    root: &'a Value,
    inner: HashSet<*const Value>,
}

impl<'a> Declared<'a> {
    fn add(&mut self, name: &'a str) {
        if self.known.insert(name) {
            self.names.push(name);
        }
    }
}

/// The properties that an object may have, from all schemas that apply to it.
#[derive(Default)]
struct Declared<'a> {
    names: Vec<&'a str>,
    known: HashSet<&'a str>,
    has_properties: bool,
    least: u64,
}

impl<'a> Merged<'a> {
    pub(super) fn of(root: &'a Value) -> Self {
        let mut merged = Self { root, inner: HashSet::new() };
        merged.look_at(root);
        merged
    }

    /// Returns whether others apply together with this schema, a part of the root.
    pub(super) fn contains(&self, schema: &Value) -> bool {
        self.inner.contains(&std::ptr::from_ref(schema))
    }

    /// Marks the merged schemas in a schema and below it.
    fn look_at(&mut self, schema: &'a Value) {
        if schema.as_object().is_some_and(is_merging) {
            for part in in_place(Some(self.root), schema) {
                self.mark(part);
            }
        }
        for below in below(schema) {
            self.look_at(below);
        }
    }

    fn mark(&mut self, schema: &'a Value) {
        let mut left = vec![schema];
        while let Some(schema) = left.pop() {
            if self.inner.insert(schema) {
                left.extend(in_place(Some(self.root), schema));
            }
        }
    }

    /// Closes `schema`, a copy of `original`.
    fn close(&self, schema: &mut Value, original: &'a Value, added: &mut usize) {
        let mut originals = below(original).into_iter();
        each_below(schema, &mut |_, copy| {
            if let Some(original) = originals.next() {
                self.close(copy, original, added);
            }
        });
        let (Some(map), Some(whole)) = (schema.as_object_mut(), original.as_object()) else {
            return;
        };
        if self.contains(original) || !(whole.contains_key("properties") || is_merging(whole)) {
            return;
        }
        let own = whole.get("properties").and_then(Value::as_object);
        let mut declared = Declared::default();
        let mut seen = HashSet::new();
        if !self.collect(original, true, 0, &mut seen, &mut declared)
            || !declared.has_properties
            || declared.least > declared.names.len() as u64
        {
            return;
        }
        *added += declared.names.len() - own.map_or(0, Map::len).min(declared.names.len());
        if *added > MAX_ADDED {
            return;
        }
        let properties = map.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(properties) = properties else { return };
        for name in declared.names {
            properties.entry(name.to_owned()).or_insert(Value::Bool(true));
        }
        map.insert("additionalProperties".to_owned(), Value::Bool(false));
    }

    /// Collects the schemas that apply to a value together with `schema`. Returns whether they say
    /// nothing about other properties.
    fn collect(
        &self,
        schema: &'a Value,
        is_outer: bool,
        depth: usize,
        seen: &mut HashSet<*const Value>,
        declared: &mut Declared<'a>,
    ) -> bool {
        let Value::Object(map) = schema else { return true };
        if !seen.insert(schema) {
            return true;
        }
        let is_open = |value: &Value| *value != Value::Bool(false);
        let speaks = ["additionalProperties", "propertyNames", "const", "enum"];
        if depth > MAX_DEPTH
            || speaks.iter().any(|key| map.contains_key(*key))
            || map.get("unevaluatedProperties").is_some_and(is_open)
            || (!is_outer && map.contains_key("patternProperties"))
        {
            return false;
        }
        // A schema that cannot be resolved may declare anything.
        let leads_nowhere = |reference: &Value| {
            reference.as_str().is_none_or(|reference| resolve(self.root, reference).is_none())
        };
        if map.get("$ref").is_some_and(leads_nowhere)
            || map.contains_key("$dynamicRef")
            || map.contains_key("$recursiveRef")
        {
            return false;
        }
        if let Some(Value::Object(properties)) = map.get("properties") {
            declared.has_properties = true;
            properties.keys().for_each(|name| declared.add(name));
        }
        let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
        required.filter_map(Value::as_str).for_each(|name| declared.add(name));
        let least = map.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
        declared.least = declared.least.max(least as u64);
        let denied = map.get("not");
        in_place(Some(self.root), schema)
            .into_iter()
            .filter(|part| denied.is_none_or(|denied| !std::ptr::eq(*part, denied)))
            .all(|part| self.collect(part, false, depth + 1, seen, declared))
    }
}

/// Returns whether several schemas apply to a value. The alternatives of one list apply one at a
/// time.
pub(super) fn is_merging(map: &Map<String, Value>) -> bool {
    let all = map.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = ["anyOf", "oneOf", "$ref", "if", "dependentSchemas", "dependencies"];
    let parts = all + others.iter().filter(|key| map.contains_key(**key)).count();
    let own = ["properties", "patternProperties", "additionalProperties", "required"];
    let says = own.iter().any(|key| map.contains_key(*key))
        || map.contains_key("minProperties")
        || map.contains_key("maxProperties");
    parts > 1 || (parts == 1 && says)
}

/// Returns what [`each_below`] visits, in the same order.
pub(super) fn below(schema: &Value) -> Vec<&Value> {
    match schema {
        Value::Object(map) => {
            let mut found = Vec::new();
            for (key, value) in map {
                match (key.as_str(), value) {
                    (key, _) if is_data(key) => {}
                    (key, Value::Object(named)) if MAPS.contains(&key) => {
                        found.extend(named.values())
                    }
                    (_, value) => found.push(value),
                }
            }
            found
        }
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    }
}
