//! The terminal: whether there is one, and its colours. Reads `TERM` and `NO_COLOR` from the
//! environment.

use std::fmt;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};

/// The style of errors.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
/// The style of warnings.
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// The style of good results.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// The style of side remarks.
pub(crate) const FAINT: Style = Style::new().dimmed();

/// Returns whether a person types standard input.
pub(crate) fn stdin_is_terminal() -> bool {
    stdin().is_terminal()
}

/// Returns whether a person reads standard output.
pub(crate) fn stdout_is_terminal() -> bool {
    stdout().is_terminal()
}

/// Returns whether a person reads standard error.
pub(crate) fn stderr_is_terminal() -> bool {
    stderr().is_terminal()
}

/// Returns the current number of columns of standard output's terminal.
pub(crate) fn stdout_columns() -> Option<usize> {
    columns_of(stdout())
}

/// Returns the current number of columns of standard error's terminal.
pub(crate) fn stderr_columns() -> Option<usize> {
    columns_of(stderr())
}

#[cfg(unix)]
fn columns_of(stream: impl std::os::fd::AsFd) -> Option<usize> {
    columns(terminal_size::terminal_size_of(stream))
}

#[cfg(windows)]
fn columns_of(stream: impl std::os::windows::io::AsHandle) -> Option<usize> {
    columns(terminal_size::terminal_size_of(stream))
}

/// Returns the number of columns. Some terminals that do not know it report zero, which counts as
/// unknown.
fn columns(size: Option<(terminal_size::Width, terminal_size::Height)>) -> Option<usize> {
    size.map(|(width, _)| usize::from(width.0)).filter(|&columns| columns > 0)
}

/// Returns whether standard output can be drawn on: it is a terminal that can move its cursor.
pub(crate) fn stdout_can_draw() -> bool {
    stdout_is_terminal() && !is_dumb()
}

/// Returns whether the terminal takes no escape sequences. Windows' console takes them once they
/// are enabled, which this does.
fn is_dumb() -> bool {
    #[cfg(windows)]
    if !ratatui::crossterm::ansi_support::supports_ansi() {
        return true;
    }
    std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb")
}

/// Returns whether the user refused colours (<https://no-color.org>) or the terminal has none.
fn colours_refused() -> bool {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    *REFUSED.get_or_init(|| is_set("NO_COLOR") || is_dumb())
}

/// Returns whether standard output takes colours.
pub(crate) fn stdout_has_colours() -> bool {
    stdout_is_terminal() && !colours_refused()
}

/// Returns whether standard error takes colours.
pub(crate) fn stderr_has_colours() -> bool {
    stderr_is_terminal() && !colours_refused()
}

/// A text with a style, or without one if the stream takes no colours.
pub(crate) struct Painted<'a> {
    text: &'a str,
    style: Option<Style>,
}

impl fmt::Display for Painted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.style {
            Some(style) => write!(f, "{style}{}{style:#}", self.text),
            None => f.write_str(self.text),
        }
    }
}

/// Styles a text for standard output.
pub(crate) fn on_stdout(text: &str, style: Style) -> Painted<'_> {
    Painted { text, style: stdout_has_colours().then_some(style) }
}

/// Styles a text for standard error.
pub(crate) fn on_stderr(text: &str, style: Style) -> Painted<'_> {
    Painted { text, style: stderr_has_colours().then_some(style) }
}

/// Makes text from a file or a model harmless for a terminal. It replaces control characters,
/// except line breaks and tabs, with a visible character, so that no escape sequence reaches the
/// terminal.
pub(crate) fn harmless(text: &str) -> std::borrow::Cow<'_, str> {
    let is_harmful = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_harmful) {
        return text.into();
    }
    text.chars()
        .map(|c| if is_harmful(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect::<String>()
        .into()
}

/// Returns a path for a message: on one line, without what a terminal would obey.
pub(crate) fn shown(path: &std::path::Path) -> String {
    trine_npu::told(&path.display().to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_pass() {
        assert_eq!(harmless("a\u{1b}[31mb\n\tc"), "a\u{fffd}[31mb\n\tc");
        assert_eq!(harmless("plain ünïcode\n"), "plain ünïcode\n");
        assert_eq!(harmless("\u{9b}x\r"), "\u{fffd}x\u{fffd}");
    }
}
