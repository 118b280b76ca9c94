//! Pictures of a chat's messages: read from files, kept with the messages, and recognised where a
//! file is dragged into the terminal.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trine_engine::PictureHandle;
use trine_session::picture_file::{Input, expanded, is_input, is_picture};
use trine_session::tower;
use trine_session::vision::Vision;

use crate::terminal;
use crate::terminal::output;

/// A picture of a message. A file of a conversation has where it was and its digest.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TurnPicture {
    /// The path of its file, whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The digest of the prepared picture, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The picture itself; `None` if its file was not read, or the model does not see it.
    #[serde(skip)]
    pub(crate) handle: Option<PictureHandle>,
    /// Whether the model does not see it from now on: its file is gone or changed, the chat has too
    /// many pictures, or the model reads none.
    #[serde(skip)]
    pub(crate) is_lost: bool,
    /// Whether its file was read in this chat, so that another model may read it without a digest
    /// to compare with: that is of the prepared image, which models prepare in their own ways.
    #[serde(skip)]
    was_read: bool,
    /// Fields of other programs, which are kept for them.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl PartialEq for TurnPicture {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.digest, &self.others) == (&other.path, &other.digest, &other.others)
    }
}

impl TurnPicture {
    /// Reads a picture's file, or standard input. Returns it with a line about it for people.
    ///
    /// # Errors
    /// Returns an error if it is no picture, or the model takes none.
    pub(crate) fn read(
        path: &Path,
        input: Input,
        vision: Option<&Vision>,
        model: &str,
    ) -> Result<(Self, String)> {
        let vision = vision.ok_or_else(|| anyhow!(tower::other_in_chat(model)))?;
        // As terminals and file managers copy it.
        let address = path.to_str().filter(|text| text.starts_with("file://")).map(path_of);
        let path = &*expanded(address.as_deref().unwrap_or(path));
        let looked = vision.look(path, input)?;
        let name = match input == Input::Allowed && is_input(path) {
            true => "standard input".into(),
            false => path.file_name().unwrap_or_default().to_string_lossy(),
        };
        let (width, height) = looked.size;
        let line = format!(
            "{}: {width} x {height} pixels, {}",
            terminal::harmless(&name),
            output::counted(looked.handle.soft_tokens(), "soft token"),
        );
        let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let picture = Self {
            path: Some(whole.display().to_string()),
            digest: Some(looked.digest),
            handle: Some(looked.handle),
            is_lost: false,
            was_read: true,
            others: Map::new(),
        };
        Ok((picture, line))
    }

    /// Returns whether it is the file at a path.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let whole = || Some(path.canonicalize().ok()?.display().to_string());
        self.path.is_some() && self.path == whole()
    }

    /// Returns whether its file has to be read before the model can see it.
    pub(crate) fn is_unread(&self) -> bool {
        self.handle.is_none() && !self.is_lost
    }

    /// Lets another model read the file, if this one has.
    pub(crate) fn forget(&mut self) {
        self.handle = None;
        if self.was_read {
            (self.digest, self.is_lost) = (None, false);
        }
    }

    /// Reads the file of a picture of a loaded conversation again. Returns whether the model sees
    /// the same picture as before; otherwise it is lost.
    pub(crate) fn find(&mut self, vision: Option<&Vision>) -> bool {
        let found = self.path.as_ref().zip(vision).and_then(|(path, vision)| {
            let looked = vision.look(Path::new(path), Input::Refused).ok()?;
            let is_same = match &self.digest {
                None => self.was_read,
                Some(digest) => *digest == looked.digest,
            };
            is_same.then_some((looked.handle, looked.digest))
        });
        let (handle, digest) = found.unzip();
        self.digest = digest.or(self.digest.take());
        self.was_read |= handle.is_some();
        self.handle = handle;
        self.is_lost = self.handle.is_none();
        !self.is_lost
    }
}

/// The longest line that may be a list of dragged files.
const LINE_MAX: usize = 1 << 14;

