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

/// How llama.cpp's formats before GGUF begin: `ggml`, `ggmf`, `ggjt`, and `ggla` for adapters, as
/// numbers with the last byte first.
const GGML: [&[u8]; 4] = [b"lmgg", b"fmgg", b"tjgg", b"algg"];

/// What to do with an archive.
pub(crate) const UNPACK: &str = "Unpack it, and give the model in it";
const AGAIN: &str = "The download went wrong: `trine pull owner/repo` downloads models";

/// Recognises a file by its first bytes, if it is none of the formats of models: what is left of a
/// download that went wrong, an archive, or a model of an earlier format. `file` names it in the
/// error, [`WeightsError::NotAModel`].
pub fn recognise(file: &str, bytes: &[u8]) -> Option<WeightsError> {
    let bytes = &bytes[..bytes.len().min(BEGINNING)];
    let start = bytes.trim_ascii_start();
    let begins = |text: &str| {
        start.get(..text.len()).is_some_and(|it| it.eq_ignore_ascii_case(text.as_bytes()))
    };
    let (found, remedy) = if bytes.starts_with(LFS) {
        let size = size_of_lfs(bytes).map_or(String::new(), |size| format!(" ({})", shown(size)));
        let found = format!("this is a Git LFS pointer, not the file itself{size}");
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
    } else if GGML.iter().any(|magic| bytes.starts_with(magic)) {
        ("this is a model in GGML, a format before GGUF".to_owned(), "Take the model as GGUF")
    } else {
        let archive = [
            (&b"\x1f\x8b"[..], "gzip"),
            (b"\x28\xb5\x2f\xfd", "zstd"),
            (b"7z\xbc\xaf\x27\x1c", "7z"),
            (b"\xfd7zXZ", "xz"),
            (b"Rar!", "rar"),
        ];
        let (_, kind) = archive.iter().find(|(magic, _)| bytes.starts_with(magic))?;
        (format!("this is an archive ({kind}), not a model"), UNPACK)
    };
    Some(WeightsError::NotAModel { file: file.to_owned(), found, remedy })
}

/// Returns whether a file is a zip archive that PyTorch did not write: `torch.save` begins with an
/// entry `data.pkl` in a folder. One that is cut before that name is PyTorch's if its own name says
/// so.
pub(crate) fn is_plain_zip(bytes: &[u8], is_pickle_name: bool) -> bool {
    // A local file header (APPNOTE 4.3.7): the length of the name is at 26, the name at 30.
    let name = bytes.get(26..28).and_then(|length| {
        bytes.get(30..)?.get(..usize::from(u16::from_le_bytes(length.try_into().ok()?)))
    });
    bytes.starts_with(b"PK\x03\x04")
        && name.map_or(!is_pickle_name, |name| !name.ends_with(b".pkl"))
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
        0..1000 => format!("{bytes} bytes"),
        1000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
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
            (pointer, "Git LFS pointer, not the file itself (2.5 GB)"),
            (
                "version https://git-lfs.github.com/spec/v1\nsize many\n",
                "not the file itself. Run `git lfs pull`",
            ),
            ("version https://git-lfs.github.com/spec/v1\nsize 5\n", "itself (5 bytes)"),
            ("version https://git-lfs.github.com/spec/v1\nsize 1500\n", "itself (1.5 kB)"),
            ("lmgg\u{1}", "in GGML, a format before GGUF"),
            ("tjgg\u{3}", "in GGML"),
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
