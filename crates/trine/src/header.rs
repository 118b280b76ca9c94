//! Models that are not on this machine, as far as their headers say what they are: for commands
//! that run nothing.

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;
use trine_hub::{LocalModel, ModelFile, Origin};

use crate::cli::FetchArgs;
use crate::failure::Interrupted;
use crate::fetch::header;
use crate::model_source::{Chosen, Missing, Resolved, Source, find, hub, resolve};
use crate::{output, settings};

/// A model for a command that runs nothing. Its file is gone when this is dropped.
pub(crate) struct Shown {
    /// The model.
    pub(crate) chosen: Chosen,
    /// The path of its file on the server, if only its header is here.
    pub(crate) on_server: Option<String>,
    _folder: Option<TempDir>,
}

/// Returns what [`find`] does, but of a model that is not on this machine only what its header
/// says: a file of its length with nothing after the header.
///
/// # Errors
/// As [`find`], and if the header cannot be read.
pub(crate) fn find_shape(typed: Option<&str>, fetch: &FetchArgs) -> Result<Shown> {
    let whole = || Ok(Shown { chosen: find(typed, fetch)?, on_server: None, _folder: None });
    let Some(name) = typed.or_else(|| settings::get().model()).filter(|_| !fetch.yes) else {
        return whole();
    };
    let Resolved::Missing(missing) = resolve(name)? else { return whole() };
    match of_server(&missing) {
        Ok(Some(shown)) => Ok(shown),
        Ok(None) => whole(),
        Err(error) if error.is::<Interrupted>() => Err(error),
        Err(error) => whole().map_err(|own| anyhow!("{own}. Its header cannot be read: {error:#}")),
    }
}

/// Reads the header of a model on the server; `None` if it takes more than one.
fn of_server(missing: &Missing) -> Result<Option<Shown>> {
    let Missing { name, preset, .. } = missing;
    let Some(read) = header(&hub()?, name)? else { return Ok(None) };
    let fail = "cannot write the header of the model to the folder for temporary files";
    let folder = tempfile::tempdir().context(fail)?;
    let path = folder.path().join("model.gguf");
    let mut file = std::fs::File::create(&path).context(fail)?;
    file.write_all(&read.beginning).context(fail)?;
    // What follows is a hole: it takes no room, and nothing reads it.
    file.set_len(read.bytes).context(fail)?;
    output::note(&format!(
        "{name} is not on this machine: its header was read, {} of {}",
        output::bytes(read.beginning.len() as u64),
        output::bytes(read.bytes)
    ));
    let on_server = format!("{}/{}", name.repository(), read.file);
    let own = ModelFile { name: read.file, path: path.clone(), bytes: read.bytes, sha256: None };
    let model = LocalModel {
        name: name.clone(),
        path,
        files: vec![own],
        mmproj: None,
        left_out: None,
        bytes: read.bytes,
        origin: Origin::Store,
        revision: None,
    };
    let chosen = Chosen { source: Source::Local(Box::new(model)), preset: preset.clone() };
    Ok(Some(Shown { chosen, on_server: Some(on_server), _folder: Some(folder) }))
}
