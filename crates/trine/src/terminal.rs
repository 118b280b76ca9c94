//! The terminal: whether there is one, and its colours. Reads `TERM` and `NO_COLOR` from the
//! environment.

#![expect(clippy::disallowed_methods, reason = "looks whether they are terminals")]

pub(crate) mod output;
pub(crate) mod printer;
pub(crate) mod screen;
pub(crate) mod wrap;

use std::borrow::Cow;
use std::fmt;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::sync::OnceLock;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use indicatif::ProgressBar;
pub(crate) use trine_session::words::{harmless, shown};

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

/// A sign of life on standard error's terminal, if there is one, until it is dropped.
pub(crate) struct Sign(Option<ProgressBar>);

impl Sign {
    /// Says what takes its time.
    pub(crate) fn of(what: &'static str) -> Self {
        Self(stderr_is_terminal().then(|| {
            let sign = ProgressBar::new_spinner().with_message(what);
            sign.enable_steady_tick(Duration::from_millis(200));
            sign
        }))
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        if let Some(sign) = self.0.take() {
            sign.finish_and_clear();
        }
    }
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

/// Makes lines of this program harmless, as [`harmless`] does, and keeps the styles in them.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    if !text.contains('\u{1b}') {
        return harmless(text);
    }
    let styles = [ERROR, WARNING, GOOD, FAINT];
    let begin = styles.map(|style| style.render().to_string());
    let end = styles.map(|style| style.render_reset().to_string());
    let own = begin.iter().chain(&end).filter(|sequence| !sequence.is_empty());
    let own: Vec<&String> = own.collect();
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('\u{1b}') {
        shown.push_str(&harmless(&rest[..at]));
        rest = &rest[at..];
        let length = match own.iter().find(|sequence| rest.starts_with(sequence.as_str())) {
            Some(sequence) => {
                shown.push_str(sequence);
                sequence.len()
            }
            None => {
                shown.push(char::REPLACEMENT_CHARACTER);
                1
            }
        };
        rest = &rest[length..];
    }
    shown.push_str(&harmless(rest));
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_own_styles_pass() {
        assert_eq!(harmless("a\u{1b}[31mb\n\tc"), "a\u{fffd}[31mb\n\tc");
        assert_eq!(harmless("plain ünïcode\n"), "plain ünïcode\n");
        assert_eq!(harmless("\u{9b}x\r\u{202e}"), "\u{fffd}x\u{fffd}\u{fffd}");
        let hostile = "o\u{1b}]0;pwned\u{7}\u{1b}[35mRED\u{2066}.gguf";
        let shown = "o\u{fffd}]0;pwned\u{fffd}\u{fffd}[35mRED\u{fffd}.gguf";
        for style in [ERROR, WARNING, GOOD, FAINT] {
            let line = |name: &str| format!("{style}files:{style:#} {name}\n");
            assert_eq!(lines(&line(hostile)), line(shown));
        }
    }
}
