//! Checks which parts of a schema a grammar can enforce, and what the schema costs.

use std::collections::HashSet;

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use super::apart::Apart;
use super::keywords::{KIND, LISTS, LeftOut, MAPS, SCHEMA, add_options, each_below, invalid};
use super::numbers;
use super::references::{canonical, resolve, resolve_mut};
use crate::grammar::error::GrammarError;
use crate::grammar::library::{first_line, regex_problem};
use crate::vocabulary::shortened;

pub(super) const TYPES: [&str; 7] =
    ["null", "boolean", "integer", "number", "string", "array", "object"];

/// The formats for which the library has an expression. Others are annotations, as in JSON Schema.
pub(super) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Counts with their largest accepted value: the compiled grammar spells out what is required.
const LEAST: [(&str, u64); 3] =
    [("minLength", 65_536), ("minItems", 4096), ("minProperties", 4096)];

const MOST: [&str; 3] = ["maxLength", "maxItems", "maxProperties"];

/// The largest useful bound. A larger one can never apply, because no reply has as many bytes
/// ([`crate::MAX_TEXT_BYTES`]); it is left out.
const MOST_MAX: u64 = 1 << 26;

/// The most enumerated values of a whole schema.
const MAX_VALUES: usize = 10_000;

/// The most names in all `required` of a whole schema: as many as it may have properties.
const MAX_REQUIRED: usize = 5000;

/// The most schemas within a schema, itself included. One costs the library up to half a
/// millisecond.
const MAX_SCHEMAS: usize = 5000;

/// The largest sum of the squares of the numbers of properties: the library writes for each
/// property which others may follow. One object may have 707.
const MAX_PROPERTY_PAIRS: usize = 500_000;

/// The most `patternProperties` of a whole schema: each two in an object are proved to be disjoint.
const MAX_PATTERNS: usize = 16;

/// The most alternatives of one `oneOf`: each two are compared.
const MAX_ONE_OF: usize = 256;

/// The largest `multipleOf` without its decimal point (2.5 is 25): the library follows a number by
/// its remainder, with a state for each.
const MAX_MULTIPLE: u64 = 10_000;

/// The most digits of a `multipleOf` after its decimal point.
const MAX_MULTIPLE_DIGITS: u32 = 6;

/// The work for comparing two expressions, in the library's unit.
const MAX_PATTERN_WORK: u64 = 10_000;

/// Whether a grammar can enforce a keyword.
enum Held {
    /// The grammar enforces it.
    Yes,
    /// The keyword demands nothing, or only what is reported for another keyword.
    Idle,
    /// No grammar can enforce it, for this reason.
    No(&'static str),
}

/// Checks a schema and removes the parts that demand nothing.
pub(super) struct Check<'a> {
    /// The schema as it was given.
    root: &'a Value,
    /// The parts that no grammar can enforce, which are left out; without a list they are errors.
    left_out: Option<Vec<LeftOut>>,
    values: usize,
    required: usize,
    schemas: usize,
    property_pairs: usize,
    patterns: usize,
    /// References to parts that no keyword makes a schema, and those of them to be checked.
    elsewhere: HashSet<String>,
    unchecked: Vec<String>,
    /// The number of steps that proofs have taken.
    proof_steps: usize,
    /// Each `multipleOf` without its decimal point, the number of digits after that point, and its
    /// place.
    multiples: Vec<(u64, u32, String)>,
    /// Whether several schemas may apply to one value.
    merges: bool,
}

impl<'a> Check<'a> {
    pub(super) fn new(root: &'a Value, relaxes: bool) -> Self {
        Self {
            root,
            left_out: relaxes.then(Vec::new),
            values: 0,
            required: 0,
            schemas: 0,
            property_pairs: 0,
            patterns: 0,
            elsewhere: HashSet::new(),
            unchecked: Vec::new(),
            proof_steps: 0,
            multiples: Vec::new(),
            merges: false,
        }
    }

