//! Where kernel packs for the NPU are.

use std::path::{Path, PathBuf};

use anyhow::Result;
use trine_npu::PackError;
use trine_npu::pack::Pack;

use crate::model_source::hub_config;

/// The folder of the store for packs. No owner's name begins with a dot.
const FOLDER: &str = ".npu";

/// Returns the folder in which each pack has its own.
///
/// # Errors
/// Returns an error if a setting of the store cannot be used.
pub(super) fn folder() -> Result<PathBuf> {
    Ok(hub_config()?.store.join(FOLDER))
}

/// Reads all packs in a folder, by name.
pub(super) fn list(folder: &Path) -> Vec<(String, Result<Pack, PackError>)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    folders.iter().map(|path| (name(path), Pack::open(path))).collect()
}
