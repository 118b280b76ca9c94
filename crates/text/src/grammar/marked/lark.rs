//! Writes the grammar of a call's arguments in Lark: bare keys up to a colon, strings between marks
//! without escapes.

use std::collections::{BTreeMap, HashMap, HashSet};

use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};

use super::keywords::{demands, implied, is_of};
use super::merge::{distinct, merge, types};
use super::patterns::{Pattern, Patterns, comparison_work};
use super::texts::{FORMATS, anchored};
use crate::grammar::error::GrammarError;
use crate::grammar::library::lark_string;
use crate::grammar::marks::CallMarks;
use crate::grammar::schema::LeftOut;
use crate::grammar::schema::references::resolve;

/// The most rules of a grammar: schemas that apply together are written out for each alternative.
const MAX_RULES: usize = 20_000;

/// The most values of JSON in all schemas that are written: alternatives of alternatives that apply
/// together are many more than their references take.
const MAX_WORK: usize = 2_000_000;

/// The deepest nesting of schemas for one value.
const MAX_DEPTH: usize = 64;

/// The most characters of a key that is not declared.
const MAX_KEY: usize = 64;

/// Any whole number, and any number, of a bearable length.
const INTEGER: &str = r"/-?(0|[1-9][0-9]{0,17})/";
const NUMBER: &str = r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/";

/// Demands on values that these grammars cannot hold.
const NOT_HELD: [&str; 2] = ["propertyNames", "additionalItems"];

/// The most patterns of names in an object: each key is compared with all of them.
const MAX_PATTERNS: usize = 16;

/// The rules of a grammar.
pub(in crate::grammar) struct LarkWriter {
    marks: CallMarks,
    lark: String,
    rules: usize,
    work: usize,
    /// Rules that are written, by their text.
    known: HashMap<String, String>,
    patterns: Patterns,
    left_out: Vec<LeftOut>,
    /// The schema that references lead into, and the rules of those in it; `None` for a schema that
    /// no value satisfies.
    root: Value,
    references: HashMap<String, Option<String>>,
}

/// An expression for the values of a schema; `None` if there are none.
type Written = Result<Option<String>, GrammarError>;

impl LarkWriter {
    pub(in crate::grammar) fn new(marks: CallMarks) -> Self {
        let quote = marks.quote;
        let lark = format!(
            "TEXT: /(?s:.+)/\n\
             INTEGER: {INTEGER}\n\
             NUMBER: {NUMBER}\n\
             KEY: {}\n\
             string: <[{quote}]> TEXT? <[{quote}]>\n\
             any: string | NUMBER | \"true\" | \"false\" | \"null\" | \"[\" (any (\",\" any)*)? \
             \"]\" | \"{{\" (pair (\",\" pair)*)? \"}}\"\n\
             pair: KEY \":\" any\n",
            key(&[]),
        );
        Self {
            marks,
            lark,
            rules: 0,
            work: 0,
            known: HashMap::new(),
            patterns: Patterns::default(),
            left_out: Vec::new(),
            root: Value::Null,
            references: HashMap::new(),
        }
    }

    /// Writes the rule `callN` of a tool.
    pub(in crate::grammar) fn call(
        &mut self,
        index: usize,
        name: &str,
        schema: &Value,
    ) -> Result<(), GrammarError> {
        self.root = schema.clone();
        self.references.clear();
        self.patterns = Patterns::default();
        let arguments = self.value("#", schema, 0)?.ok_or_else(|| {
            GrammarError::invalid(
                "JSON schema",
                "#",
                "no text satisfies it; remove what contradicts itself",
            )
        })?;
        let CallMarks { open, close, .. } = self.marks;
        let head = lark_string(&format!("call:{name}"));
        self.lark.push_str(&format!("call{index}: <[{open}]> {head} {arguments} <[{close}]>\n"));
        Ok(())
    }

    /// Returns what was left out since the last time.
    pub(in crate::grammar) fn take_left_out(&mut self) -> Vec<LeftOut> {
        std::mem::take(&mut self.left_out)
    }

