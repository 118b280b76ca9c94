//! Files that commands write: their real paths, and what they must never replace.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use trine_session::model_source::Source;
use trine_weights::{SafetensorsFile, create_part, remove_dead_parts};

use crate::terminal::output;

/// The most symbolic links that are followed in a row, as many as Linux follows.
const LINKS_MAX: usize = 40;

/// Returns the file that a name refers to. A symbolic link is followed to its target, so that the
/// link itself stays.
///
/// # Errors
/// Returns an error for a cycle of links, and for `-`, which means standard output elsewhere.
pub(crate) fn behind_links(path: &Path) -> Result<PathBuf> {
    if path == Path::new("-") {
        bail!(
            "`-` would be standard output, which this cannot go to; give the name of a file (./- \
             for one of that name)"
        );
    }
    let mut file = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::read_link(&file) {
            // A relative target is relative to the link's folder.
            Ok(target) => file = file.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(file),
        }
    }
    bail!("{} is a link that leads back to itself; choose another name", path.display())
}

/// Writes a file under a temporary name and then renames it to `path`.
///
/// # Errors
/// Returns an error if the file cannot be written. A file that was at `path` then stays.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    clear(path);
    let written = create_part(path).and_then(|(part, mut file)| {
        let whole = file.write_all(bytes).and_then(|()| file.sync_all());
        // It is open, and so locked, until it has its name.
        let named = whole.and_then(|()| std::fs::rename(&part, path));
        named.inspect_err(|_| {
            let _ = std::fs::remove_file(&part);
        })
    });
    written.with_context(|| {
        format!("cannot write {}; check the path and its permissions", path.display())
    })
}

/// Removes what killed runs left of this file, and says so.
pub(crate) fn clear(path: &Path) {
    for part in remove_dead_parts(path) {
        output::note(&format!("removed {}, which a run that was ended left", part.display()));
    }
}

/// Refuses a file of this size if its disk has no room for it. A file at `path` stays until the
/// new one is complete, so its room does not count.
///
/// # Errors
/// Returns an error if the disk has less room, as far as the system tells.
pub(crate) fn check_room(path: &Path, bytes: u64) -> Result<()> {
    let place = std::path::absolute(path)
        .with_context(|| format!("{} is no name of a file; choose another", path.display()))?;
    match trine_hub::available_bytes(&place) {
        Some(free) if free < bytes => bail!(
            "cannot write {}: it takes {}, and its disk has {} free; free some space, or choose a \
             name on another disk",
            path.display(),
            output::bytes(bytes),
            output::bytes(free)
        ),
        _ => Ok(()),
    }
}

/// Refuses names at which no file can be written: folders, devices, pipes and sockets, and the
/// files of the model that is being read. A finished file gets its name by renaming, which would
/// replace a device itself.
///
/// # Errors
/// Returns an error if the name is one of these.
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

/// Does the same as [`check`], and refuses the name of a file that is there without `force`.
///
/// # Errors
/// Returns an error if the name is one of these.
pub(crate) fn check_new(path: &Path, force: bool, source: &Source) -> Result<()> {
    check(path, source)?;
    if path.exists() && !force {
        bail!("{} exists; choose another name, or replace it with --force", path.display());
    }
    Ok(())
}

/// Does the same as [`check`] for a file of logits, which may replace an earlier file of logits and
/// nothing else.
///
/// # Errors
/// Returns an error if anything but a file of logits has the name.
pub(crate) fn check_logits(path: &Path, source: &Source) -> Result<()> {
    check(path, source)?;
    let is_logits = || {
        let file = SafetensorsFile::open(path).ok()?;
        let of_pictures = ["pixels", "tower", "projector"];
        let is_known = |name: &str| {
            // Pictures of different shapes have a tensor each.
            let (what, number) = name.split_once('.').unwrap_or((name, "0"));
            let is_of_picture = of_pictures.contains(&what) && number.parse::<usize>().is_ok();
            name == "logits" || name.starts_with("draft_") || is_of_picture
        };
        let all = file.entries().iter().all(|entry| is_known(&entry.name));
        Some(all && file.entry("logits").is_some())
    };
    if path.exists() && is_logits() != Some(true) {
        bail!("{} exists and is not a file of logits; choose another name", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_larger_than_the_room_on_their_disk_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        check_room(&path, 1).unwrap();
        check_room(Path::new("a"), 1).unwrap();
        for path in [path.as_path(), Path::new("a")] {
            let error = check_room(path, u64::MAX).unwrap_err().to_string();
            assert!(error.contains("free some space"), "{error}");
        }
    }

    #[test]
    fn files_of_a_similar_name_stay() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let parts = [at("a.part"), at(&format!("a.{}.part", std::process::id()))];
        let dead = at("a.trine-1.part");
        std::fs::write(&dead, "half").unwrap();
        for part in &parts {
            std::fs::write(part, "mine").unwrap();
        }
        replace(&at("a"), b"x").unwrap();
        for part in parts {
            assert_eq!(std::fs::read(part).unwrap(), b"mine");
        }
        assert!(!dead.exists(), "what a killed run left is gone");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
        // A folder cannot be replaced; nothing is left beside it.
        std::fs::create_dir(at("b")).unwrap();
        assert!(replace(&at("b"), b"x").is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_lead_to_the_file() {
        use std::os::unix::fs::symlink;

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
