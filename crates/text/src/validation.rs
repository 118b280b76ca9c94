//! Validates documents against JSON schemas, with every keyword. The library `jsonschema` does the
//! work; only this module names it.
//!
//! Schemas are hostile. Nothing is fetched: a reference to another document is left out. The
//! library has no limits, so its work is counted in advance, and work beyond the limits is refused.

use std::collections::HashMap;

use jsonschema::{Draft, FancyRegex, PatternOptions, Validator};
use serde_json::{Map, Value, json};

use crate::grammar::schema::is_data;
use crate::grammar::schema::references::resolve;
use crate::vocabulary::shortened;

/// The most work for one document: the number of applications of schemas and keywords to values, of
/// which the library does some millions each second.
const MAX_WORK: u64 = 100_000;

/// The most schemas that a schema may become when its references are written out.
const MAX_SCHEMAS: u64 = 20_000;

/// The deepest recursion through schemas and values.
const MAX_DEPTH: usize = 400;

/// The most regular expressions in a schema.
const MAX_PATTERNS: usize = 64;

/// The work that an expression with look-around counts as, and below it the most steps that it may
/// backtrack.
const LOOK_AROUND_WORK: u64 = 5_000;
const MAX_BACKTRACKS: usize = 10_000;

/// The most bytes of one compiled expression.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The most bytes of one that texts are searched for without counting the work in advance. A byte
/// takes time for each of its states at worst.
const MAX_EXPRESSION_BYTES: usize = 1 << 16;

/// The stack of the thread that validates; the library recurses as deep as [`MAX_DEPTH`] allows.
const STACK_BYTES: usize = 64 << 20;

/// The drafts that a schema may follow, the current one first.
const DRAFTS: [Draft; 3] = [Draft::Draft202012, Draft::Draft7, Draft::Draft4];

/// Returns whether a text is a regular expression of JSON Schema.
fn is_pattern(text: &str) -> bool {
    options(Draft::Draft202012).build(&json!({ "pattern": text })).is_ok()
}

/// A schema that documents are validated against.
#[derive(Debug)]
pub(crate) struct Checker {
    schema: Value,
    /// The validator, or why there is none.
    validator: Result<Validator, String>,
}

impl Checker {
    /// Creates a checker for a schema, which is JSON text.
    pub(crate) fn new(schema: &str) -> Self {
        let mut schema = serde_json::from_str(schema).unwrap_or(Value::Null);
        let validator = on_deep_stack(|| prepare(&mut schema)).and_then(|prepared| prepared);
        Self { schema, validator }
    }

    /// Returns why a document, which is JSON text, does not satisfy the schema or cannot be
    /// checked. Returns `None` if it satisfies the schema.
    pub(crate) fn problem(&self, document: &str) -> Option<String> {
        let unchecked = |why: &str| format!("cannot be checked against their whole schema: {why}");
        let validator = match &self.validator {
            Ok(validator) => validator,
            Err(why) => return Some(unchecked(why)),
        };
        let document: Value = match serde_json::from_str(document) {
            Ok(document) => document,
            Err(error) => return Some(unchecked(&error.to_string())),
        };
        let compare = || {
            let mut work = Work { root: &self.schema, known: HashMap::new() };
            if work.of(&self.schema, &document, 0).is_none() {
                return Some(unchecked("that would take too much work"));
            }
            let error = validator.validate(&document).err()?;
            // The values are the model's words, which must not appear in a log.
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "/" } else { &place };
            let keyword = format!("#{}", error.schema_path());
            Some(format!("do not satisfy {} at {}", shortened(&keyword), shortened(place)))
        };
        on_deep_stack(compare).unwrap_or_else(|why| Some(unchecked(&why)))
    }
}

/// A pattern of a schema, compiled.
pub(crate) struct Expression(Validator);

impl Expression {
    /// Compiles a pattern; `None` if the library does not take it, or it is too large.
    pub(crate) fn new(pattern: &str) -> Option<Self> {
        #[cfg(test)]
        COMPILED.with(|count| count.set(count.get() + 1));
        let options = options(Draft::Draft202012)
            .with_pattern_options(pattern_options().size_limit(MAX_EXPRESSION_BYTES));
        options.build(&json!({ "pattern": pattern })).ok().map(Self)
    }

