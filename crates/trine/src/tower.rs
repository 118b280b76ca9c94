//! The vision tower that goes with a model.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use trine_model::{Model, Tower};

use crate::model_source::Source;

/// Returns the model with its vision tower: the one in its own files, or in the first mmproj file
/// beside it, by name, that fits.
///
/// # Errors
/// Returns an error if there is none, or none that can be used.
pub(crate) fn attach(source: &Source, model: Model) -> Result<Model> {
    let name = source.name();
    if Tower::is_in(model.checkpoint()) {
        let tower = Tower::from_checkpoint(source.open_checkpoint()?);
        let tower = tower.with_context(|| format!("the vision tower of {name} cannot be used"))?;
        return Ok(model.with_tower(tower)?);
    }
    let files = beside(&model);
    let Some((last, others)) = files.split_last() else {
        bail!(
            "{name} reads no pictures: there is no vision tower in its files and no mmproj file beside it; \
             give a model that does, or put its mmproj file into the folder of the model"
        );
    };
    let open =
        |path: &PathBuf| -> Result<Model> { Ok(model.clone().with_tower(Tower::open(path)?)?) };
    let found = others.iter().find_map(|path| open(path).ok());
    found.map_or_else(|| open(last), Ok)
}

/// Returns the mmproj files in the folder of a model, by name, and then those beside what it is a
/// link to.
fn beside(model: &Model) -> Vec<PathBuf> {
    let source = model.checkpoint().source();
    let mut folders = vec![folder_of(source)];
    folders.extend(source.canonicalize().ok().map(|whole| folder_of(&whole)));
    let is_tower = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.contains("mmproj") && name.ends_with(".gguf")
    };
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_tower).collect();
        files.sort();
        files.retain(|file| seen.insert(file.canonicalize().unwrap_or_else(|_| file.clone())));
        all.extend(files);
    }
    all
}

/// Returns the folder that a model is, or is in.
fn folder_of(source: &Path) -> PathBuf {
    match source.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        _ if source.is_dir() => source.to_owned(),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("."),
    }
}
