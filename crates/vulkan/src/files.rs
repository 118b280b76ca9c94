//! Files in the cache folder.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Writes a file beside its place and renames it, so that no reader sees half of it. Makes the folder if it is not there.
///
/// # Errors
/// If the folder or the file cannot be written; a file that was there is left as it was.
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
