//! The parts of a reply.

/// A call that a model made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Its place among the calls of the reply, from 0.
    pub index: usize,
    /// The tool's name, which is among those declared.
    pub name: String,
    /// The arguments: the text of a JSON object as the model wrote it.
    pub arguments: String,
    /// Why the arguments do not satisfy the tool's schema, or why that cannot be decided. It names
    /// places and keywords, but no values.
    pub problem: Option<String>,
}

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyPart {
    /// Words for the reader; never empty.
    Text(String),
    /// What the model thinks before it answers; never empty.
    Thought(String),
    /// A whole call.
    Call(ToolCall),
}