    /// Returns the parts that were left out.
    pub(super) fn finish(self) -> Vec<LeftOut> {
        self.left_out.unwrap_or_default()
    }

    /// Notes a part that is left out at `place`, or fails.
    pub(super) fn leave_out(
        &mut self,
        place: &str,
        keyword: &str,
        why: &str,
    ) -> Result<(), GrammarError> {
        match &mut self.left_out {
            None => Err(invalid(&format!("{place}/{keyword}"), why)),
            Some(left_out) => {
                left_out.push(LeftOut { place: place.to_owned(), keyword: keyword.to_owned() });
                Ok(())
            }
        }
    }

    /// Checks a schema and everything in it. Recursion is bounded by the parser's limit on nesting.
    pub(super) fn schema(&mut self, place: &str, schema: &mut Value) -> Result<(), GrammarError> {
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
        let keys: Vec<String> = map.keys().cloned().collect();
        for key in &keys {
            match held(map, key) {
                Held::Yes => {}
                Held::Idle => {
                    map.shift_remove(key);
                }
                Held::No(why) => {
                    self.leave_out(place, key, why)?;
                    map.shift_remove(key);
                }
            }
        }
        for key in &keys {
            let Some(value) = map.get_mut(key) else { continue };
            if !self.keyword(place, key, value)? {
                map.shift_remove(key);
            }
        }
        for key in numbers::bound(map) {
            self.leave_out(place, key, numbers::TOO_FAR)?;
        }
        self.pattern_properties(place, map)?;
        for key in &keys {
            if let Some(value) = map.get_mut(key) {
                self.below(&format!("{place}/{key}"), key, value)?;
            }
        }
        Ok(())
    }

    /// Checks the schemas that only references make schemas, such as `#/components/part`.
    pub(super) fn elsewhere(&mut self, schema: &mut Value) -> Result<(), GrammarError> {
        while let Some(reference) = self.unchecked.pop() {
            if let Some(part) = resolve_mut(schema, &reference) {
                self.schema(&reference, part)?;
            }
        }
        Ok(())
    }

    /// Checks the schemas below a keyword.
    fn below(&mut self, at: &str, key: &str, value: &mut Value) -> Result<(), GrammarError> {
        if SCHEMA.contains(&key) || (key == "items" && !value.is_array()) {
            self.schema(at, value)?;
        } else if LISTS.contains(&key) || key == "items" {
            let list =
                value.as_array_mut().ok_or_else(|| invalid(at, "it must be a list of schemas"))?;
            for (index, item) in list.iter_mut().enumerate() {
                self.schema(&format!("{at}/{index}"), item)?;
            }
        } else if MAPS.contains(&key) {
            let named =
                value.as_object_mut().ok_or_else(|| invalid(at, "it must map names to schemas"))?;
            self.count(key, named.len())?;
            for (name, item) in named {
                self.schema(&format!("{at}/{name}"), item)?;
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
            "required" => (&mut self.required, "the number of required names", MAX_REQUIRED),
            _ => return Ok(()),
        };
        *total += if key == "properties" { found * found } else { found };
        if *total > limit {
            return Err(GrammarError::too_large(KIND, what, limit as u64));
        }
        Ok(())
    }

    /// Checks a keyword's value and returns whether the keyword stays.
    fn keyword(&mut self, place: &str, key: &str, value: &mut Value) -> Result<bool, GrammarError> {
        let at = format!("{place}/{key}");
        match key {
            "type" => check_type(&at, value)?,
            "$ref" => return self.reference(place, &at, value),
            "enum" => match value.as_array() {
                Some(values) if !values.is_empty() => self.count(key, values.len())?,
                _ => return Err(invalid(&at, "it must be a list of at least one value")),
            },
            "required" => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => {
                    self.count(key, names.len())?;
                }
                _ => return Err(invalid(&at, "it must be a list of names")),
            },
            "minimum" | "maximum" if !value.is_number() => {
                return Err(invalid(&at, "it must be a number"));
            }
            // Draft 4 has booleans here.
            "exclusiveMinimum" | "exclusiveMaximum"
                if !value.is_number() && !value.is_boolean() =>
            {
                return Err(invalid(&at, "it must be a number"));
            }
            "pattern" => match value.as_str() {
                Some(text) => {
                    let problem = pattern_problem(text);
                    return self.stays(place, key, problem);
                }
                None => return Err(invalid(&at, "it must be a regular expression")),
            },
            "multipleOf" => {
                let number = value.as_f64().filter(|number| *number > 0.0);
                let number = number.ok_or_else(|| invalid(&at, "it must be a number above 0"))?;
                return match multiple(number) {
                    Some((whole, digits)) => {
                        self.multiples.push((whole, digits, place.to_owned()));
                        Ok(true)
                    }
                    None => self.stays(place, key, Some(multiple_problem(value))),
                };
            }
            _ => return check_count(&at, key, value),
        }
        Ok(true)
    }

