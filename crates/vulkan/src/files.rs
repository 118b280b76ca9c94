//! Files in the cache folder.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Reads a file of at most `most` bytes.
///
/// # Errors
/// If it cannot be read, is not a regular file or is larger.
pub(crate) fn read_at_most(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let file = std::fs::metadata(path)?;
    let refuse = |what: &str| Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    // Checked before the file is opened: opening a pipe would wait for a writer.
    if !file.is_file() {
        return refuse("it is not a regular file");
    }
    let mut bytes = Vec::new();
    // It may have grown since its size was asked for.
    std::fs::File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        refuse(&format!("it has more than {most} bytes"))
    } else {
        Ok(bytes)
    }
}

/// Writes a file beside its place and renames it, so that no reader sees half of it. Creates the
/// folder if it does not exist.
///
/// # Errors
/// If the folder or the file cannot be written. A file that existed before is left as it was.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder)?;
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let partial = path.with_extension(format!("{}-{count}.partial", std::process::id()));
    let result = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
    if result.is_err() {
        // The error that matters is the first one.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_the_size_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 10]).expect("a file");
        assert_eq!(read_at_most(&path, 10).expect("it is small enough"), [7; 10]);
        assert!(read_at_most(&path, 9).is_err());
        assert!(read_at_most(folder.path(), 10).is_err());
        #[cfg(unix)]
        assert!(read_at_most(Path::new("/dev/zero"), 10).is_err(), "a device without an end");
    }
}
