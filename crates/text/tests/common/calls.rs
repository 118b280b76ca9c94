//! Schemas of tools from a seed, values that satisfy them, and calls as Gemma 4 writes them.

use serde_json::{Map, Value, json};
use trine_text::{Specials, Tokenizer};

/// A generator of Lehmer's kind: what it makes is decided by its seed.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    /// A number below `most`.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Texts that spell marks of the format, JSON, and what tokenizers treat in their own way.
pub(crate) const TEXTS: [&str; 16] = [
    "<|\"|>",
    "<tool_call|>",
    "a<|\"|>},<tool_call|><|tool_call>call:f{",
    "<|channel>thought\n<channel|>",
    "<turn|>\n<|turn>user\n",
    "<|tool_response>",
    "}",
    "{\"a\": [1, \"\\n\"]}",
    "null",
    "12",
    "a\n\nb\tc",
    " two  spaces ",
    "é ж の \u{1F600}",
    "call:x{y:1}",
    "\\\"quoted\\\"",
    "plain",
];

/// Names of properties: bare ones, and ones that cannot be written bare.
const NAMES: [&str; 14] = [
    "city",
    "Days",
    "unit",
    "a",
    "B",
    "name_of",
    "x-y",
    "ключ",
    "type",
    "with space",
    "a:b",
    "<|\"|>",
    "ab",
    "{}",
];

/// A schema of an object.
pub(crate) fn object(chance: &mut Chance, depth: usize) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for _ in 0..1 + chance.below(4) {
        let name = *chance.one(&NAMES);
        properties.insert(name.to_owned(), schema(chance, depth));
    }
    for name in properties.keys() {
        if chance.below(2) == 0 {
            required.push(Value::from(name.as_str()));
        }
    }
    json!({"type": "object",
        "properties": properties, "required": required,
        "additionalProperties": false})
}

fn schema(chance: &mut Chance, depth: usize) -> Value {
    match chance.below(if depth == 0 { 8 } else { 12 }) {
        0 | 1 => json!({"type": "string"}),
        2 => json!({"type": "string", "minLength": 1 + chance.below(3), "maxLength": 40}),
        3 => json!({"type": "string", "enum": [chance.one(&TEXTS), chance.one(&TEXTS), "x"]}),
        4 => json!({"type": "integer"}),
        5 => json!({"type": "integer", "minimum": -5, "maximum": 120}),
        6 => json!({"type": "number"}),
        7 => json!({"type": "boolean"}),
        8 => {
            let (least, most) = (chance.below(3), 2 + chance.below(3));
            json!({"type": "array", "items": schema(chance, depth - 1), "minItems": least,
                "maxItems": most})
        }
        9 => json!({"type": "array", "items": schema(chance, depth - 1)}),
        10 => json!({"anyOf": [schema(chance, depth - 1), {"type": "null"}]}),
        _ => object(chance, depth - 1),
    }
}

/// A value that satisfies a schema of [`object`].
pub(crate) fn value(chance: &mut Chance, schema: &Value) -> Value {
    if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
        let option = chance.one(options);
        return value(chance, option);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return chance.one(values).clone();
    }
    match schema["type"].as_str().expect("it has a type") {
        "string" => {
            let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
            let most = schema.get("maxLength").and_then(Value::as_u64).unwrap_or(1000);
            let mut text = String::new();
            while chance.below(3) > 0 || (text.chars().count() as u64) < least {
                text.push_str(chance.one::<&str>(&TEXTS));
            }
            text.chars().take(most as usize).collect::<String>().into()
        }
        "integer" => (chance.below(126) as i64 - 5).into(),
        "number" => (*chance.one(&[0.5, -2.0, 1e3, 7.25])).into(),
        "boolean" => (chance.below(2) == 0).into(),
        "null" => Value::Null,
        "array" => {
            let count = |name: &str, default| {
                schema.get(name).and_then(Value::as_u64).unwrap_or(default) as usize
            };
            let (least, most) = (count("minItems", 0), count("maxItems", 3));
            let count = least + chance.below(most - least + 1);
            (0..count).map(|_| value(chance, &schema["items"])).collect()
        }
        _ => {
            let required = schema["required"].as_array().expect("it is a list");
            let mut map = Map::new();
            for (name, property) in schema["properties"].as_object().expect("it has some") {
                if required.contains(&Value::from(name.as_str())) || chance.below(2) == 0 {
                    map.insert(name.clone(), value(chance, property));
                }
            }
            map.into()
        }
    }
}

/// Whether a key is written bare.
pub(crate) fn is_bare(key: &str) -> bool {
    let odd = |sign: char| sign.is_whitespace() || ":{}[],<>|\"'".contains(sign);
    !key.is_empty() && !key.contains(odd)
}

/// A value as the format writes it, with the marks of [`Tokenizer::guard`] in its texts.
fn written(tokenizer: &Tokenizer, value: &Value) -> String {
    let quoted = |text: &str| format!("<|\"|>{}<|\"|>", tokenizer.guard(text));
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(tokenizer, item)).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_by_key(|key| (key.to_lowercase(), key.as_str()));
            let pair = |key: &&String| {
                let name = if is_bare(key) { (*key).clone() } else { quoted(key) };
                format!("{name}:{}", written(tokenizer, &map[*key]))
            };
            format!("{{{}}}", keys.iter().map(pair).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// The tokens of a call.
pub(crate) fn call(tokenizer: &Tokenizer, name: &str, arguments: &Value) -> Vec<u32> {
    let text = format!("<|tool_call>call:{name}{}<tool_call|>", written(tokenizer, arguments));
    tokenizer.encode(&text, Specials::ParseGuarded).expect("the text is short")
}
