//! The form that a reply must have, as a client states it.

use super::marks::{CallMarks, MarkedShape, Otherwise};

/// The longest JSON schema in bytes.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;

/// The longest grammar or regular expression in bytes. An expression of n parts that may all be
/// empty costs n² steps, which none of the library's limits counts.
pub const MAX_GRAMMAR_BYTES: usize = 16 << 10;

/// The longest total length of a list of choices in bytes.
pub const MAX_CHOICE_BYTES: usize = 64 << 10;

/// The largest number of choices.
pub const MAX_CHOICES: usize = 4096;

/// The form that a reply must have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrammarSource {
    /// JSON that satisfies this JSON schema (draft 2020-12 and its predecessors' spellings). Keys
    /// of an object come in the order of `properties`, and no others come if the schema says
    /// nothing about others. Between elements there is at most one space, or a line break and an
    /// indent.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// Text that the regular expression matches as a whole, in the syntax of Rust's `regex` without
    /// look-around.
    Regex(String),
    /// A Lark grammar in llguidance's dialect, with a rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF, with a rule `root`. Stretches without recursion are matched
    /// greedily, like terminals of Lark.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Tool calls, as [`Tools::grammar`](crate::Tools::grammar) makes it.
    Calls {
        /// Names with the JSON schemas of their arguments. Parts of the schemas that no grammar can
        /// enforce are left out ([`Grammar::relaxed`](super::Grammar::relaxed)).
        calls: Vec<(String, String)>,
        /// The forms that a reply may have.
        shape: CallShape,
    },
    /// Tool calls between marks, from the first mark on.
    MarkedCalls {
        /// Names with the JSON schemas of their arguments, as for [`GrammarSource::Calls`].
        calls: Vec<(String, String)>,
        /// The forms that a reply may have.
        shape: MarkedShape,
    },
}

/// The forms that a reply with tool calls may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallShape {
    /// Whether the reply may also be a list of calls.
    pub parallel: bool,
    /// The tokens between which calls may also come, at the end of the words, where the model has
    /// such tokens but was told its tools in words.
    pub marks: Option<CallMarks>,
    /// The forms of a reply without calls.
    pub otherwise: Otherwise,
}

impl GrammarSource {
    /// Returns its kind, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::Gbnf(_) => "GBNF grammar",
            Self::Choice(_) => "list of choices",
            Self::Calls { .. } | Self::MarkedCalls { .. } => "tool calls",
        }
    }
}