    /// Returns whether a keyword stays, as it does if there is no problem.
    fn stays(
        &mut self,
        place: &str,
        key: &str,
        problem: Option<String>,
    ) -> Result<bool, GrammarError> {
        match problem {
            None => Ok(true),
            Some(problem) => self.leave_out(place, key, &problem).map(|()| false),
        }
    }

    /// Leaves out `patternProperties` that the library does not take, and with them the schema of
    /// all other properties.
    fn pattern_properties(
        &mut self,
        place: &str,
        map: &mut Map<String, Value>,
    ) -> Result<(), GrammarError> {
        let Some(Value::Object(patterns)) = map.get_mut("patternProperties") else { return Ok(()) };
        let names: Vec<String> = patterns.keys().cloned().collect();
        let mut opens = false;
        self.count("patternProperties", names.len())?;
        self.patterns -= names.len();
        for name in &names {
            if let Some(problem) = pattern_problem(name) {
                self.leave_out(&format!("{place}/patternProperties"), name, &problem)?;
                patterns.shift_remove(name);
                opens = true;
            }
        }
        if !are_disjoint(patterns.keys()) {
            let why = "it cannot be told that no name matches two of its expressions; make them \
                exclude each other";
            self.leave_out(place, "patternProperties", why)?;
            map.shift_remove("patternProperties");
            opens = true;
        }
        if opens {
            // Names that a removed expression would have matched must be allowed.
            map.insert("additionalProperties".to_owned(), Value::Bool(true));
        }
        Ok(())
    }

    /// Replaces `oneOf` by `anyOf`. The library enforces any of several schemas, not exactly one,
    /// which is the same if no value satisfies two of them. Called before any change, because the
    /// schema as given decides, not what it is turned into.
    pub(super) fn one_of(&mut self, place: &str, schema: &mut Value) -> Result<(), GrammarError> {
        if let Some(map) = schema.as_object_mut()
            && let Some(Value::Array(options)) = map.get("oneOf")
        {
            if options.len() > MAX_ONE_OF {
                let what = "the number of schemas in one oneOf";
                return Err(GrammarError::too_large(KIND, what, MAX_ONE_OF as u64));
            }
            let apart = Apart::new(self.root, self.proof_steps);
            let is_proved = apart.all(options);
            self.proof_steps = apart.steps();
            if !is_proved {
                let why = "it cannot be told that no value satisfies two of these schemas; use \
                    anyOf, or a property with a different const in each";
                self.leave_out(place, "oneOf", why)?;
            }
            if let Some(options) = map.shift_remove("oneOf") {
                add_options(map, options);
            }
        }
        let mut outcome = Ok(());
        each_below(schema, &mut |way, below| {
            if outcome.is_ok() {
                outcome = self.one_of(&format!("{place}/{way}"), below);
            }
        });
        outcome
    }

