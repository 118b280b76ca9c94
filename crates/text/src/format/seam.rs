//! What differs between families: the traits.

use serde_json::{Map, Value};

use crate::grammar::{GrammarSource, ThoughtMarks};
use crate::template::Message;
use crate::tools::{CallParser, ReplyPart, ToolChoice, ToolError, Tools};

/// The tools of a request, and how they may be called.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// The tools; may be empty.
    pub tools: &'a Tools,
    /// Whether one has to be called, and which.
    pub choice: &'a ToolChoice,
    /// Whether a reply may have several calls.
    pub parallel: bool,
}

impl Offer<'_> {
    /// Returns whether a tool may be called.
    pub fn is_open(&self) -> bool {
        !self.tools.is_empty() && *self.choice != ToolChoice::None
    }

    /// Returns a parser of calls that are JSON in the text.
    pub(super) fn parser(&self) -> CallParser {
        let parser = self.tools.parser(self.parallel);
        match self.choice {
            ToolChoice::Required | ToolChoice::Named(_) => parser.only_calls(),
            ToolChoice::Auto | ToolChoice::None => parser,
        }
    }
}

/// A conversation as a template takes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    /// The messages. Nothing in them is marked as untrusted.
    pub messages: Vec<Message>,
    /// Variables of the template, which are not marked either.
    pub variables: Map<String, Value>,
    /// What the template leaves out of the tools, in words.
    pub left_out: Vec<String>,
}

/// How a family of models writes conversations and replies.
pub trait ReplyFormat: std::fmt::Debug + Send + Sync {
    /// Writes tools, calls and results of a conversation for the model's template.
    ///
    /// # Errors
    /// The errors of [`Tools::check_calls`].
    fn write(&self, messages: Vec<Message>, offer: &Offer<'_>) -> Result<Written, ToolError>;

    /// Returns the grammar of a reply's calls, and of what may stand in their place: JSON that
    /// satisfies the schema `answer`, or any words. Returns `None` if no tool may be called.
    fn grammar(&self, offer: &Offer<'_>, answer: Option<&str>) -> Option<GrammarSource>;

    /// Returns a rendered prompt as the model needs it, all of whose words are in turns. With
    /// `begins_answer` it ends in the model's turn.
    fn mended(&self, prompt: String, _begins_answer: bool) -> String {
        prompt
    }

    /// Returns a reader of one reply; `None` if a reply is nothing but words. With `in_thought` the
    /// prompt has opened a thought ([`ReplyFormat::opens_thought`]).
    fn reader(&self, offer: &Offer<'_>, in_thought: bool) -> Option<Box<dyn ReplyReader>>;

    /// Returns the tokens around a thought, if the model can think before it answers.
    fn thoughts(&self) -> Option<ThoughtMarks> {
        None
    }

    /// Returns whether a prompt ends in a thought: templates may open one in the model's turn.
    fn opens_thought(&self, _prompt: &[u32]) -> bool {
        false
    }
}

/// Splits one reply into parts while it arrives, wherever its pieces are cut.
pub trait ReplyReader: std::fmt::Debug + Send + Sync {
    /// Returns whether a token is a mark of the format, which has no text.
    fn is_mark(&self, _token: u32) -> bool {
        false
    }

    /// Returns whether stop texts count at the present place: not in thoughts and calls.
    fn takes_stops(&self) -> bool {
        true
    }

    /// Returns whether the reply is in a thought.
    fn is_thinking(&self) -> bool {
        false
    }

    /// Takes the next text, and returns the parts that are now certain.
    fn text(&mut self, text: &str) -> Vec<ReplyPart>;

    /// Takes a mark, and returns the parts that are now certain.
    fn mark(&mut self, _token: u32) -> Vec<ReplyPart> {
        Vec::new()
    }

    /// Ends the reply: text that was held back is now a part or nothing. A call that has begun and
    /// is not complete is nothing, see [`ReplyReader::is_cut`].
    fn finish(&mut self) -> Vec<ReplyPart>;

    /// Returns the number of calls found.
    fn calls(&self) -> usize;

    /// Returns whether the reply ended inside a call, which is not among the parts.
    fn is_cut(&self) -> bool;

    /// Returns whether nothing more can come because the reply had its one call. Generation may
    /// stop.
    fn is_done(&self) -> bool;

    /// Returns a copy.
    fn boxed(&self) -> Box<dyn ReplyReader>;
}

impl Clone for Box<dyn ReplyReader> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

/// Appends a part, joining texts and thoughts with those before them. Empty ones add nothing.
pub(super) fn add(parts: &mut Vec<ReplyPart>, part: ReplyPart) {
    match (parts.last_mut(), part) {
        (_, ReplyPart::Text(text) | ReplyPart::Thought(text)) if text.is_empty() => {}
        (Some(ReplyPart::Text(last)), ReplyPart::Text(text))
        | (Some(ReplyPart::Thought(last)), ReplyPart::Thought(text)) => last.push_str(&text),
        (_, part) => parts.push(part),
    }
}
