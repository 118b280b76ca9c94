//! Checks of a JSON schema before the library sees it: so that an error names the place and the remedy, and so that no
//! schema costs more than its size suggests.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::MAX_SCHEMA_BYTES;
use super::compiler::regex_problem;
use super::error::GrammarError;
use crate::vocabulary::shortened;

const KIND: &str = "JSON schema";

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords whose value is one schema.
const SCHEMA: [&str; 10] = [
    "additionalProperties",
    "additionalItems",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "contains",
    "not",
    "if",
    "then",
    "else",
];

/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];

/// Keywords whose value maps names to schemas.
const MAPS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// Counts with their largest acceptable value: what must be there is spelled out by the compiled grammar.
const LEAST: [(&str, u64); 3] =
    [("minLength", 65_536), ("minItems", 4096), ("minProperties", 4096)];

const MOST: [&str; 3] = ["maxLength", "maxItems", "maxProperties"];

/// A bound above this cannot bind, for no reply has as many bytes ([`crate::MAX_TEXT_BYTES`]); it is left out.
const MOST_MAX: u64 = 1 << 26;

/// Most enumerated values of a whole schema.
const MAX_VALUES: usize = 10_000;

/// Most schemas within a schema, itself included. One costs the library up to half a millisecond.
const MAX_SCHEMAS: usize = 5000;

/// Largest sum of the squares of the numbers of properties: the library writes for each property which others may follow.
/// One object may have 707.
const MAX_PROPERTY_PAIRS: usize = 500_000;

/// Most `patternProperties` of a whole schema: each two in an object are proved to be disjoint.
const MAX_PATTERNS: usize = 16;

/// Most alternatives of one `oneOf`: each two are compared.
const MAX_ONE_OF: usize = 256;

/// Largest `multipleOf` without its decimal point (2.5 is 25): the library follows a number by its remainder, a state for each.
const MAX_MULTIPLE: u64 = 10_000;

/// Most digits of a `multipleOf` behind its decimal point.
const MAX_MULTIPLE_DIGITS: u32 = 6;

/// Longest chain of references that lead to nothing but references.
const MAX_CHAIN: usize = 128;

/// The schema, parsed, checked and made digestible for the library.
pub(super) fn digestible(source: &str) -> Result<Value, GrammarError> {
    let mut schema = checked(source)?;
    let mut inline =
        Inline { original: schema.clone(), sizes: HashMap::new(), left: MAX_SCHEMA_BYTES };
    inline.schema(&mut schema);
    Ok(schema)
}

/// A checked schema as a part of another one, where it lies at `place`, as `#/$defs/part`: its references lead to where what
/// they mean lies there.
pub(super) fn moved(source: &str, place: &str) -> Result<Value, GrammarError> {
    let mut schema = checked(source)?;
    move_references(&mut schema, place);
    Ok(schema)
}

fn move_references(schema: &mut Value, place: &str) {
    if let Some(Value::String(reference)) = schema.get_mut("$ref")
        && let Some(rest) = reference.strip_prefix('#')
    {
        *reference = format!("{place}{rest}");
    }
    each_below(schema, &mut |_, below| move_references(below, place));
}

/// Visits what stands directly in a schema and may be one, or a list of some, with the keyword that it stands at.
fn each_below(schema: &mut Value, visit: &mut dyn FnMut(&str, &mut Value)) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                match (key.as_str(), value) {
                    ("enum" | "const" | "default" | "examples", _) => {}
                    (key, Value::Object(named)) if MAPS.contains(&key) => {
                        named.values_mut().for_each(|value| visit(key, value));
                    }
                    (key, value) => visit(key, value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit("", item)),
        _ => {}
    }
}

/// The parsed and checked schema, as an object.
pub(super) fn checked(source: &str) -> Result<Value, GrammarError> {
    let mut schema: Value = serde_json::from_str(source).map_err(|error| {
        let problem = match error.to_string() {
            text if text.contains("recursion limit") => {
                "it is nested more than 127 deep; use $defs and $ref".to_owned()
            }
            text => format!("it is no JSON: {text}"),
        };
        GrammarError::invalid(
            KIND,
            format!("line {}, column {}", error.line(), error.column()),
            problem,
        )
    })?;
    match schema {
        Value::Bool(true) => schema = Value::Object(Map::new()),
        Value::Bool(false) => {
            return Err(GrammarError::invalid(KIND, "#", "`false` allows nothing; use an object"));
        }
        _ => {}
    }
    let mut check = Check {
        root: &schema,
        values: 0,
        schemas: 0,
        property_pairs: 0,
        patterns: 0,
        multiples: Vec::new(),
        merges: false,
    };
    check.schema("#", &schema)?;
    check.multiples()?;
    check_chains(&schema)?;
    Ok(schema)
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

/// What a local reference (`#`, `#/...`) points to.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let path = reference.strip_prefix('#')?;
    if path.is_empty() || path == "/" {
        return Some(root);
    }
    root.pointer(path)
}

struct Check<'a> {
    root: &'a Value,
    values: usize,
    schemas: usize,
    property_pairs: usize,
    patterns: usize,
    /// Each `multipleOf` without its decimal point, and the digits behind that.
    multiples: Vec<(u64, u32)>,
    /// Whether several schemas may apply to one value.
    merges: bool,
}

