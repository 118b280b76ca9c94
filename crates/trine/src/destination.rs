//! Files that commands write: where they go, and what they must never replace.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use trine_weights::SafetensorsFile;

use crate::model_source::Source;

/// Links that may lead to one another before a file comes; as many as Linux follows.
const LINKS_MAX: usize = 40;

/// The file that a name stands for: where it is a symbolic link, what the link leads to, so that the link stays.
///
/// # Errors
/// For a circle of links, and for `-`, which elsewhere means standard output.
pub(crate) fn behind_links(path: &Path) -> Result<PathBuf> {
    if path == Path::new("-") {
        bail!(
            "`-` would be standard output, which this cannot go to; give the name of a file (./- for one of that name)"
        );
    }
    let mut file = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&file) {
            // A relative target counts from the link's folder.
            Ok(target) => file = file.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(file),
        }
    }
    bail!("{} is a link that leads back to itself; choose another name", path.display())
}

/// Writes a file under a name of its own and then gives it the one that it is to have.
///
/// # Errors
/// If it cannot be written; what was there stays then.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let written = File::create(part)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(part, path));
    if written.is_err() {
        let _ = std::fs::remove_file(part);
    }
    written.with_context(|| {
        format!("cannot write {}; check the path and its permissions", path.display())
    })
}

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
        bail!("{} exists and is not a file of logits; choose another name", path.display());
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_and_lead_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("far")).unwrap();
        symlink("far/file", at("link")).unwrap();
        symlink(at("link"), at("second")).unwrap();
        assert_eq!(behind_links(&at("second")).unwrap(), at("far/file"));
        replace(&behind_links(&at("second")).unwrap(), b"x").unwrap();
        assert_eq!(std::fs::read(at("link")).unwrap(), b"x");
        assert!(at("link").is_symlink() && at("second").is_symlink());
        assert_eq!(behind_links(&at("new")).unwrap(), at("new"));
        symlink("b", at("a")).unwrap();
        symlink("a", at("b")).unwrap();
        let error = behind_links(&at("a")).unwrap_err().to_string();
        assert!(error.contains("leads back to itself"), "{error}");
        assert!(behind_links(Path::new("-")).is_err() && behind_links(Path::new("./-")).is_ok());
    }
}
