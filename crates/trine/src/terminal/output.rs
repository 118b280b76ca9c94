//! Output: standard output with its own errors, remarks on standard error, tables, JSON, and
//! numbers for people.

#![expect(clippy::disallowed_methods, reason = "cleans what is written, and writes it")]

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use tracing_appender::non_blocking::NonBlocking;
use trine_foreign::{is_misleading, written};
pub(crate) use trine_session::words::{
    about_bytes, bytes, close_names, count, counted, rate, seconds, short_rate,
};

use crate::failure::output_error;
use crate::{terminal, terminal::wrap};

/// Writes text of a model to standard output unchanged and flushes it.
pub(crate) fn raw(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(output_error)
}

/// Writes a line to standard output. Names in it cannot control a terminal.
pub(crate) fn line(text: impl Display) -> Result<()> {
    block(&format!("{text}\n"))
}

/// Writes lines to standard output. Names in them cannot control a terminal.
pub(crate) fn block(text: &str) -> Result<()> {
    raw(&terminal::lines(text))
}

/// Writes text from a file to standard output as it is, or to a terminal without what would control
/// it.
pub(crate) fn text(text: &str) -> Result<()> {
    let is_read = stdout().is_terminal();
    if is_read { raw(&format!("{}\n", written(text))) } else { raw(text) }
}

/// Writes a value as JSON to standard output. Names in it cannot control a terminal.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    raw(&format!("{}\n", pretty(value)?))
}

/// Returns a value as JSON in lines.
fn pretty(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    // JSON escapes control characters, and may escape others of its strings.
    let mut shown = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '\n' => shown.push(sign),
            sign if is_misleading(sign) => shown.push_str(&format!("\\u{:04x}", u32::from(sign))),
            sign => shown.push(sign),
        }
    }
    Ok(shown)
}

/// Writes values as a JSON list to standard output, one after the other. Names in them cannot
/// control a terminal.
///
/// # Errors
/// Returns an error if standard output cannot be written, or the first error among the values.
pub(crate) fn json_list<T: Serialize>(values: impl Iterator<Item = Result<T>>) -> Result<()> {
    let mut before = "[\n  ";
    for value in values {
        raw(&format!("{before}{}", pretty(&value?)?.replace('\n', "\n  ")))?;
        before = ",\n  ";
    }
    raw(if before.starts_with('[') { "[]\n" } else { "\n]\n" })
}

/// Writes lines to standard error on behalf of the calling thread, so that this thread need not
/// wait.
static WRITER: RwLock<Option<NonBlocking>> = RwLock::new(None);

/// Makes another thread write the lines on standard error from now on, or with `None` each thread
/// its own. Nothing in a server may wait for the reader of its log, so lines that find no room are
/// dropped.
pub(crate) fn write_by(writer: Option<NonBlocking>) {
    *WRITER.write().unwrap_or_else(PoisonError::into_inner) = writer;
}

/// Writes a line to standard error. Names in it cannot control a terminal. If standard error
/// is closed, nobody would see an error either.
pub(crate) fn remark(text: impl Display) {
    let writer = WRITER.read().unwrap_or_else(PoisonError::into_inner).clone();
    let text = format!("{text}\n");
    let text = terminal::lines(&text);
    let _ = match writer {
        Some(mut writer) => writer.write_all(text.as_bytes()),
        None => stderr().lock().write_all(text.as_bytes()),
    };
}

/// Writes a question to standard error, without the end of its line. Names in it cannot control a
/// terminal.
pub(crate) fn question(text: &str) {
    // If standard error is closed, nobody sees the question, and nobody answers it.
    let _ = stderr().lock().write_all(terminal::lines(text).as_bytes());
}

/// Whether notes are suppressed, so that only warnings and errors are written.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Suppresses notes from now on.
pub(crate) fn keep_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Returns whether notes are suppressed.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes a faint line to standard error, or several lines if the terminal is narrow.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        remark(terminal::on_stderr(&filled(text, ""), terminal::FAINT));
    }
}

/// Writes a piece of what a model thinks to standard error, faint.
pub(crate) fn thought(text: &str) {
    if !is_quiet() {
        let text = written(text);
        // If standard error is closed, nobody reads along.
        let _ = write!(stderr().lock(), "{}", terminal::on_stderr(&text, terminal::FAINT));
    }
}

/// Writes help that the user asked for to standard error, because it is not an answer of the model.
pub(crate) fn help(text: &str) {
    remark(filled(text, ""));
}

/// Writes a warning to standard error.
pub(crate) fn warning(text: impl Display) {
    complaint("warning:", terminal::WARNING, &text.to_string());
}

/// Writes an error to standard error.
pub(crate) fn error(text: impl Display) {
    complaint("error:", terminal::ERROR, &text.to_string());
}

/// Names of files and texts from them are in complaints too.
fn complaint(kind: &str, style: anstyle::Style, text: &str) {
    let text = filled(&terminal::harmless(text), kind);
    remark(format_args!("{}{}", terminal::on_stderr(kind, style), &text[kind.len()..]));
}

/// Breaks a text into lines of standard error's terminal, after the word `before` if it is not
/// empty.
fn filled(text: &str, before: &str) -> String {
    let space = if before.is_empty() { "" } else { " " };
    let text = format!("{before}{space}{text}");
    match terminal::stderr_columns() {
        Some(columns) => wrap::fill(&text, columns),
        None => text,
    }
}

/// Formats a table of text cells. The columns in `right` are aligned to the right.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>, right: &[usize]) -> String {
    render(header, rows, right, presets::NOTHING)
}

/// Formats a table in Markdown.
pub(crate) fn markdown(header: &[&str], rows: Vec<Vec<String>>, right: &[usize]) -> String {
    render(header, rows, right, presets::ASCII_MARKDOWN)
}

fn render(
    header: &[&str],
    rows: Vec<Vec<String>>,
    right: &[usize],
    style: comfy_table::TableStyle,
) -> String {
    let mut table = Table::new();
    table.load_style(style);
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    for &index in right {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables() {
        let rows =
            vec![vec!["a".to_owned(), "1".to_owned()], vec!["long".to_owned(), "22".to_owned()]];
        let text = table(&["name", "size"], rows.clone(), &[1]);
        assert!(text.lines().nth(1).unwrap().ends_with('1'), "{text}");
        let text = markdown(&["name", "size"], rows, &[1]);
        assert!(text.contains("| long |"), "{text}");
    }
}
