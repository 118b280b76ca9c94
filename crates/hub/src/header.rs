//! What the beginnings of a model's files on a server say, without the files.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::api::{self, RemoteFile, Repository};
use crate::error::HubError;
use crate::hub::Hub;
use crate::local::ModelFile;
use crate::name::{ModelName, has_extension};
use crate::progress::Progress;
use crate::pull::wanted;
use crate::select::{self, Pick};
use trine_foreign::cut_name;

/// The most files of a model whose headers are read.
const FILES_MAX: usize = 128;
/// The most bytes of a file that are read for its header: the metadata of a Gemma, whose vocabulary
/// and merges take some 15 MB, and the table of tensors. Files without a header, such as a
/// tokenizer, may have as many.
const HEADER_BYTES: u64 = 48 << 20;
/// The most bytes that are read of all files of a model.
const HEADERS_BYTES: u64 = 192 << 20;
/// The bytes after which a beginning is looked at for the first time; then it is twice as long.
const FIRST_LOOK: usize = 256 << 10;

/// The headers of a model's files, each at the beginning of a file of its whole length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The path to open, as that of a local model.
    pub path: PathBuf,
    /// All files. What is after their headers is a hole: it takes no room, and reads as zeros.
    pub files: Vec<ModelFile>,
    /// The bytes that were read.
    pub read: u64,
    /// The bytes of the whole model.
    pub bytes: u64,
}

impl Hub {
    /// Reads the headers of a model on the server into files in `folder`.
    ///
    /// # Errors
    /// As [`Hub::remote_bytes`], if the server does not give the headers, and if a file cannot be
    /// written.
    pub fn header(
        &self,
        name: &ModelName,
        folder: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Header, HubError> {
        let remote = match api::repository(&self.client, name, progress) {
            Err(HubError::Connection { reason, .. }) => return Err(self.offline(reason)),
            other => other?,
        };
        let pick = select::choose(name, &remote.names())?.without_mmproj();
        let files = wanted(&remote, &pick);
        self.judge(name, &remote, &files)?;
        if files.len() > FILES_MAX {
            let reason = format!("{} files, more than {FILES_MAX}", files.len());
            return Err(HubError::NoHeader { file: name.repository(), reason });
        }
        let path = match (&pick, pick.own_files().first()) {
            (Pick::Gguf(_), Some(first)) => folder.join(first),
            _ => folder.to_owned(),
        };
        let mut header = Header { path, files: Vec::new(), read: 0, bytes: 0 };
        for file in files {
            if progress.cancelled() {
                return Err(HubError::Cancelled);
            }
            let Some(bytes) = file.size else {
                return Err(no_header(file, "the server does not tell its length"));
            };
            let most = most_of_next(bytes, header.read);
            let beginning = self.header_of(name, &remote, file, bytes, most, progress)?;
            let path = folder.join(&file.name);
            write(&path, &beginning, bytes)
                .map_err(|error| HubError::file("write", &path, error))?;
            header.read = header.read.saturating_add(beginning.len() as u64);
            header.bytes = header.bytes.saturating_add(bytes);
            let sha256 = file.sha256.clone();
            header.files.push(ModelFile { name: file.name.clone(), path, bytes, sha256 });
        }
        Ok(header)
    }

    /// Returns the beginning of a file with its header, or the whole file if it has none; an error
    /// if that is more than `most` bytes.
    fn header_of(
        &self,
        name: &ModelName,
        remote: &Repository,
        file: &RemoteFile,
        bytes: u64,
        most: u64,
        progress: &dyn Progress,
    ) -> Result<Vec<u8>, HubError> {
        let has_header = [".gguf", ".safetensors"].iter().any(|end| has_extension(&file.name, end));
        if (!has_header && bytes > most) || (most == 0 && bytes > 0) {
            return Err(no_header(file, "it is too long to be read for its header"));
        }
        let body = match self.body_of_beginning(name, remote, file, most) {
            // There is no download that could continue.
            Err(HubError::Connection { reason, .. }) => return Err(no_header(file, &reason)),
            other => other?,
        };
        let mut body = body.take(most);
        let (mut beginning, mut look) = (Vec::new(), FIRST_LOOK);
        let mut piece = vec![0; 64 << 10];
        loop {
            let count = match body.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(no_header(file, &format!("reading it failed: {error}"))),
            };
            if progress.cancelled() {
                return Err(HubError::Cancelled);
            }
            beginning.extend_from_slice(&piece[..count]);
            if has_header && beginning.len() >= look {
                let holds = self.client.config().holds_header;
                if holds.is_some_and(|holds| holds(&file.name, &beginning)) {
                    return Ok(beginning);
                }
                look = look.saturating_mul(2);
            }
        }
        // A server that ends early has not given what there is.
        match beginning.len() as u64 == most {
            true => Ok(beginning),
            false => Err(no_header(file, "the server ended its answer too early")),
        }
    }
}

/// Returns how much of a file of `bytes` bytes may be read once `read` bytes of other files were.
fn most_of_next(bytes: u64, read: u64) -> u64 {
    bytes.min(HEADER_BYTES).min(HEADERS_BYTES.saturating_sub(read))
}

fn no_header(file: &RemoteFile, reason: &str) -> HubError {
    HubError::NoHeader { file: cut_name(&file.name, 300), reason: reason.to_owned() }
}

/// Writes a file of `bytes` bytes of which only the beginning is there.
fn write(path: &Path, beginning: &[u8], bytes: u64) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::File::create(path)?;
    file.write_all(beginning)?;
    file.set_len(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_headers_together_are_bounded() {
        for (bytes, read, most) in [
            (10, 0, 10),
            (u64::MAX, 0, HEADER_BYTES),
            (u64::MAX, HEADERS_BYTES - 5, 5),
            (3, HEADERS_BYTES - 5, 3),
            (u64::MAX, HEADERS_BYTES, 0),
            (u64::MAX, u64::MAX, 0),
        ] {
            assert_eq!(most_of_next(bytes, read), most, "{bytes} after {read}");
        }
        let total = (0..FILES_MAX).fold(0, |read, _| read + most_of_next(u64::MAX, read));
        assert_eq!(total, HEADERS_BYTES);
    }
}
