//! What a reply must look like, as whoever wants it says it.

/// Longest JSON schema in bytes.
pub const MAX_SCHEMA_BYTES: usize = 256 << 10;

/// Longest grammar or regular expression in bytes. An expression of n parts that may all be empty costs n² steps, which
/// none of the library's limits counts.
pub const MAX_GRAMMAR_BYTES: usize = 16 << 10;

/// Longest total length of a list of choices in bytes.
pub const MAX_CHOICE_BYTES: usize = 64 << 10;

/// Largest number of choices.
pub const MAX_CHOICES: usize = 4096;

/// What a reply must look like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GrammarSource {
    /// JSON that satisfies this JSON schema (draft 2020-12 and its predecessors' spellings). Keys of an object come in the order
    /// of `properties`, and no others where it says nothing of others. Between elements there is at most one space, or a line
    /// break and an indent.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// Text that the regular expression matches as a whole, in the syntax of Rust's `regex` without look-around.
    Regex(String),
    /// A Lark grammar in llguidance's dialect, with a rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF, with a rule `root`. Stretches without recursion are matched greedily, as
    /// terminals of Lark are.
    Gbnf(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// Tool calls, as [`Tools::grammar`](crate::Tools::grammar) makes it.
    Calls {
        /// Names with the JSON schemas of their arguments. What no grammar holds is left out of those ([`Grammar::relaxed`](crate::Grammar::relaxed)).
        calls: Vec<(String, String)>,
        /// What a reply may be.
        shape: CallShape,
    },
}

/// What a reply with tool calls may be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CallShape {
    /// A list of calls too, not only one.
    pub parallel: bool,
    /// What else.
    pub otherwise: Otherwise,
}

/// What a reply may be beside tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Otherwise {
    /// Nothing: it is a call.
    Nothing,
    /// Text that does not begin as a call does.
    Text,
    /// JSON that satisfies this schema.
    Json(String),
}

impl GrammarSource {
    /// What it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::Gbnf(_) => "GBNF grammar",
            Self::Choice(_) => "list of choices",
            Self::Calls { .. } => "tool calls",
        }
    }
}
