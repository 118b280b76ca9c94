//! Grammars of calls between marks.

mod keywords;
mod lark;
mod merge;
mod patterns;
mod texts;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use super::compiled::Relaxed;
use super::error::GrammarError;
use super::library::with_options;
use super::marks::{MarkedShape, Otherwise};
use super::relaxing::{Relaxable, ToolSchemas, of_tool, read_tools};
use super::schema;
pub(super) use lark::LarkWriter;

/// Tools that are called between marks.
pub(super) struct MarkedCalls<'a> {
    tools: ToolSchemas<'a>,
    shape: &'a MarkedShape,
    relaxed: Vec<Relaxed>,
}

impl<'a> MarkedCalls<'a> {
    /// Reads names with schemas as text.
    pub(super) fn read(
        calls: &'a [(String, String)],
        shape: &'a MarkedShape,
    ) -> Result<Self, GrammarError> {
        let (tools, relaxed) = read_tools(calls);
        Ok(Self { tools, shape, relaxed })
    }
}

impl<'a> Relaxable<'a> for MarkedCalls<'a> {
    fn parts(&mut self) -> (&mut ToolSchemas<'a>, &mut Vec<Relaxed>) {
        (&mut self.tools, &mut self.relaxed)
    }

    fn grammar(&self) -> Result<(TopLevelGrammar, Vec<Relaxed>), GrammarError> {
        let mut lark = LarkWriter::new(self.shape.marks);
        let mut notes = Vec::new();
        for (index, (name, schema)) in self.tools.iter().enumerate() {
            lark.call(index, name, schema).map_err(|error| of_tool(name, error))?;
            let left_out = lark.take_left_out().into_iter();
            notes.extend(left_out.map(|left_out| Relaxed { tool: (*name).to_owned(), left_out }));
        }
        let names: Vec<String> =
            (0..self.tools.len()).map(|index| format!("call{index}")).collect();
        let several = if self.shape.parallel { "+" } else { "" };
        let mut head = format!("start: call{several}");
        if let Otherwise::Json(answer) = &self.shape.otherwise {
            let answer = with_options(schema::digestible(answer)?);
            head.push_str(&format!(" | answer\nanswer: %json {answer}"));
        }
        head.push_str(&format!("\ncall: {}\n", names.join(" | ")));
        Ok((TopLevelGrammar::from_lark(lark.finish(&head)), notes))
    }

    fn alone(&self, name: &str, schema: &Value) -> Result<TopLevelGrammar, GrammarError> {
        let mut lark = LarkWriter::new(self.shape.marks);
        lark.call(0, name, schema)?;
        Ok(TopLevelGrammar::from_lark(lark.finish("start: call0\n")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::super::marks::CallMarks;
    use super::*;
    use crate::validation::COMPILED;

    /// Returns a schema that requires `names` names beside 16 patterns.
    fn named(names: usize) -> Value {
        let pattern =
            |index: u8| (format!("^{}", char::from(b'a' + index)), json!({"type": "integer"}));
        let patterns: Map<String, Value> = (0..16).map(pattern).collect();
        let names: Vec<String> = (0..names).map(|index| format!("a{index}")).collect();
        json!({"type": "object", "required": names, "patternProperties": patterns})
    }

    fn written(schema: &Value) -> Result<(), GrammarError> {
        let (schema, left_out) = schema::relaxed(&schema.to_string())?;
        assert!(left_out.is_empty(), "{left_out:?}");
        LarkWriter::new(CallMarks { open: 1, close: 2, quote: 3 }).call(0, "f", &schema)
    }

    #[test]
    fn patterns_are_compiled_once_for_all_names_and_alternatives() {
        let mut either = named(20);
        either["anyOf"] = json!([{"required": ["b"]}, {"required": ["c"]}]);
        for schema in [named(500), either] {
            let before = COMPILED.get();
            written(&schema).unwrap();
            assert_eq!(COMPILED.get() - before, 16);
        }
    }

    #[test]
    fn names_and_patterns_are_limited() {
        let problem = written(&named(5001)).unwrap_err().to_string();
        assert!(problem.contains("required names exceeds the limit of 5000"), "{problem}");
        let problem = written(&named(2000)).unwrap_err().to_string();
        assert!(problem.contains("names and patterns"), "{problem}");
    }
}
