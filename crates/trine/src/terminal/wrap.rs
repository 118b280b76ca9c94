//! Breaks lines between words, for text that arrives in pieces.

use unicode_linebreak::linebreaks;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The fewest columns of a terminal at which lines are broken. On a narrower one almost every word
/// would be cut.
const COLUMNS_LEAST: usize = 8;
/// The marks that begin and end a block of code in Markdown, at the beginning of a line.
const FENCES: [&str; 2] = ["```", "~~~"];
/// The number of columns between tab stops.
const TAB: usize = 8;

/// Breaks the lines of a text before the word that would not fit. Blocks of code stay as they are.
///
/// A word is passed on only when it is known to be complete, so the last one waits for more text or
/// for [`Wrapper::finish`].
#[derive(Debug, Default)]
pub(crate) struct Wrapper {
    /// The last word, which may not be complete.
    held: String,
    /// The spaces after the previous word. They are passed on only if a word follows on the same
    /// line.
    gap: String,
    /// The number of columns that are used on the line.
    column: usize,
    /// Whether the line has a word.
    has_word: bool,
    /// The mark that ends the current block of code.
    fence: Option<&'static str>,
    /// The current line of code, as far as it can still end the block.
    code: String,
}

impl Wrapper {
    /// Takes a piece of the text and returns what can be written of it to a terminal of `columns`
    /// columns.
    pub(crate) fn push(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((line, after)) = rest.split_once('\n') {
            self.take(line, columns, &mut out);
            self.end_line(columns, &mut out);
            rest = after;
        }
        self.take(rest, columns, &mut out);
        out
    }

    /// Returns the rest of the text.
    pub(crate) fn finish(&mut self, columns: usize) -> String {
        let mut out = String::new();
        self.flush(columns, &mut out);
        *self = Self::default();
        out
    }

    /// Takes a part of a line.
    fn take(&mut self, text: &str, columns: usize, out: &mut String) {
        if self.fence.is_some() {
            out.push_str(text);
            // A line that ends the block is short.
            self.code.extend(text.chars().take(64 - self.code.chars().count().min(64)));
            return;
        }
        self.held.push_str(text);
        let held = std::mem::take(&mut self.held);
        let mut start = 0;
        for (end, _) in linebreaks(&held) {
            // Names and paths are copied: no line ends at their hyphens and slashes if they fit.
            let word = held[start..].split(char::is_whitespace).next().unwrap_or_default();
            let is_within = held[..end].ends_with(|sign: char| sign.is_ascii_graphic())
                && word.width() <= columns;
            // Text after the last break opportunity may belong to the same word.
            if end < held.len() && !is_within {
                self.place(&held[start..end], columns, out);
                start = end;
            }
        }
        if held[start..].width() > columns {
            self.place(&held[start..], columns, out);
            start = held.len();
        }
        self.held = held[start..].to_owned();
    }

    fn flush(&mut self, columns: usize, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        self.place(&held, columns, out);
        self.gap.clear();
    }

    fn end_line(&mut self, columns: usize, out: &mut String) {
        if let Some(fence) = self.fence {
            let line = self.code.trim();
            let mark = fence.chars().next().unwrap_or_default();
            if line.starts_with(fence) && line.chars().all(|c| c == mark) {
                self.fence = None;
            }
            self.code.clear();
        } else {
            self.flush(columns, out);
        }
        out.push('\n');
        (self.column, self.has_word) = (0, false);
    }

    /// Writes a word and keeps the spaces after it.
    fn place(&mut self, segment: &str, columns: usize, out: &mut String) {
        let word = segment.trim_end_matches([' ', '\t']);
        let spaces = &segment[word.len()..];
        if !word.is_empty() {
            self.word(word, columns, out);
        }
        self.gap.push_str(spaces);
    }

