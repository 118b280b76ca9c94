//! Proofs that no value satisfies two of several schemas.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::references::resolve;

/// The steps of all proofs for a schema: enough for the alternatives of a large `oneOf` with a
/// property that distinguishes them.
const MAX_STEPS: usize = 1 << 18;

/// The values of lists that are looked at in the time of a step.
const VALUES_A_STEP: usize = 32;

/// The depth of values up to which a proof looks.
const MAX_DEPTH: usize = 8;

/// The most schemas that are considered for one value.
const MAX_FACTS: usize = 64;

/// Proves that schemas exclude each other, from their types, constants, and required properties.
pub(super) struct Apart<'a> {
    root: &'a Value,
    steps: Cell<usize>,
}

/// Schemas that a value has to satisfy together.
type Facts<'a> = Vec<&'a Map<String, Value>>;

impl<'a> Apart<'a> {
    /// Starts proofs after `steps` earlier ones.
    pub(super) fn new(root: &'a Value, steps: usize) -> Self {
        Self { root, steps: Cell::new(steps) }
    }

    /// Returns the number of steps taken.
    pub(super) fn steps(&self) -> usize {
        self.steps.get()
    }

    /// Returns whether it can be proved that no value satisfies two of the schemas.
    pub(super) fn all(&self, schemas: &'a [Value]) -> bool {
        schemas.iter().enumerate().all(|(index, first)| {
            schemas[..index].iter().all(|second| self.are_apart(first, second, 0))
        })
    }

    fn are_apart(&self, first: &'a Value, second: &'a Value, depth: usize) -> bool {
        self.steps.set(self.steps.get() + 1);
        if depth > MAX_DEPTH || self.steps.get() > MAX_STEPS {
            return false;
        }
        let (mut left, mut right) = (Facts::new(), Facts::new());
        if self.collect(first, &mut left) || self.collect(second, &mut right) {
            return true;
        }
        let values = (literals(&left), literals(&right));
        if let (Some(left), Some(right)) = &values {
            self.work(left.len() + right.len());
            let known: HashSet<&Value> = right.iter().copied().collect();
            if !left.iter().any(|value| known.contains(value)) {
                return true;
            }
        }
        let (kinds, others) = (self.kinds(&left), self.kinds(&right));
        kinds & others == 0
            || self.options_apart(&left, second, depth)
            || self.options_apart(&right, first, depth)
            || (kinds & others == OBJECT && self.objects_apart(&left, &right, depth))
    }

    /// Counts values that are looked at. A reference may lead to the same list again and again.
    fn work(&self, values: usize) {
        self.steps.set(self.steps.get() + values / VALUES_A_STEP);
    }

    /// Collects the demands of a schema, without its alternatives. Returns true if nothing
    /// satisfies it.
    fn collect(&self, schema: &'a Value, facts: &mut Facts<'a>) -> bool {
        let map = match schema {
            Value::Object(map) => map,
            other => return *other == Value::Bool(false),
        };
        self.steps.set(self.steps.get() + 1);
        if facts.len() >= MAX_FACTS {
            return false;
        }
        facts.push(map);
        let parts = map.get("allOf").and_then(Value::as_array).into_iter().flatten();
        let target = map.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|reference| resolve(self.root, reference));
        parts.chain(target).any(|part| self.collect(part, facts))
    }

    /// Returns whether `facts` contain a list of alternatives of which none can be satisfied
    /// together with `other`.
    fn options_apart(&self, facts: &Facts<'a>, other: &'a Value, depth: usize) -> bool {
        let lists = facts.iter().flat_map(|map| [map.get("anyOf"), map.get("oneOf")]);
        lists
            .flatten()
            .filter_map(Value::as_array)
            .any(|options| options.iter().all(|option| self.are_apart(option, other, depth + 1)))
    }

    /// Returns whether a property that one side requires cannot satisfy both, or is forbidden by
    /// one of them.
    fn objects_apart(&self, left: &Facts<'a>, right: &Facts<'a>, depth: usize) -> bool {
        required(left).chain(required(right)).any(|name| {
            self.work(left.len() + right.len());
            is_forbidden(left, name)
                || is_forbidden(right, name)
                || properties(left, name).any(|first| {
                    properties(right, name).any(|second| self.are_apart(first, second, depth + 1))
                })
        })
    }

    /// Returns the kinds of values that satisfy all of `facts`, one bit each.
    fn kinds(&self, facts: &Facts<'a>) -> u8 {
        let declared = facts.iter().filter_map(|map| map.get("type")).map(|kind| match kind {
            Value::Array(names) => names.iter().map(kind_named).fold(0, |all, kind| all | kind),
            name => kind_named(name),
        });
        let found = literals(facts);
        let found = found.iter().map(|values| {
            values.iter().map(|value| kind_of(value)).fold(0, |all, kind| all | kind)
        });
        declared.chain(found).fold(ALL, |all, kinds| all & kinds)
    }
}

