//! Downloads from Hugging Face repositories and the local model store.
//!
//! [`Hub::pull`] downloads a model by the name that people type (`owner/repo:Q4_K_M`), resumes an
//! earlier attempt, verifies the SHA-256 that the repository publishes, and moves each file to its
//! final name only when it is whole. [`Hub::resolve`], [`Hub::list`] and [`Hub::show`] work without
//! a network, from the store and, read-only, from the Hugging Face cache. [`catalog`] knows the
//! usual names of models, and a [`Preset`] combines a model with a name, a system prompt and
//! parameters of its own.
//!
//! The store keeps human-readable names: `<store>/owner/repo/<file>`, with one `manifest.json` per
//! repository. A download in progress is `<file>.part`. Lock files are in `<store>/.locks`, presets
//! in `<store>/.presets`.
//!
//! | module | holds |
//! |---|---|
//! | `name`, `short`, `spelling`, [`catalog`] | names: which may become paths, what is meant, what people know |
//! | `select`, `mmproj`, `stems` | which files make up a model, and its vision tower |
//! | `pull`, `download`, `part`, `judge` | fetching, continuing, refusing by a file's first bytes |
//! | `http`, `location`, `retry`, `pinned` | requests: where the token may go, what is worth repeating |
//! | `store`, `cache`, `neighbours`, `shelves`, `inventory` | what is on this machine |
//! | `preset` | models with a name and parameters of their own |

#![forbid(unsafe_code)]

mod api;
mod cache;
pub mod catalog;
mod config;
mod download;
mod error;
mod header;
mod http;
mod hub;
mod inventory;
mod judge;
mod local;
mod location;
mod manifest;
mod mmproj;
mod name;
mod neighbours;
mod once;
mod part;
mod pinned;
mod preset;
mod progress;
mod pull;
mod retry;
mod select;
mod shelf;
mod shelves;
mod short;
mod space;
mod spelling;
mod stems;
mod store;
mod temporary;

pub use config::{HubConfig, Judge, Token};
pub use error::HubError;
pub use header::Header;
pub use hub::Hub;
pub use inventory::Inventory;
pub use local::{
    EntryState, LeftOut, LocalModel, ModelFile, Origin, RemovedModel, StoreEntry, StoredFile,
};
pub use name::{ModelName, Selection};
pub use pinned::{Pinned, get_pinned};
pub use preset::{
    Preset, PresetMessage, PresetName, PresetParameters, PresetRole, PresetRoom, Taken,
};
pub use progress::{Progress, Silent};

pub use select::{InFolder, in_folder};
pub use space::available_bytes;
