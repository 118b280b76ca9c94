//! Files that commands write: what they must never replace.

use std::path::Path;

use anyhow::{Result, bail};
use trine_weights::SafetensorsFile;

use crate::model_source::Source;

/// Refuses names under which no file can be written, or whose file is being read: folders, devices, pipes and sockets (a
/// finished file takes its name by renaming, which would replace the device itself), and the model's own files.
///
/// # Errors
/// If the name is one of these.
pub(crate) fn check(path: &Path, source: &Source) -> Result<()> {
    let shown = path.display();
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if found.is_dir() {
        bail!("{shown} is a folder; give the name of a file in it, such as model.gguf");
    }
    if !found.is_file() {
        bail!("{shown} is a device, pipe or socket; give the name of a regular file");
    }
    let input = match source {
        Source::Embedded(_) => return Ok(()),
        Source::Path(path) => path,
        Source::Local(model) => &model.path,
    };
    if let (Ok(input), Ok(output)) = (input.canonicalize(), path.canonicalize())
        && output.starts_with(&input)
    {
        bail!("{shown} belongs to the model that is read; choose another name");
    }
    Ok(())
}

/// As [`check`], for a file of logits: it may replace an earlier one, and nothing else.
///
/// # Errors
/// If the name is taken by anything but a file of logits.
pub(crate) fn check_logits(path: &Path, source: &Source) -> Result<()> {
    check(path, source)?;
    let is_logits = || {
        let file = SafetensorsFile::open(path).ok()?;
        Some(file.entries().len() == 1 && file.entry("logits").is_some())
    };
    if path.exists() && is_logits() != Some(true) {
        bail!("{} exists and is no file of logits; choose another name", path.display());
    }
    Ok(())
}
