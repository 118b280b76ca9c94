//! Reads files whose names come from outside.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Reads a file of at most `limit` bytes. It never waits: what is no regular file is refused, and
/// so is one that has nothing to read yet, as some of `/proc` have.
///
/// # Errors
///
/// Returns the system's error, one of kind [`ErrorKind::InvalidInput`] for what is no regular file,
/// and one of kind [`ErrorKind::FileTooLarge`] for more bytes.
pub fn read_file(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for a writer, and opening a device may do anything.
    check(&std::fs::metadata(path)?)?;
    let file = open(path)?;
    check(&file.metadata()?)?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        let problem = format!("more than {limit} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

fn check(data: &std::fs::Metadata) -> io::Result<()> {
    if data.is_file() {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"))
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.read(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, b"four").unwrap();
        assert_eq!(read_file(&path, 4).unwrap(), b"four");
        assert_eq!(read_file(&path, 3).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_file(folder.path(), 3).unwrap_err().kind(), ErrorKind::InvalidInput);
        let missing = folder.path().join("b");
        assert_eq!(read_file(&missing, 3).unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// A read of such a file gives an error where it would wait.
    #[test]
    #[cfg(target_os = "linux")]
    fn files_are_opened_without_waiting() {
        use std::os::fd::AsRawFd;

        let file = open(Path::new("/proc/self/status")).unwrap();
        let about = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
        let about = std::fs::read_to_string(about).unwrap();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
        assert_eq!(flags & libc::O_NONBLOCK, libc::O_NONBLOCK, "{about}");
    }
}
