//! Bounds the work for expressions that apply to the same text.
//!
//! To find out whether any text satisfies several expressions, the library goes through them one
//! character after the other, and tries every way through one of them with every way through the
//! others. It counts this work, but looks at the count between characters only. With twenty
//! expressions of two ways each a character takes seconds, with forty it never ends.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use llguidance::regex_to_lark;
use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value};

use super::check::FORMATS;
use super::keywords::KIND;
use super::references::resolve;
use crate::grammar::error::GrammarError;

/// The most ways through all expressions for one text together: the product of the numbers of each.
/// In the development profile, compiling takes 0.25 s at worst with 1024, and 9 s and 250 MB with
/// 8192.
const MAX_WAYS: u64 = 1024;

/// The ways through the library's expression for a `format`. At one place that of `uri`, the
/// richest, has about as many groups with a character in common.
const FORMAT_WAYS: u64 = 8;

/// The deepest nesting that is looked at, references included, and the most steps. A schema that
/// takes more counts as if all of its expressions applied to one text.
const MAX_DEPTH: usize = 256;
const MAX_STEPS: usize = 100_000;

/// The name of the elements of a list, which no property has.
const ELEMENTS: &str = "\0elements";

/// Refuses a schema in which the expressions for one text may have too many ways.
///
/// # Errors
/// [`GrammarError::TooLarge`].
pub(super) fn check(root: &Value) -> Result<(), GrammarError> {
    let mut meeting = Meeting::of(root);
    if meeting.of_all(root) <= MAX_WAYS {
        return Ok(());
    }
    let ways = meeting.part(root, 0).most();
    if !meeting.is_given_up && ways <= MAX_WAYS {
        return Ok(());
    }
    let what =
        "the product of the ways through every `pattern` and `format` that apply to one text";
    Err(GrammarError::too_large(KIND, what, MAX_WAYS))
}

/// The ways through what a schema says about texts.
#[derive(Debug, Clone)]
struct Part<'a> {
    /// The ways of the value itself.
    own: u64,
    /// The most within the value of a property.
    named: HashMap<&'a str, u64>,
    /// The most within properties that have no such entry.
    others: u64,
    /// Whether it has a reference within the target of that reference, whose ways were not known
    /// yet when it was met.
    is_open: bool,
}

impl<'a> Part<'a> {
    fn nothing() -> Self {
        Self { own: 1, named: HashMap::new(), others: 1, is_open: false }
    }

    /// Returns whether it may add to the ways of a text.
    fn counts(&self) -> bool {
        self.is_open || self.most() > 1
    }

    /// Returns the most ways of one text.
    fn most(&self) -> u64 {
        self.named.values().copied().max().unwrap_or(1).max(self.own).max(self.others)
    }

    /// Adds another schema for the same value. `both` joins the ways of one text.
    fn join(&mut self, other: &Self, both: fn(u64, u64) -> u64) {
        if other.others > 1 {
            for (name, ways) in &mut self.named {
                if !other.named.contains_key(name) {
                    *ways = both(*ways, other.others);
                }
            }
        }
        for (name, ways) in &other.named {
            let known = self.named.entry(name).or_insert(self.others);
            *known = both(*known, *ways);
        }
        self.own = both(self.own, other.own);
        self.others = both(self.others, other.others);
        self.is_open |= other.is_open;
    }
}

struct Meeting<'a> {
    root: &'a Value,
    /// The ways through expressions.
    expressions: HashMap<&'a str, u64>,
    /// Schemas that have been looked at; `None` while they are.
    parts: HashMap<*const Value, Option<Rc<Part<'a>>>>,
    steps: usize,
    /// Whether the schema takes more steps, or ways that were not known are multiplied.
    is_given_up: bool,
}

impl<'a> Meeting<'a> {
    fn of(root: &'a Value) -> Self {
        let (expressions, parts) = (HashMap::new(), HashMap::new());
        Self { root, expressions, parts, steps: 0, is_given_up: false }
    }

