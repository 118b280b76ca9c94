//! Calls of the library, and texts in its terms.

use std::panic::AssertUnwindSafe;

use llguidance::JsonCompileOptions;
use llguidance::api::{StopReason, TopLevelGrammar};
use serde_json::Value;

use super::error::GrammarError;

/// The longest explanation of the library that is passed on, in characters.
const MAX_PROBLEM_CHARACTERS: usize = 300;

/// Space between the elements of JSON: nothing, a space, or a line break and an indent. With
/// unbounded space, weak models get lost.
const JSON_SPACE: &str = r"\x20|\n[\x20\t]{0,64}";

/// Runs a call of the library; a panic in it becomes an error.
pub(super) fn guarded<T>(
    work: impl FnOnce() -> Result<T, GrammarError>,
) -> Result<T, GrammarError> {
    std::panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(GrammarError::Failed("the grammar library failed".to_owned())))
}

/// Returns whether the library sees nothing that could follow. It also stops if a limit is
/// exceeded, which is not an end of the reply.
pub(super) fn has_stopped(state: &llguidance::Matcher) -> Result<bool, GrammarError> {
    match state.stop_reason() {
        StopReason::NotStopped => Ok(false),
        reason if reason.is_ok() => Ok(true),
        reason => Err(failed(&reason)),
    }
}

/// Returns an error of the library.
pub(super) fn failed(error: &impl std::fmt::Display) -> GrammarError {
    let message = error.to_string();
    if is_of_work(&message) {
        return GrammarError::Failed("it takes more work than trine allows".to_owned());
    }
    GrammarError::Failed(first_line(&message))
}

/// Returns whether the library gave up because of its limits on work. It tells only in words: after
/// an error, every state gives the same reason for having stopped.
pub(super) fn is_of_work(message: &str) -> bool {
    const WORDS: [&str; 8] = [
        "lexer error: too many",
        "parser error: ",
        "lexer precomputation failed",
        "fuel exhausted",
        "Unable to determine if regex is empty",
        "maximum relevance check fuel",
        "LexerTooComplex",
        "ParserTooComplex",
    ];
    WORDS.iter().any(|words| message.contains(words))
}

/// Returns the grammar of a schema.
pub(super) fn json_grammar(schema: Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(with_options(schema))
}

/// Adds options to a schema that it cannot override.
pub(super) fn with_options(mut schema: Value) -> Value {
    let options = JsonCompileOptions {
        whitespace_pattern: Some(JSON_SPACE.to_owned()),
        ..JsonCompileOptions::default()
    };
    options.apply_to(&mut schema);
    schema
}

/// Checks the syntax of an expression. Returns the character at fault, counted from 1, and the
/// problem.
pub(super) fn regex_problem(text: &str) -> Option<(usize, String)> {
    let error = regex_syntax::ast::parse::Parser::new().parse(text).err()?;
    let character = text[..error.span().start.offset].chars().count() + 1;
    Some((character, format!("{}; write it in the syntax of Rust's regex", error.kind())))
}

/// Spells `text` as a string of a Lark grammar.
pub(super) fn lark_string(text: &str) -> String {
    let mut spelled = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => spelled.push_str("\\\""),
            '\\' => spelled.push_str("\\\\"),
            '\u{0}'..='\u{1F}' | '\u{7F}' => {
                spelled.push_str(&format!("\\u{:04x}", u32::from(character)))
            }
            _ => spelled.push(character),
        }
    }
    spelled.push('"');
    spelled
}

/// Returns a message in one line of a bearable length: its first line, with the last one if the
/// first only announces it.
pub(super) fn first_line(message: &str) -> String {
    let mut line = message.lines().next().unwrap_or_default().to_owned();
    if line.ends_with(':')
        && let Some(last) = message.lines().skip(1).last()
    {
        line.push(' ');
        line.push_str(last.trim());
    }
    line.chars().take(MAX_PROBLEM_CHARACTERS).collect()
}
