//! Models on this machine, as the hub describes them.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::name::ModelName;

/// The owner under which models of Ollama's library are listed.
pub(crate) const OLLAMA: &str = "ollama";

/// The place of a local model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The store: pulled here, can be removed here.
    Store,
    /// The cache of the Hugging Face tools, which is only read.
    HuggingFaceCache,
    /// Ollama's models, which are only read.
    Ollama,
    /// LM Studio's models, which are only read.
    LmStudio,
    /// The cache of llama.cpp's programs, which is only read.
    LlamaCpp,
}

impl Origin {
    /// Returns the place, for people; `None` for the store.
    pub fn place(self) -> Option<&'static str> {
        Some(match self {
            Self::Store => return None,
            Self::HuggingFaceCache => "the Hugging Face cache",
            Self::Ollama => "Ollama's models",
            Self::LmStudio => "LM Studio's models",
            Self::LlamaCpp => "llama.cpp's cache",
        })
    }

    /// Returns whether it is one of another program that downloads models by names of its own.
    pub(crate) fn is_neighbour(self) -> bool {
        matches!(self, Self::Ollama | Self::LmStudio | Self::LlamaCpp)
    }
}

/// A complete model on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LocalModel {
    /// The name by which it was requested.
    pub name: ModelName,
    /// The name by which people ask for it, such as `gemma3:4b`; the whole one if it has no other.
    #[serde(skip)]
    pub short: String,
    /// The path to open: the GGUF file (the first of a split set), or the folder with safetensors.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// All its files.
    pub files: Vec<ModelFile>,
    /// The path of the vision tower's GGUF file that goes with it, one of `files`.
    #[serde(serialize_with = "some_as_text", skip_serializing_if = "Option::is_none")]
    pub mmproj: Option<PathBuf>,
    /// The vision tower that this pull did not fetch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// Its place.
    pub origin: Origin,
    /// The commit that it was pulled at, if known.
    pub revision: Option<String>,
}

/// A vision tower that goes with a model and was not fetched with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Path in the repository.
    pub file: String,
    /// Why it cannot be run; `None` if it was not asked for.
    pub reason: Option<String>,
}

/// One file of a local model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelFile {
    /// Path in the repository.
    pub name: String,
    /// Path on this machine.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// The SHA-256 in hexadecimal, if it was verified (or names the cache's blob).
    pub sha256: Option<String>,
}

/// A model on this machine, complete or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoreEntry {
    /// The name that picks it.
    pub name: ModelName,
    /// The name by which people ask for it, such as `gemma3:4b`; the whole one if it has no other.
    #[serde(skip)]
    pub short: String,
    /// The name that the program has for it that downloaded it.
    #[serde(skip)]
    pub(crate) called: Option<String>,
    /// The path to open once it is complete: the first GGUF file, or the folder with safetensors.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// All its files.
    pub files: Vec<StoredFile>,
    /// The number of bytes on disk.
    pub bytes: u64,
    /// The bytes of the whole model, if known.
    pub total: Option<u64>,
    /// Whether it can be run; it can without the file of its vision tower, which takes texts only.
    pub state: EntryState,
    /// The share that is on disk in percent: 100 if complete, at most 99 before.
    pub percent: Option<u8>,
    /// Its place.
    pub origin: Origin,
    /// The commit of the latest pull, if known.
    pub revision: Option<String>,
}

/// Whether a model is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryState {
    /// All files are here.
    Complete,
    /// A download was interrupted, or a file was deleted: pulling again completes it.
    Partial,
}

/// One file of a model that may not be whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StoredFile {
    /// Path in the repository.
    pub name: String,
    /// The number of bytes on disk.
    pub bytes: u64,
    /// The bytes of the whole file, if known.
    pub total: Option<u64>,
    /// The SHA-256 in hexadecimal, if known: verified if the file is complete, as published before.
    pub sha256: Option<String>,
    /// Whether the file is complete.
    pub complete: bool,
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemovedModel {
    /// The model.
    pub name: ModelName,
    /// Its files' paths in the repository.
    pub files: Vec<String>,
    /// Bytes freed.
    pub bytes: u64,
}

/// Serialises a path that may be missing.
fn some_as_text<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => as_text(path, serializer),
        None => serializer.serialize_none(),
    }
}

/// Serialises a path as text; parts that are not text are replaced.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}