impl Check<'_> {
    /// Recursion is bounded by the parser's limit on nesting.
    fn schema(&mut self, place: &str, schema: &Value) -> Result<(), GrammarError> {
        self.schemas += 1;
        if self.schemas > MAX_SCHEMAS {
            let limit = MAX_SCHEMAS as u64;
            return Err(GrammarError::too_large(KIND, "the number of schemas within it", limit));
        }
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(_) => return Ok(()),
            _ => return Err(invalid(place, "a schema must be an object or a boolean")),
        };
        self.merges |= map.contains_key("allOf") || map.contains_key("$ref") && map.len() > 1;
        for (key, value) in map {
            let at = format!("{place}/{key}");
            self.keyword(&at, key, value)?;
            if SCHEMA.contains(&key.as_str()) || (key == "items" && !value.is_array()) {
                self.schema(&at, value)?;
            } else if LISTS.contains(&key.as_str()) || key == "items" {
                let list =
                    value.as_array().ok_or_else(|| invalid(&at, "it must be a list of schemas"))?;
                if key == "oneOf" && list.len() > MAX_ONE_OF {
                    return Err(GrammarError::too_large(
                        KIND,
                        "the number of schemas in one oneOf",
                        MAX_ONE_OF as u64,
                    ));
                }
                for (index, item) in list.iter().enumerate() {
                    self.schema(&format!("{at}/{index}"), item)?;
                }
            } else if MAPS.contains(&key.as_str()) {
                let named = value
                    .as_object()
                    .ok_or_else(|| invalid(&at, "it must map names to schemas"))?;
                self.count(key, named.len())?;
                for (name, item) in named {
                    if key == "patternProperties" {
                        check_pattern(&format!("{at}/{name}"), name)?;
                    }
                    self.schema(&format!("{at}/{name}"), item)?;
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, key: &str, found: usize) -> Result<(), GrammarError> {
        let (total, what, limit) = match key {
            "properties" => {
                (&mut self.property_pairs, "the number of properties, squared", MAX_PROPERTY_PAIRS)
            }
            "patternProperties" => {
                (&mut self.patterns, "the number of patternProperties", MAX_PATTERNS)
            }
            "enum" => (&mut self.values, "the number of enumerated values", MAX_VALUES),
            _ => return Ok(()),
        };
        *total += if key == "properties" { found * found } else { found };
        if *total > limit {
            return Err(GrammarError::too_large(KIND, what, limit as u64));
        }
        Ok(())
    }

    fn keyword(&mut self, at: &str, key: &str, value: &Value) -> Result<(), GrammarError> {
        match key {
            "type" => check_type(at, value),
            "$ref" => self.reference(at, value),
            "enum" => match value.as_array() {
                Some(values) if !values.is_empty() => self.count(key, values.len()),
                _ => Err(invalid(at, "it must be a list of at least one value")),
            },
            "required" => {
                let names =
                    value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
                if names { Ok(()) } else { Err(invalid(at, "it must be a list of names")) }
            }
            "$dynamicRef" | "$recursiveRef" => Err(invalid(at, "only $ref is supported; use it")),
            "pattern" => match value.as_str() {
                Some(text) => check_pattern(at, text),
                None => Err(invalid(at, "it must be a regular expression")),
            },
            "multipleOf" => {
                self.multiples.push(multiple(at, value)?);
                Ok(())
            }
            _ => check_count(at, key, value),
        }
    }

    /// Where schemas are merged, several may meet in one number, which is then a multiple of their least common one. The library
    /// finds that in 32 bits, and does not notice where they are not enough.
    fn multiples(&self) -> Result<(), GrammarError> {
        let digits = self.multiples.iter().map(|&(_, digits)| digits).max().unwrap_or_default();
        let whole = |&(number, own): &(u64, u32)| number * 10_u64.pow(digits - own);
        let largest = self.multiples.iter().map(whole).max().unwrap_or_default();
        let fits = |common: u64, number: u64| {
            let common = common / divisor(common, number) * number;
            (common.checked_mul(largest)? <= u64::from(u32::MAX)).then_some(common)
        };
        if self.merges && self.multiples.iter().map(whole).try_fold(1, fits).is_none() {
            let what = "the least common multiple of all multipleOf";
            return Err(GrammarError::too_large(KIND, what, MAX_MULTIPLE));
        }
        Ok(())
    }

    fn reference(&self, at: &str, value: &Value) -> Result<(), GrammarError> {
        let Some(reference) = value.as_str() else { return Err(invalid(at, "it must be text")) };
        if !reference.starts_with('#') {
            return Err(invalid(
                at,
                format!(
                    "{:?} is not in this schema, and nothing is fetched; put it into $defs",
                    shortened(reference)
                ),
            ));
        }
        if reference.contains(['~', '%']) {
            return Err(invalid(
                at,
                "`~` and `%` are not supported in references; name the definition without them",
            ));
        }
        match resolve(self.root, reference) {
            Some(Value::Object(_) | Value::Bool(_)) => Ok(()),
            Some(_) => {
                Err(invalid(at, format!("{:?} is no schema; point to one", shortened(reference))))
            }
            None => Err(invalid(
                at,
                format!("{:?} is not in this schema; define it in $defs", shortened(reference)),
            )),
        }
    }
}

/// A `multipleOf` without its decimal point, and the digits behind that.
fn multiple(at: &str, value: &Value) -> Result<(u64, u32), GrammarError> {
    let number = value.as_f64().filter(|number| *number > 0.0);
    let number = number.ok_or_else(|| invalid(at, "it must be a number above 0"))?;
    let without_point = |digits: u32| {
        let scaled = number * 10_f64.powi(digits as i32);
        let whole = scaled.round();
        let is_whole = (scaled - whole).abs() <= 1e-9 * scaled;
        (is_whole && (1.0..=MAX_MULTIPLE as f64).contains(&whole)).then_some((whole as u64, digits))
    };
    (0..=MAX_MULTIPLE_DIGITS).find_map(without_point).ok_or_else(|| {
        invalid(
            at,
            format!(
                "{value} is not supported: without its decimal point it may be at most {MAX_MULTIPLE}, \
                 with at most {MAX_MULTIPLE_DIGITS} digits behind that"
            ),
        )
    })
}

/// The greatest common divisor of numbers above 0.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn check_pattern(at: &str, text: &str) -> Result<(), GrammarError> {
    match regex_problem(text) {
        Some((character, problem)) => Err(invalid(at, format!("character {character}: {problem}"))),
        None => Ok(()),
    }
}

