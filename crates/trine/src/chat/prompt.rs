//! The prompt of `run`: what was typed, the contents of a file, and standard input.

use std::io::{Read, stdin};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use trine_text::MAX_TEXT_BYTES;

use crate::failure::usage;
use crate::terminal;
use crate::terminal::output;

/// How long standard input may stay silent before a note about it, because a program may have left
/// it open by mistake.
const SILENT: Duration = Duration::from_secs(3);

/// A file without any text.
const NOTHING: &str = if cfg!(windows) { "NUL" } else { "/dev/null" };

/// The source of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Words {
    /// The command line.
    Typed(String),
    /// A file.
    File(PathBuf),
    /// Standard input only.
    Input,
}

impl Words {
    /// Interprets an argument; `-` is standard input.
    pub(crate) fn of(argument: String) -> Self {
        if argument == "-" { Self::Input } else { Self::Typed(argument) }
    }

    /// Interprets the file of an option; `-` is standard input.
    pub(crate) fn of_file(path: PathBuf) -> Self {
        if path == Path::new("-") { Self::Input } else { Self::File(path) }
    }

    /// Reads the whole prompt. If standard input is not a terminal, its text follows the words
    /// after an empty line, unless it is a picture's (`is_taken`).
    ///
    /// # Errors
    /// Returns an error if something cannot be read, is not text or is too long, or if there is no
    /// prompt.
    pub(crate) fn read(self, is_taken: bool) -> Result<String> {
        if is_taken && self == Self::Input {
            return Err(usage(
                "standard input is the image of --image; give the prompt as PROMPT or with \
                 --prompt-file",
            ));
        }
        let words = match self {
            Self::Typed(text) => Some(text),
            Self::File(path) => Some(read_file(&path)?),
            Self::Input => None,
        };
        let input = match &words {
            Some(_) if is_taken || terminal::stdin_is_terminal() => None,
            words => Some(read_stdin(words.is_some())?),
        };
        let prompt = joined(words, input);
        if prompt.trim().is_empty() {
            return Err(usage(
                "the prompt is empty; give one: trine run demo \"Tell me a story\", with \
                 --prompt-file or on standard input, or run in a terminal to chat",
            ));
        }
        Ok(prompt)
    }
}

/// Joins the words and the text of standard input, in this order.
fn joined(words: Option<String>, input: Option<String>) -> String {
    match (words, input.filter(|input| !input.trim().is_empty())) {
        (Some(words), Some(input)) => format!("{words}\n\n{input}"),
        (words, input) => words.or(input).unwrap_or_default(),
    }
}

fn read_file(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let file = std::fs::File::open(path)
        .with_context(|| format!("cannot read {name}; check the path and its permissions"))?;
    read_text(file, &name)
}

/// Reads the text of standard input. If there are words already and nothing arrives, the user may
/// be waiting by mistake, so a note says so.
fn read_stdin(has_words: bool) -> Result<String> {
    let name = "standard input";
    if !has_words {
        return read_text(stdin().lock(), name);
    }
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("standard-input".to_owned())
        .spawn(move || {
            let _ = sender.send(read_text(stdin().lock(), name));
        })
        .context("the system gives no thread")?;
    match receiver.recv_timeout(SILENT) {
        Ok(text) => return text,
        Err(RecvTimeoutError::Timeout) => output::note(&format!(
            "waiting for the end of standard input, whose text is added to the prompt; `< \
             {NOTHING}` leaves it out",
        )),
        Err(RecvTimeoutError::Disconnected) => {}
    }
    receiver.recv().map_err(|_| anyhow!("standard input cannot be read"))?
}

/// Reads a text of bounded length without the line break that ends every file, which is not part of
/// the prompt.
fn read_text(source: impl Read, name: &str) -> Result<String> {
    let limit = MAX_TEXT_BYTES as u64;
    let mut bytes = Vec::new();
    source
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}; give a file of text"))?;
    if bytes.len() as u64 > limit {
        return Err(anyhow!("{name} holds more than {limit} bytes; give a shorter prompt"));
    }
    let mut text = String::from_utf8(bytes).map_err(
        |error| match trine_pictures::Format::recognise(error.as_bytes()) {
            Ok(_) => anyhow!(
                "{name} is an image, not a prompt; give it by --image, where `-` is standard input"
            ),
            Err(_) => anyhow!("{name} is not UTF-8 text; convert it first"),
        },
    )?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_before_the_text() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(joined(some("Summarise this"), some("a\nb")), "Summarise this\n\na\nb");
        assert_eq!(joined(some("Hello"), some(" \n")), "Hello");
        assert_eq!(joined(some("Hello"), None), "Hello");
        assert_eq!(joined(None, some("text")), "text");
        assert_eq!(joined(None, None), "");
    }

    #[test]
    fn texts_are_bounded_and_end_before_their_line_end() {
        assert_eq!(read_text(&b"a\r\n"[..], "x").unwrap(), "a");
        assert_eq!(read_text(&b"a\n\n"[..], "x").unwrap(), "a\n");
        assert!(read_text(&b"\xff"[..], "x").unwrap_err().to_string().contains("not UTF-8"));
        let picture = &b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..];
        assert!(read_text(picture, "x").unwrap_err().to_string().contains("by --image"));
        let error = read_text(std::io::repeat(b'a'), "x").unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
