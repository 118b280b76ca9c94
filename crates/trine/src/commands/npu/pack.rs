//! `trine npu pack`

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use trine_npu::generate::Family;
use trine_npu::pack::Pack;
use trine_npu::{UNTESTED, published};
use trine_session::library::ModelLibrary;
use trine_session::npu_packs;
use trine_weights::{create_part_folder, remove_dead_part_folders};

use crate::cli::NpuPackArgs;
use crate::terminal::output;
use crate::terminal::shown;

/// Makes a kernel pack of an xclbin that AMD published.
///
/// # Errors
/// Returns an error if the file is another, or if the folder is there or cannot be written.
pub(super) fn run(library: &ModelLibrary, args: &NpuPackArgs, xclbin: &[u8]) -> Result<()> {
    let files = published::make(xclbin).map_err(anyhow::Error::msg).with_context(|| {
        format!("{} is no kernel that trine makes a pack of", shown(&args.xclbin))
    })?;
    let folder = match &args.to {
        Some(folder) => folder.clone(),
        None => npu_packs::folder(library)?.join(name(&files)),
    };
    let told = shown(&folder);
    let pack = place(&folder, &files)?;
    output::line(format!(
        "{told}: {} ({UNTESTED})\nProve it with `trine npu verify {told}`.",
        output::counted(pack.streams.len(), "stream")
    ))?;
    for family in pack.manifest.families().filter(|family| !family.is_used()) {
        output::warning(format!(
            "no command runs kernels of {family} yet: `--npu` and `trine npu selftest` take a pack \
             of {}",
            Family::Int8.file()
        ));
    }
    Ok(())
}

/// Makes the folder of a pack. One that has its name is whole.
fn place(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<Pack> {
    let told = shown(folder);
    // A link that leads nowhere is there too.
    if folder.symlink_metadata().is_ok() {
        bail!("{told} is there; remove it, or name another folder with --to");
    }
    let Some(last) = folder.file_name() else { bail!("{told} names no folder that can be made") };
    let mut hidden = OsString::from(".");
    hidden.push(last);
    let hidden = folder.with_file_name(hidden);
    for dead in remove_dead_part_folders(&hidden) {
        output::note(&format!("removed {}, which a run that was ended left", shown(&dead)));
    }
    let failed = || format!("cannot write {told}; check the folder, its permissions and its disk");
    std::fs::create_dir_all(hidden.parent().unwrap_or(folder)).with_context(failed)?;
    // It is open, and so locked, until it has its name.
    let (part, _open) = create_part_folder(&hidden).with_context(failed)?;
    let pack = write(&part, files).and_then(|pack| {
        std::fs::rename(&part, folder).with_context(|| format!("cannot write {told}"))?;
        Ok(pack)
    });
    if pack.is_err() {
        let _ = std::fs::remove_dir_all(&part);
    }
    pack
}

/// Writes a pack's files and reads them again.
fn write(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<Pack> {
    let told = shown(folder);
    let failed = || format!("cannot write {told}; check the folder, its permissions and its disk");
    for (name, bytes) in files {
        std::fs::write(folder.join(name), bytes).with_context(failed)?;
    }
    Pack::open(folder).with_context(|| format!("{told} is refused"))
}

/// Returns the name of a pack: that of its xclbin.
fn name(files: &[(String, Vec<u8>)]) -> PathBuf {
    let first = files.first().map_or("pack", |(name, _)| name.as_str());
    first.trim_end_matches(".xclbin").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pack_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pack = folder.path().join("store/pack");
        let files = [("manifest.toml".to_owned(), b"format = 2".to_vec())];
        for _ in 0..2 {
            let dead = folder.path().join("store/.pack.trine-1.part");
            std::fs::create_dir_all(dead.join("half")).unwrap();
            let error = format!("{:#}", place(&pack, &files).unwrap_err());
            assert!(error.contains("is refused: manifest.toml"), "{error}");
        }
        let left = std::fs::read_dir(folder.path().join("store")).unwrap();
        assert_eq!(left.count(), 0);
        std::fs::create_dir(&pack).unwrap();
        let error = place(&pack, &files).unwrap_err().to_string();
        assert!(error.contains("is there; remove it"), "{error}");
    }
}
