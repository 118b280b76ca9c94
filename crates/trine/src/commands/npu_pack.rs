//! `trine npu pack`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use trine_npu::pack::Pack;
use trine_npu::{UNTESTED, published};

use crate::cli::NpuPackArgs;
use crate::npu_packs;
use crate::output;

/// Makes a kernel pack of an xclbin that AMD published.
///
/// # Errors
/// Returns an error if the file is another, or if the folder is there or cannot be written.
pub(super) fn run(args: &NpuPackArgs, xclbin: &[u8]) -> Result<()> {
    let shown = args.xclbin.display();
    let files = published::make(xclbin)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("{shown} is no kernel that trine makes a pack of"))?;
    let folder = match &args.to {
        Some(folder) => folder.clone(),
        None => npu_packs::folder()?.join(name(&files)),
    };
    if folder.exists() {
        bail!("{} is there; remove it, or name another folder with --to", folder.display());
    }
    let failed = || format!("cannot write {}", folder.display());
    std::fs::create_dir_all(&folder).with_context(failed)?;
    for (name, bytes) in &files {
        std::fs::write(folder.join(name), bytes).with_context(failed)?;
    }
    let pack = Pack::open(&folder).with_context(|| format!("{} is refused", folder.display()))?;
    output::line(format!(
        "{}: {} ({UNTESTED})\nProve it with `trine npu verify {0}`.",
        folder.display(),
        output::counted(pack.streams.len(), "stream")
    ))
}

/// Returns the name of a pack: that of its xclbin.
fn name(files: &[(String, Vec<u8>)]) -> PathBuf {
    let first = files.first().map_or("pack", |(name, _)| name.as_str());
    first.trim_end_matches(".xclbin").into()
}
