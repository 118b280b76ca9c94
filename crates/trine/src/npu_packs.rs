//! Where kernel packs for the NPU are.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use trine_npu::PackError;
use trine_npu::pack::Pack;

use crate::failure::usage;
use crate::model_source::hub_config;

/// The folder of the store for packs. No owner's name begins with a dot.
const FOLDER: &str = ".npu";

/// Returns the folder in which each pack has its own.
///
/// # Errors
/// Returns an error if a setting of the store cannot be used.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(hub_config()?.store.join(FOLDER))
}

/// Reads all packs in a folder, by name.
pub(crate) fn list(folder: &Path) -> Vec<(String, Result<Pack, PackError>)> {
    let open = |name: String| {
        let pack = Pack::open(&folder.join(&name));
        (name, pack)
    };
    names(folder).into_iter().map(open).collect()
}

/// Returns the names of the folders in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns the folder of the one pack of the store.
///
/// # Errors
/// Returns an error if there is none, or several.
pub(crate) fn only_pack() -> Result<PathBuf> {
    let folder = folder()?;
    let names = names(&folder);
    match &names[..] {
        [] => bail!(
            "no kernel pack in {}; make one of AMD's published kernels with `trine npu pack`, as docs/npu.md says, or name a pack's folder",
            folder.display()
        ),
        [name] => Ok(folder.join(name)),
        _ => Err(usage(format!(
            "several packs: {}; name the folder of one in {}",
            names.join(", "),
            folder.display()
        ))),
    }
}
