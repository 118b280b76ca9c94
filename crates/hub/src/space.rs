//! Room on the disk.

use std::io;
use std::path::Path;

/// Bytes an ordinary user can still write on the disk of `path`, where the system says. A path
/// that does not exist yet counts as its nearest existing parent.
#[cfg(unix)]
pub(crate) fn available(path: &Path) -> Option<u64> {
    path.ancestors().find_map(|folder| {
        let disk = rustix::fs::statvfs(folder).ok()?;
        // Some network disks report nothing at all.
        (disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize))
    })
}

/// Not known on this system; a write that finds no room says so.
#[cfg(not(unix))]
pub(crate) fn available(_path: &Path) -> Option<u64> {
    None
}

/// Whether a write failed for lack of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
