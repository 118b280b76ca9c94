//! The purposes of tokens.

/// The purpose of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The id has no token.
    Absent,
    /// A piece that merging produces.
    Normal,
    /// A piece that is cut out of every text before merging (newline runs, tags).
    UserDefined,
    /// A control token. It is cut out only of text that the caller trusts, and hidden by
    /// `skip_special`.
    Special,
    /// The token for text that the vocabulary cannot spell.
    Unknown,
    /// One raw byte.
    Byte(u8),
}

/// A token of Gemma 4's vocabularies that is ordinary text there. Early files type it as a control
/// token or list it as an end.
pub(crate) const NOT_CONTROL: &[u8] = b"</s>";

/// Returns the byte that `<0xAB>` stands for.
pub(crate) fn spelled_byte(spelled: &[u8]) -> Option<u8> {
    let digits = spelled.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    if digits.len() != 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_pieces_are_recognised_by_spelling() {
        assert_eq!(spelled_byte(b"<0x0A>"), Some(10));
        assert_eq!(spelled_byte(b"<0xff>"), Some(255));
        for other in [&b"<0x+1>"[..], b"<0x1>", b"<0x001>", b"0x0A", b""] {
            assert_eq!(spelled_byte(other), None);
        }
    }
}
