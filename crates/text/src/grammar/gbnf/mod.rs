//! llama.cpp's GBNF grammars, read here and handed to the library as Lark.
//!
//! The syntax is that of llama.cpp's `grammars/README.md`: rules `name ::= ...` from a rule `root`, literals, classes
//! of characters, `.`, groups, `|`, and the repetitions `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`. Tokens (`<...>`) are refused.

mod lark;
mod parse;

use std::collections::HashMap;

use super::error::GrammarError;
pub(super) use lark::to_lark;

const KIND: &str = "GBNF grammar";

/// Most rules. The library recurses once for each rule of a chain.
const MAX_RULES: usize = 2048;

/// Deepest nesting of groups. Lark's own limit is 30.
const MAX_DEPTH: usize = 20;

/// Largest count of a repetition: what must be there is spelled out by the compiled grammar.
const MAX_REPEAT: u32 = 10_000;

/// What a rule may consist of.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// Text as it is.
    Literal(String),
    /// A class of characters, as a regular expression.
    Class(String),
    /// Another rule, by index.
    Rule(usize),
    /// One after the other.
    Sequence(Vec<Node>),
    /// One of them.
    Choice(Vec<Node>),
    /// Repeated at least and at most as often; `None` is without end.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// A parsed grammar.
struct Rules {
    /// By index; `None` until defined.
    bodies: Vec<Option<Node>>,
    /// Name and line of the first mention.
    names: Vec<(String, usize)>,
    index: HashMap<String, usize>,
}

impl Node {
    /// Calls `visit` with every rule that is mentioned.
    fn mentions(&self, visit: &mut impl FnMut(usize)) {
        match self {
            Self::Rule(rule) => visit(*rule),
            Self::Literal(_) | Self::Class(_) => {}
            Self::Sequence(nodes) | Self::Choice(nodes) => {
                nodes.iter().for_each(|node| node.mentions(visit))
            }
            Self::Repeat(node, _, _) => node.mentions(visit),
        }
    }

    /// Whether some text satisfies it, given for which rules one does.
    fn is_productive(&self, rules: &[bool]) -> bool {
        match self {
            Self::Rule(rule) => rules[*rule],
            Self::Literal(_) | Self::Class(_) => true,
            Self::Sequence(nodes) => nodes.iter().all(|node| node.is_productive(rules)),
            Self::Choice(nodes) => nodes.iter().any(|node| node.is_productive(rules)),
            Self::Repeat(node, least, _) => *least == 0 || node.is_productive(rules),
        }
    }
}

impl Rules {
    /// The index of a rule by name; a mention makes it known.
    fn rule(&mut self, name: &str, line: usize) -> Result<usize, GrammarError> {
        if let Some(&index) = self.index.get(name) {
            return Ok(index);
        }
        if self.names.len() == MAX_RULES {
            return Err(GrammarError::too_large(KIND, "the number of rules", MAX_RULES as u64));
        }
        self.index.insert(name.to_owned(), self.names.len());
        self.names.push((name.to_owned(), line));
        self.bodies.push(None);
        Ok(self.names.len() - 1)
    }
}