    /// Checks all `multipleOf` together. If schemas are merged, several may apply to one number,
    /// which is then a multiple of their least common multiple. The library computes that in 32
    /// bits and does not notice an overflow.
    pub(super) fn multiples(&mut self, schema: &mut Value) -> Result<(), GrammarError> {
        let digits = self.multiples.iter().map(|(_, digits, _)| *digits).max().unwrap_or_default();
        let whole = |(number, own, _): &(u64, u32, String)| number * 10_u64.pow(digits - own);
        let largest = self.multiples.iter().map(whole).max().unwrap_or_default();
        let fits = |common: u64, number: u64| {
            let common = common / divisor(common, number) * number;
            (common.checked_mul(largest)? <= u64::from(u32::MAX)).then_some(common)
        };
        if !self.merges || self.multiples.iter().map(whole).try_fold(1, fits).is_some() {
            return Ok(());
        }
        if self.left_out.is_none() {
            let what = "the least common multiple of all multipleOf, without its decimal point and \
                times the largest of them,";
            return Err(GrammarError::too_large(KIND, what, u64::from(u32::MAX)));
        }
        for (_, _, place) in std::mem::take(&mut self.multiples) {
            self.leave_out(&place, "multipleOf", "")?;
        }
        remove_multiples(schema);
        Ok(())
    }

    fn reference(
        &mut self,
        place: &str,
        at: &str,
        value: &mut Value,
    ) -> Result<bool, GrammarError> {
        let Some(reference) = value.as_str() else { return Err(invalid(at, "it must be text")) };
        let shown = shortened(reference);
        let problem = if !reference.starts_with('#') {
            format!("{shown:?} is not in this schema, and nothing is fetched; put it into $defs")
        } else {
            match resolve(self.root, reference) {
                Some(Value::Object(_) | Value::Bool(_)) => match canonical(reference) {
                    Some(reference) => {
                        if !is_within(self.root, &reference)
                            && self.elsewhere.insert(reference.clone())
                        {
                            self.unchecked.push(reference.clone());
                        }
                        *value = reference.into();
                        return Ok(true);
                    }
                    None => "names with `/` are not supported in references; name the definition \
                             without it"
                        .to_owned(),
                },
                Some(_) => format!("{shown:?} is not a schema; point to one"),
                None => format!("{shown:?} is not in this schema; define it in $defs"),
            }
        };
        self.stays(place, "$ref", Some(problem))
    }
}

/// Returns why the library does not take an expression, or `None` if it does.
fn pattern_problem(text: &str) -> Option<String> {
    match regex_problem(text) {
        Some((character, problem)) => Some(format!("character {character}: {problem}")),
        None => match RegexBuilder::new().mk_regex_for_serach(&regex_to_lark(text, "dw")) {
            Ok(_) => None,
            Err(error) => Some(first_line(&error.to_string())),
        },
    }
}

/// Returns whether a canonical reference leads through keywords only, so that checking the whole
/// schema checks its target.
fn is_within(root: &Value, reference: &str) -> bool {
    let mut names = reference.split('/').skip(1);
    let mut place = Some(root);
    while let Some(key) = names.next() {
        let below = place.and_then(|place| place.get(key));
        place = match below {
            Some(Value::Array(items)) if LISTS.contains(&key) || key == "items" => {
                let index = names.next().and_then(|index| index.parse::<usize>().ok());
                index.and_then(|index| items.get(index))
            }
            Some(Value::Object(named)) if MAPS.contains(&key) => {
                names.next().and_then(|name| named.get(name))
            }
            below if SCHEMA.contains(&key) || key == "items" => below,
            _ => None,
        };
    }
    place.is_some()
}

