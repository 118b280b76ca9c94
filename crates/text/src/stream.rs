//! From tokens to text while they arrive.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;
use crate::utf8::Utf8Assembler;

/// Turns the tokens of one reply into text, as they come, in whole characters.
///
/// All pieces together equal [`Tokenizer::decode`] of all tokens.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    assembler: Utf8Assembler,
    text: String,
}

impl StreamDecoder {
    /// Returns a decoder for one sequence. With `skip_special`, control tokens give no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, assembler: Utf8Assembler::default(), text: String::new() }
    }

    /// Returns the characters that `id` completes: often one word, and nothing while a character
    /// still lacks bytes.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if !(self.skip_special && self.tokenizer.is_special(id)) {
            let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
            self.assembler.push(&bytes, &mut self.text);
        }
        &self.text
    }

    /// Ends the sequence: returns U+FFFD if a character is left incomplete. The decoder is then
    /// ready for another sequence.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.assembler.finish(&mut self.text);
        &self.text
    }
}
