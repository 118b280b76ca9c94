//! What grammars of calls share: schemas that a grammar cannot hold as a whole lose what it cannot.

use std::cmp::Reverse;

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::compiled::Relaxed;
use super::error::GrammarError;
use super::schema::{self, LeftOut};

/// The most parts of one tool's schema that are tried separately if the library does not take the
/// whole.
const MAX_TRIALS: usize = 64;

/// Names of tools with those parts of their schemas that a grammar can enforce.
pub(super) type ToolSchemas<'a> = Vec<(&'a str, Value)>;

/// Reads names with schemas as text; returns the tools and what their schemas lost. One that cannot
/// be read, or costs too much, loses everything.
pub(super) fn read_tools(calls: &[(String, String)]) -> (ToolSchemas<'_>, Vec<Relaxed>) {
    let (mut tools, mut relaxed) = (Vec::with_capacity(calls.len()), Vec::new());
    for (name, text) in calls {
        let (schema, left_out) =
            schema::relaxed(text).unwrap_or_else(|_| (anything(), all_of_it()));
        let left_out = left_out.into_iter();
        relaxed.extend(left_out.map(|left_out| Relaxed { tool: name.clone(), left_out }));
        tools.push((name.as_str(), schema));
    }
    (tools, relaxed)
}

/// Returns the schema of arguments of which nothing is known.
fn anything() -> Value {
    json!({"type": "object"})
}

fn all_of_it() -> Vec<LeftOut> {
    vec![LeftOut { place: "#".to_owned(), keyword: "parameters".to_owned() }]
}

/// A grammar of calls that may have to do without parts of the tools' schemas.
pub(super) trait Relaxable<'a>: Sized {
    /// Returns the tools, and what their schemas have lost so far.
    fn parts(&mut self) -> (&mut ToolSchemas<'a>, &mut Vec<Relaxed>);

    /// Returns the grammar, and what it does not hold besides.
    ///
    /// # Errors
    /// If a schema cannot be written.
    fn grammar(&self) -> Result<(TopLevelGrammar, Vec<Relaxed>), GrammarError>;

    /// Returns the grammar of calls of one tool only.
    ///
    /// # Errors
    /// If the schema cannot be written.
    fn alone(&self, name: &str, schema: &Value) -> Result<TopLevelGrammar, GrammarError>;

    /// Returns the result of `start` on the grammar, and what it does not hold. If the library
    /// refuses the grammar, finds the tools at fault and also leaves out those parts of their
    /// schemas that it does not take; if none is, those of the largest schemas.
    ///
    /// # Errors
    /// The error of `start`, if it is not one of the schemas.
    fn compile<T>(
        mut self,
        start: impl Fn(TopLevelGrammar) -> Result<T, GrammarError>,
    ) -> Result<(T, Vec<Relaxed>), GrammarError> {
        let begin = |own: &Self| {
            let (grammar, notes) = own.grammar()?;
            Ok((start(grammar)?, notes))
        };
        let begun = loop {
            match begin(&self) {
                Ok(begun) => break begun,
                Err(error) if !is_of_schemas(&error) => return Err(error),
                Err(error) => {
                    if !self.leave_out(&start)? && !self.leave_out_largest() {
                        return Err(error);
                    }
                }
            }
        };
        let mut relaxed = std::mem::take(self.parts().1);
        relaxed.extend(begun.1);
        Ok((begun.0, relaxed))
    }

    /// Leaves out what the library does not take of the tools at fault. Returns whether there are
    /// any.
    fn leave_out<T>(
        &mut self,
        start: &impl Fn(TopLevelGrammar) -> Result<T, GrammarError>,
    ) -> Result<bool, GrammarError> {
        let mut found = false;
        for index in 0..self.parts().0.len() {
            let (name, mut schema) = self.parts().0[index].clone();
            let alone = |schema: &Value| start(self.alone(name, schema)?).map(drop);
            let Err(error) = alone(&schema) else { continue };
            if schema == anything() || !is_of_schemas(&error) {
                return Err(of_tool(name, error));
            }
            found = true;
            let left_out = reduce(&mut schema, alone).into_iter();
            let lost = left_out.map(|left_out| Relaxed { tool: name.to_owned(), left_out });
            let (tools, relaxed) = self.parts();
            relaxed.extend(lost);
            tools[index].1 = schema;
        }
        Ok(found)
    }

    /// Leaves out everything of the largest schemas, until half of the text of all is left. Returns
    /// whether there was something to leave out.
    fn leave_out_largest(&mut self) -> bool {
        let (tools, relaxed) = self.parts();
        let bytes = |schema: &Value| schema.to_string().len();
        let mut sizes: Vec<(usize, usize)> =
            tools.iter().map(|(_, schema)| bytes(schema)).zip(0..).collect();
        sizes.sort_unstable_by_key(|&(size, index)| (Reverse(size), index));
        let all: usize = sizes.iter().map(|&(size, _)| size).sum();
        let (mut left, mut found) = (all, false);
        for (size, index) in sizes {
            let (name, schema) = &mut tools[index];
            if 2 * left <= all || *schema == anything() {
                break;
            }
            left -= size;
            found = true;
            *schema = anything();
            let lost = all_of_it().into_iter();
            relaxed.extend(lost.map(|left_out| Relaxed { tool: (*name).to_owned(), left_out }));
        }
        found
    }
}

pub(super) fn of_tool(tool: &str, error: GrammarError) -> GrammarError {
    GrammarError::Tool { tool: tool.to_owned(), error: Box::new(error) }
}

/// Returns whether an error is one of schemas: nothing satisfies one, the library cannot enforce
/// it, or it costs too much.
fn is_of_schemas(error: &GrammarError) -> bool {
    match error {
        GrammarError::Tool { error, .. } => is_of_schemas(error),
        error => matches!(
            error,
            GrammarError::Invalid { .. }
                | GrammarError::TooLarge { .. }
                | GrammarError::TooMuchWork { .. }
        ),
    }
}

/// Leaves out the properties that the library does not take, or else everything in the schema.
/// `alone` tries a schema.
fn reduce(schema: &mut Value, alone: impl Fn(&Value) -> Result<(), GrammarError>) -> Vec<LeftOut> {
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
    *schema = anything();
    all_of_it()
}