    /// Returns the ways through all different expressions of a schema together: no text has more.
    fn of_all(&mut self, root: &'a Value) -> u64 {
        let (mut found, mut left) = (HashSet::new(), vec![root]);
        while let Some(value) = left.pop() {
            match value {
                Value::Object(map) => {
                    let own = ["pattern", "format"].map(|key| Some((key, map.get(key)?.as_str()?)));
                    found.extend(own.into_iter().flatten());
                    let names = patterns_of_names(map).into_iter().flat_map(Map::keys);
                    found.extend(names.map(|name| ("pattern", name.as_str())));
                    left.extend(map.values());
                }
                Value::Array(items) => left.extend(items),
                _ => {}
            }
        }
        product(found.into_iter().map(|(key, text)| match key {
            "pattern" => self.through(text),
            _ => ways_of_format(text),
        }))
    }

    fn part(&mut self, schema: &'a Value, depth: usize) -> Rc<Part<'a>> {
        let nothing = || Rc::new(Part::nothing());
        let Some(map) = schema.as_object() else { return nothing() };
        match self.parts.get(&std::ptr::from_ref(schema)) {
            Some(Some(known)) => return Rc::clone(known),
            Some(None) => {
                return Rc::new(Part { is_open: true, ..Part::nothing() });
            }
            None => {}
        }
        if depth > MAX_DEPTH || self.steps > MAX_STEPS {
            self.is_given_up = true;
            return nothing();
        }
        self.parts.insert(schema, None);
        let mut part = self.alone(map, depth + 1);
        let mut count = usize::from(part.counts());
        let all = map.get("allOf").and_then(Value::as_array).into_iter().flatten();
        let target = map.get("$ref").and_then(Value::as_str);
        for schema in all.chain(target.and_then(|reference| resolve(self.root, reference))) {
            let other = self.part(schema, depth + 1);
            self.join(&mut part, &other, u64::saturating_mul);
            count += usize::from(other.counts());
        }
        for options in ["anyOf", "oneOf"].iter().filter_map(|key| map.get(*key)?.as_array()) {
            let mut any = Part::nothing();
            for option in options {
                let other = self.part(option, depth + 1);
                self.join(&mut any, &other, u64::max);
            }
            self.join(&mut part, &any, u64::saturating_mul);
            count += usize::from(any.counts());
        }
        self.is_given_up |= count > 1 && part.is_open;
        let part = Rc::new(part);
        self.parts.insert(schema, Some(Rc::clone(&part)));
        part
    }

    fn join(&mut self, part: &mut Part<'a>, other: &Part<'a>, both: fn(u64, u64) -> u64) {
        let passed = if other.others > 1 { part.named.len() } else { 0 };
        self.steps += 1 + passed + other.named.len();
        part.join(other, both);
    }

    /// Returns what a schema says itself, without those that apply to the same value.
    fn alone(&mut self, map: &'a Map<String, Value>, depth: usize) -> Part<'a> {
        let mut part = Part::nothing();
        let pattern = map.get("pattern").and_then(Value::as_str);
        let format = map.get("format").and_then(Value::as_str);
        let pattern = pattern.map_or(1, |pattern| self.through(pattern));
        part.own = pattern.saturating_mul(format.map_or(1, ways_of_format));
        let mut is_open = false;
        let mut most = |schemas: &mut dyn Iterator<Item = &'a Value>| {
            let parts = schemas.map(|schema| self.part(schema, depth));
            let see = |part: Rc<Part<'a>>| {
                is_open |= part.is_open;
                part.most()
            };
            parts.map(see).max().unwrap_or(1)
        };
        let matched = patterns_of_names(map);
        let values = most(&mut matched.into_iter().flat_map(Map::values));
        part.others = most(&mut map.get("additionalProperties").into_iter()).max(values);
        for (name, schema) in map.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            // A name matches one of the expressions at most.
            let ways = most(&mut std::iter::once(schema)).saturating_mul(values);
            part.named.insert(name, ways);
        }
        let elements = ["items", "prefixItems", "additionalItems"].map(|key| map.get(key));
        let elements = elements.into_iter().flatten().map(|elements| match elements {
            Value::Array(items) => most(&mut items.iter()),
            schema => most(&mut std::iter::once(schema)),
        });
        part.named.insert(ELEMENTS, elements.max().unwrap_or(1));
        part.is_open = is_open;
        self.is_given_up |= is_open && matched.is_some() && map.contains_key("properties");
        self.steps += part.named.len();
        // It is proved for each two of these expressions that no name matches both.
        let mut names: Vec<u64> =
            matched.into_iter().flat_map(Map::keys).map(|name| self.through(name)).collect();
        names.sort_unstable_by(|first, second| second.cmp(first));
        part.others = part.others.max(product(names.into_iter().take(2)));
        part
    }

    /// Returns the ways through an expression.
    fn through(&mut self, expression: &'a str) -> u64 {
        *self.expressions.entry(expression).or_insert_with(|| ways_through(expression))
    }
}

