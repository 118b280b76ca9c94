//! Texts from outside, for a terminal.

use std::borrow::Cow;

/// Returns whether a character controls a terminal, is invisible, or turns the direction of text:
/// with such characters a name can pose as another one. Line breaks and tabs are among them.
pub fn is_misleading(sign: char) -> bool {
    sign.is_control() || is_unseen(sign)
}

/// Returns whether a character is [misleading](is_misleading) and no control character: those with
/// `Default_Ignorable_Code_Point` (Unicode 16.0, `DerivedCoreProperties.txt`), separators of lines
/// and paragraphs, turns of direction, marks of annotations.
fn is_unseen(sign: char) -> bool {
    matches!(sign,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Makes a name from outside fit for a terminal: of a file, a model, a device, or any text that
/// stands within a line. Every [misleading](is_misleading) character becomes the visible U+FFFD.
///
/// ```
/// assert_eq!(trine_foreign::name("a\u{1b}[31m\u{202e}b\n"), "a\u{fffd}[31m\u{fffd}b\u{fffd}");
/// ```
pub fn name(text: &str) -> Cow<'_, str> {
    replaced(text, is_misleading)
}

/// As [`name`], and cut after `most` characters, with `...` for the rest.
pub fn cut_name(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", name(&text[..end])),
        None => name(text).into_owned(),
    }
}

/// Makes lines that are written already fit for a terminal: what is misleading in them and no
/// control character becomes U+FFFD.
///
/// ```
/// assert_eq!(trine_foreign::lines("a\u{202e}b\n"), "a\u{fffd}b\n");
/// ```
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, is_unseen)
}

fn replaced(text: &str, is_wrong: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_wrong) {
        return text.into();
    }
    let replace = |sign| if is_wrong(sign) { char::REPLACEMENT_CHARACTER } else { sign };
    text.chars().map(replace).collect::<String>().into()
}

/// Makes a text of a model fit for a terminal, in the pieces in which it comes: control characters
/// except line breaks and tabs become U+FFFD, and what turns the direction of writing is ended at
/// the end of its line, so that it turns nothing that is not the model's.
#[derive(Debug, Default, Clone)]
pub struct Written {
    /// What ends each turn that is open, the last one first to be ended.
    open: Vec<char>,
}

/// Most turns that are open at once: the bidirectional algorithm ignores deeper ones (Unicode
/// Standard Annex 9, BD2).
const TURNS_MAX: usize = 125;
/// Ends an embedding or an override.
const POP_EMBEDDING: char = '\u{202c}';
/// Ends an isolate.
const POP_ISOLATE: char = '\u{2069}';

impl Written {
    /// Returns the next piece of the text as it may be printed.
    pub fn piece<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        let is_plain = |sign: char| !is_special(sign) && (sign != '\n' || self.open.is_empty());
        if piece.chars().all(is_plain) {
            return piece.into();
        }
        let mut printed = String::with_capacity(piece.len());
        for sign in piece.chars() {
            match sign {
                '\n' => {
                    self.end_into(&mut printed);
                    printed.push('\n');
                }
                '\u{202a}' | '\u{202b}' | '\u{202d}' | '\u{202e}' => {
                    self.turn(sign, POP_EMBEDDING, &mut printed);
                }
                '\u{2066}'..='\u{2068}' => self.turn(sign, POP_ISOLATE, &mut printed),
                POP_EMBEDDING if self.open.last() == Some(&sign) => {
                    self.open.pop();
                    printed.push(sign);
                }
                // The end of an isolate ends the embeddings in it.
                POP_ISOLATE if self.open.contains(&sign) => {
                    while self.open.pop().is_some_and(|end| end != POP_ISOLATE) {}
                    printed.push(sign);
                }
                POP_EMBEDDING | POP_ISOLATE => {}
                '\t' => printed.push(sign),
                sign if sign.is_control() => printed.push(char::REPLACEMENT_CHARACTER),
                sign => printed.push(sign),
            }
        }
        printed.into()
    }

    /// Returns what ends the turns that are open, at the end of the text.
    pub fn end(&mut self) -> String {
        let mut printed = String::new();
        self.end_into(&mut printed);
        printed
    }

    fn turn(&mut self, sign: char, end: char, printed: &mut String) {
        if self.open.len() < TURNS_MAX {
            self.open.push(end);
            printed.push(sign);
        }
    }

    fn end_into(&mut self, printed: &mut String) {
        printed.extend(self.open.drain(..).rev());
    }
}

/// Returns whether a piece with this character is not printed as it is.
fn is_special(sign: char) -> bool {
    let turns = matches!(sign, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (sign.is_control() && !matches!(sign, '\n' | '\t'))
}

/// Makes a whole text of a model fit for a terminal, as [`Written`] does.
///
/// ```
/// assert_eq!(trine_foreign::written("a\u{1b}\u{202e}b\nc"), "a\u{fffd}\u{202e}b\u{202c}\nc");
/// ```
pub fn written(text: &str) -> Cow<'_, str> {
    let mut state = Written::default();
    let printed = state.piece(text);
    match state.end() {
        end if end.is_empty() => printed,
        end => (printed.into_owned() + &end).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_show_what_misleads() {
        assert_eq!(name("plain \u{fc}n\u{ef}c\u{f6}de"), "plain \u{fc}n\u{ef}c\u{f6}de");
        for sign in [
            '\0',
            '\t',
            '\n',
            '\r',
            '\u{1b}',
            '\u{7f}',
            '\u{9b}',
            '\u{61c}',
            '\u{200b}',
            '\u{200d}',
            '\u{200e}',
            '\u{200f}',
            '\u{2028}',
            '\u{202a}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{2069}',
            '\u{feff}',
            '\u{ad}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{fff9}',
            '\u{1d173}',
            '\u{e0041}',
        ] {
            assert_eq!(name(&format!("a{sign}b")), "a\u{fffd}b", "{sign:?}");
        }
        assert_eq!(cut_name("abcdef", 3), "abc...");
        assert_eq!(cut_name("a\u{e4}b", 3), "a\u{e4}b");
        assert_eq!(cut_name("\u{1b}\u{1b}", 1), "\u{fffd}...");
    }

    #[test]
    fn turns_end_with_their_line() {
        for (text, printed) in [
            ("plain\n\ttext\n", "plain\n\ttext\n"),
            ("\u{9b}x\r", "\u{fffd}x\u{fffd}"),
            ("\u{5e9}\u{200f}", "\u{5e9}\u{200f}"),
            ("\u{202e}a\nb", "\u{202e}a\u{202c}\nb"),
            ("\u{2067}\u{202b}a", "\u{2067}\u{202b}a\u{202c}\u{2069}"),
            ("\u{2067}\u{202b}a\u{2069}b\n", "\u{2067}\u{202b}a\u{2069}b\n"),
            // What ends nothing of the text could end a turn of the line around it.
            ("a\u{202c}\u{2069}b", "ab"),
        ] {
            assert_eq!(written(text), printed, "{text:?}");
            let mut state = Written::default();
            let mut pieces: String =
                text.chars().map(|sign| state.piece(&sign.to_string()).into_owned()).collect();
            pieces.push_str(&state.end());
            assert_eq!(pieces, printed, "{text:?} in pieces");
        }
        let deep = written(&"\u{202e}".repeat(10_000)).chars().count();
        assert_eq!(deep, 2 * TURNS_MAX);
    }
}