    /// Returns whether the pattern is found in a text.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.0.is_valid(&Value::from(text))
    }
}

#[cfg(test)]
thread_local! {
    /// The expressions that this thread has compiled.
    pub(crate) static COMPILED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Runs work of the library on a thread whose stack fits its recursion.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("validation".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread for it: {error}"))?
            .join()
            .map_err(|_| "the library failed".to_owned())
    })
}

/// Returns the validator of a schema after removing everything that would make the library look
/// elsewhere.
fn prepare(schema: &mut Value) -> Result<Validator, String> {
    let whole = schema.clone();
    let declared = whole.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let mut patterns = 0;
    tidy(schema, &whole, &mut patterns);
    if patterns > MAX_PATTERNS {
        return Err("it has too many patterns".to_owned());
    }
    let size = Size { root: schema, known: HashMap::new() }.of(schema, 0);
    if size.is_none_or(|size| size.work > MAX_SCHEMAS) {
        return Err("that would take too much work".to_owned());
    }
    validator(schema, declared)
}

/// Creates a validator for the draft that a schema names, or for the first draft by which it is
/// valid.
fn validator(schema: &Value, declared: &str) -> Result<Validator, String> {
    let named = match declared.trim_end_matches('#') {
        name if name.ends_with("/draft-07/schema") || name.ends_with("/draft-06/schema") => {
            Some(Draft::Draft7)
        }
        name if name.ends_with("/draft-04/schema") => Some(Draft::Draft4),
        name if name.ends_with("/2019-09/schema") => Some(Draft::Draft201909),
        _ => None,
    };
    let mut problem = String::new();
    for draft in named.into_iter().chain(DRAFTS) {
        match options(draft).build(schema) {
            Ok(validator) => return Ok(validator),
            Err(error) if problem.is_empty() => {
                problem = format!("at {}: {}", error.instance_path(), error.masked());
            }
            Err(_) => {}
        }
    }
    Err(shortened(&problem))
}

fn options(draft: Draft) -> jsonschema::ValidationOptions<'static> {
    jsonschema::options()
        .with_draft(draft)
        .offline()
        .should_validate_formats(true)
        .should_ignore_unknown_formats(true)
        .with_pattern_options(pattern_options())
}

fn pattern_options() -> PatternOptions<FancyRegex> {
    PatternOptions::fancy_regex()
        .backtrack_limit(MAX_BACKTRACKS)
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_BYTES)
}

/// Removes what would make the library look elsewhere, and counts expressions.
fn tidy(schema: &mut Value, root: &Value, patterns: &mut usize) {
    match schema {
        Value::Object(map) => {
            for key in ["$schema", "$id", "id"] {
                if map.get(key).is_some_and(Value::is_string) {
                    map.shift_remove(key);
                }
            }
            let leads_nowhere = |value: &Value| {
                let reference = value.as_str();
                reference.is_some_and(|reference| resolve(root, reference).is_none())
            };
            if map.get("$ref").is_some_and(leads_nowhere) {
                map.shift_remove("$ref");
            }
            *patterns += usize::from(map.get("pattern").is_some_and(Value::is_string));
            *patterns +=
                map.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
            if *patterns <= MAX_PATTERNS {
                without_foreign_patterns(map);
            }
            for (key, value) in map.iter_mut() {
                if !is_data(key) {
                    tidy(value, root, patterns);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| tidy(item, root, patterns)),
        _ => {}
    }
}

/// Removes expressions that the library cannot read, without which a schema demands less.
fn without_foreign_patterns(map: &mut Map<String, Value>) {
    if map.get("pattern").and_then(Value::as_str).is_some_and(|pattern| !is_pattern(pattern)) {
        map.shift_remove("pattern");
    }
    if let Some(Value::Object(named)) = map.get_mut("patternProperties") {
        let before = named.len();
        named.retain(|pattern, _| is_pattern(pattern));
        if named.len() < before {
            // Names that a removed expression would have matched are not "additional" ones.
            map.shift_remove("additionalProperties");
            map.shift_remove("unevaluatedProperties");
        }
    }
}

/// An amount of work and the depth of its recursion.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    work: u64,
    depth: usize,
}

impl Cost {
    fn of(work: u64) -> Option<Self> {
        Some(Self { work, depth: 0 })
    }

    fn add(&mut self, part: Self) {
        self.work = self.work.saturating_add(part.work);
        self.depth = self.depth.max(part.depth);
    }

    /// Returns the cost of a value or schema that contains this one.
    fn around(self) -> Option<Self> {
        let whole = Self { work: self.work.saturating_add(1), depth: self.depth + 1 };
        (whole.work <= MAX_WORK && whole.depth <= MAX_DEPTH).then_some(whole)
    }
}

/// Counts the schemas that a schema becomes when its references are written out. A reference back
/// to an enclosing schema counts as one.
struct Size<'a> {
    root: &'a Value,
    /// The sizes so far; `None` while a schema is being counted.
    known: HashMap<*const Value, Option<Cost>>,
}

