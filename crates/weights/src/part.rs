//! Files that are written under a temporary name and renamed when they are whole.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The most names that are tried.
const NAMES_MAX: usize = 1000;

/// Begins what a part adds to the name of its file: nothing else makes such names.
const MARK: &str = ".trine-";

/// Creates the file that is to be renamed to `path` when it is whole, and returns its name:
/// `model.gguf.trine-4711.part` for `model.gguf`, with the number of this process. If there is
/// anything of that name, it stays, and the file is `model.gguf.trine-4711.1.part` or the next that
/// is free.
///
/// The file is locked for as long as it is open: keep it so until it has been renamed. A part that
/// nobody holds is one of a process that was killed ([`remove_dead_parts`]).
///
/// # Errors
///
/// Returns an error if the file cannot be created.
pub fn create_part(path: &Path) -> io::Result<(PathBuf, File)> {
    create(path, |part| File::create_new(part))
}

/// Does the same for a folder. It is locked through the open folder where the system opens folders.
///
/// # Errors
///
/// Returns an error if the folder cannot be created.
pub fn create_part_folder(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    if !cfg!(unix) {
        return create_named(path, |part| std::fs::create_dir(part)).map(|(part, ())| (part, None));
    }
    let opened = create(path, |part| {
        std::fs::create_dir(part)?;
        File::open(part)
    });
    opened.map(|(part, folder)| (part, Some(folder)))
}

/// Makes and locks the first part of `path` whose name is free.
fn create(path: &Path, make: impl Fn(&Path) -> io::Result<File>) -> io::Result<(PathBuf, File)> {
    create_named(path, |part| {
        let file = make(part)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, part) => Ok(file),
            // The disk knows no locks.
            Err(TryLockError::Error(_)) => Ok(file),
            // Another process has taken it for a dead one before it was locked.
            Ok(()) | Err(TryLockError::WouldBlock) => Err(ErrorKind::AlreadyExists.into()),
        }
    })
}

fn create_named<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    let process = std::process::id();
    let mut taken = None;
    for number in 0..NAMES_MAX {
        let mut name = OsString::from(path);
        name.push(match number {
            0 => format!("{MARK}{process}.part"),
            _ => format!("{MARK}{process}.{number}.part"),
        });
        let part = PathBuf::from(name);
        match make(&part) {
            Ok(made) => return Ok((part, made)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => taken = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(taken.unwrap_or_else(|| ErrorKind::AlreadyExists.into()))
}

/// Removes parts of `path` whose processes are not there any more, and returns their names. Parts
/// that are being written stay, and on disks without locks all do.
pub fn remove_dead_parts(path: &Path) -> Vec<PathBuf> {
    parts(path).into_iter().filter(|part| remove_dead(part)).collect()
}

/// Does the same for parts that are folders.
pub fn remove_dead_part_folders(path: &Path) -> Vec<PathBuf> {
    parts(path).into_iter().filter(|part| remove_dead_folder(part)).collect()
}

/// Returns everything that has the name of a part of `path`.
fn parts(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name() else { return Vec::new() };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    let is_part = |entry: &std::fs::DirEntry| {
        let found = entry.file_name();
        let Some(rest) = found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes()) else {
            return false;
        };
        let number = rest.strip_prefix(MARK.as_bytes()).and_then(|it| it.strip_suffix(b".part"));
        let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        number.is_some_and(|number| number.split(|&byte| byte == b'.').all(is_number))
    };
    let parts = entries.flatten().filter(is_part);
    parts.map(|entry| path.with_file_name(entry.file_name())).collect()
}

/// Removes a file if nobody has locked it. Returns whether it did.
fn remove_dead(part: &Path) -> bool {
    // A link or a pipe is not ours.
    if !std::fs::symlink_metadata(part).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let Ok(file) = File::options().write(true).open(part) else { return false };
    file.try_lock().is_ok() && is_at(&file, part) && std::fs::remove_file(part).is_ok()
}

/// Removes a folder if nobody has locked it. Returns whether it did.
fn remove_dead_folder(part: &Path) -> bool {
    if !cfg!(unix) || !std::fs::symlink_metadata(part).is_ok_and(|found| found.is_dir()) {
        return false;
    }
    let Ok(folder) = File::open(part) else { return false };
    folder.try_lock().is_ok() && is_at(&folder, part) && std::fs::remove_dir_all(part).is_ok()
}

/// Returns whether an open file is still the one of this name, as far as the system tells.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let place = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (open, named) = (file.metadata().map(place), std::fs::symlink_metadata(path).map(place));
    matches!((open, named), (Ok(open), Ok(named)) if open == named)
}

/// Returns whether an open file is still the one of this name: it cannot be removed while it is
/// open.
#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_have_the_name_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let (first, _) = create_part(&path).unwrap();
        let name = format!("model.gguf.trine-{}.part", std::process::id());
        assert_eq!(first, folder.path().join(name));
        std::fs::write(&first, "mine").unwrap();
        let (second, _) = create_part(&path).unwrap();
        let (third, _) = create_part(&path).unwrap();
        assert!(first != second && second != third && first != third);
        assert_eq!(std::fs::read(&first).unwrap(), b"mine");
        assert!(!path.exists());
        assert!(create_part(&folder.path().join("none/model.gguf")).is_err());
    }

    #[test]
    fn parts_of_dead_processes_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let path = at("model.gguf");
        // A file that is closed is what a killed process leaves.
        let dead = [create_part(&path).unwrap().0, at("model.gguf.trine-1.2.part")];
        std::fs::write(&dead[1], "half").unwrap();
        let (alive, held) = create_part(&path).unwrap();
        let others = [
            "model.gguf",
            "model.gguf.part",
            "model.gguf.1.part",
            "model.gguf.trine-.part",
            "model.gguf.trine-x.part",
            "model.gguf.trine-1.parts",
            "other.gguf.trine-1.part",
        ];
        others.iter().for_each(|name| std::fs::write(at(name), "mine").unwrap());
        std::fs::create_dir(at("model.gguf.trine-2.part")).unwrap();
        let mut removed = remove_dead_parts(&path);
        removed.sort();
        let mut expected = dead.to_vec();
        expected.sort();
        assert_eq!(removed, expected);
        assert!(alive.exists() && others.iter().all(|name| at(name).exists()));
        assert!(at("model.gguf.trine-2.part").exists());
        drop(held);
        assert_eq!(remove_dead_parts(&path), [alive]);
        if cfg!(unix) {
            let (living, held) = create_part_folder(&path).unwrap();
            std::fs::write(living.join("a"), "half").unwrap();
            assert_eq!(remove_dead_part_folders(&path), [at("model.gguf.trine-2.part")]);
            drop(held);
            assert_eq!(remove_dead_part_folders(&path), [living]);
            assert!(others.iter().all(|name| at(name).exists()));
        }
        assert!(remove_dead_parts(&at("none/model.gguf")).is_empty());
    }
}
