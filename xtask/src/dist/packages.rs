//! The packages of a folder, and their hashes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::release::Release;

/// The targets of a release, by their part in it.
pub(super) const LINUX: &str = "x86_64-unknown-linux-gnu";
pub(super) const WINDOWS: &str = "x86_64-pc-windows-gnu";
pub(super) const MACOS: &str = "aarch64-apple-darwin";

/// The file with the checksums of all others.
pub(super) const SUMS: &str = "SHA256SUMS";

/// The packages of a folder.
pub(super) struct Packages {
    /// The SHA-256 of each file by its name, in hexadecimal digits of lower case.
    sums: BTreeMap<String, String>,
}

impl Packages {
    /// Reads and hashes the files of a folder: not their hashes, nor the notes about them.
    pub(super) fn of(folder: &Path) -> anyhow::Result<Self> {
        let mut sums = BTreeMap::new();
        for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_file() && name != SUMS && !name.ends_with(".md") {
                let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
                let sum = Sha256::digest(bytes);
                sums.insert(name, sum.iter().map(|byte| format!("{byte:02x}")).collect());
            }
        }
        Ok(Self { sums })
    }

    /// Returns the name and the SHA-256 of the archive for a target, if it is there.
    pub(super) fn archive(&self, release: &Release, target: &str) -> Option<(String, &str)> {
        let name = Release { target: target.to_owned(), ..release.clone() }.archive();
        self.sums.get(&name).map(|sum| (name, sum.as_str()))
    }

    /// Returns lines that `sha256sum --check` reads.
    pub(super) fn checksums(&self) -> String {
        self.sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect()
    }

    #[cfg(test)]
    pub(super) fn example(release: &Release, targets: &[&str]) -> Self {
        let name = |target: &str| Release { target: target.into(), ..release.clone() }.archive();
        let sum = |target: &str| if target == WINDOWS { "ab".repeat(32) } else { "12".repeat(32) };
        Self { sums: targets.iter().map(|target| (name(target), sum(target))).collect() }
    }
}
