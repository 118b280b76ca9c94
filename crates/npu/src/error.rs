//! What can go wrong with files for the NPU. What a stream may not do is
//! [`Refusal`](crate::Refusal).

use std::io;

use thiserror::Error;

use crate::cores::ForeignPdi;
use crate::harmless;

/// A file breaks the rules of its format.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("not a sound {format}: at byte {offset}: {problem}")]
pub struct FormatError {
    /// The format, such as `transaction stream`.
    pub format: &'static str,
    /// Where in the bytes, from their start.
    pub offset: usize,
    /// What was found and what was expected.
    pub problem: String,
}

/// A kernel pack cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PackError {
    /// The operating system refused to read a file of the pack.
    #[error("cannot read {}: {source}. Build the pack again, or take another one", harmless(file))]
    Io {
        /// The file.
        file: String,
        /// The system's own error.
        source: io::Error,
    },
    /// The manifest is no manifest, or contradicts itself.
    #[error("{}: {}", harmless(file), harmless(problem))]
    Manifest {
        /// The file.
        file: String,
        /// What is wrong, what was expected.
        problem: String,
    },
    /// A file is not the one that the manifest names.
    #[error(
        "{} has the SHA-256 {found}, the manifest says {expected}. Fetch or build the file again",
        harmless(file)
    )]
    Hash {
        /// The file.
        file: String,
        /// What the manifest says.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The cores would run a program that the streams are not proven for.
    #[error("{}: {source}", harmless(file))]
    Cores {
        /// The xclbin.
        file: String,
        /// What it has.
        source: ForeignPdi,
    },
    /// A file of the pack is larger than any of its kind.
    #[error("{} has {bytes} bytes, at most {limit} are read", harmless(file))]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A file of the pack breaks its format.
    #[error("{}: {source}", harmless(file))]
    Format {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: FormatError,
    },
}
