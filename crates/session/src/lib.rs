//! Opens a model with everything that goes with it: its text side, its vision tower, the draft that
//! guesses for it, and what computes beside its device.
//!
//! [`open`] is the front door: it finds what a name means ([`find`]) and loads it. A
//! [`ModelLibrary`] says where models are, and carries what the program around it does: hearing
//! decisions, asking before a download, showing what takes time. Nothing here prints.
//!
//! The examples `answer` and `serve` are whole programs ([docs/library.md]).
//!
//! [docs/library.md]: ../../../docs/library.md
#![forbid(unsafe_code)]

pub mod amdgpu;
pub mod assistants;
pub mod bandwidth;
pub mod device;
pub mod draft;
pub mod embedded;
pub mod energy;
pub mod experts;
pub mod failure;
pub mod fetch;
pub mod fitting;
pub mod forecast;
pub mod gpus;
pub mod header;
pub mod library;
pub mod machine;
pub mod measured;
pub mod model_path;
pub mod model_source;
pub mod modelfile;
pub mod npu;
pub mod npu_options;
pub mod npu_packs;
pub mod open_files;
pub mod options;
pub mod picture_file;
pub mod placed;
pub mod planner;
pub mod preset;
pub mod quantize;
pub mod seeing;
pub mod serving;
pub mod session;
pub mod statistics;
pub mod suiting;
pub mod tower;
pub mod vision;
pub mod vocabulary;
pub mod words;

use anyhow::Result;

use self::draft::{DraftOptions, Drafting};
pub use self::fetch::Download;
pub use self::library::{Callbacks, Decision, ModelLibrary};
pub use self::model_source::{Source, find};
pub use self::options::Options;
pub use self::session::{Detail, Session, Sizes};

/// Finds a model by its name, without one the library's own, and loads it for one conversation,
/// with the draft that goes with it. One that is not on this machine is downloaded if the callbacks
/// agree.
///
/// # Errors
/// Returns an error that says what to do if there is no such model, or it cannot be loaded.
pub fn open(library: &ModelLibrary, name: Option<&str>, options: &Options) -> Result<Session> {
    let source = find(library, name, Download::Ask)?.source;
    let drafting = Drafting::new(library, &DraftOptions::default(), Download::Ask, false)?;
    Session::open_with(library, &source, options, Sizes::default(), &drafting, |program| program)
}
