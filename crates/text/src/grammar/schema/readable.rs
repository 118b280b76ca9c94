//! Makes the schema of a tool one that can be read.
//!
//! Tools come from everywhere: their schemas have types of other systems, bounds that are blank,
//! and drafts of long ago. One such tool must not refuse the request of an agent that offers a
//! hundred, so what cannot be read is left out, and the rest counts.

use serde_json::{Map, Value};

use super::check::TYPES;
use super::keywords::{LISTS, LeftOut, MAPS, SCHEMA, each_below};

/// The most parts of one schema that are listed as left out, and the most characters of a place.
const MAX_LISTED: usize = 16;
const MAX_PLACE_CHARS: usize = 200;

/// The keywords whose value is a whole number from 0.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// The keywords besides [`SCHEMA`] whose value is one schema.
const OTHER_SCHEMAS: [&str; 9] = [
    "items",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Leaves out what cannot be read, and returns where that was: the first 16 places. Null is the
/// same as absent, and types may be in capitals.
pub(crate) fn readable(schema: &mut Value) -> Vec<LeftOut> {
    let mut cleaner = Cleaner { path: vec!["#".to_owned()], left_out: Vec::new() };
    cleaner.schema(schema);
    cleaner.left_out
}

/// Takes out the words for readers, which demand nothing of a value.
pub(crate) fn strip(schema: &mut Value) {
    if let Value::Object(map) = schema {
        map.retain(|key, value| {
            !(value.is_string() && matches!(&**key, "title" | "description" | "$comment"))
        });
    }
    each_below(schema, &mut |_, below| strip(below));
}

/// What the cleaner does with a keyword.
enum Fate {
    Stays,
    /// The keyword says nothing, as if it were absent.
    Absent,
    /// The keyword cannot be read and is left out.
    LeftOut,
}

struct Cleaner {
    /// The way to the present schema.
    path: Vec<String>,
    left_out: Vec<LeftOut>,
}

impl Cleaner {
    /// Recursion is bounded by the parser's limit on nesting.
    fn schema(&mut self, schema: &mut Value) {
        if let Value::Object(map) = schema {
            let keys: Vec<String> = map.keys().cloned().collect();
            for key in keys {
                match map.get_mut(&key).map_or(Fate::Absent, |value| self.keyword(&key, value)) {
                    Fate::Stays => continue,
                    Fate::Absent => {}
                    Fate::LeftOut => self.note(None, &key),
                }
                map.shift_remove(&key);
            }
        }
        each_below(schema, &mut |way, below| {
            if way == "example" {
                return;
            }
            self.path.push(way.to_owned());
            self.schema(below);
            self.path.pop();
        });
    }

    fn note(&mut self, below: Option<&str>, keyword: &str) {
        if self.left_out.len() < MAX_LISTED {
            let short = |text: &str| text.chars().take(MAX_PLACE_CHARS).collect::<String>();
            let place: Vec<&str> = self.path.iter().map(String::as_str).chain(below).collect();
            let left_out = LeftOut { place: short(&place.join("/")), keyword: short(keyword) };
            self.left_out.push(left_out);
        }
    }

    /// Brings the value of a keyword into a form that can be read.
    fn keyword(&mut self, key: &str, value: &mut Value) -> Fate {
        // These hold values, of which null is one.
        if matches!(key, "const" | "default" | "examples" | "example") {
            return Fate::Stays;
        }
        if value.is_null() {
            return Fate::Absent;
        }
        let is_good = match key {
            "type" => is_type(value),
            "enum" => value.as_array().is_some_and(|values| !values.is_empty()),
            "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
            "minimum" | "maximum" => value.is_number(),
            // Draft 4 has booleans here.
            "exclusiveMinimum" | "exclusiveMaximum" => value.is_number() || value.is_boolean(),
            "multipleOf" => value.as_f64().is_some_and(|number| number > 0.0),
            "pattern" | "$ref" => value.is_string(),
            key if COUNTS.contains(&key) => {
                value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0)
            }
            // Before draft 2020-12 it is a list, too.
            "items" if value.is_array() => self.schemas("items", value),
            key if SCHEMA.contains(&key) || OTHER_SCHEMAS.contains(&key) => is_schema(value),
            key if LISTS.contains(&key) => {
                value.as_array().is_some_and(|list| !list.is_empty()) && self.schemas(key, value)
            }
            key if MAPS.contains(&key) => match value {
                Value::Array(none) if none.is_empty() => return Fate::Absent,
                value => value.is_object() && self.schemas(key, value),
            },
            _ => true,
        };
        if is_good { Fate::Stays } else { Fate::LeftOut }
    }

    /// Puts `true`, which allows everything, in the place of what is no schema.
    fn schemas(&mut self, key: &str, value: &mut Value) -> bool {
        let mut each = |name: &str, schema: &mut Value| {
            if !is_schema(schema) {
                self.note(Some(key), name);
                *schema = Value::Bool(true);
            }
        };
        match value {
            Value::Array(items) => {
                let items = items.iter_mut().enumerate();
                items.for_each(|(index, item)| each(&index.to_string(), item));
            }
            Value::Object(named) => named.iter_mut().for_each(|(name, item)| each(name, item)),
            _ => {}
        }
        true
    }
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// Writes types as JSON Schema has them, and returns whether they are.
fn is_type(value: &mut Value) -> bool {
    let known = |value: &mut Value| {
        if value.is_null() {
            *value = "null".into();
        }
        let Value::String(name) = value else { return false };
        name.make_ascii_lowercase();
        TYPES.contains(&name.as_str())
    };
    match value {
        Value::Array(names) => !names.is_empty() && names.iter_mut().all(known),
        name => known(name),
    }
}

/// Makes the arguments of a function a schema of an object, and returns what cannot be read of it.
/// Arguments have names: a schema of anything else says nothing of them.
pub(crate) fn of_arguments(parameters: &mut Map<String, Value>) -> Vec<LeftOut> {
    let mut schema = Value::Object(std::mem::take(parameters));
    let mut left_out = readable(&mut schema);
    if let Value::Object(map) = schema {
        *parameters = map;
    }
    let is_object = match parameters.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        Some(name) => name == "object",
    };
    if !is_object {
        parameters.clear();
        left_out = vec![LeftOut { place: "#".to_owned(), keyword: "type".to_owned() }];
    }
    parameters.insert("type".to_owned(), "object".into());
    left_out
}
