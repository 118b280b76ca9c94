//! What a file is that is no model but is found in the place of one: the traces of downloads that
//! went wrong, and containers.

use crate::WeightsError;
use crate::error::quoted;

/// The most bytes of a file that are looked at.
const BEGINNING: usize = 4096;
/// How a Git LFS pointer begins (specification of Git LFS, "The Pointer").
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";
/// The most characters of a message that are shown.
const MESSAGE_MAX: usize = 120;

const AGAIN: &str = "The download went wrong: `trine pull owner/repo` downloads models";

/// Recognises a file by its first bytes, if it is none of the formats of models.
pub(crate) fn recognise(file: &str, bytes: &[u8]) -> Option<WeightsError> {
    let bytes = &bytes[..bytes.len().min(BEGINNING)];
    let start = bytes.trim_ascii_start();
    let begins = |text: &str| {
        start.get(..text.len()).is_some_and(|it| it.eq_ignore_ascii_case(text.as_bytes()))
    };
    let (found, remedy) = if bytes.starts_with(LFS) {
        let size = size_of_lfs(bytes).map_or(String::new(), |size| format!(" ({})", shown(size)));
        let found = format!("this is a Git LFS pointer, not the model{size}");
        (found, "Run `git lfs pull` in its folder, or download the model: `trine pull owner/repo`")
    } else if begins("<!doctype html") || begins("<html") {
        ("this is a web page, not a model".to_owned(), AGAIN)
    } else if begins("<?xml") || begins("<error") {
        ("this is an XML answer of a server, not a model".to_owned(), AGAIN)
    } else if let Some(message) = error_of(start) {
        (format!("this is an error message of a server, not a model: {message}"), AGAIN)
    } else if begins("invalid username or password")
        || begins("entry not found")
        || begins("repository not found")
        || begins("unauthorized")
    {
        let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
        (format!("this is an error message of a server, not a model: {}", quoted(line)), AGAIN)
    } else {
        let archive = [
            (&b"\x1f\x8b"[..], "gzip"),
            (b"\x28\xb5\x2f\xfd", "zstd"),
            (b"7z\xbc\xaf\x27\x1c", "7z"),
            (b"\xfd7zXZ", "xz"),
            (b"Rar!", "rar"),
        ];
        let (_, kind) = archive.iter().find(|(magic, _)| bytes.starts_with(magic))?;
        (format!("this is an archive ({kind}), not a model"), "Unpack it, and give the model in it")
    };
    Some(WeightsError::NotAModel { file: file.to_owned(), found, remedy })
}

/// Returns the number of bytes that a pointer says of its file.
fn size_of_lfs(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.lines().find_map(|line| line.strip_prefix("size "))?.trim().parse().ok()
}

/// Returns the message of a JSON object with an error, whole or cut.
fn error_of(start: &[u8]) -> Option<String> {
    if !start.starts_with(b"{") {
        return None;
    }
    let value: serde_json::Value = serde_json::from_slice(start).ok()?;
    let error = value.get("error").or_else(|| value.get("message"))?;
    let text = error.as_str().or_else(|| error.get("message")?.as_str())?;
    let text: String = text.chars().take(MESSAGE_MAX).collect();
    Some(quoted(text.as_bytes()))
}

/// Formats bytes for people.
fn shown(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downloads_that_went_wrong_are_named() {
        let pointer =
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2489757856\n";
        for (content, said) in [
            (pointer, "Git LFS pointer, not the model (2.5 GB)"),
            (
                "version https://git-lfs.github.com/spec/v1\nsize many\n",
                "not the model. Run `git lfs pull`",
            ),
            ("\n<!DOCTYPE html><html>", "this is a web page"),
            ("<HTML>", "this is a web page"),
            ("<?xml version=\"1.0\"?><Error>", "XML answer"),
            (
                r#"{"error": "Invalid username or password"}"#,
                "not a model: `Invalid username or password`",
            ),
            (r#"{"error": {"message": "gone\u001b[1m"}}"#, r"`gone\u{1b}[1m`"),
            ("Entry not found", "`Entry not found`"),
            ("7z\u{bc}", ""),
            ("\u{1f}\u{8b}", ""),
        ] {
            match recognise("m.gguf", content.as_bytes()) {
                Some(error) => {
                    assert!(!said.is_empty() && error.to_string().contains(said), "{error}")
                }
                None => assert!(said.is_empty(), "{content}"),
            }
        }
        let packed = recognise("m.gguf", b"\x1f\x8b\x08\0").unwrap().to_string();
        assert!(packed.contains("an archive (gzip)") && packed.contains("Unpack"), "{packed}");
        for model in [&b"GGUF"[..], b"{}", b"{\"a\":", b"", b"hello", &[0xff; 5000]] {
            assert!(recognise("m.gguf", model).is_none());
        }
    }
}
