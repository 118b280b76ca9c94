//! From the tokens of a reply to its text, up to a stop text.

use std::sync::Arc;

use crate::stop::{StopMatcher, StopStep};
use crate::stream::StreamDecoder;
use crate::tokenizer::Tokenizer;

/// Which of a reply's tokens become text, and where the text ends.
#[derive(Debug, Clone, Default)]
pub struct ReplyOptions {
    /// Texts that end the reply.
    pub stops: Vec<String>,
    /// Whether the stop text that ends the reply belongs to it.
    pub include_stop: bool,
    /// Number of tokens at the beginning whose text is not searched for stop texts.
    pub min_tokens: usize,
    /// Whether control tokens are left out of the text.
    pub skip_special: bool,
}

/// Turns the tokens of one reply into text as they come, in whole characters, up to the first stop
/// text.
///
/// Text that may be the beginning of a stop text is held back until it is known.
#[derive(Debug, Clone)]
pub struct ReplyDecoder {
    stream: StreamDecoder,
    matcher: StopMatcher,
    options: ReplyOptions,
    tokens: usize,
    characters: usize,
}

impl ReplyDecoder {
    /// Creates a decoder for one reply.
    pub fn new(tokenizer: Arc<Tokenizer>, options: ReplyOptions) -> Self {
        Self {
            stream: StreamDecoder::new(tokenizer, options.skip_special),
            matcher: StopMatcher::new(&options.stops),
            options,
            tokens: 0,
            characters: 0,
        }
    }

    /// Takes the next token.
    ///
    /// Returns the text that belongs to the reply for certain, and the index in
    /// [`ReplyOptions::stops`] of the stop text that ended the reply, if one has.
    pub fn push(&mut self, token: u32) -> StopStep {
        self.tokens += 1;
        let text = self.stream.push(token);
        self.characters += text.chars().count();
        if self.tokens <= self.options.min_tokens {
            return StopStep { text: text.to_owned(), stopped: None };
        }
        let mut step = self.matcher.push(text);
        if let Some(stop) = step.stopped.filter(|_| self.options.include_stop) {
            step.text.push_str(&self.options.stops[stop]);
        }
        step
    }

    /// Takes a token whose text no stop text is searched in, such as one of a thought or a call.
    /// Returns the text that it completes, after what was held back.
    pub fn push_unsearched(&mut self, token: u32) -> String {
        let mut text = self.matcher.finish();
        self.tokens += 1;
        let more = self.stream.push(token);
        self.characters += more.chars().count();
        text.push_str(more);
        text
    }

    /// Takes a token that stands for no text, and at which no stop text can go on. Returns the text
    /// that was held back, as [`ReplyDecoder::finish`] does.
    pub fn push_mark(&mut self) -> String {
        self.tokens += 1;
        let incomplete = self.stream.finish();
        self.characters += incomplete.chars().count();
        let mut rest = self.matcher.push(incomplete).text;
        rest.push_str(&self.matcher.finish());
        rest
    }

    /// Ends the reply. Returns the text that was held back, with U+FFFD for a character that is
    /// left incomplete.
    pub fn finish(&mut self) -> String {
        let mut text = self.matcher.push(self.stream.finish()).text;
        text.push_str(&self.matcher.finish());
        text
    }

    /// Returns the number of tokens taken.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the number of characters that the tokens taken have completed, including those held
    /// back. The text of the next token begins there.
    pub fn characters(&self) -> usize {
        self.characters
    }
}
