//! Texts from outside, such as names in files, in messages.

use std::borrow::Cow;

use trine_foreign::is_misleading;

/// The most characters of a text that a message has.
pub const TOLD_MAX: usize = 400;

/// Makes a text fit for a message: on one line, without anything that a terminal would obey, and
/// cut after [`TOLD_MAX`] characters. [Misleading](trine_foreign::is_misleading) characters become
/// escapes, which show what a file has there.
///
/// ```
/// assert_eq!(trine_npu::harmless("a\u{1b}[31m\nb"), "a\\u{1b}[31m\\nb");
/// ```
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_short = text.len() <= TOLD_MAX || text.chars().nth(TOLD_MAX).is_none();
    if is_short && !text.contains(is_misleading) {
        return text.into();
    }
    let mut harmless = String::new();
    for character in text.chars().take(TOLD_MAX) {
        if is_misleading(character) {
            harmless.extend(character.escape_default());
        } else {
            harmless.push(character);
        }
    }
    if !is_short {
        harmless.push_str(&format!("... (cut: {} bytes in all)", text.len()));
    }
    harmless.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(harmless("plain ünïcode 'x' \\"), "plain ünïcode 'x' \\");
        assert_eq!(harmless("a\u{1b}[2J\nerror: b\u{9b}\u{202e}c\t\u{200b}"), {
            "a\\u{1b}[2J\\nerror: b\\u{9b}\\u{202e}c\\t\\u{200b}"
        });
    }

    #[test]
    fn long_texts_are_cut() {
        let whole = "ü".repeat(TOLD_MAX);
        assert_eq!(harmless(&whole), whole);
        let cut = harmless(&"\0".repeat(900_000)).into_owned();
        assert!(cut.len() < 10 * TOLD_MAX && cut.ends_with("(cut: 900000 bytes in all)"), "{cut}");
        assert!(harmless(&format!("{whole}x")).ends_with("(cut: 801 bytes in all)"));
    }
}
