//! Patterns of the names of properties.

use std::collections::HashMap;
use std::rc::Rc;

use llguidance::regex_to_lark;
use serde_json::Value;

use super::texts::anchored;
use crate::validation::Expression;

/// The work for a byte of a name that is compared with a pattern: it may lead through all states of
/// the compiled pattern.
const BYTE_WORK: usize = 32;

/// A pattern of `patternProperties`.
pub(super) struct Pattern<'a> {
    pub(super) names: Rc<Names>,
    /// The schema of the values.
    pub(super) schema: &'a Value,
}

/// The names that a pattern is found in.
pub(super) struct Names {
    /// A terminal for whole names.
    pub(super) terminal: String,
    /// `None` if the library that compares names does not take the pattern.
    expression: Option<Expression>,
}

impl Names {
    /// Returns whether names can be compared with the pattern.
    pub(super) fn is_comparable(&self) -> bool {
        self.expression.is_some()
    }

    /// Returns whether the pattern is known to be found in a name.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.expression.as_ref().is_some_and(|expression| expression.is_in(name))
    }
}

/// Returns the work for comparing all names with all patterns.
pub(super) fn comparison_work(names: &[&str], patterns: &[Pattern<'_>]) -> usize {
    let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
    bytes * patterns.len() * BYTE_WORK
}

/// The patterns of a tool's schema by their text. Each is compiled once, however many names and
/// alternatives the schema has.
#[derive(Default)]
pub(super) struct Patterns {
    known: HashMap<String, Option<Rc<Names>>>,
}

impl Patterns {
    /// Returns the names that a pattern is found in; `None` if no terminal can hold them.
    pub(super) fn names(&mut self, source: &str) -> Option<Rc<Names>> {
        if let Some(names) = self.known.get(source) {
            return names.clone();
        }
        let names = anchored(source).map(|whole| {
            let terminal = format!("/{}/", regex_to_lark(&whole, "dw"));
            Rc::new(Names { terminal, expression: Expression::new(source) })
        });
        self.known.insert(source.to_owned(), names.clone());
        names
    }
}
