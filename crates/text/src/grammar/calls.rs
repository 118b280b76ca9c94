//! Grammars of tool calls.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::compiled::Relaxed;
use super::error::GrammarError;
use super::library::{json_grammar, lark_string, with_options};
use super::marks::Otherwise;
use super::relaxing::{Relaxable, Tools, read_tools};
use super::schema;
use super::source::CallShape;

/// The keys that a call's arguments may have: the one that prompts ask for, and another that models
/// know.
pub(crate) const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

/// Tools that are called in JSON.
pub(super) struct Calls<'a> {
    tools: Tools<'a>,
    shape: &'a CallShape,
    relaxed: Vec<Relaxed>,
}

impl<'a> Relaxable<'a> for Calls<'a> {
    fn parts(&mut self) -> (&mut Tools<'a>, &mut Vec<Relaxed>) {
        (&mut self.tools, &mut self.relaxed)
    }

    fn grammar(&self) -> Result<(TopLevelGrammar, Vec<Relaxed>), GrammarError> {
        let grammar = match &self.shape.otherwise {
            Otherwise::Json(answer) => json_grammar(self.or_json(schema::digestible(answer)?)),
            Otherwise::Nothing | Otherwise::Text => TopLevelGrammar::from_lark(self.lark()),
        };
        Ok((grammar, Vec::new()))
    }

    fn alone(&self, _: &str, schema: &Value) -> Result<TopLevelGrammar, GrammarError> {
        Ok(json_grammar(schema.clone()))
    }
}

impl<'a> Calls<'a> {
    /// Reads names with schemas as text.
    pub(super) fn read(
        calls: &'a [(String, String)],
        shape: &'a CallShape,
    ) -> Result<Self, GrammarError> {
        let (tools, relaxed) = read_tools(calls)?;
        Ok(Self { tools, shape, relaxed })
    }

    /// Writes the grammar in Lark. The beginning of a call, up to its arguments, is one terminal:
    /// text and calls diverge at one place, and other JSON, even with a tool name, is text.
    fn lark(&self) -> String {
        let mut lark = String::from("start: call");
        if self.shape.parallel {
            lark.push_str(" | first (\", \" call)* \"]\"");
        }
        if self.shape.otherwise == Otherwise::Text {
            let names = self.tools.iter().map(|(name, _)| escaped(name));
            let names = names.collect::<Vec<_>>().join("|");
            // A model that would say `arguments` is made to say `parameters`.
            let [parameters, arguments] = ARGUMENTS;
            let keys = format!("{parameters}\"|{arguments}");
            let call = format!("\\[?\\{{\"name\": \"({names})\", \"({keys}).*");
            lark.push_str(&format!(" | TEXT?\nTEXT: /(?s:.+)/ & ~/(?s:{call})/"));
        }
        for (rule, prefix) in [("call", ""), ("first", "[")] {
            let names: Vec<String> =
                (0..self.tools.len()).map(|index| format!("{rule}{index}")).collect();
            if prefix.is_empty() || self.shape.parallel {
                lark.push_str(&format!("\n{rule}: {}", names.join(" | ")));
                for (index, (name, _)) in self.tools.iter().enumerate() {
                    let name = Value::from(*name);
                    let head = format!("{prefix}{{\"name\": {name}, \"{}\": ", ARGUMENTS[0]);
                    lark.push_str(&format!(
                        "\n{rule}{index}: {} arguments{index} \"}}\"",
                        lark_string(&head)
                    ));
                }
            }
        }
        for (index, (_, schema)) in self.tools.iter().enumerate() {
            lark.push_str(&format!("\narguments{index}: %json {}", with_options(schema.clone())));
        }
        lark.push('\n');
        lark
    }

    /// Returns a schema that is satisfied by calls and by everything that satisfies the schema
    /// `answer`. All of these begin with the same characters, and within one schema the library
    /// keeps several alternatives open.
    fn or_json(&self, answer: Value) -> Value {
        let mut definitions = Map::new();
        let mut define = |name: String, schema: Value| {
            let place = format!("#/$defs/{name}");
            definitions.insert(name, schema::moved(schema, &place));
            json!({ "$ref": place })
        };
        let mut alternatives = vec![define("answer".to_owned(), answer)];
        for (index, (name, schema)) in self.tools.iter().enumerate() {
            let arguments = define(format!("arguments{index}"), schema.clone());
            alternatives.push(json!({
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": arguments},
                "required": ["name", "parameters"],
                "additionalProperties": false,
            }));
        }
        if self.shape.parallel {
            let calls = json!({ "anyOf": alternatives[1..] });
            alternatives.push(json!({ "type": "array", "items": calls, "minItems": 1 }));
        }
        json!({ "anyOf": alternatives, "$defs": definitions })
    }
}

/// Returns the name of a tool as a regular expression.
fn escaped(name: &str) -> String {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    name.chars().flat_map(|sign| (!plain(sign)).then_some('\\').into_iter().chain([sign])).collect()
}
