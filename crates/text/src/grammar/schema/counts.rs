//! Bounds on the number of properties.
//!
//! The library counts properties that an object does not list. Of the listed ones it only knows
//! which are required. So a bound on an object with optional properties becomes alternatives, each
//! of which says for every optional one whether it is present.

use serde_json::{Map, Value, json};

use super::check::Check;
use super::close::{Merged, below, is_merging};
use super::keywords::{add_options, each_below};
use crate::grammar::error::GrammarError;

/// The most alternatives for one object, and the most properties in all of them.
const MAX_ALTERNATIVES: usize = 128;
const MAX_LISTED: usize = 4096;

const WHY: &str = "it is supported where every listed property is required, or few are not; list \
    fewer, or require more";

/// Writes every bound on numbers of properties in a form that the library takes.
pub(super) fn count(check: &mut Check<'_>, schema: &mut Value) -> Result<(), GrammarError> {
    let original = schema.clone();
    let merged = Merged::of(&original);
    Counting { check, merged }.schema("#", schema, &original)
}

struct Counting<'c, 'r, 'm> {
    check: &'c mut Check<'r>,
    merged: Merged<'m>,
}

/// An object's properties, as far as bounds on their number are concerned.
struct Listed {
    required: usize,
    optional: Vec<String>,
    /// Whether no properties other than the listed ones are allowed.
    is_closed: bool,
}

impl Counting<'_, '_, '_> {
    /// Rewrites the bounds in `schema`, a copy of `original`.
    fn schema(
        &mut self,
        place: &str,
        schema: &mut Value,
        original: &Value,
    ) -> Result<(), GrammarError> {
        let mut originals = below(original).into_iter();
        let mut outcome = Ok(());
        each_below(schema, &mut |key, copy| {
            if let Some(original) = originals.next()
                && outcome.is_ok()
            {
                outcome = self.schema(&format!("{place}/{key}"), copy, original);
            }
        });
        outcome?;
        let Some(map) = schema.as_object_mut() else { return Ok(()) };
        self.bounds(place, map, original)
    }

    fn bounds(
        &mut self,
        place: &str,
        map: &mut Map<String, Value>,
        original: &Value,
    ) -> Result<(), GrammarError> {
        let bound = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_u64);
        let Some(listed) = Listed::of(map) else { return Ok(()) };
        let all = listed.required + listed.optional.len();
        let least = bound(map, "minProperties").map_or(0, |least| least as usize);
        let most = bound(map, "maxProperties").map(|most| most as usize);
        if least <= listed.required {
            map.shift_remove("minProperties");
        }
        if listed.is_closed && most.is_some_and(|most| most >= all) {
            map.shift_remove("maxProperties");
        }
        let (has_least, has_most) =
            (map.contains_key("minProperties"), map.contains_key("maxProperties"));
        if !has_least && !has_most {
            return Ok(());
        }
        let is_alone = !is_merging(map) && !self.merged.contains(original);
        let most = most.filter(|_| has_most);
        // The library reports a schema that cannot be satisfied.
        if most.is_some_and(|most| most < listed.required.max(least))
            || (listed.is_closed && least > all)
        {
            add_options(map, json!([false]));
            return Ok(());
        }
        let alternatives = match listed.is_closed || is_alone {
            true => listed.alternatives(least, most),
            false => None,
        };
        let Some(alternatives) = alternatives else {
            // The library handles this one case itself.
            if listed.is_closed && is_alone && most.is_none() && least == listed.required + 1 {
                return Ok(());
            }
            for key in ["minProperties", "maxProperties"] {
                if map.shift_remove(key).is_some() {
                    self.check.leave_out(place, key, WHY)?;
                }
            }
            return Ok(());
        };
        map.shift_remove("minProperties");
        map.shift_remove("maxProperties");
        let kind = map.get("type").cloned();
        let alternatives = alternatives.into_iter().map(|mut alternative| {
            if let Some(kind) = &kind {
                alternative["type"] = kind.clone();
            }
            alternative
        });
        add_options(map, alternatives.collect());
        Ok(())
    }
}

