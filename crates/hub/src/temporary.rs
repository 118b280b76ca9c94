//! New files that replace others once they are whole.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Creates a file for writing. What an interrupted process left at the path is removed before: a
/// link there is never followed.
pub(crate) fn create_temporary(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            File::create_new(path)
        }
        created => created,
    }
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
            create_temporary(&path).unwrap().write_all(text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::create_dir(folder.path().join("b.tmp")).unwrap();
        assert!(create_temporary(&folder.path().join("b.tmp")).is_err());
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
            create_temporary(&path).unwrap().write_all(b"text").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "text");
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(!nowhere.exists());
    }
}