impl<'a> Size<'a> {
    /// Returns `None` if the size exceeds the limits. `depth` is that of this function's own
    /// recursion.
    fn of(&mut self, schema: &'a Value, depth: usize) -> Option<Cost> {
        match self.known.get(&std::ptr::from_ref(schema)) {
            Some(size) => return Some(size.unwrap_or_default()),
            None if depth > MAX_DEPTH => return None,
            None => self.known.insert(schema, None),
        };
        let below: Vec<&Value> = match schema {
            Value::Object(map) => map.values().collect(),
            Value::Array(items) => items.iter().collect(),
            _ => Vec::new(),
        };
        let target = schema.get("$ref").and_then(Value::as_str);
        let target = target.and_then(|reference| resolve(self.root, reference));
        let mut total = Cost::default();
        for part in below.into_iter().chain(target) {
            total.add(self.of(part, depth + 1)?);
        }
        let total = total.around()?;
        self.known.insert(schema, Some(total));
        Some(total)
    }
}

/// Computes an upper bound on how often schemas are applied when a document is validated.
struct Work<'a> {
    root: &'a Value,
    /// The cost for a schema and a value; `None` while it is being counted.
    known: HashMap<(*const Value, *const Value), Option<Cost>>,
}

impl<'a> Work<'a> {
    /// Returns `None` if the work exceeds the limits or never ends. `depth` is that of this
    /// function's own recursion.
    fn of(&mut self, schema: &'a Value, value: &'a Value, depth: usize) -> Option<Cost> {
        let Value::Object(map) = schema else { return Cost::of(1) };
        let key = (std::ptr::from_ref(schema), std::ptr::from_ref(value));
        match self.known.get(&key) {
            // An application inside itself to the same value would never end.
            Some(known) => return *known,
            None if depth > MAX_DEPTH || self.known.len() as u64 > MAX_WORK => return None,
            None => self.known.insert(key, None),
        };
        let mut total = Cost::default();
        let mut is_seen_twice = false;
        for (key, part) in map {
            is_seen_twice |= key.starts_with("unevaluated");
            total.add(self.of_keyword(key, part, value, depth + 1)?);
        }
        if is_seen_twice {
            // The library evaluates once more to find out what was evaluated.
            total.work = total.work.saturating_mul(2);
        }
        let total = total.around()?;
        self.known.insert(key, Some(total));
        Some(total)
    }

