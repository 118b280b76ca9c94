//! Checks sources in Lark for what the library does not bound.
//!
//! To find out whether any text satisfies several expressions at once (`&`), or none of them (`~`),
//! the library combines every way through one of them with every way through the others. It counts
//! this work, but looks at the count between steps only, and not at all for the first byte of a
//! terminal: six expressions of 20 bytes take hours. So they are refused. JSON schemas within a
//! source come with the same combinations, and with bounds of their own.

use super::error::GrammarError;
use super::schema;

const KIND: &str = "Lark grammar";

/// Refuses what has no bound. Everything else is left to the library, sources that it cannot read
/// too.
///
/// # Errors
/// [`GrammarError::Invalid`] with the line of a `&`, of a `~` that no number follows (that is a
/// repetition), or of a schema that cannot be taken; [`GrammarError::TooLarge`] for a schema that
/// costs too much.
pub(super) fn check(source: &str) -> Result<(), GrammarError> {
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let place =
            || format!("line {}", 1 + source[..source.len() - rest.len()].matches('\n').count());
        rest = match first {
            '"' => after(rest, '"'),
            // Two of them begin a comment: no expression is empty.
            '/' if !rest.starts_with("//") => after(rest, '/'),
            '/' | '#' => &rest[rest.find('\n').unwrap_or(rest.len())..],
            // Names of tokens may hold any sign but spaces.
            '<' => &rest[rest.find('>').map_or(rest.len(), |end| end + 1)..],
            '&' => {
                let problem = "`&` is not supported: nothing bounds the work of finding what \
                    satisfies both sides; write one expression that does";
                return Err(GrammarError::invalid(KIND, place(), problem));
            }
            '~' if !is_count(&rest[1..]) => {
                let problem = "`~` before an expression is not supported: nothing bounds the work \
                    of finding what does not satisfy it; write what is allowed, such as `[^a-z]`";
                return Err(GrammarError::invalid(KIND, place(), problem));
            }
            '%' if rest.starts_with("%json") => {
                let block = &rest["%json".len()..];
                let mut values = serde_json::Deserializer::from_str(block).into_iter();
                let Some(Ok(value)) = values.next() else { return Ok(()) };
                schema::check_bounds(&value).map_err(|error| match error {
                    GrammarError::Invalid { place: within, problem, .. } => {
                        GrammarError::invalid(KIND, format!("{}, {within}", place()), problem)
                    }
                    other => other,
                })?;
                &block[values.byte_offset()..]
            }
            _ => &rest[first.len_utf8()..],
        };
    }
    Ok(())
}

/// Returns what comes after a text that begins with `mark` and ends with the next `mark` without a
/// backslash before it.
fn after(text: &str, mark: char) -> &str {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if character == mark => return &text[at + mark.len_utf8()..],
            _ => {}
        }
    }
    ""
}

/// Returns whether a number comes next in the line, as in `"a" ~ 2..3`.
fn is_count(text: &str) -> bool {
    let number = text.trim_start_matches([' ', '\t']).trim_start_matches(['+', '-']);
    number.starts_with(|next: char| next.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_bound_is_found_wherever_it_stands() {
        for (source, line) in [
            ("start: A\nA: /a/ & /b/", 2),
            ("start: A\n\nA: ~/a/", 3),
            ("start: \"\\\"\" & A", 1),
            ("start: /\\/\"/ & A", 1),
            ("start: /[\"]\n/ & A", 2),
            ("start: <\"/#> & <\">", 1),
            ("start: a // \"\na: \"b\" // \"\n & A", 3),
            ("start: a # /\na: ~ # 1\n A", 2),
            ("start: %json {\"const\": \"&\\\"\"} & A", 1),
            ("start: %regex {\"substring_chars\": \"~/\"} ~\"a\"", 1),
            ("start: %lark { start: A\nA: ~\"a\" }", 2),
            ("start: A ~ 2 ~ A", 1),
            ("start: é & A", 1),
        ] {
            let error = check(source).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("Lark grammar, line {line}: `")),
                "{source}: {error}"
            );
        }
        for source in [
            "start: \"a & ~b\" /a & ~b/ <a&~b> // & ~\n# & ~\n",
            "start: \"a\" ~ 2..3 \"b\"~4 \"c\" ~\t+5",
            "start: %json {\"const\": \"&~\"}\n%llguidance {\"a\": \"&\"}\n",
            "start: \"never ends & ~",
        ] {
            assert_eq!(check(source), Ok(()), "{source}");
        }
    }
}
