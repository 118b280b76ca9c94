//! Files that are written under a temporary name and renamed when they are whole.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The most names that are tried.
const NAMES_MAX: usize = 1000;

/// Creates the file that is to be renamed to `path` when it is whole, and returns its name:
/// `model.gguf.4711.part` for `model.gguf`, with the number of this process. If there is anything
/// of that name, it stays, and the file is `model.gguf.4711.1.part` or the next that is free.
///
/// # Errors
///
/// Returns an error if the file cannot be created.
pub fn create_part(path: &Path) -> io::Result<(PathBuf, File)> {
    let process = std::process::id();
    let mut taken = None;
    for number in 0..NAMES_MAX {
        let mut name = OsString::from(path);
        name.push(match number {
            0 => format!(".{process}.part"),
            _ => format!(".{process}.{number}.part"),
        });
        let part = PathBuf::from(name);
        match File::create_new(&part) {
            Ok(file) => return Ok((part, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => taken = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(taken.unwrap_or_else(|| ErrorKind::AlreadyExists.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_have_the_name_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let (first, _) = create_part(&path).unwrap();
        let name = format!("model.gguf.{}.part", std::process::id());
        assert_eq!(first, folder.path().join(name));
        std::fs::write(&first, "mine").unwrap();
        let (second, _) = create_part(&path).unwrap();
        let (third, _) = create_part(&path).unwrap();
        assert!(first != second && second != third && first != third);
        assert_eq!(std::fs::read(&first).unwrap(), b"mine");
        assert!(!path.exists());
        assert!(create_part(&folder.path().join("none/model.gguf")).is_err());
    }
}
