//! Where kernel packs for the NPU are.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use trine_npu::generate::Family;
use trine_npu::pack::{Manifest, Pack};
use trine_npu::{PackError, harmless};

use crate::failure::usage;
use crate::library::ModelLibrary;
use crate::words::shown;

/// The folder of the store for packs. No owner's name begins with a dot.
const FOLDER: &str = ".npu";

/// Returns the folder in which each pack has its own.
///
/// # Errors
/// Returns an error if a setting of the store cannot be used.
pub fn folder(library: &ModelLibrary) -> Result<PathBuf> {
    Ok(library.hub_config()?.store.join(FOLDER))
}

/// Reads all packs in a folder, by name.
///
/// # Errors
/// Returns an error if the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<(String, Result<Pack, PackError>)>> {
    let open = |name: String| {
        let pack = Pack::open(&folder.join(&name));
        (harmless(&name).into_owned(), pack)
    };
    Ok(names(folder)?.into_iter().map(open).collect())
}

/// Returns the names of the folders in a folder, sorted, without unfinished ones, which begin with
/// a dot.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| {
                format!(
                    "cannot read {}, the folder of kernel packs; check what it is, and its \
                     permissions",
                    shown(folder)
                )
            });
        }
    };
    let folders = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    Ok(names)
}

/// Returns whether a command uses the kernels of a pack.
pub fn is_used(manifest: &Manifest) -> bool {
    manifest.families().any(Family::is_used)
}

/// Returns the folder of the one pack of the store that commands use.
///
/// # Errors
/// Returns an error if there is none, or several.
pub fn only_pack(library: &ModelLibrary) -> Result<PathBuf> {
    let folder = folder(library)?;
    let names = names(&folder)?;
    let place = shown(&folder);
    if names.is_empty() {
        bail!(
            "no kernel pack in {place}; make one of AMD's published {} with `trine npu pack`, as \
             docs/npu.md says, or name a pack's folder",
            Family::Int8.file()
        );
    }
    let (mut used, mut refused) = (Vec::new(), Vec::new());
    for name in &names {
        match Manifest::read(&folder.join(name)) {
            Ok(manifest) if is_used(&manifest) => used.push(name),
            Ok(_) => {}
            Err(_) => refused.push(name),
        }
    }
    // What is refused is chosen only where there is nothing else, so that it is told why.
    let choice = if used.is_empty() { refused } else { used };
    match &choice[..] {
        [] => bail!(
            "the kernel packs in {place} ({}) are for no command of trine's yet; make one of AMD's \
             published {} with `trine npu pack`",
            harmless(&names.join(", ")),
            Family::Int8.file()
        ),
        [name] => Ok(folder.join(name)),
        several => {
            let several: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            let several = several.join(", ");
            Err(usage(format!(
                "several packs: {}; name the folder of one in {place}",
                harmless(&several)
            )))
        }
    }
}
