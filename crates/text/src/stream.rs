//! Tokens to text while they arrive.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Joins bytes to whole characters. What can still become a character is held
/// back (at most three bytes); what no longer can becomes U+FFFD.
#[derive(Debug, Default, Clone)]
pub(crate) struct Utf8Assembler {
    held: Vec<u8>,
}

impl Utf8Assembler {
    /// Takes `bytes` and appends every character that is complete to `text`.
    pub(crate) fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut rest = &self.held[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(invalid) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[invalid..];
                }
            }
        }
        let kept = rest.len();
        self.held.drain(..self.held.len() - kept);
    }

    /// Ends the text: a character begun and not completed becomes U+FFFD.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

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
    /// A decoder for one sequence. With `skip_special`, control tokens give no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, assembler: Utf8Assembler::default(), text: String::new() }
    }

    /// The characters that `id` completes: often one word, and nothing while a
    /// character is still missing bytes.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if !(self.skip_special && self.tokenizer.is_special(id)) {
            let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
            self.assembler.push(&bytes, &mut self.text);
        }
        &self.text
    }

    /// Ends the sequence: U+FFFD if a character is left incomplete. The
    /// decoder is then ready for another sequence.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        self.assembler.finish(&mut self.text);
        &self.text
    }
}