/// Returns whether a grammar can enforce a keyword, as far as its own value shows.
fn held(map: &Map<String, Value>, key: &str) -> Held {
    let value = &map[key];
    let is_open =
        matches!(value, Value::Bool(true)) || value.as_object().is_some_and(Map::is_empty);
    let unless =
        |is_idle: bool, why: &'static str| if is_idle { Held::Idle } else { Held::No(why) };
    match key {
        "uniqueItems" => unless(
            value == false,
            "uniqueItems is not supported: no grammar holds it; leave it out, or use an enum of \
             the lists",
        ),
        "propertyNames" => unless(
            is_open || *value == serde_json::json!({"type": "string"}),
            "propertyNames is not supported; use patternProperties",
        ),
        "unevaluatedProperties" | "unevaluatedItems" => {
            unless(is_open, "it is not supported; use additionalProperties or items")
        }
        "not" => Held::No("not is not supported; say what is allowed"),
        "if" => unless(
            !map.contains_key("then") && !map.contains_key("else"),
            "if is not supported; use anyOf",
        ),
        "then" | "else" | "minContains" | "maxContains" | "$dynamicAnchor" | "$recursiveAnchor" => {
            Held::Idle
        }
        "contains" => Held::No("contains is not supported; use items, or prefixItems"),
        "dependentRequired" | "dependentSchemas" | "dependencies" => {
            unless(is_open, "it is not supported; use anyOf")
        }
        "$dynamicRef" | "$recursiveRef" => Held::No("only $ref is supported; use it"),
        "format" => match value.as_str() {
            Some(name) if FORMATS.contains(&name) => Held::Yes,
            _ => Held::Idle,
        },
        _ => Held::Yes,
    }
}

/// Returns a `multipleOf` without its decimal point, and the digits after that point; `None` if the
/// library cannot follow it.
fn multiple(number: f64) -> Option<(u64, u32)> {
    let without_point = |digits: u32| {
        let scaled = number * 10_f64.powi(digits as i32);
        let whole = scaled.round();
        let is_whole = (scaled - whole).abs() <= 1e-9 * scaled;
        (is_whole && (1.0..=MAX_MULTIPLE as f64).contains(&whole)).then_some((whole as u64, digits))
    };
    (0..=MAX_MULTIPLE_DIGITS).find_map(without_point)
}

fn multiple_problem(value: &Value) -> String {
    format!(
        "{value} is not supported: without its decimal point it may be at most {MAX_MULTIPLE}, \
         with at most {MAX_MULTIPLE_DIGITS} digits behind that"
    )
}

fn remove_multiples(schema: &mut Value) {
    if let Value::Object(map) = schema {
        map.shift_remove("multipleOf");
    }
    each_below(schema, &mut |_, below| remove_multiples(below));
}

/// Returns the greatest common divisor of numbers above 0.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// Returns whether it can be proved that no name matches two of the expressions. The library must
/// take all of them.
fn are_disjoint<'a>(patterns: impl Iterator<Item = &'a String>) -> bool {
    let mut builder = RegexBuilder::new();
    let compiled: Result<Vec<ExprRef>, _> = patterns
        .map(|pattern| builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw")))
        .collect();
    let Ok(compiled) = compiled else { return false };
    compiled.iter().enumerate().all(|(index, &first)| {
        compiled[..index].iter().all(|&second| {
            let both = RegexAst::And(vec![RegexAst::ExprRef(first), RegexAst::ExprRef(second)]);
            let both = builder.mk(&both);
            let both = both.and_then(|both| builder.to_regex_limited(both, MAX_PATTERN_WORK));
            both.is_ok_and(|mut both| both.always_empty())
        })
    })
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
        format!("{found} is not a type; use one of {}, or a list of them", TYPES.join(", ")),
    ))
}

/// Checks a count and writes it as the library reads it. Returns whether it stays.
fn check_count(at: &str, key: &str, value: &mut Value) -> Result<bool, GrammarError> {
    let least = LEAST.iter().find(|(name, _)| *name == key);
    if least.is_none() && !MOST.contains(&key) {
        return Ok(true);
    }
    let whole = value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0);
    let Some(number) = whole else { return Err(invalid(at, "it must be a whole number from 0")) };
    if let Some((_, limit)) = least
        && number > *limit as f64
    {
        let problem =
            format!("{value} is more than a reply can hold; at most {limit} is supported");
        return Err(invalid(at, problem));
    }
    let binds = number <= MOST_MAX as f64;
    if binds {
        *value = (number as u64).into();
    }
    Ok(binds)
}
