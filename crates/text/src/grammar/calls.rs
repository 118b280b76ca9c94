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

    /// Writes the grammar in Lark. The beginning of a call is one terminal, so that text and calls
    /// diverge at one place.
    fn lark(&self) -> String {
        let mut lark = String::from("start: call");
        if self.shape.parallel {
            lark.push_str(" | first (\", \" call)* \"]\"");
        }
        if self.shape.otherwise == Otherwise::Text {
            lark.push_str(" | TEXT\nTEXT: /(?s:.+)/ & ~/(?s:\\[?\\{\"name\": .*)/");
        }
        for (rule, prefix) in [("call", ""), ("first", "[")] {
            let names: Vec<String> =
                (0..self.tools.len()).map(|index| format!("{rule}{index}")).collect();
            if prefix.is_empty() || self.shape.parallel {
                lark.push_str(&format!("\n{rule}: {}", names.join(" | ")));
                for (index, (name, _)) in self.tools.iter().enumerate() {
                    let head =
                        format!("{prefix}{{\"name\": {}, \"parameters\": ", Value::from(*name));
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
