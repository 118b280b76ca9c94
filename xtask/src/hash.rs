//! A hash of texts and files, by which it is told whether anything was changed.

use std::path::Path;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use crate::sources;

/// The name of a file with hashes.
const SEAL: &str = "seal";

/// A hash of several parts.
#[derive(Default)]
pub(crate) struct Hash(Sha256);

impl Hash {
    /// Adds a part with its length, so that moving bytes from one part to the next changes the
    /// hash.
    pub(crate) fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// Adds the names and contents of the files in a folder and below it, except for
    /// seals, which are written from such hashes.
    pub(crate) fn add_files(&mut self, root: &Path, folder: &str) -> anyhow::Result<()> {
        let files = sources::files(&root.join(folder))?;
        if files.is_empty() {
            bail!("there is nothing in {folder}");
        }
        for path in files.iter().filter(|path| !path.ends_with(SEAL)) {
            let name = path.strip_prefix(root).unwrap_or(path);
            self.add(name.to_string_lossy().replace('\\', "/").as_bytes());
            self.add(
                &std::fs::read(path).with_context(|| format!("cannot read {}", name.display()))?,
            );
        }
        Ok(())
    }

    /// Returns the hash in hexadecimal digits.
    pub(crate) fn end(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