fn patterns_of_names(map: &Map<String, Value>) -> Option<&Map<String, Value>> {
    map.get("patternProperties")?.as_object()
}

fn ways_of_format(name: &str) -> u64 {
    if FORMATS.contains(&name) { FORMAT_WAYS } else { 1 }
}

fn product(ways: impl IntoIterator<Item = u64>) -> u64 {
    ways.into_iter().fold(1, u64::saturating_mul)
}

/// Returns at how many of its places an expression may go on with the same byte: the most of its
/// different groups of characters that have a beginning in UTF-8 in common.
fn ways_through(expression: &str) -> u64 {
    // Those that cannot be read are refused where they stand.
    let Ok(hir) = regex_syntax::parse(&regex_to_lark(expression, "dw")) else { return 1 };
    let mut groups = HashSet::new();
    let is_whole =
        expression.starts_with('^') && expression.ends_with('$') && !expression.contains('|');
    if !is_whole {
        // It is looked for in the text.
        groups.insert(vec![(0, u32::from(char::MAX))]);
    }
    let mut left = vec![&hir];
    while let Some(node) = left.pop() {
        add_groups(node, &mut groups);
        left.extend(node.kind().subs());
    }
    BEGINNINGS.iter().map(|&level| overlap(&groups, level)).max().unwrap_or(1).max(1)
}

/// Beginnings of characters in UTF-8: the first character that has one, and how many bits of a
/// character come after it. The first is the whole character.
const BEGINNINGS: [(u32, u32); 4] = [(0, 0), (0x80, 6), (0x800, 12), (0x1_0000, 18)];

/// Returns the most groups that have one beginning in common.
fn overlap(groups: &HashSet<Vec<(u32, u32)>>, (least, bits): (u32, u32)) -> u64 {
    let mut edges: Vec<(u32, i64)> = Vec::new();
    for group in groups {
        let mut end = 0;
        for &(first, last) in group.iter().filter(|(_, last)| *last >= least) {
            // Ranges ascend; several of them may have the same beginning.
            let (first, last) = ((first.max(least) >> bits).max(end), (last >> bits) + 1);
            if first < last {
                edges.extend([(first, 1), (last, -1)]);
                end = last;
            }
        }
    }
    // At the same place ends come before beginnings.
    edges.sort_unstable();
    let open = edges.iter().scan(0, |open, (_, step)| {
        *open += step;
        Some(*open)
    });
    open.max().map_or(0, i64::unsigned_abs)
}

