//! Grammars of calls between marks.

mod lark;
mod merge;
mod texts;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use super::compiled::Relaxed;
use super::error::GrammarError;
use super::library::with_options;
use super::marks::{MarkedShape, Otherwise};
use super::relaxing::{Relaxable, Tools, of_tool, read_tools};
use super::schema;
use lark::Writer;

/// Tools that are called between marks.
pub(super) struct MarkedCalls<'a> {
    tools: Tools<'a>,
    shape: &'a MarkedShape,
    relaxed: Vec<Relaxed>,
}

impl<'a> MarkedCalls<'a> {
    /// Reads names with schemas as text.
    pub(super) fn read(
        calls: &'a [(String, String)],
        shape: &'a MarkedShape,
    ) -> Result<Self, GrammarError> {
        let (tools, relaxed) = read_tools(calls)?;
        Ok(Self { tools, shape, relaxed })
    }
}

impl<'a> Relaxable<'a> for MarkedCalls<'a> {
    fn parts(&mut self) -> (&mut Tools<'a>, &mut Vec<Relaxed>) {
        (&mut self.tools, &mut self.relaxed)
    }

    fn grammar(&self) -> Result<(TopLevelGrammar, Vec<Relaxed>), GrammarError> {
        let mut lark = Writer::new(self.shape.marks);
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
        let mut lark = Writer::new(self.shape.marks);
        lark.call(0, name, schema)?;
        Ok(TopLevelGrammar::from_lark(lark.finish("start: call0\n")))
    }
}