impl Listed {
    /// Returns `None` if the library can count by itself because no listed property is optional.
    fn of(map: &Map<String, Value>) -> Option<Self> {
        if !map.contains_key("minProperties") && !map.contains_key("maxProperties") {
            return None;
        }
        let properties = map.get("properties")?.as_object()?;
        let mut required: Vec<&str> = match map.get("required") {
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        required.sort_unstable();
        required.dedup();
        let may_come = |(name, schema): &(&String, &Value)| {
            **schema != Value::Bool(false) && required.binary_search(&name.as_str()).is_err()
        };
        let optional: Vec<String> =
            properties.iter().filter(may_come).map(|(name, _)| name.clone()).collect();
        let is_closed = map.get("additionalProperties") == Some(&Value::Bool(false))
            && !map.contains_key("patternProperties");
        (!optional.is_empty()).then_some(Self { required: required.len(), optional, is_closed })
    }

    /// Returns schemas of which an object with the right number of properties satisfies one; `None`
    /// if there would be too many.
    fn alternatives(&self, least: usize, most: Option<usize>) -> Option<Vec<Value>> {
        let count = self.optional.len();
        let wanted = least.saturating_sub(self.required);
        let mut chosen: Vec<(Vec<usize>, usize)> = Vec::new();
        let mut add = |size: usize, reach: fn(&[usize], usize) -> usize| {
            let room = MAX_ALTERNATIVES.min(MAX_LISTED / count).saturating_sub(chosen.len());
            let found = combinations(count, size, room)?;
            chosen.extend(found.into_iter().map(|present| {
                let decided = reach(&present, count);
                (present, decided)
            }));
            Some(())
        };
        // `after_last` leaves the properties after the last chosen one open; `everywhere` decides
        // about all.
        let after_last = |present: &[usize], _: usize| present.last().map_or(0, |last| last + 1);
        let everywhere = |_: &[usize], count: usize| count;
        match most {
            None => {
                if !self.is_closed {
                    for size in 0..wanted.min(count + 1) {
                        add(size, everywhere)?;
                    }
                }
                if wanted <= count {
                    add(wanted, after_last)?;
                }
            }
            Some(most) => {
                let least = if self.is_closed { wanted } else { 0 };
                for size in least..=count.min(most - self.required) {
                    add(size, everywhere)?;
                }
            }
        }
        let alternative = |(present, decided): (Vec<usize>, usize)| {
            let absent = (0..decided).filter(|index| !present.contains(index));
            let absent: Map<String, Value> =
                absent.map(|index| (self.optional[index].clone(), Value::Bool(false))).collect();
            let required: Vec<&String> =
                present.iter().map(|&index| &self.optional[index]).collect();
            let mut alternative = json!({ "properties": absent, "required": required });
            if !self.is_closed {
                if self.required + present.len() < least {
                    alternative["minProperties"] = least.into();
                }
                if let Some(most) = most {
                    alternative["maxProperties"] = most.into();
                }
            }
            alternative
        };
        Some(chosen.into_iter().map(alternative).collect())
    }
}

/// Returns all ways to choose `size` of `count` things, ascending; `None` if there are more than
/// `most`.
fn combinations(count: usize, size: usize, most: usize) -> Option<Vec<Vec<usize>>> {
    let mut found: Vec<Vec<usize>> = vec![Vec::new()];
    for step in 0..size {
        let mut longer = Vec::new();
        for chosen in &found {
            let from = chosen.last().map_or(0, |last| last + 1);
            // At least as many must be left as are still to be chosen.
            for next in from..count - (size - step - 1) {
                if longer.len() == most {
                    return None;
                }
                longer.push([chosen.as_slice(), &[next]].concat());
            }
        }
        found = longer;
    }
    (found.len() <= most).then_some(found)
}
