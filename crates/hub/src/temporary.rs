//! New files that replace others once they are whole.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Who may read a new file, besides its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Whom the process lets read its files, on Unix by its umask.
    AsUsual,
    /// Nobody, where the system knows owners.
    Nobody,
}

#[cfg(unix)]
fn create_new(path: &Path, readers: Readers) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let mode = if readers == Readers::Nobody { 0o600 } else { 0o666 };
    File::options().write(true).create_new(true).mode(mode).open(path)
}

#[cfg(not(unix))]
fn create_new(path: &Path, _: Readers) -> io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

/// Creates a file for writing. What an interrupted process left at the path is removed before: a
/// link there is never followed. The file is locked for as long as it is open, where the disk knows
/// locks: keep it so until it has been renamed.
pub(crate) fn create_temporary(path: &Path, readers: Readers) -> io::Result<File> {
    let mut is_cleared = false;
    loop {
        let file = match create_new(path, readers) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !is_cleared => {
                fs::remove_file(path)?;
                is_cleared = true;
                continue;
            }
            // A process that has taken it for a dead one is about to remove it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                std::thread::yield_now();
                continue;
            }
            created => created?,
        };
        is_cleared = true;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => return Ok(file),
            // The disk knows no locks.
            Err(TryLockError::Error(_)) => return Ok(file),
            // Another process has taken it for a dead one before it was locked.
            Ok(()) | Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// Removes a temporary file of a process that is not there any more: one that nobody has locked.
pub(crate) fn remove_dead(path: &Path) {
    // A link is not ours.
    if !fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        return;
    }
    let Ok(file) = File::options().write(true).open(path) else { return };
    if file.try_lock().is_ok() && is_at(&file, path) {
        // If it cannot be removed, it stays where nobody looks for it.
        let _ = fs::remove_file(path);
    }
}

/// Returns whether an open file is still the one of this name, as far as the system tells.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let place = |found: fs::Metadata| (found.dev(), found.ino());
    let (open, named) = (file.metadata().map(place), fs::symlink_metadata(path).map(place));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// Returns whether an open file is still the one of this name: it is not removed while it is open.
#[cfg(not(unix))]
pub(crate) fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_there_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tmp");
        for text in ["longer", "text"] {
            create_temporary(&path, Readers::AsUsual).unwrap().write_all(text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::create_dir(folder.path().join("b.tmp")).unwrap();
        assert!(create_temporary(&folder.path().join("b.tmp"), Readers::AsUsual).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, victim, nowhere] =
            ["a.tmp", "victim", "nowhere"].map(|name| folder.path().join(name));
        fs::write(&victim, "precious").unwrap();
        for target in [&victim, &nowhere] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            create_temporary(&path, Readers::AsUsual).unwrap().write_all(b"text").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "text");
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!nowhere.exists());
    }
}
