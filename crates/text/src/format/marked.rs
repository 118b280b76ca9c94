//! Formats with tokens of their own for calls, strings and thoughts: those of Gemma 4 and of
//! FunctionGemma, which differ in how the marks are spelled, and in that only Gemma 4 thinks.
//!
//! A reply of Gemma 4 has thoughts `<|channel>thought ... <channel|>`, words, and calls
//! `<|tool_call>call:NAME{key:value,...}<tool_call|>`, in any order. Keys are bare up to the colon.
//! A string stands between two tokens `<|"|>`, without any escapes: what tells its text from a mark
//! is that marks are tokens, and the words of users and models are not
//! ([`Tokenizer::guard`](crate::Tokenizer::guard)). Results follow as
//! `<|tool_response>response:NAME{...}<tool_response|>`, in the model's own turn.
//!
//! Thoughts are read by the vocabulary's marks. How tools and results get into a prompt is found by
//! trying the template ([`Trials`](crate::template::Trials)): with one that does not show them they
//! are told in words, and calls are JSON, as for models without such tokens, or stand between marks
//! all the same.

mod marks;
mod reader;
mod turns;
mod values;
mod write;

use super::seam::{Offer, ReplyFormat, ReplyReader, Written};
use crate::grammar::{GrammarSource, MarkedShape, Otherwise, ThoughtMarks};
use crate::template::{ChatTemplate, Message};
use crate::tools::{ToolChoice, ToolError, Tools};
pub(super) use marks::Marks;
use marks::Spelling;
use reader::{CallForm, MarkedReader};
use write::Results;

/// A format with marks.
#[derive(Debug)]
pub(super) struct Marked {
    marks: Marks,
    /// Where the template looks for results; `None` if it does not show tools, calls and results
    /// between the marks.
    results: Option<Results>,
}

impl Marked {
    pub(super) fn new(marks: Marks, template: Option<&ChatTemplate>) -> Self {
        let Spelling { call, result, turn, .. } = *marks.spelling;
        let results = template.map(ChatTemplate::trials).and_then(|trials| {
            let way = trials.results(call, result)?;
            Some(Results { way, want_answer: trials.wants_answer(way, turn[0]) })
        });
        Self { marks, results }
    }
}

impl ReplyFormat for Marked {
    fn write(&self, messages: Vec<Message>, offer: &Offer<'_>) -> Result<Written, ToolError> {
        match self.results {
            Some(results) => write::write(messages, offer, results),
            None => {
                let mut messages = Tools::write_calls(messages)?;
                messages.iter_mut().for_each(write::answer);
                offer.tools.declare(&mut messages, offer.choice, offer.parallel);
                Ok(Written { messages, ..Written::default() })
            }
        }
    }

    fn mended(&self, prompt: String, begins_answer: bool) -> String {
        turns::mended(prompt, self.marks.spelling.turn, begins_answer)
    }

    fn grammar(&self, offer: &Offer<'_>, answer: Option<&str>) -> Option<GrammarSource> {
        if self.results.is_none() {
            // It was told in words, and may write what it was trained to write.
            let mut told = offer.tools.grammar(offer.choice, offer.parallel, answer)?;
            if let GrammarSource::Calls { shape, .. } = &mut told {
                shape.marks = Some(self.marks.calls);
            }
            return Some(told);
        }
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

    fn reader(&self, offer: &Offer<'_>, in_thought: bool) -> Option<Box<dyn ReplyReader>> {
        let calls = match self.results {
            _ if !offer.is_open() => CallForm::None,
            Some(_) => {
                CallForm::Marked { tools: offer.tools.list().clone(), parallel: offer.parallel }
            }
            None => CallForm::Told(offer.parser()),
        };
        Some(Box::new(MarkedReader::new(self.marks, calls, in_thought)))
    }

    fn thoughts(&self) -> Option<ThoughtMarks> {
        self.marks.thoughts
    }

    fn opens_thought(&self, prompt: &[u32]) -> bool {
        let Some(ThoughtMarks { open, close }) = self.marks.thoughts else { return false };
        // What stands in earlier turns says nothing of this one.
        let is_mark = |id: &&u32| [open, close].contains(id) || self.marks.turn == Some(**id);
        prompt.iter().rev().find(is_mark) == Some(&open)
    }
}
