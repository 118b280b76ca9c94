//! A file that is being downloaded: `<name>.part`, its length and the hash of its content.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::HubError;
use crate::progress::Progress;
use crate::space::{available_bytes, is_full};

/// The number of bytes read or written at once.
pub(crate) const BLOCK: usize = 256 << 10;

/// Returns the path under which a file is kept until it is whole.
pub(crate) fn part_path(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// An open part.
pub(crate) struct Part {
    path: PathBuf,
    file: File,
    length: u64,
    hasher: Sha256,
}

impl Part {
    /// Opens or creates a part. With `keep`, up to `longest` existing bytes are kept and hashed; a
    /// longer part cannot belong to the file and starts from zero.
    pub(crate) fn open(
        path: PathBuf,
        keep: bool,
        longest: Option<u64>,
        progress: &mut dyn Progress,
    ) -> Result<Self, HubError> {
        let failed = |action, error| HubError::file(action, &path, error);
        // Writing to a link would write to its target.
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            fs::remove_file(&path).map_err(|error| failed("remove the link", error))?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| failed("create", error))?;
        let length = file.metadata().map_err(|error| failed("examine", error))?.len();
        let mut part = Part { path, file, length: 0, hasher: Sha256::new() };
        if keep && length > 0 && longest.is_none_or(|longest| length <= longest) {
            part.hash_existing(progress)?;
        } else {
            part.restart()?;
        }
        Ok(part)
    }

    /// Returns the bytes that the part holds.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Discards everything.
    pub(crate) fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        emptied.map_err(|error| HubError::file("empty", &self.path, error))?;
        self.length = 0;
        self.hasher = Sha256::new();
        Ok(())
    }

    /// Appends a block. `left` is the number of bytes that the file still needs, for the message if
    /// the disk is full.
    pub(crate) fn append(&mut self, block: &[u8], left: Option<u64>) -> Result<(), HubError> {
        if let Err(error) = self.file.write_all(block) {
            // The hash and the disk must hold the same bytes.
            let _ = self.file.set_len(self.length);
            let _ = self.file.seek(SeekFrom::Start(self.length));
            return Err(write_error(error, &self.path, left.unwrap_or(block.len() as u64)));
        }
        self.hasher.update(block);
        self.length += block.len() as u64;
        Ok(())
    }

    /// Forces the part to disk and returns its SHA-256, lower-case hexadecimal.
    pub(crate) fn finish(&mut self) -> Result<String, HubError> {
        self.file.sync_all().map_err(|error| write_error(error, &self.path, 0))?;
        Ok(hexadecimal(&self.hasher.clone().finalize()))
    }

    fn hash_existing(&mut self, progress: &mut dyn Progress) -> Result<(), HubError> {
        let failed = |error| HubError::file("read", &self.path, error);
        let mut block = vec![0; BLOCK];
        loop {
            if progress.cancelled() {
                return Err(HubError::Cancelled);
            }
            let count = match self.file.read(&mut block) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(error)),
            };
            self.hasher.update(&block[..count]);
            self.length += count as u64;
            progress.advance(count as u64);
        }
    }
}

fn write_error(error: io::Error, path: &Path, needed: u64) -> HubError {
    if is_full(&error) {
        let folder = path.parent().unwrap_or(path);
        let available = available_bytes(folder);
        return HubError::NoSpace { path: folder.to_owned(), needed, available };
    }
    HubError::file("write", path, error)
}

/// Returns the SHA-256 of a whole file.
pub(crate) fn hash_file(path: &Path, progress: &mut dyn Progress) -> Result<String, HubError> {
    let file = File::open(path).map_err(|error| HubError::file("open", path, error))?;
    let mut part = Part { path: path.to_owned(), file, length: 0, hasher: Sha256::new() };
    part.hash_existing(progress)?;
    Ok(hexadecimal(&part.hasher.finalize()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn continues_what_is_there_and_hashes_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = part_path(&folder.path().join("x.gguf"));
        fs::write(&path, "ab").unwrap();
        let mut part = Part::open(path.clone(), true, Some(3), &mut Silent).unwrap();
        assert_eq!(part.length(), 2);
        part.append(b"c", Some(1)).unwrap();
        assert_eq!(part.finish().unwrap(), ABC);
        assert_eq!(hash_file(&path, &mut Silent).unwrap(), ABC);
        assert_eq!(Part::open(path.clone(), true, Some(2), &mut Silent).unwrap().length(), 0);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_full_disk_names_what_is_needed() {
        let full = write_error(io::ErrorKind::StorageFull.into(), Path::new("/tmp/x.part"), 123);
        assert!(matches!(full, HubError::NoSpace { needed: 123, .. }), "{full}");
        assert!(full.to_string().contains("123 bytes"), "{full}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_parts_place_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let path = folder.path().join("x.gguf.part");
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        let mut part = Part::open(path, true, None, &mut Silent).unwrap();
        part.append(b"junk", None).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_without_room_is_recognised() {
        let file = OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        let path = PathBuf::from("/dev/full");
        let mut part = Part { path, file, length: 0, hasher: Sha256::new() };
        let error = part.append(b"x", Some(77)).unwrap_err();
        assert!(matches!(error, HubError::NoSpace { needed: 77, .. }), "{error}");
        assert_eq!(part.length(), 0);
    }
}
