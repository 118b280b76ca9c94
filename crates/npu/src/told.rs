//! Texts from outside, such as names in files, in messages.

use std::borrow::Cow;

/// The most characters of a text that a message has.
pub const TOLD_MAX: usize = 400;

/// Makes a text fit for a message: on one line, without anything that a terminal would obey, and
/// cut after [`TOLD_MAX`] characters. Control characters and those that turn the direction of
/// writing become escapes.
///
/// ```
/// assert_eq!(trine_npu::told("a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
/// ```
#[must_use]
pub fn told(text: &str) -> Cow<'_, str> {
    let is_short = text.len() <= TOLD_MAX || text.chars().nth(TOLD_MAX).is_none();
    if is_short && !text.contains(is_harmful) {
        return text.into();
    }
    let mut told = String::new();
    for character in text.chars().take(TOLD_MAX) {
        if is_harmful(character) {
            told.extend(character.escape_default());
        } else {
            told.push(character);
        }
    }
    if !is_short {
        told.push_str(&format!("... (cut: {} bytes in all)", text.len()));
    }
    told.into()
}

/// Returns whether a character controls the terminal or the direction of writing, or breaks lines.
fn is_harmful(character: char) -> bool {
    let turns = matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(told("plain ünïcode 'x' \\"), "plain ünïcode 'x' \\");
        assert_eq!(told("a\u{1b}[2J\nerror: b\u{9b}\u{202e}c\t"), {
            "a\\u{1b}[2J\\nerror: b\\u{9b}\\u{202e}c\\t"
        });
    }

    #[test]
    fn long_texts_are_cut() {
        let whole = "ü".repeat(TOLD_MAX);
        assert_eq!(told(&whole), whole);
        let cut = told(&"\0".repeat(900_000)).into_owned();
        assert!(cut.len() < 10 * TOLD_MAX && cut.ends_with("(cut: 900000 bytes in all)"), "{cut}");
        assert!(told(&format!("{whole}x")).ends_with("(cut: 801 bytes in all)"));
    }
}