    /// Returns the grammar with `head`, its rule `start`.
    pub(in crate::grammar) fn finish(self, head: &str) -> String {
        format!("{head}{}", self.lark)
    }

    fn leave_out(&mut self, place: &str, keyword: &str) {
        self.left_out.push(LeftOut { place: place.to_owned(), keyword: keyword.to_owned() });
    }

    /// Counts work, which is limited.
    fn spend(&mut self, work: usize) -> Result<(), GrammarError> {
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK {
            let what = "the work for alternatives that apply together, and for names and patterns,";
            return Err(GrammarError::too_large("JSON schema", what, MAX_WORK as u64));
        }
        Ok(())
    }

    /// Returns the name of a rule, or of a terminal, with this text.
    fn rule(&mut self, text: String, is_terminal: bool) -> Result<String, GrammarError> {
        if let Some(name) = self.known.get(&text) {
            return Ok(name.clone());
        }
        self.rules += 1;
        if self.rules > MAX_RULES {
            let what = "the number of rules that it expands to";
            return Err(GrammarError::too_large("JSON schema", what, MAX_RULES as u64));
        }
        let name = format!("{}{}", if is_terminal { "T" } else { "v" }, letters(self.rules));
        let name = if is_terminal { name.to_uppercase() } else { name };
        self.lark.push_str(&format!("{name}: {text}\n"));
        self.known.insert(text, name.clone());
        Ok(name)
    }

    /// Returns alternatives as one rule.
    fn either(&mut self, options: Vec<String>) -> Written {
        match options.len() {
            0 => Ok(None),
            1 => Ok(options.into_iter().next()),
            _ => self.rule(options.join(" | "), false).map(Some),
        }
    }

    /// Writes a schema.
    fn value(&mut self, place: &str, schema: &Value, depth: usize) -> Written {
        self.spend(1)?;
        let map = match schema {
            Value::Bool(false) => return Ok(None),
            Value::Object(map) => map,
            _ => return Ok(Some("any".to_owned())),
        };
        if depth > MAX_DEPTH {
            self.leave_out(place, "allOf");
            return Ok(Some("any".to_owned()));
        }
        for keyword in NOT_HELD.iter().filter(|keyword| map.contains_key(**keyword)) {
            self.leave_out(place, keyword);
        }
        if let Some(Value::String(reference)) = map.get("$ref") {
            let mut rest = map.clone();
            rest.shift_remove("$ref");
            let target = resolve(&self.root, reference).cloned().unwrap_or(Value::Bool(true));
            return match demands(&rest) {
                false => self.reference(reference, &target),
                true => self.together(place, rest, &[&target], depth),
            };
        }
        if let Some(Value::Array(parts)) = map.get("allOf") {
            let mut rest = map.clone();
            rest.shift_remove("allOf");
            return self.together(place, rest, &Vec::from_iter(parts), depth);
        }
        if let Some(values) = map.get("enum").and_then(Value::as_array) {
            return self.values(values, map.get("type"));
        }
        if let Some(value) = map.get("const") {
            return self.values(std::slice::from_ref(value), map.get("type"));
        }
        for key in ["anyOf", "oneOf"] {
            let Some(Value::Array(options)) = map.get(key) else { continue };
            let mut rest = map.clone();
            rest.shift_remove(key);
            let mut written = Vec::with_capacity(options.len());
            for (index, option) in options.iter().enumerate() {
                let place = format!("{place}/{key}/{index}");
                written.extend(if demands(&rest) {
                    self.together(&place, rest.clone(), &[option], depth)?
                } else {
                    self.value(&place, option, depth + 1)?
                });
            }
            return self.either(written);
        }
        self.typed(place, map)
    }

    /// Writes the schema of a reference.
    fn reference(&mut self, reference: &str, target: &Value) -> Written {
        if let Some(written) = self.references.get(reference) {
            return Ok(written.clone());
        }
        self.rules += 1;
        let name = format!("r{}", letters(self.rules));
        self.references.insert(reference.to_owned(), Some(name.clone()));
        let written = self.value(reference, target, 0)?;
        match &written {
            Some(text) => self.lark.push_str(&format!("{name}: {text}\n")),
            None => drop(self.references.insert(reference.to_owned(), None)),
        }
        Ok(written.map(|_| name))
    }

