//! From bytes to characters while they arrive.

/// Joins bytes to whole characters. Bytes that can still become a character are held back (at most
/// three); those that no longer can become U+FFFD.
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

    /// Ends the text: a character that was begun and not completed becomes U+FFFD.
    pub(crate) fn finish(&mut self, text: &mut String) {
        if !self.held.is_empty() {
            self.held.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}
