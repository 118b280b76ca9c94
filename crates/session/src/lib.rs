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

pub mod device;
pub mod draft;
pub mod failure;
mod finding;
pub mod gpus;
pub mod library;
mod measuring;
pub mod npu;
pub mod npu_options;
pub mod npu_packs;
pub mod options;
mod placing;
pub mod quantize;
pub mod seeing;
pub mod serving;
pub mod session;
pub mod tower;
pub mod vision;
pub mod words;

use anyhow::Result;

use self::draft::{DraftOptions, Drafting};
pub use self::fetch::Download;
pub use self::finding::{
    assistants, embedded, fetch, fitting, header, model_path, model_source, modelfile, open_files,
    picture_file, preset, suiting, vocabulary,
};
pub use self::library::{Callbacks, Decision, ModelLibrary};
pub use self::measuring::{amdgpu, bandwidth, energy, machine, measured, statistics};
pub use self::model_source::{Source, find};
pub use self::options::Options;
pub use self::placing::{expert_summary, forecast, placed, planner};
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