fn check_type(at: &str, value: &Value) -> Result<(), GrammarError> {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let good = match value {
        Value::Array(names) => !names.is_empty() && names.iter().all(known),
        name => known(name),
    };
    if good {
        return Ok(());
    }
    let found = shortened(&value.to_string());
    Err(invalid(
        at,
        format!("{found} is no type; use one of {}, or a list of them", TYPES.join(", ")),
    ))
}

fn check_count(at: &str, key: &str, value: &Value) -> Result<(), GrammarError> {
    let least = LEAST.iter().find(|(name, _)| *name == key);
    if least.is_none() && !MOST.contains(&key) {
        return Ok(());
    }
    let whole = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    let Some(number) = whole else { return Err(invalid(at, "it must be a whole number from 0")) };
    match least {
        Some((_, limit)) if number > *limit as f64 => Err(invalid(
            at,
            format!("{value} is more than a reply can hold; at most {limit} is supported"),
        )),
        _ => Ok(()),
    }
}

/// The schemas that apply to the same value as `schema`.
fn in_place<'a>(root: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    let Some(map) = schema.as_object() else { return Vec::new() };
    let lists = ["allOf", "anyOf", "oneOf"];
    let mut found: Vec<&Value> =
        lists.iter().filter_map(|key| map.get(*key)?.as_array()).flatten().collect();
    found.extend(
        map.get("$ref").and_then(Value::as_str).and_then(|reference| resolve(root, reference)),
    );
    found
}

/// Refuses references that lead back to themselves without anything between, and overlong chains of them.
fn check_chains(root: &Value) -> Result<(), GrammarError> {
    // True while being visited, false when done.
    let mut open: HashMap<*const Value, bool> = HashMap::new();
    let mut starts = vec![root];
    for key in ["$defs", "definitions"] {
        starts.extend(root.get(key).and_then(Value::as_object).into_iter().flat_map(Map::values));
    }
    starts.extend(references(root).into_iter().filter_map(|reference| resolve(root, reference)));
    for start in starts {
        let mut path = vec![(start, in_place(root, start))];
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
                    path.push((next, in_place(root, next)));
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

/// All local references in a schema.
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

/// Makes a checked schema digestible.
struct Inline {
    original: Value,
    /// Length of each definition as text.
    sizes: HashMap<String, usize>,
    /// Bytes that may still be added.
    left: usize,
}

impl Inline {
    /// Leaves out bounds that cannot bind, and puts definitions in the place of references in `oneOf`: the library
    /// proves alternatives to exclude each other, but only if it sees them.
    fn schema(&mut self, schema: &mut Value) {
        if let Value::Object(map) = schema {
            let binds = |number: f64| number <= MOST_MAX as f64;
            map.retain(|key, value| {
                !MOST.contains(&key.as_str()) || value.as_f64().is_none_or(binds)
            });
        }
        each_below(schema, &mut |key, below| match (key, below) {
            ("oneOf", Value::Array(items)) => items.iter_mut().for_each(|item| self.option(item)),
            (_, below) => self.schema(below),
        });
    }

    fn option(&mut self, item: &mut Value) {
        let only = item.as_object().filter(|map| map.len() == 1);
        let Some(reference) = only.and_then(|map| map.get("$ref")?.as_str()).map(str::to_owned)
        else {
            return self.schema(item);
        };
        let Some(definition) = resolve(&self.original, &reference) else { return };
        let size = *self.sizes.entry(reference).or_insert_with(|| definition.to_string().len());
        if size <= self.left {
            self.left -= size;
            *item = definition.clone();
        }
    }
}