/// Returns the pictures that a line names and nothing else: what terminals write for files that are
/// dragged into them.
pub(crate) fn dragged(line: &str) -> Vec<PathBuf> {
    let line = line.trim();
    if line.is_empty() || line.len() > LINE_MAX || line.contains('\n') {
        return Vec::new();
    }
    // Some terminals write blanks as they are.
    let whole = expanded(&path_of(line));
    if is_picture(&whole) {
        return vec![whole];
    }
    let Some(words) = words(line) else { return Vec::new() };
    let paths: Vec<PathBuf> = words.iter().map(|word| expanded(&path_of(word))).collect();
    let is_list = !paths.is_empty() && paths.iter().all(|path| is_picture(path));
    if is_list { paths } else { Vec::new() }
}

/// Returns the path with which a line begins, where the line is probably about its file: that of a
/// picture, or one that could be taken for a command. A line that begins with a blank is a text.
pub(crate) fn leading(line: &str) -> Option<PathBuf> {
    if line.len() > LINE_MAX || line.starts_with(char::is_whitespace) {
        return None;
    }
    let word = first_word(line)?;
    let path = expanded(&path_of(&word));
    let is_path = match line.starts_with('/') {
        true => word.matches('/').nth(1).is_some() || path.is_file(),
        false => line.starts_with("~/") || path.is_absolute() && is_picture(&path),
    };
    is_path.then_some(path)
}

/// Returns the first word of a line as [`words`] does; quotes after it need no end.
fn first_word(line: &str) -> Option<String> {
    let blanks = line.char_indices().filter(|(_, next)| next.is_whitespace());
    let ends = blanks.map(|(at, _)| at).chain([line.len()]);
    ends.filter_map(|end| words(&line[..end])).find_map(|mut words| words.pop())
}

/// Returns the picture with whose path a text begins that is longer than the path.
pub(crate) fn with_words(text: &str) -> Option<PathBuf> {
    let path = expanded(&path_of(&first_word(text)?));
    is_picture(&path).then_some(path)
}

/// Returns why a line that begins with a path is no message, and what to do.
pub(crate) fn advice(path: &Path) -> String {
    let what = match std::fs::metadata(path) {
        Ok(facts) if facts.is_file() && File::open(path).is_ok() => match is_picture(path) {
            true => "is an image; give it by /image FILE, or on a line of its own, and ask then",
            false => "is no image",
        },
        Ok(facts) if facts.is_dir() => "is a folder, and no image",
        _ => "cannot be read; check the path and its permissions",
    };
    format!(
        "{} {what}. A text that begins with a path is sent with a space before it",
        path.display()
    )
}

/// Returns the path of a word: `file://` addresses of this machine are paths with escaped bytes.
fn path_of(word: &str) -> PathBuf {
    // RFC 8089: the host is empty or `localhost` where the file is on this machine.
    let rest = word.strip_prefix("file://");
    let rest = rest.map(|rest| rest.strip_prefix("localhost").unwrap_or(rest));
    let Some(path) = rest.filter(|rest| rest.starts_with('/')) else { return PathBuf::from(word) };
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        let escaped = others
            .get(..2)
            .filter(|_| first == b'%')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &others[2..] } else { others };
    }
    PathBuf::from(String::from_utf8_lossy(&bytes).into_owned())
}

