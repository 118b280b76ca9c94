//! Gemma 4's format: thoughts in channels, calls and strings between tokens of their own.
//!
//! A reply is `[<|channel>thought ... <channel|>]` and then words, or calls
//! `<|tool_call>call:NAME{key:value,...}<tool_call|>`. Keys are bare up to the colon. A string
//! stands between two tokens `<|"|>`, without any escapes: what tells its text from a mark is that
//! marks are tokens, and the words of users and models are not
//! ([`Tokenizer::guard`](crate::Tokenizer::guard)). Results
//! follow as `<|tool_response>response:NAME{...}<tool_response|>`, in the model's own turn.

mod marks;
mod reader;
mod values;
mod write;

use super::seam::{Offer, ReplyFormat, ReplyReader, Written};
use crate::grammar::{GrammarSource, MarkedShape, Otherwise, ThoughtMarks};
use crate::template::{ChatTemplate, Message};
use crate::tools::{ToolChoice, ToolError};
pub(super) use marks::{CALL, Marks};
use reader::Reader;

/// Gemma 4's format.
#[derive(Debug)]
pub(super) struct Gemma4 {
    marks: Marks,
    /// Whether the template shows messages of the role `tool`. Early ones know only a field
    /// `tool_responses` of the model's message.
    shows_results: bool,
}

impl Gemma4 {
    pub(super) fn new(marks: Marks, template: &ChatTemplate) -> Self {
        Self { marks, shows_results: template.shows_results() }
    }
}

impl ReplyFormat for Gemma4 {
    fn write(&self, messages: Vec<Message>, offer: &Offer<'_>) -> Result<Written, ToolError> {
        write::write(messages, offer, self.shows_results)
    }

    fn grammar(&self, offer: &Offer<'_>, answer: Option<&str>) -> Option<GrammarSource> {
        let calls = offer.tools.chosen(offer.choice);
        if calls.is_empty() {
            return None;
        }
        let shape = MarkedShape {
            marks: self.marks.calls,
            parallel: offer.parallel && !matches!(offer.choice, ToolChoice::Named(_)),
            otherwise: match (offer.choice, answer) {
                (ToolChoice::Auto, Some(schema)) => Otherwise::Json(schema.to_owned()),
                (ToolChoice::Auto, None) => Otherwise::Text,
                _ => Otherwise::Nothing,
            },
        };
        Some(GrammarSource::MarkedCalls { calls, shape })
    }

    fn reader(&self, offer: &Offer<'_>) -> Option<Box<dyn ReplyReader>> {
        let tools = if offer.is_open() { offer.tools.list().clone() } else { Default::default() };
        Some(Box::new(Reader::new(self.marks, tools, offer.parallel)))
    }

    fn thoughts(&self) -> Option<ThoughtMarks> {
        Some(self.marks.thoughts)
    }
}
