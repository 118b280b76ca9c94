//! Grammars of calls between marks.

mod lark;
mod merge;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use super::calls::{Tools, may_be_relaxed, of_tool, read_tools, reduce};
use super::compiled::Relaxed;
use super::error::GrammarError;
use super::library::with_options;
use super::marks::{MarkedShape, Otherwise};
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

    /// Returns the result of `start` on the grammar. If the library refuses the grammar, finds the
    /// tools at fault and also leaves out those parts of their schemas that it does not take.
    pub(super) fn compile<T>(
        mut self,
        start: impl Fn(TopLevelGrammar) -> Result<T, GrammarError>,
    ) -> Result<(T, Vec<Relaxed>), GrammarError> {
        let whole = match self.grammar().and_then(|(grammar, notes)| Ok((start(grammar)?, notes))) {
            Ok((whole, notes)) => {
                self.relaxed.extend(notes);
                return Ok((whole, self.relaxed));
            }
            Err(error) => error,
        };
        let mut found = false;
        let shape = self.shape;
        for (name, schema) in &mut self.tools {
            let alone = |schema: &Value| {
                let mut lark = Writer::new(shape.marks);
                lark.call(0, name, schema)?;
                start(TopLevelGrammar::from_lark(lark.finish("start: call0\n"))).map(drop)
            };
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
        let (grammar, notes) = self.grammar()?;
        self.relaxed.extend(notes);
        Ok((start(grammar)?, self.relaxed))
    }

    /// Returns the grammar, and what it does not enforce.
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
}