const OBJECT: u8 = 1 << 5;
const ALL: u8 = u8::MAX;

fn kind_named(name: &Value) -> u8 {
    match name.as_str() {
        Some("null") => 1,
        Some("boolean") => 1 << 1,
        Some("number" | "integer") => 1 << 2,
        Some("string") => 1 << 3,
        Some("array") => 1 << 4,
        Some("object") => OBJECT,
        _ => ALL,
    }
}

fn kind_of(value: &Value) -> u8 {
    match value {
        Value::Null => 1,
        Value::Bool(_) => 1 << 1,
        Value::Number(_) => 1 << 2,
        Value::String(_) => 1 << 3,
        Value::Array(_) => 1 << 4,
        Value::Object(_) => OBJECT,
    }
}

/// Returns the values that one of the schemas enumerates; `None` if no schema does. Numbers may be
/// spelled in several ways, so a schema that enumerates one counts as one that enumerates nothing.
fn literals<'a>(facts: &Facts<'a>) -> Option<Vec<&'a Value>> {
    let lists = facts.iter().filter_map(|map| match (map.get("const"), map.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    });
    let plain = |value: &&Value| matches!(value, Value::String(_) | Value::Bool(_) | Value::Null);
    lists.filter(|values| values.iter().all(plain)).min_by_key(Vec::len)
}

fn required<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a str> {
    let lists = facts.iter().filter_map(|map| map.get("required")?.as_array());
    lists.flatten().filter_map(Value::as_str).collect::<Vec<_>>().into_iter()
}

fn properties<'a>(facts: &Facts<'a>, name: &str) -> impl Iterator<Item = &'a Value> {
    let found = facts.iter().filter_map(|map| map.get("properties")?.get(name));
    found.collect::<Vec<_>>().into_iter()
}

/// Returns whether one of the schemas allows no property of this name.
fn is_forbidden(facts: &Facts<'_>, name: &str) -> bool {
    facts.iter().any(|map| {
        map.get("additionalProperties") == Some(&Value::Bool(false))
            && !map.contains_key("patternProperties")
            && map.get("properties").and_then(|named| named.get(name)).is_none()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// References make a short schema compare long lists very often.
    #[test]
    fn comparisons_of_long_lists_are_limited() {
        let names = |word: &str| -> Vec<String> {
            (0..5000).map(|index| format!("{word} {index}")).collect()
        };
        let root = json!({"$defs": {"a": {"enum": names("a")}, "b": {"enum": names("b")}}});
        let [a, b] = ["a", "b"].map(|name| json!({"$ref": format!("#/$defs/{name}")}));
        let schemas = |count: usize| [json!({"anyOf": vec![a.clone(); count]}), b.clone()];
        let few = schemas(10);
        assert!(Apart::new(&root, 0).all(&few));
        let many = schemas(5000);
        let apart = Apart::new(&root, 0);
        assert!(!apart.all(&many), "it is given up");
        assert!(apart.steps() < 2 * MAX_STEPS);
    }
}
