//! From the tokens of a reply to its parts.

use crate::format::ReplyReader;
use crate::reply::ReplyDecoder;
use crate::tools::ReplyPart;

/// Turns the tokens of one reply into thoughts, words and calls as they come, up to the first stop
/// text.
#[derive(Debug, Clone)]
pub struct ReplySplitter {
    decoder: ReplyDecoder,
    /// `None` if the reply is nothing but words.
    reader: Option<Box<dyn ReplyReader>>,
    /// The number of tokens of thoughts.
    thoughts: usize,
}

/// What a token adds to a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplyStep {
    /// The parts that are now certain.
    pub parts: Vec<ReplyPart>,
    /// The number of characters that are no longer held back because a stop text may follow. They
    /// may be held back because a call may.
    pub passed: usize,
    /// Index of the stop text that ended the reply.
    pub stopped: Option<usize>,
}

impl ReplySplitter {
    /// Creates a splitter for one reply.
    pub fn new(decoder: ReplyDecoder, reader: Option<Box<dyn ReplyReader>>) -> Self {
        Self { decoder, reader, thoughts: 0 }
    }

    /// Takes the next token.
    pub fn push(&mut self, token: u32) -> ReplyStep {
        let was_thinking = self.is_thinking();
        let step = self.step(token);
        self.thoughts += usize::from(was_thinking && self.is_thinking());
        step
    }

    fn step(&mut self, token: u32) -> ReplyStep {
        let Some(reader) = &mut self.reader else {
            let step = self.decoder.push(token);
            return self.given(step.text, step.stopped);
        };
        if reader.is_mark(token) {
            let text = self.decoder.push_mark();
            let mut step = self.given(text, None);
            step.parts.extend(self.reader.iter_mut().flat_map(|reader| reader.mark(token)));
            return step;
        }
        if !reader.takes_stops() {
            let text = self.decoder.push_unsearched(token);
            return self.given(text, None);
        }
        let step = self.decoder.push(token);
        let mut given = self.given(step.text, step.stopped);
        if step.stopped.is_some() {
            given.parts.extend(self.end());
        }
        given
    }

    /// Ends the reply, unless a stop text has.
    pub fn finish(&mut self) -> ReplyStep {
        let text = self.decoder.finish();
        let mut step = self.given(text, None);
        step.parts.extend(self.end());
        step
    }

    /// Returns the number of tokens taken.
    pub fn tokens(&self) -> usize {
        self.decoder.tokens()
    }

    /// Returns the number of tokens taken that are within thoughts, as a budget counts them: all
    /// between the marks.
    pub fn thoughts(&self) -> usize {
        self.thoughts
    }

    /// As [`ReplyDecoder::characters`].
    pub fn characters(&self) -> usize {
        self.decoder.characters()
    }

    /// Returns whether the reply has calls.
    pub fn has_calls(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.calls() > 0)
    }

    /// Returns whether the reply ended inside a call, which is not among its parts.
    pub fn is_cut(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.is_cut())
    }

    /// Returns whether nothing more can come because the reply had its one call.
    pub fn is_done(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.is_done())
    }

    fn is_thinking(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.is_thinking())
    }

    fn given(&mut self, text: String, stopped: Option<usize>) -> ReplyStep {
        let passed = text.chars().count();
        let parts = match &mut self.reader {
            Some(reader) => reader.text(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![ReplyPart::Text(text)],
        };
        ReplyStep { parts, passed, stopped }
    }

    fn end(&mut self) -> Vec<ReplyPart> {
        match self.reader.as_mut().filter(|reader| !reader.is_done()) {
            Some(reader) => reader.finish(),
            None => Vec::new(),
        }
    }
}