    /// Writes schemas that apply to one value.
    fn together(
        &mut self,
        place: &str,
        mut map: Map<String, Value>,
        parts: &[&Value],
        depth: usize,
    ) -> Written {
        self.spend(map.values().map(values_in).sum())?;
        for &part in parts {
            self.spend(values_in(part))?;
            match part {
                Value::Bool(false) => return Ok(None),
                Value::Object(part) => merge(&mut map, part, place, &mut self.left_out),
                _ => {}
            }
        }
        self.value(place, &Value::Object(map), depth + 1)
    }

    /// Writes values that are listed.
    fn values(&mut self, values: &[Value], kind: Option<&Value>) -> Written {
        self.spend(values.len())?;
        let kinds = kind.map(types);
        let fits = |value: &&Value| kinds.as_ref().is_none_or(|kinds| is_of(value, kinds));
        let (mut texts, mut plain, mut options) = (Vec::new(), Vec::new(), Vec::new());
        for value in values.iter().filter(fits) {
            match value {
                Value::String(text) if text.is_empty() => options.push(self.quoted("")),
                Value::String(text) => texts.push(lark_string(text)),
                Value::Array(_) | Value::Object(_) => {
                    let spelled = self.spelled(value);
                    options.push(self.rule(spelled, false)?);
                }
                other => plain.push(lark_string(&other.to_string())),
            }
        }
        if !texts.is_empty() {
            let name = self.rule(texts.join(" | "), true)?;
            options.push(self.quoted(&name));
        }
        if !plain.is_empty() {
            options.push(self.rule(plain.join(" | "), true)?);
        }
        self.either(options)
    }

    /// Returns an expression between the marks of a string.
    fn quoted(&self, text: &str) -> String {
        let quote = self.marks.quote;
        format!("<[{quote}]> {text} <[{quote}]>")
    }