/// Cuts a line into words as shells do: quotes of both kinds, and a backslash before a character.
/// Returns `None` if a quotation does not end.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(next) = chars.next() {
        match (quote, next) {
            (Some(open), close) if open == close => quote = None,
            (Some('\''), other) => word.get_or_insert_default().push(other),
            (None, '\'' | '"') => {
                quote = Some(next);
                word.get_or_insert_default();
            }
            // Folders of Windows end in backslashes.
            (_, '\\') if !cfg!(windows) => word.get_or_insert_default().push(chars.next()?),
            (None, blank) if blank.is_whitespace() => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_dragged_are_pictures() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        for name in ["cat.png", "my cat.png", "it's.png"] {
            std::fs::write(at(name), png).unwrap();
        }
        std::fs::write(at("notes.txt"), "cat.png").unwrap();
        let (place, plain) = (folder.path().display(), at("cat.png"));
        let spaced = at("my cat.png");
        for (line, expected) in [
            (format!("{place}/cat.png "), vec![&plain]),
            (format!("'{place}/my cat.png'"), vec![&spaced]),
            (format!("\"{place}/my cat.png\""), vec![&spaced]),
            (format!("{place}/my cat.png"), vec![&spaced]),
            (format!("{place}/my\\ cat.png"), vec![&spaced]),
            (format!("file://{place}/my%20cat.png"), vec![&spaced]),
            (format!("file://localhost{place}/cat.png"), vec![&plain]),
            (format!("file://host{place}/cat.png"), vec![]),
            (format!("file://localhost.org{place}/cat.png"), vec![]),
            (format!("'{place}/it'\\''s.png'"), vec![&at("it's.png")]),
            (format!("'{place}/cat.png' {place}/my\\ cat.png"), vec![&plain, &spaced]),
            (format!("{place}/notes.txt"), vec![]),
            (format!("{place}/cat.png {place}/notes.txt"), vec![]),
            (format!("What is in {place}/cat.png?"), vec![]),
            (format!("{place}"), vec![]),
            (format!("'{place}/cat.png"), vec![]),
            ("\\".to_owned(), vec![]),
            ("%".to_owned(), vec![]),
            ("file://%".to_owned(), vec![]),
            (String::new(), vec![]),
        ] {
            assert_eq!(dragged(&line).iter().collect::<Vec<_>>(), expected, "{line}");
        }
    }

    #[test]
    fn a_path_before_a_question_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        std::fs::write(at("my cat.png"), png).unwrap();
        std::fs::write(at("notes.txt"), "notes").unwrap();
        let place = folder.path().display();
        let (cat, notes, missing) = (at("my cat.png"), at("notes.txt"), at("no.png"));
        for (line, expected) in [
            (format!("{place}/my\\ cat.png what's this"), Some((&cat, "is an image; give it by"))),
            (format!("'{place}/my cat.png' what is this"), Some((&cat, "/image FILE"))),
            (format!("file://{place}/my%20cat.png what?"), Some((&cat, "is an image"))),
            (format!("{place}/notes.txt sum it up"), Some((&notes, "is no image"))),
            (format!("{place}/no.png what is this"), Some((&missing, "cannot be read"))),
            (format!("{place}/no.png"), Some((&missing, "cannot be read"))),
            (format!(" '{place}/my cat.png' is a path"), None),
            (format!("'{place}/notes.txt' is a path"), None),
            ("/hlep me".to_owned(), None),
            ("it's".to_owned(), None),
            (String::new(), None),
        ] {
            let found = leading(&line);
            assert_eq!(found.as_ref(), expected.map(|(path, _)| path), "{line}");
            if let Some((path, told)) = expected {
                assert!(advice(path).contains(told), "{line}: {}", advice(path));
            }
        }
        assert!(advice(folder.path()).contains("is a folder"));
    }

    #[test]
    fn files_keep_where_a_picture_was() {
        let text = r#"{"path":"/a/cat.png","digest":"ab","name":"cat.png"}"#;
        let picture: TurnPicture = serde_json::from_str(text).unwrap();
        assert!(picture.handle.is_none());
        assert_eq!(serde_json::to_string(&picture).unwrap(), text);
        // The page has names only.
        let text = r#"{"name":"cat.png"}"#;
        let mut picture: TurnPicture = serde_json::from_str(text).unwrap();
        assert!(picture.is_unread() && !picture.find(None) && !picture.is_unread());
        assert_eq!(serde_json::to_string(&picture).unwrap(), text);
    }
}
