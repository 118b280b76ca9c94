//! What can go wrong with a model file, and what the user can do about it.

use std::io;

use thiserror::Error;

/// An error while opening, reading, converting or writing model files.
///
/// Every message names the file (or tensor), the place, what was found, what was expected, and a
/// remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The operating system refused an operation on a file.
    #[error("{file}: cannot {action}: {source}. {remedy}")]
    Io {
        /// The file as the user named it.
        file: String,
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// The system's own error.
        source: io::Error,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The path leads to something other than a model file of a known format.
    #[error("{file}: {found}. {remedy}")]
    NotAModel {
        /// The file as the user named it.
        file: String,
        /// What was found there.
        found: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The file breaks its format's rules.
    #[error("{file}: at byte {offset}: {problem}. {remedy}")]
    Malformed {
        /// The file as the user named it.
        file: String,
        /// Where in the file, in bytes from its start.
        offset: u64,
        /// What was found and what was expected.
        problem: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The file is well formed but uses something that trine does not read.
    #[error("{file}: {what}. {remedy}")]
    Unsupported {
        /// The file as the user named it.
        file: String,
        /// What is not supported.
        what: String,
        /// What the user can do.
        remedy: &'static str,
    },
    /// The file was cut or rewritten while it was mapped: anything read from it since is void.
    #[error(
        "{file}: {what} while it was open, so its weights are void. Restore the file and load the \
         model again; replace model files by renaming, never by writing into them"
    )]
    Changed {
        /// The file as the user named it.
        file: String,
        /// What happened to the file, as a verb phrase in the past tense.
        what: String,
    },
    /// A metadata entry is missing or has the wrong type or value.
    #[error(
        "{file}: metadata key `{key}`: {problem}. The file was converted incompletely: get it from \
         another source or convert the original model again"
    )]
    Metadata {
        /// The file as the user named it.
        file: String,
        /// The key.
        key: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A tensor cannot be built or converted as requested.
    #[error("tensor `{name}`: {problem}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A buffer given to the block codecs has the wrong size, or the format has no encoder.
    #[error("{format}: {problem}")]
    Blocks {
        /// Name of the block format.
        format: &'static str,
        /// What was found and what was expected.
        problem: String,
    },
    /// A number that the target format cannot hold: NaN, an infinity, or one beyond its range.
    #[error(
        "element {position} is {value}, which {format} cannot hold ({problem}). The source weights \
         are damaged or need a wider format: check the file, or convert to F32 or BF16"
    )]
    NotEncodable {
        /// Index of the element in the encoded slice or, for a tensor, in the whole tensor.
        position: usize,
        /// The number found.
        value: f32,
        /// Name of the target format.
        format: &'static str,
        /// Why it does not fit.
        problem: &'static str,
    },
}

/// The remedy for files that end early or whose bytes make no sense.
pub(crate) const DOWNLOAD_AGAIN: &str = "The file is damaged or incomplete: compare its size and \
    checksum with the source and download it again";

/// The remedy for a path that is not a model.
pub(crate) const GIVE_A_MODEL: &str =
    "Give a .gguf file, or a Hugging Face folder with config.json and .safetensors files";

impl WeightsError {
    pub(crate) fn io(file: &str, action: &'static str, source: io::Error) -> Self {
        let remedy = match source.kind() {
            io::ErrorKind::NotFound => "Check the path",
            io::ErrorKind::PermissionDenied => "Check the permissions of the file and its folder",
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "Free some disk space and try again"
            }
            io::ErrorKind::OutOfMemory => {
                "Raise the limit of memory, such as that of `ulimit -v`, or end other programs"
            }
            _ => "Check the disk and the path, then try again",
        };
        Self::Io { file: file.to_owned(), action, source, remedy }
    }

    pub(crate) fn malformed(file: &str, offset: u64, problem: String) -> Self {
        Self::Malformed { file: file.to_owned(), offset, problem, remedy: DOWNLOAD_AGAIN }
    }

    pub(crate) fn not_a_model(file: &str, found: String) -> Self {
        Self::NotAModel { file: file.to_owned(), found, remedy: GIVE_A_MODEL }
    }
}

/// Returns text from a file in a form fit for a message: quoted, escaped, at most 64 characters.
pub(crate) fn quoted(text: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&text[..text.len().min(256)]);
    let mut quoted: String = shown.chars().take(64).flat_map(char::escape_debug).collect();
    if shown.chars().count() > 64 || text.len() > 256 {
        quoted.push_str("...");
    }
    format!("`{quoted}`")
}