    /// Returns one value as an expression. Its nesting is bounded by that of JSON.
    fn spelled(&self, value: &Value) -> String {
        match value {
            Value::String(text) => self.quoted(&literal(text)),
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.spelled(item)).collect();
                format!("\"[\" {} \"]\"", items.join(" \",\" "))
            }
            Value::Object(map) => {
                let sorted: BTreeMap<_, _> =
                    map.iter().map(|(key, value)| (order(key), value)).collect();
                let pairs: Vec<String> = sorted
                    .into_iter()
                    .map(|((_, key), value)| format!("{} {}", self.key(key), self.spelled(value)))
                    .collect();
                format!("\"{{\" {} \"}}\"", pairs.join(" \",\" "))
            }
            other => lark_string(&other.to_string()),
        }
    }

    /// Returns a key with its colon. One that is not bare stands between the marks of a string.
    fn key(&self, name: &str) -> String {
        let plain = |sign: char| {
            !sign.is_whitespace() && !sign.is_control() && !":{}[],<>|\"'".contains(sign)
        };
        if !name.is_empty() && name.chars().all(plain) {
            lark_string(&format!("{name}:"))
        } else {
            format!("{} \":\"", self.quoted(&literal(name)))
        }
    }

    /// Writes a schema by its types.
    fn typed(&mut self, place: &str, map: &Map<String, Value>) -> Written {
        let kinds: Vec<String> = match map.get("type") {
            Some(Value::Array(kinds)) => {
                distinct(kinds).into_iter().filter_map(Value::as_str).map(str::to_owned).collect()
            }
            Some(Value::String(kind)) => vec![kind.clone()],
            _ => match implied(map) {
                Some(kind) => vec![kind.to_owned()],
                None => return Ok(Some("any".to_owned())),
            },
        };
        let mut options = Vec::new();
        for kind in &kinds {
            options.extend(match kind.as_str() {
                "string" => Some(self.string(place, map)?),
                "integer" if kinds.iter().any(|other| other == "number") => None,
                "integer" | "number" => Some(self.number(kind, map)?),
                "boolean" => Some(self.rule("\"true\" | \"false\"".to_owned(), false)?),
                "null" => Some("\"null\"".to_owned()),
                "array" => self.array(place, map)?,
                "object" => self.object(place, map)?,
                _ => None,
            });
        }
        self.either(options)
    }

    fn string(&mut self, place: &str, map: &Map<String, Value>) -> Result<String, GrammarError> {
        let count = |key: &str| map.get(key).and_then(Value::as_u64);
        let (least, most) = (count("minLength").unwrap_or(0), count("maxLength"));
        let pattern = map.get("pattern").and_then(Value::as_str);
        let format = map.get("format").and_then(Value::as_str);
        let mut demands = Vec::new();
        if let Some(pattern) = pattern {
            match anchored(pattern) {
                Some(whole) => demands.push(format!("/{}/", regex_to_lark(&whole, "dw"))),
                None => self.leave_out(place, "pattern"),
            }
        }
        if let Some(format) = format {
            match FORMATS.iter().find(|(name, _)| *name == format) {
                Some((_, expression)) => demands.push(format!("/{expression}/")),
                None => self.leave_out(place, "format"),
            }
        }
        if demands.is_empty() && least == 0 && most.is_none() {
            return Ok("string".to_owned());
        }
        if most == Some(0) {
            return Ok(self.quoted(""));
        }
        // A terminal has text: the empty string is an alternative of its own.
        let may_be_empty = least == 0 && demands.is_empty();
        let most = most.map(|most| most.to_string()).unwrap_or_default();
        demands.push(format!("/(?s:.{{{},{most}}})/", least.max(1)));
        let name = self.rule(demands.join(" & "), true)?;
        let text = self.quoted(&format!("{name}{}", if may_be_empty { "?" } else { "" }));
        self.rule(text, false)
    }

    fn number(&mut self, kind: &str, map: &Map<String, Value>) -> Result<String, GrammarError> {
        let mut schema = json!({ "type": kind });
        for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"] {
            if let Some(value) = map.get(key) {
                schema[key] = value.clone();
            }
        }
        if schema.as_object().is_some_and(|map| map.len() == 1) {
            return Ok(if kind == "integer" { "INTEGER" } else { "NUMBER" }.to_owned());
        }
        schema["x-guidance"] = json!({"whitespace_flexible": false});
        self.rule(format!("%json {schema}"), false)
    }

    fn array(&mut self, place: &str, map: &Map<String, Value>) -> Written {
        let count = |key: &str| map.get(key).and_then(Value::as_u64).map(|count| count as usize);
        let least = count("minItems").unwrap_or(0);
        let mut most = count("maxItems").unwrap_or(usize::MAX);
        let (schemas, rest) = match (map.get("prefixItems"), map.get("items")) {
            (Some(Value::Array(first)), rest) => (&first[..], rest),
            (None, Some(Value::Array(first))) => (&first[..], map.get("additionalItems")),
            (_, rest) => (&[][..], rest),
        };
        let mut first = Vec::with_capacity(schemas.len());
        for (index, schema) in schemas.iter().enumerate().take(most) {
            match self.value(&format!("{place}/prefixItems/{index}"), schema, 0)? {
                Some(value) => first.push(value),
                None => most = index,
            }
            if first.len() == most {
                break;
            }
        }
        let item = match rest {
            _ if most <= first.len() => None,
            Some(schema) => self.value(&format!("{place}/items"), schema, 0)?,
            None => Some("any".to_owned()),
        };
        if item.is_none() {
            most = most.min(first.len());
        }
        if least > most {
            return Ok(None);
        }
        // What follows the listed elements, after a comma.
        let more = |item: &str, before: usize| {
            times(&format!("\",\" {item}"), least.saturating_sub(before), most - before)
        };
        let inner = match (&first[..], &item) {
            ([], None) => String::new(),
            ([], Some(item)) => format!("{item} {}", more(item, 1)),
            ([head, others @ ..], item) => {
                let mut tail =
                    item.as_deref().map(|item| more(item, first.len())).unwrap_or_default();
                for (index, other) in others.iter().enumerate().rev() {
                    let name = self.rule(format!("\",\" {other} {tail}"), false)?;
                    tail = if index + 1 >= least { format!("{name}?") } else { name };
                }
                format!("{head} {tail}")
            }
        };
        let inner = match () {
            () if inner.is_empty() => inner,
            () if least == 0 => format!("({inner})?"),
            () => inner,
        };
        self.rule(format!("\"[\" {inner} \"]\""), false).map(Some)
    }

    fn object(&mut self, place: &str, map: &Map<String, Value>) -> Written {
        let none = Map::new();
        let declared = map.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required: HashSet<&str> = map
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let others = map.get("additionalProperties").unwrap_or(&Value::Bool(true));
        let patterns = self.patterns(place, map);
        let mut names: Vec<&str> = declared.keys().map(String::as_str).collect();
        names.extend(required.iter().filter(|name| !declared.contains_key(**name)));
        // The order in which templates write keys, and models learn them.
        names.sort_unstable_by_key(|name| order(name));
        self.spend(comparison_work(&names, &patterns))?;
        if !names.is_empty() && patterns.iter().any(|pattern| !pattern.names.is_comparable()) {
            self.leave_out(place, "patternProperties");
        }
        let mut pairs = Vec::with_capacity(names.len());
        for name in &names {
            let is_required = required.contains(name);
            let written = self.property(place, name, declared.get(*name), &patterns, others)?;
            match written {
                Some(value) => pairs.push((format!("{} {value}", self.key(name)), is_required)),
                None if is_required => return Ok(None),
                None => {}
            }
        }
        let count = |key: &str| map.get(key).and_then(Value::as_u64).map(|count| count as usize);
        let (least, most) = (count("minProperties"), count("maxProperties"));
        let (least, most) = (least.unwrap_or(0), most.unwrap_or(usize::MAX));
        let other = self.others(place, &names, &patterns, others)?;
        let fixed = pairs.iter().filter(|(_, is_required)| *is_required).count();
        let is_counted = pairs.len() == fixed;
        if !is_counted && (least > fixed || most < names.len()) {
            self.leave_out(place, if least > fixed { "minProperties" } else { "maxProperties" });
        }
        let (least, most) = match is_counted {
            true => (least.saturating_sub(fixed), most.saturating_sub(fixed)),
            false => (0, usize::MAX),
        };
        if (least > 0 && other.is_none()) || least > most {
            return Ok(None);
        }
        // What may follow, from the last key to the first: with a pair before it, and without.
        let (mut after, mut alone) = match &other {
            Some(pair) if most > 0 => {
                let after = times(&format!("\",\" {pair}"), least, most);
                let more = times(&format!("\",\" {pair}"), least.saturating_sub(1), most - 1);
                let alone = format!("{pair} {more}");
                (after, if least == 0 { format!("({alone})?") } else { alone })
            }
            _ => (String::new(), String::new()),
        };
        for (pair, is_required) in pairs.iter().rev() {
            let with = self.rule(format!("\",\" {pair} {after}"), false)?;
            let first = format!("{pair} {after}");
            alone = match (is_required, alone.is_empty()) {
                (true, _) => first,
                (false, true) => format!("({first})?"),
                (false, false) => self.rule(format!("{first} | {alone}"), false)?,
            };
            after = match (is_required, after.is_empty()) {
                (true, _) => with,
                (false, true) => format!("{with}?"),
                (false, false) => self.rule(format!("{with} | {after}"), false)?,
            };
        }
        self.rule(format!("\"{{\" {alone} \"}}\""), false).map(Some)
    }
}

