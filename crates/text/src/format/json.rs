//! The format of models without tokens for calls: calls are JSON in the text, as `tools.rs` says.

use super::seam::{Offer, ReplyFormat, ReplyReader, Written};
use crate::grammar::GrammarSource;
use crate::template::Message;
use crate::tools::{CallParser, ReplyPart, ToolError, Tools};

/// Calls as JSON in the text.
#[derive(Debug)]
pub(super) struct Json;

impl ReplyFormat for Json {
    fn write(&self, messages: Vec<Message>, offer: &Offer<'_>) -> Result<Written, ToolError> {
        let mut messages = Tools::write_calls(messages)?;
        offer.tools.declare(&mut messages, offer.choice, offer.parallel);
        Ok(Written { messages, ..Written::default() })
    }

    fn grammar(&self, offer: &Offer<'_>, answer: Option<&str>) -> Option<GrammarSource> {
        offer.tools.grammar(offer.choice, offer.parallel, answer)
    }

    fn reader(&self, offer: &Offer<'_>, _: bool) -> Option<Box<dyn ReplyReader>> {
        offer.is_open().then(|| Box::new(offer.parser()) as Box<dyn ReplyReader>)
    }
}

impl ReplyReader for CallParser {
    fn text(&mut self, text: &str) -> Vec<ReplyPart> {
        self.push(text)
    }

    fn finish(&mut self) -> Vec<ReplyPart> {
        self.finish()
    }

    fn calls(&self) -> usize {
        self.calls()
    }

    fn is_cut(&self) -> bool {
        self.is_cut()
    }

    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn boxed(&self) -> Box<dyn ReplyReader> {
        Box::new(self.clone())
    }
}
