//! Models that are not on this machine, as far as their headers say what they are: for commands
//! that run nothing.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;
use trine_hub::{HubError, LocalModel, Origin, catalog};
use trine_model::{Assistant, Model};
use trine_weights::Checkpoint;

use crate::failure::Interrupted;
use crate::finding::fetch::{Download, header};
use crate::finding::model_source::{Chosen, Missing, Resolved, Source, find, resolve};
use crate::library::ModelLibrary;
use crate::words;

/// A model for a command that runs nothing. Its file is gone when this is dropped.
pub struct Shown {
    /// The model.
    pub chosen: Chosen,
    /// The path of its file on the server, if only its header is here.
    pub on_server: Option<String>,
    _folder: Option<TempDir>,
}

/// Returns what [`find`] does, but of a model that is not on this machine only what its header
/// says: files of its lengths with nothing after their headers. Never asks for a download.
///
/// # Errors
/// As [`find`], and if the header cannot be read.
pub fn find_shape(
    library: &ModelLibrary,
    typed: Option<&str>,
    download: Download,
) -> Result<Shown> {
    let whole = || {
        let chosen = find(library, typed, download)?;
        Ok(Shown { chosen, on_server: None, _folder: None })
    };
    let name = typed.or(library.model.as_deref()).filter(|_| download != Download::Always);
    let Some(name) = name else { return whole() };
    let Resolved::Missing(missing) = resolve(library, name)? else { return whole() };
    match of_server(library, &missing) {
        Ok(shown) => Ok(shown),
        Err(error) if error.is::<Interrupted>() || is_final(&error) => Err(error),
        Err(error) => whole().map_err(|own| {
            let (own, reason) = (own.to_string(), format!("{error:#}"));
            anyhow::Error::new(Unread { own, reason })
        }),
    }
}

/// Returns whether an error means that the model does not exist, so a download cannot help.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(
            HubError::RepositoryNotFound { .. }
                | HubError::FileNotFound { .. }
                | HubError::NoMatch { .. }
                | HubError::Ambiguous { .. }
                | HubError::Unusable { .. }
        )
    )
}

/// A model is not on this machine, and its header cannot be read.
#[derive(Debug)]
pub struct Unread {
    /// That it is not here, and how to get it.
    own: String,
    /// Why its header cannot be read.
    pub reason: String,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. Its header cannot be read: {}", self.own, self.reason)
    }
}

impl std::error::Error for Unread {}

/// Opens a model of which only the headers are here, as the commands do.
fn check(path: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(path)?;
    match Assistant::is_in(&checkpoint) {
        true => Assistant::from_checkpoint(checkpoint).map(drop)?,
        false => Model::from_checkpoint(checkpoint).map(drop)?,
    }
    Ok(())
}

/// Reads the headers of a model on the server.
fn of_server(library: &ModelLibrary, missing: &Missing) -> Result<Shown> {
    let Missing { name, preset, .. } = missing;
    let fail = "cannot write the header of the model to the folder for temporary files";
    let folder = tempfile::tempdir().context(fail)?;
    let read = header(library, &library.hub()?, name, folder.path())?;
    library.note(format!(
        "{} is not on this machine: its header was read, {} of {}",
        words::harmless(&catalog::short(name)),
        words::bytes(read.read),
        words::bytes(read.bytes)
    ));
    let on_server = match (&read.files[..], name.repository()) {
        ([file], repository) => format!("{repository}/{}", file.name),
        (files, repository) => format!("{repository}, {} files", files.len()),
    };
    let model = LocalModel {
        name: name.clone(),
        short: catalog::short(name),
        path: read.path,
        files: read.files,
        mmproj: None,
        left_out: None,
        bytes: read.bytes,
        origin: Origin::Store,
        revision: None,
    };
    check(&model.path).map_err(|error| {
        // The folder is gone when a reader looks for it; what is wrong is what the server has.
        let inside = format!("{}{}", folder.path().display(), std::path::MAIN_SEPARATOR);
        let problem = format!("{error:#}").replace(&inside, &format!("{}/", name.repository()));
        let remedy = "name another file of it, or another repository";
        anyhow!("what the server has of {on_server} is damaged or no model: {problem}; {remedy}")
    })?;
    let chosen = Chosen { source: Source::Local(Box::new(model)), preset: preset.clone() };
    Ok(Shown { chosen, on_server: Some(on_server), _folder: Some(folder) })
}