/// Properties that are not, or not only, declared by their names.
impl LarkWriter {
    /// Reads `patternProperties`; none if one of them cannot be held, which is noted.
    fn patterns<'a>(&mut self, place: &str, map: &'a Map<String, Value>) -> Vec<Pattern<'a>> {
        let Some(Value::Object(all)) = map.get("patternProperties") else { return Vec::new() };
        let read = |(source, schema): (&String, &'a Value)| {
            Some(Pattern { names: self.patterns.names(source)?, schema })
        };
        let read: Option<Vec<Pattern<'a>>> = match all.len() <= MAX_PATTERNS {
            true => all.iter().map(read).collect(),
            false => None,
        };
        read.unwrap_or_else(|| {
            self.leave_out(place, "patternProperties");
            Vec::new()
        })
    }

    /// Writes the value of a property that has a name: by its own schema, and by those of the
    /// patterns that the name matches; if there are none, by that of other properties.
    fn property(
        &mut self,
        place: &str,
        name: &str,
        own: Option<&Value>,
        patterns: &[Pattern<'_>],
        others: &Value,
    ) -> Written {
        let of_name = patterns.iter().filter(|pattern| pattern.names.contains(name));
        let parts: Vec<&Value> =
            own.into_iter().chain(of_name.map(|pattern| pattern.schema)).collect();
        let place = format!("{place}/properties/{name}");
        match &parts[..] {
            [] => self.value(&place, others, 0),
            [only] => self.value(&place, only, 0),
            several => self.together(&place, Map::new(), several, 0),
        }
    }

    /// Writes a property with any other name. A name that several patterns match does not come:
    /// their schemas would have to hold together.
    fn others(
        &mut self,
        place: &str,
        names: &[&str],
        patterns: &[Pattern<'_>],
        others: &Value,
    ) -> Written {
        let mut options = Vec::new();
        for (index, pattern) in patterns.iter().enumerate() {
            let place = format!("{place}/patternProperties");
            let Some(value) = self.value(&place, pattern.schema, 0)? else { continue };
            let rest = patterns.iter().enumerate().filter(|(other, _)| *other != index);
            let rest: String =
                rest.map(|(_, other)| format!(" & ~{}", other.names.terminal)).collect();
            let key =
                self.rule(format!("{} & {}{rest}", key(names), pattern.names.terminal), true)?;
            options.push(self.rule(format!("{key} \":\" {value}"), false)?);
        }
        if let Some(value) = self.value(&format!("{place}/additionalProperties"), others, 0)? {
            let rest: String =
                patterns.iter().map(|pattern| format!(" & ~{}", pattern.names.terminal)).collect();
            let key = match names.is_empty() && patterns.is_empty() {
                true => "KEY".to_owned(),
                false => self.rule(format!("{}{rest}", key(names)), true)?,
            };
            options.push(self.rule(format!("{key} \":\" {value}"), false)?);
        }
        self.either(options)
    }
}

/// Returns the number of values in a value, itself included.
fn values_in(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(values_in).sum(),
        Value::Object(map) => map.values().map(values_in).sum(),
        _ => 0,
    }
}

