//! The tokens of the format.

use crate::grammar::{CallMarks, ThoughtMarks};
use crate::tokenizer::Tokenizer;

/// The token that opens a call.
pub(in crate::format) const CALL: &str = "<|tool_call>";

/// The tokens of the format.
#[derive(Debug, Clone, Copy)]
pub(in crate::format) struct Marks {
    pub(super) thoughts: ThoughtMarks,
    pub(super) calls: CallMarks,
    /// Around results.
    pub(super) results: [u32; 2],
}

impl Marks {
    /// Returns the tokens of a vocabulary that has all of them.
    pub(in crate::format) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let find = |name: &str| tokenizer.token_to_id(name).filter(|&id| tokenizer.is_special(id));
        Some(Self {
            thoughts: ThoughtMarks { open: find("<|channel>")?, close: find("<channel|>")? },
            calls: CallMarks {
                open: find(CALL)?,
                close: find("<tool_call|>")?,
                quote: find("<|\"|>")?,
            },
            results: [find("<|tool_response>")?, find("<tool_response|>")?],
        })
    }
}
