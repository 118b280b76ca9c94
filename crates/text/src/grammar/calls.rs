//! Grammars of tool calls.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::compiled::Relaxed;
use super::error::GrammarError;
use super::library::{json_grammar, lark_string, with_options};
use super::marks::Otherwise;
use super::schema::{self, LeftOut};
use super::source::CallShape;

/// The most parts of one tool's schema that are tried separately if the library does not take the
/// whole.
const MAX_TRIALS: usize = 64;

/// Names of tools with those parts of their schemas that a grammar can enforce.
pub(super) type Tools<'a> = Vec<(&'a str, Value)>;

/// Reads names with schemas as text; returns the tools and what their schemas lost.
///
/// # Errors
/// If a schema cannot be read; the error names its tool.
pub(super) fn read_tools(
    calls: &[(String, String)],
) -> Result<(Tools<'_>, Vec<Relaxed>), GrammarError> {
    let (mut tools, mut relaxed) = (Vec::with_capacity(calls.len()), Vec::new());
    for (name, text) in calls {
        let (schema, left_out) = schema::relaxed(text).map_err(|error| of_tool(name, error))?;
        let left_out = left_out.into_iter();
        relaxed.extend(left_out.map(|left_out| Relaxed { tool: name.clone(), left_out }));
        tools.push((name.as_str(), schema));
    }
    Ok((tools, relaxed))
}

/// Tools that are called in JSON.
pub(super) struct Calls<'a> {
    tools: Tools<'a>,
    shape: &'a CallShape,
    relaxed: Vec<Relaxed>,
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

    /// Returns the result of `start` on the grammar. If the library refuses the grammar, finds the
    /// tools at fault and also leaves out those parts of their schemas that it does not take.
    pub(super) fn compile<T>(
        mut self,
        start: impl Fn(TopLevelGrammar) -> Result<T, GrammarError>,
    ) -> Result<(T, Vec<Relaxed>), GrammarError> {
        let whole = match start(self.grammar()?) {
            Ok(whole) => return Ok((whole, self.relaxed)),
            Err(error) => error,
        };
        let mut found = false;
        for index in 0..self.tools.len() {
            let (name, schema) = &mut self.tools[index];
            let alone = |schema: &Value| start(json_grammar(schema.clone())).map(drop);
            let Err(error) = alone(schema) else { continue };
            if !may_be_relaxed(&error) {
                return Err(of_tool(name, error));
            }
            found = true;
            let tool = (*name).to_owned();
            let left_out = reduce(schema, alone).into_iter();
            self.relaxed.extend(left_out.map(|left_out| Relaxed { tool: tool.clone(), left_out }));
        }
        if !found {
            return Err(whole);
        }
        Ok((start(self.grammar()?)?, self.relaxed))
    }

    fn grammar(&self) -> Result<TopLevelGrammar, GrammarError> {
        match &self.shape.otherwise {
            Otherwise::Json(answer) => Ok(json_grammar(self.or_json(schema::digestible(answer)?))),
            Otherwise::Nothing | Otherwise::Text => Ok(TopLevelGrammar::from_lark(self.lark())),
        }
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

pub(super) fn of_tool(tool: &str, error: GrammarError) -> GrammarError {
    GrammarError::Tool { tool: tool.to_owned(), error: Box::new(error) }
}

/// Returns whether the library cannot enforce a schema. A schema that nothing satisfies, or that
/// costs too much, is refused instead.
pub(super) fn may_be_relaxed(error: &GrammarError) -> bool {
    match error {
        GrammarError::Invalid { problem, .. } => {
            !problem.contains("nsatisfiable") && !problem.contains("no text satisfies")
        }
        _ => false,
    }
}

/// Leaves out the properties that the library does not take, or else everything in the schema.
/// `alone` tries a schema.
pub(super) fn reduce(
    schema: &mut Value,
    alone: impl Fn(&Value) -> Result<(), GrammarError>,
) -> Vec<LeftOut> {
    let left_out = |place: &str, keyword: &str| LeftOut {
        place: place.to_owned(),
        keyword: keyword.to_owned(),
    };
    let mut found = Vec::new();
    let named = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    if named.len() <= MAX_TRIALS {
        for (name, property) in named {
            let mut only = json!({"type": "object", "properties": {&name: property}});
            for key in ["$defs", "definitions"] {
                if let Some(definitions) = schema.get(key) {
                    only[key] = definitions.clone();
                }
            }
            if alone(&only).is_err() {
                schema["properties"][&name] = Value::Bool(true);
                found.push(left_out("#/properties", &name));
            }
        }
        if !found.is_empty() && alone(schema).is_ok() {
            return found;
        }
    }
    *schema = json!({"type": "object"});
    vec![left_out("#", "parameters")]
}