    fn word(&mut self, word: &str, columns: usize, out: &mut String) {
        let is_first = !self.has_word;
        if is_first {
            self.fence = FENCES.into_iter().find(|fence| word.starts_with(fence));
        }
        let begin = advance(self.column, &self.gap);
        let end = advance(begin, word);
        if self.fence.is_some() || columns < COLUMNS_LEAST || end <= columns || is_first {
            out.push_str(&std::mem::take(&mut self.gap));
            self.column = begin;
        } else {
            self.gap.clear();
            out.push('\n');
            self.column = 0;
        }
        self.has_word = true;
        if self.fence.is_some() || columns < COLUMNS_LEAST || advance(self.column, word) <= columns
        {
            out.push_str(word);
            self.column = advance(self.column, word);
            return;
        }
        // The word is longer than a line.
        for character in word.chars() {
            let width = character.width().unwrap_or(0);
            if self.column > 0 && self.column + width > columns {
                out.push('\n');
                self.column = 0;
            }
            out.push(character);
            self.column += width;
        }
    }
}

/// Returns the column after a text that begins at `column`.
fn advance(column: usize, text: &str) -> usize {
    let mut parts = text.split('\t');
    let first = column + parts.next().map_or(0, UnicodeWidthStr::width);
    parts.fold(first, |column, part| (column / TAB + 1) * TAB + part.width())
}

/// Breaks the lines of a whole text.
pub(crate) fn fill(text: &str, columns: usize) -> String {
    let mut wrapper = Wrapper::default();
    let mut lines = wrapper.push(text, columns);
    lines.push_str(&wrapper.finish(columns));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the same text in pieces of every size gives the same lines.
    #[track_caller]
    fn check(text: &str, columns: usize, expected: &str) {
        assert_eq!(fill(text, columns), expected, "as a whole");
        let characters: Vec<char> = text.chars().collect();
        for size in 1..=characters.len() {
            let mut wrapper = Wrapper::default();
            let mut lines = String::new();
            for piece in characters.chunks(size) {
                lines.push_str(&wrapper.push(&piece.iter().collect::<String>(), columns));
            }
            lines.push_str(&wrapper.finish(columns));
            assert_eq!(lines, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn lines_break_between_words() {
        check("the quick brown fox jumps", 10, "the quick\nbrown fox\njumps");
        check("exactly ten of them", 11, "exactly ten\nof them");
        check("a\n\n  indented words here\n", 14, "a\n\n  indented\nwords here\n");
        check("spaces   stay inside", 40, "spaces   stay inside");
        check("well-known facts", 10, "well-known\nfacts");
        check("take owner/repo-it", 15, "take\nowner/repo-it");
        check("well-known facts", 8, "well-\nknown\nfacts");
        check("", 10, "");
    }

    #[test]
    fn words_longer_than_a_line_are_cut() {
        check("an abcdefghijklmnop end", 8, "an\nabcdefgh\nijklmnop\nend");
        let narrow = "no room for any word";
        check(narrow, 5, narrow);
    }

    #[test]
    fn wide_characters_count_twice() {
        check("春が来ると花が咲く", 8, "春が来る\nと花が咲\nく");
        check("mixed 日本語 text", 10, "mixed 日本\n語 text");
        check("👩‍👩‍👧 family of three", 10, "👩‍👩‍👧 family\nof three");
    }

    #[test]
    fn tabs_reach_to_the_next_stop() {
        check("a\tb\tc\td", 20, "a\tb\tc\nd");
    }

    #[test]
    fn code_stays_as_it_is() {
        let code = "```rust\nlet a_long_line = of(code, that, goes, on);\n```";
        check(
            &format!("some words before\n{code}\nand words after"),
            12,
            &format!("some words\nbefore\n{code}\nand words\nafter"),
        );
        let list = "  ~~~\n  a line that is longer than that\n  ```\n  still code, and long\n  \
            ~~~\nshort words again";
        check(list, 12, &list.replace("words again", "words\nagain"));
    }

    #[test]
    fn a_line_of_code_without_end_is_not_kept() {
        let mut wrapper = Wrapper::default();
        wrapper.push("```\n", 20);
        for _ in 0..1000 {
            assert_eq!(wrapper.push("xxxx xxxx", 20), "xxxx xxxx");
        }
        assert!(wrapper.code.len() <= 64);
        let mut wrapper = Wrapper::default();
        for _ in 0..1000 {
            wrapper.push("xxxxxxxx", 20);
        }
        assert!(wrapper.held.len() <= 40, "{}", wrapper.held.len());
    }
}