/// Returns an expression for an element that is repeated, at most `most` times.
fn times(element: &str, least: usize, most: usize) -> String {
    match (least, most) {
        (_, 0) => String::new(),
        // More than any reply holds.
        (0, most) if most > 1 << 20 => format!("({element})*"),
        (least, most) if most > 1 << 20 => format!("({element}){{{least},}}"),
        (least, most) => format!("({element}){{{least},{most}}}"),
    }
}

/// Returns the place of a key in an object: without regard to case, as templates sort.
fn order(key: &str) -> (String, &str) {
    (key.to_lowercase(), key)
}

/// Returns the terminal of a key that is none of `declared`.
fn key(declared: &[&str]) -> String {
    let any = format!(r#"/[^:{{}}\[\],<>|"'\s\x00-\x1f\x7f]{{1,{MAX_KEY}}}/"#);
    if declared.is_empty() {
        return any;
    }
    let names: Vec<String> =
        declared.iter().filter(|name| !name.is_empty()).map(|name| lark_string(name)).collect();
    if names.is_empty() { any } else { format!("{any} & ~({})", names.join(" | ")) }
}

/// Returns letters that stand for a number, for names of rules and terminals.
fn letters(mut number: usize) -> String {
    let mut spelled = String::new();
    loop {
        spelled.push(char::from(b'a' + (number % 26) as u8));
        number /= 26;
        if number == 0 {
            return spelled;
        }
    }
}

/// Spells a string of the grammar; the empty one is no text at all.
fn literal(text: &str) -> String {
    if text.is_empty() { String::new() } else { lark_string(text) }
}