    fn of_keyword(
        &mut self,
        key: &str,
        part: &'a Value,
        value: &'a Value,
        depth: usize,
    ) -> Option<Cost> {
        let children: Vec<&Value> = match value {
            Value::Object(map) => map.values().collect(),
            Value::Array(items) => items.iter().collect(),
            _ => Vec::new(),
        };
        let names = || value.as_object().into_iter().flat_map(Map::keys);
        match (key, part) {
            ("$ref", Value::String(reference)) => match resolve(self.root, reference) {
                Some(target) => self.of(target, value, depth),
                None => Cost::of(1),
            },
            ("allOf" | "anyOf" | "oneOf", Value::Array(parts)) => {
                self.sum(parts.iter().map(|part| (part, value)), depth)
            }
            ("not" | "if" | "then" | "else", part) => self.of(part, value, depth),
            ("dependentSchemas" | "dependencies", Value::Object(named)) => {
                self.sum(named.values().map(|part| (part, value)), depth)
            }
            ("properties", Value::Object(named)) => {
                let pairs = named.iter().filter_map(|(name, part)| Some((part, value.get(name)?)));
                self.sum(pairs, depth)
            }
            ("patternProperties", Value::Object(named)) => {
                let of = |pattern: &String| -> u64 {
                    names().map(|name| pattern_work(pattern, name)).sum()
                };
                let matching: u64 = named.keys().map(of).sum();
                let pairs = named
                    .values()
                    .flat_map(|part| children.iter().map(move |child| (part, *child)));
                let mut total = self.sum(pairs, depth)?;
                total.add(Cost::of(matching)?);
                Some(total)
            }
            ("items" | "prefixItems", Value::Array(parts)) => {
                self.sum(parts.iter().zip(children), depth)
            }
            (
                "items"
                | "contains"
                | "additionalItems"
                | "unevaluatedItems"
                | "additionalProperties"
                | "unevaluatedProperties",
                part,
            ) => self.sum(children.into_iter().map(|child| (part, child)), depth),
            ("propertyNames", part) => {
                let size = Size { root: self.root, known: HashMap::new() }.of(part, depth)?;
                let written = part.to_string();
                let of = |name: &String| size.work.saturating_add(pattern_work(&written, name));
                Cost::of(names().map(of).fold(0, u64::saturating_add))
            }
            ("enum", Value::Array(values)) => {
                Cost::of(1 + values.len() as u64 / 8 + comparing(value, values))
            }
            ("const", part) => Cost::of(1 + comparing(value, std::slice::from_ref(part))),
            ("uniqueItems", _) => Cost::of(1 + 2 * children.len() as u64),
            ("pattern", Value::String(pattern)) => {
                Cost::of(pattern_work(pattern, value.as_str().unwrap_or_default()))
            }
            _ => Cost::of(1),
        }
    }

    fn sum(
        &mut self,
        pairs: impl Iterator<Item = (&'a Value, &'a Value)>,
        depth: usize,
    ) -> Option<Cost> {
        let mut total = Cost::default();
        for (part, value) in pairs {
            total.add(self.of(part, value, depth)?);
            if total.work > MAX_WORK {
                return None;
            }
        }
        Some(total)
    }
}

/// Returns the work for comparing a list or an object with values of a schema: each may differ at
/// its end only.
fn comparing(value: &Value, values: &[Value]) -> u64 {
    let is_alike = |other: &&Value| match value {
        Value::Array(_) => other.is_array(),
        Value::Object(_) => other.is_object(),
        _ => false,
    };
    let alike = values.iter().filter(is_alike).count() as u64;
    if alike == 0 { 0 } else { alike.saturating_mul(parts(value)) / 8 }
}

/// Returns the number of values in a value, itself included.
fn parts(value: &Value) -> u64 {
    1 + match value {
        Value::Array(items) => items.iter().map(parts).sum(),
        Value::Object(map) => map.values().map(parts).sum(),
        _ => 0,
    }
}

/// Returns the work for an expression, or for a schema with some, on a text.
fn pattern_work(pattern: &str, text: &str) -> u64 {
    let goes_back = ["(?=", "(?!", "(?<", "\\k"].iter().any(|sign| pattern.contains(sign))
        || pattern.as_bytes().windows(2).any(|pair| pair[0] == b'\\' && pair[1].is_ascii_digit());
    let base = if goes_back { LOOK_AROUND_WORK } else { 4 };
    base + text.len() as u64 / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each value of an enumeration may differ from a list at its end only.
    #[test]
    fn comparing_lists_is_work() {
        let long = |last: usize| [vec![0; 100], vec![last]].concat();
        let options: Vec<_> = (0..50).map(long).collect();
        let problem = |items: Value, document: Value| {
            let checker = Checker::new(&json!({ "items": items }).to_string());
            checker.problem(&document.to_string())
        };
        let is_refused = |problem: Option<String>| {
            problem.is_some_and(|problem| problem.contains("too much work"))
        };
        let many = json!(vec![long(999); 500]);
        assert!(is_refused(problem(json!({ "enum": options }), many.clone())));
        let consts: Vec<_> = options.iter().map(|option| json!({ "const": option })).collect();
        assert!(is_refused(problem(json!({ "anyOf": consts }), many)));
        assert_eq!(problem(json!({ "enum": options }), json!([long(7)])), None);
        let words: Vec<_> = (0..500).map(|index| format!("w{index}")).collect();
        assert_eq!(problem(json!({ "enum": words }), json!(vec!["w7"; 100])), None);
    }
}
