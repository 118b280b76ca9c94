//! Lines for the chat: typed at a terminal with editing and history, or read from a pipe.

use std::io::BufRead;
use std::path::PathBuf;

use anyhow::Result;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};

/// The most lines of history that are kept.
const HISTORY_MAX: usize = 1000;

/// A line, or what came instead of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line without its line break.
    Text(String),
    /// The text between two `"""`; only [`next_input`] returns it.
    Block(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// The end of the input.
    End,
}

/// A source of lines.
pub(crate) trait LineSource {
    /// Returns the next line. `continued` is true if it belongs to the line before.
    ///
    /// # Errors
    /// Returns an error if the input cannot be read.
    fn next(&mut self, continued: bool) -> Result<Line>;

    /// Remembers a whole input for later.
    fn remember(&mut self, input: &str);

    /// Returns whether a person types the lines.
    fn is_typed(&self) -> bool;
}

/// Lines typed at a terminal.
pub(crate) struct Typed {
    editor: Editor<(), FileHistory>,
    history: Option<PathBuf>,
}

impl Typed {
    /// Takes over the terminal. If `history` is given, the history is kept in that file.
    ///
    /// # Errors
    /// Returns an error if the terminal cannot be used.
    pub(crate) fn new(history: Option<PathBuf>) -> Result<Self> {
        crate::terminal::screen::note_terminal();
        let config =
            Config::builder().max_history_size(HISTORY_MAX)?.history_ignore_space(true).build();
        let mut editor = Editor::with_config(config)?;
        if let Some(path) = &history
            && let Err(error) = editor.load_history(path)
        {
            tracing::debug!(%error, "no history is read");
        }
        Ok(Self { editor, history })
    }
}

impl LineSource for Typed {
    fn next(&mut self, continued: bool) -> Result<Line> {
        match self.editor.readline(if continued { "... " } else { ">>> " }) {
            Ok(line) => Ok(Line::Text(line)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            // A slip of the keyboard or the clipboard must not cost the conversation.
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                crate::terminal::output::warning("the line was not UTF-8 text and is left out");
                Ok(Line::Text(String::new()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn remember(&mut self, input: &str) {
        // The chat also works without a history.
        let added = self.editor.add_history_entry(input).unwrap_or(false);
        if let Some(path) = self.history.as_ref().filter(|_| added) {
            if let Some(folder) = path.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            if let Err(error) = self.editor.save_history(path) {
                tracing::debug!(%error, "the history is not kept");
            }
        }
    }

    fn is_typed(&self) -> bool {
        true
    }
}

/// Lines of a pipe or file.
pub(crate) struct Piped<R>(pub(crate) R);

impl<R: BufRead> LineSource for Piped<R> {
    fn next(&mut self, _continued: bool) -> Result<Line> {
        let mut bytes = Vec::new();
        if self.0.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(Line::End);
        }
        let line = String::from_utf8(bytes).map_err(|_| {
            anyhow::anyhow!("a line on standard input is not UTF-8 text; convert it first")
        })?;
        Ok(Line::Text(line.trim_end_matches(['\n', '\r']).to_owned()))
    }

    fn remember(&mut self, _input: &str) {}

    fn is_typed(&self) -> bool {
        false
    }
}

/// The marks around an input of several lines.
const BLOCK: &str = "\"\"\"";

/// Reads one input: a line; several lines, each but the last ending in a backslash; or everything
/// between two `"""`, which is a [`Line::Block`]. Returns [`Line::Interrupted`] if Ctrl-C was
/// pressed meanwhile. An input that is cut off by the end of the source counts as it is.
///
/// # Errors
/// Returns an error if the input cannot be read.
pub(crate) fn next_input(source: &mut dyn LineSource) -> Result<Line> {
    let first = match source.next(false)? {
        Line::Text(text) => text,
        other => return Ok(other),
    };
    let input = match first.trim_start().strip_prefix(BLOCK) {
        Some(rest) => read_block(source, rest)?,
        None => read_continued(source, first)?,
    };
    if let Line::Text(text) | Line::Block(text) = &input
        && !text.trim().is_empty()
    {
        source.remember(text);
    }
    Ok(input)
}

fn read_block(source: &mut dyn LineSource, first: &str) -> Result<Line> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = first.to_owned();
    loop {
        if let Some(end) = line.trim_end().strip_suffix(BLOCK) {
            lines.push(end.to_owned());
            break;
        }
        lines.push(line);
        line = match source.next(true)? {
            Line::Text(text) | Line::Block(text) => text,
            Line::Interrupted => return Ok(Line::Interrupted),
            Line::End => break,
        };
    }
    // The lines of the marks count only if there is text on them.
    if lines.first().is_some_and(|line| line.is_empty()) {
        lines.remove(0);
    }
    if lines.last().is_some_and(|line| line.is_empty()) {
        lines.pop();
    }
    Ok(Line::Block(lines.join("\n")))
}

fn read_continued(source: &mut dyn LineSource, first: String) -> Result<Line> {
    let mut text = first;
    while let Some(begun) = text.strip_suffix('\\') {
        let begun = begun.to_owned();
        match source.next(true)? {
            Line::Text(more) | Line::Block(more) => text = format!("{begun}\n{more}"),
            Line::Interrupted => return Ok(Line::Interrupted),
            Line::End => {
                text = begun;
                break;
            }
        }
    }
    Ok(Line::Text(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(script: &str) -> Vec<String> {
        let mut source = Piped(script.as_bytes());
        let mut found = Vec::new();
        while let Line::Text(text) | Line::Block(text) = next_input(&mut source).unwrap() {
            found.push(text);
        }
        found
    }

    #[test]
    fn lines_blocks_and_continuations() {
        assert_eq!(inputs("a\nb\r\n"), ["a", "b"]);
        assert_eq!(inputs("a \\\nb\\\nc\nd"), ["a \nb\nc", "d"]);
        assert_eq!(inputs("\"\"\"one\ntwo\"\"\"\nthree"), ["one\ntwo", "three"]);
        assert_eq!(inputs("\"\"\"\none\n\ntwo\n\"\"\"\n"), ["one\n\ntwo"]);
        assert_eq!(inputs("\"\"\"single\"\"\"\n"), ["single"]);
        assert_eq!(inputs("\"\"\"never closed\nx"), ["never closed\nx"]);
        assert_eq!(inputs("open\\"), ["open"]);
        assert_eq!(inputs("\"\"\"\"\"\"\nx"), ["", "x"]);
    }

    #[test]
    fn blocks_are_told_from_lines() {
        let mut source = Piped(&b"\"\"\"\n/a/b.png\n\"\"\"\n/a/b.png\n"[..]);
        let path = || "/a/b.png".to_owned();
        assert_eq!(next_input(&mut source).unwrap(), Line::Block(path()));
        assert_eq!(next_input(&mut source).unwrap(), Line::Text(path()));
    }

    #[test]
    fn text_has_to_be_utf8() {
        let mut source = Piped(&b"\xff\xfe\n"[..]);
        assert!(next_input(&mut source).is_err());
    }
}