/// Adds the groups of characters that a part of an expression names itself.
fn add_groups(node: &Hir, groups: &mut HashSet<Vec<(u32, u32)>>) {
    match node.kind() {
        HirKind::Literal(literal) => {
            let text = String::from_utf8_lossy(&literal.0);
            groups.extend(text.chars().map(|one| vec![(u32::from(one), u32::from(one))]));
        }
        HirKind::Class(Class::Unicode(class)) => {
            let ranges = class.ranges().iter();
            groups.insert(
                ranges.map(|range| (u32::from(range.start()), u32::from(range.end()))).collect(),
            );
        }
        HirKind::Class(Class::Bytes(class)) => {
            let ranges = class.ranges().iter();
            groups.insert(
                ranges.map(|range| (u32::from(range.start()), u32::from(range.end()))).collect(),
            );
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ways_are_those_of_one_character() {
        for (expression, ways) in [
            ("^abc$", 1),
            ("^[a-f]+[g-z]$", 1),
            ("abc", 2),
            ("^[a-f]x[e-z]$", 2),
            ("^[a-f]e[e-z]$", 3),
            ("^(.*[a-m].{5})*$", 2),
            ("[a-m].{5}", 3),
            ("^a$|^b$", 2),
            // Different letters with the same first byte, and with the same two.
            ("^[\u{100}\u{103}][\u{101}\u{104}]\u{102}$", 3),
            ("^\u{1f600}\u{1f601}$", 2),
            ("^a\u{100}$", 1),
            ("[", 1),
        ] {
            assert_eq!(ways_through(expression), ways, "{expression}");
        }
    }

    #[test]
    fn only_what_applies_to_one_text_is_multiplied() {
        let of = |index: usize| json!({"type": "string", "pattern": format!("[a-m].{{{index}}}")});
        let several = |count: usize| (1..=count).map(of).collect::<Vec<_>>();
        let named = |count: usize| {
            let named = several(count).into_iter().enumerate();
            named.map(|(index, schema)| (format!("p{index}"), schema)).collect::<Map<_, _>>()
        };
        let chain = |count: usize| {
            let link = |index: usize| {
                let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
                (format!("d{index}"), json!({"pattern": format!("a.{{{index}}}"), "allOf": [next]}))
            };
            let links: Map<_, _> = (0..count).map(link).collect();
            json!({"$ref": "#/$defs/d0", "$defs": links})
        };
        // Each has a property of its own.
        let apart = |count: usize| {
            let part = |index: usize| {
                let property = json!({"format": "date-time", "pattern": "Z"});
                json!({"properties": {format!("p{index}"): property}})
            };
            json!({"allOf": (0..count).map(part).collect::<Vec<_>>()})
        };
        let within = |schema| json!({"properties": {"a": schema}});
        let node = json!({
            "$ref": "#/$defs/node",
            "$defs": {"node": {
                "properties": {
                    "id": {"format": "uuid"}, "url": {"format": "uri"},
                    "mail": {"format": "email"}, "at": {"format": "date-time"},
                    "children": {"items": {"$ref": "#/$defs/node"}},
                },
                "anyOf": [{"required": ["url"]}, {"required": ["mail"]}],
            }},
        });
        let cycle_that_meets = json!({"allOf": [
            {"properties": {"a": {"$ref": "#"}, "b": {"anyOf": several(9)}}},
            {"properties": {"a": {"pattern": "x"}}},
        ]});
        let cycle = json!({"allOf": [
            {"properties": {"a": {"$ref": "#"}, "b": {"anyOf": several(9)}}}, {"required": ["a"]},
        ]});
        for (schema, is_good) in [
            (json!({"properties": named(40)}), true),
            (json!({"anyOf": several(40)}), true),
            (
                json!({"properties": named(40), "required": ["p1"],
                    "allOf": [{"required": ["p2"]}]}),
                true,
            ),
            (json!({"allOf": several(6)}), true),
            (json!({"allOf": several(7)}), false),
            (json!({"allOf": vec![of(1); 40], "$comment": several(1)}), true),
            (
                json!({"pattern": "x", "$defs": {"d": {"allOf": several(6)}}, "$ref": "#/$defs/d"}),
                false,
            ),
            (json!({"properties": {"a": {"allOf": several(7)}}}), false),
            (json!({"allOf": several(7).into_iter().map(within).collect::<Vec<_>>()}), false),
            (
                json!({"properties": named(2), "patternProperties": {"^p": {"allOf": several(6)}}}),
                false,
            ),
            (json!({"additionalProperties": {"items": {"allOf": several(7)}}}), false),
            (apart(12), true),
            (json!({"allOf": [apart(3), {"additionalProperties": {"format": "email"}}]}), true),
            (json!({"allOf": [apart(3), {"additionalProperties": {"allOf": several(5)}}]}), false),
            (
                json!({"properties": {"a": {"format": "int32"}},
                    "allOf": vec![json!({"format": "int64"}); 9]}),
                true,
            ),
            (chain(6), true),
            (chain(40), false),
            (chain(400), false),
            (json!({"properties": {"a": {"$ref": "#"}, "b": {"anyOf": several(9)}}}), true),
            (cycle, true),
            (node, true),
            (cycle_that_meets, false),
        ] {
            let outcome = check(&schema);
            assert_eq!(outcome.is_ok(), is_good, "{schema:.200}: {outcome:?}");
        }
    }
}
