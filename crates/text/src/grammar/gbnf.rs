//! llama.cpp's GBNF grammars, parsed here and passed to the library as Lark.
//!
//! The syntax is that of llama.cpp's `grammars/README.md`: rules `name ::= ...` from a rule `root`,
//! literals, classes of characters, `.`, groups, `|`, and the repetitions `*`, `+`, `?`, `{m}`,
//! `{m,}`, `{m,n}`. Tokens (`<...>`) are refused.

mod lark;
mod linear;
mod parse;

use std::collections::HashMap;

use super::error::GrammarError;
pub(super) use lark::to_lark;

const KIND: &str = "GBNF grammar";

/// The most rules. The library recurses once for each rule of a chain.
const MAX_RULES: usize = 2048;

/// The deepest nesting of groups. Lark's own limit is 30.
const MAX_DEPTH: usize = 20;

/// The largest count of a repetition: the compiled grammar spells out the required ones.
const MAX_REPEAT: u32 = 10_000;

/// A part of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// Text as it is.
    Literal(String),
    /// A class of characters, as a regular expression.
    Class(String),
    /// Another rule, by index.
    Rule(usize),
    /// Several nodes, one after the other.
    Sequence(Vec<Node>),
    /// One of several nodes.
    Choice(Vec<Node>),
    /// Repeated at least and at most this often; `None` for no limit.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// A parsed grammar.
struct Rules {
    /// The rules by index; `None` until defined.
    bodies: Vec<Option<Node>>,
    /// The name and the line of the first mention.
    names: Vec<(String, usize)>,
    index: HashMap<String, usize>,
}

impl Node {
    /// Calls `visit` with every mentioned rule.
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

    /// Returns whether some text satisfies it, given the rules for which some text does.
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
    /// Returns the index of a rule by name; a mention makes it known.
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
