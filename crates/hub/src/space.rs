//! Room on the disk.

use std::io;
use std::path::Path;

/// Returns the bytes that an ordinary user can still write on the disk of `path`, if the system
/// says. A path that does not exist yet counts as its nearest existing parent.
pub fn available_bytes(path: &Path) -> Option<u64> {
    path.ancestors().find_map(|folder| {
        let disk = fs4::statvfs(folder).ok()?;
        // Some network disks report nothing at all.
        (disk.total_space() > 0).then(|| disk.available_space())
    })
}

/// Returns whether a write failed for lack of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
