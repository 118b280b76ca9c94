//! The width of lines, and the length of documents that stay short.

use std::ops::RangeInclusive;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};

use crate::documents::{lines_of_text, pages};
use crate::sources::Source;

/// The width of lines, also of strings and comments, which `rustfmt` leaves alone.
const COLUMNS_MAX: usize = 100;

/// Documents that programs write, and records, whose lines are as wide as what they record.
const WRITTEN: [&str; 2] = ["docs/benchmarks/", "docs/speed.md"];

/// The most words of the documents that begin with a path.
const WORDS_MAX: [(&str, usize); 2] = [("ARCHITECTURE.md", 5000), ("docs/decisions/", 700)];

/// Returns the lines of sources and documents that are too wide, and documents that are too long.
///
/// # Errors
///
/// Returns an error if a document cannot be read.
pub(crate) fn check(root: &Path, sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let complain =
        |path: &str, line| format!("{path}:{line}: the line is wider than {COLUMNS_MAX} columns");
    let mut complaints = Vec::new();
    for Source { path, text, .. } in sources {
        complaints.extend(wide_code(text).map(|line| complain(path, line)));
    }
    for (path, text) in pages(root)? {
        if !WRITTEN.iter().any(|written| path.starts_with(written)) {
            complaints.extend(wide_text(&text).map(|line| complain(&path, line)));
        }
        complaints.extend(long_document(&path, &text));
    }
    Ok(complaints)
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > COLUMNS_MAX
}

/// Returns the numbers of lines of Rust that are too wide. Lines of raw strings may be wider, which
/// cannot be broken, and so may rows of tables and blocks between fences in comments.
fn wide_code(text: &str) -> impl Iterator<Item = usize> {
    let mut wide = Vec::new();
    let mut is_fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        let is_free = if let Some(comment) = line.trim_start().strip_prefix("//") {
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            is_fenced ^= comment.starts_with("```");
            is_fenced || comment.starts_with('|')
        } else {
            is_fenced = false;
            line.trim_start().starts_with('|')
        };
        if is_wide(line) && !is_free {
            wide.push(number);
        }
    }
    let mut raw = Vec::new();
    if let (false, Ok(tokens)) = (wide.is_empty(), text.parse()) {
        collect_raw_strings(tokens, &mut raw);
    }
    wide.into_iter().filter(move |line| !raw.iter().any(|lines| lines.contains(line)))
}

/// Collects the lines of raw strings.
fn collect_raw_strings(tokens: TokenStream, raw: &mut Vec<RangeInclusive<usize>>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_raw_strings(group.stream(), raw),
            TokenTree::Literal(literal) => {
                let spelled = literal.to_string();
                let after = spelled.trim_start_matches(['b', 'c']).strip_prefix('r');
                if after.is_some_and(|after| after.starts_with(['"', '#'])) {
                    raw.push(literal.span().start().line..=literal.span().end().line);
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Returns the numbers of lines of a document that are too wide and could be broken: neither of
/// code, a table, a heading or a quote, nor one word.
fn wide_text(text: &str) -> impl Iterator<Item = usize> {
    let is_whole = |line: &str| line.trim_start().starts_with(['|', '#', '>']);
    let wrong = move |line: &str| is_wide(line) && !is_whole(line) && has_words(line);
    lines_of_text(text).filter(move |(_, line)| wrong(line)).map(|(number, _)| number)
}

/// Returns whether a line has several words; text between backticks and a mark of a list are none.
fn has_words(line: &str) -> bool {
    let text = line.trim_start_matches(|c: char| c.is_ascii_digit() || " .-*".contains(c));
    text.trim_end().split('`').step_by(2).any(|words| words.contains(' '))
}

fn long_document(path: &str, text: &str) -> Option<String> {
    let (_, most) = WORDS_MAX.iter().find(|(start, _)| path.starts_with(start))?;
    let count = text.split_whitespace().count();
    (count > *most).then(|| format!("{path} has {count} words, at most {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_rust_are_narrow() {
        let wide = "word ".repeat(20) + "end";
        let narrow = &wide[..75];
        for (text, expected) in [
            (format!("// {wide}"), vec![1]),
            (format!("fn f() {{}}\n    /// - {wide}"), vec![2]),
            (format!("//! {narrow}"), vec![]),
            (format!("//! | {wide} |"), vec![]),
            (format!("//! ```text\n//! {wide}\n//! ```\n//! {wide}"), vec![4]),
            (format!("const A: &str = \"{wide}\";"), vec![1]),
            (format!("const A: &str = \"{narrow}\n{wide}\";"), vec![2]),
            (format!("const A: &str = r\"\n{wide}\";\n// {wide}"), vec![3]),
            (format!("f(&[br##\"{wide}\"##]);"), vec![]),
            (format!("macro_rules! f {{ () => {{ g({}) }} }}", "a + ".repeat(30)), vec![1]),
        ] {
            assert_eq!(wide_code(&text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn lines_of_documents_are_narrow() {
        let wide = "word ".repeat(20) + "end";
        let long = "w".repeat(110);
        for (text, expected) in [
            (wide.clone(), vec![1]),
            (format!("Text\n- {wide}"), vec![2]),
            (format!("# {wide}\n| {wide} |\n> {wide}"), vec![]),
            (format!("```\n{wide}\n```\n{wide}"), vec![4]),
            (format!("  ([text](../{long}))."), vec![]),
            (format!("- {long}\n1. `{wide}`"), vec![]),
            (format!("A `{wide}`"), vec![1]),
        ] {
            assert_eq!(wide_text(&text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn documents_stay_short() {
        for (path, words, is_long) in [
            ("ARCHITECTURE.md", 5000, false),
            ("ARCHITECTURE.md", 5001, true),
            ("docs/decisions/001-a.md", 701, true),
            ("docs/server.md", 9000, false),
        ] {
            let text = "word ".repeat(words);
            assert_eq!(long_document(path, &text).is_some(), is_long, "{path}: {words}");
        }
    }
}
