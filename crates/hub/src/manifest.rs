//! `manifest.json`: the store's records about the files of one repository.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::HubError;
use crate::name::{sha256_text, valid_file};
use crate::once::warn_once;
use crate::temporary::{Readers, create_temporary};

/// The manifest's name in a repository's folder.
pub(crate) const FILE_NAME: &str = "manifest.json";
const TEMPORARY: &str = "manifest.json.tmp";
const VERSION: u32 = 1;
/// The largest manifest that is read, in bytes.
const LARGEST: u64 = 16 << 20;

/// The manifest of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    /// `owner/repo`.
    pub(crate) repository: String,
    /// The revision of the latest pull.
    pub(crate) revision: Option<String>,
    /// Complete and expected files. A file that is being replaced has one record of each kind.
    pub(crate) files: Vec<Record>,
}

/// One file of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Path inside the repository.
    pub(crate) name: String,
    /// Size in bytes.
    pub(crate) size: Option<u64>,
    /// The SHA-256: for a complete file as computed here, for an expected one as published.
    pub(crate) sha256: Option<String>,
    /// The commit that the file belongs to.
    pub(crate) revision: String,
    /// Whether the file is here.
    pub(crate) state: RecordState,
}

/// Whether a file is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordState {
    /// Verified and under its final name.
    Complete,
    /// Expected; `<name>.part` holds its beginning.
    Partial,
}

impl Manifest {
    pub(crate) fn empty(repository: &str) -> Self {
        Manifest {
            version: VERSION,
            repository: repository.to_owned(),
            revision: None,
            files: Vec::new(),
        }
    }

    /// Reads a folder's manifest. A missing or unusable manifest counts as empty: it describes
    /// files, and the files are still there.
    pub(crate) fn read(folder: &Path, repository: &str) -> Self {
        let path = folder.join(FILE_NAME);
        match read_checked(&path) {
            Ok(Some(mut manifest)) => {
                manifest.repository = repository.to_owned();
                manifest
            }
            Ok(None) => Manifest::empty(repository),
            Err(reason) => {
                warn_once(format_args!("the manifest {} is ignored: {reason}", path.display()));
                Manifest::empty(repository)
            }
        }
    }

    /// Replaces the folder's manifest atomically.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), HubError> {
        let temporary = folder.join(TEMPORARY);
        let text = serde_json::to_vec_pretty(self).expect("a manifest holds only plain values");
        let written = create_temporary(&temporary, Readers::AsUsual).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written.map_err(|error| HubError::file("write", &temporary, error))?;
        let path = folder.join(FILE_NAME);
        fs::rename(&temporary, &path).map_err(|error| HubError::file("replace", path, error))
    }

    pub(crate) fn record(&self, name: &str, state: RecordState) -> Option<&Record> {
        self.files.iter().find(|record| record.name == name && record.state == state)
    }

    /// Returns the records by name and state; the first one of each.
    pub(crate) fn records(&self) -> HashMap<(&str, RecordState), &Record> {
        let keyed = self.files.iter().map(|record| ((record.name.as_str(), record.state), record));
        keyed.rev().collect()
    }

    /// Stores a record in place of the one with the same name and state. A complete record also
    /// removes the expected one of that name.
    pub(crate) fn put(&mut self, record: Record) {
        let complete = record.state == RecordState::Complete;
        self.files
            .retain(|old| old.name != record.name || (!complete && old.state != record.state));
        self.files.push(record);
        self.files.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Removes the record of an expected file.
    pub(crate) fn abandon(&mut self, name: &str) {
        self.files.retain(|record| record.name != name || record.state == RecordState::Complete);
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.files.retain(|record| record.name != name);
    }

    /// Removes the manifest from a folder that holds nothing else.
    pub(crate) fn delete(folder: &Path) {
        for name in [TEMPORARY, FILE_NAME] {
            // If the manifest cannot be deleted, it describes nothing and does no harm.
            let _ = fs::remove_file(folder.join(name));
        }
    }
}

fn read_checked(path: &Path) -> Result<Option<Manifest>, String> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    if !metadata.is_file() || metadata.len() > LARGEST {
        return Err("it is not a file, or too large for a manifest".to_owned());
    }
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(LARGEST).read_to_end(&mut text).map_err(|error| error.to_string())?;
    let mut manifest: Manifest =
        serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if manifest.version != VERSION {
        return Err(format!("it has version {}, not {VERSION}", manifest.version));
    }
    manifest.files.retain(|record| valid_file(&record.name));
    for record in &mut manifest.files {
        record.sha256 = record.sha256.as_deref().and_then(sha256_text);
    }
    Ok(Some(manifest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, state: RecordState) -> Record {
        let (size, sha256) = (Some(3), Some("ab".repeat(32)));
        Record { name: name.to_owned(), size, sha256, revision: "main".to_owned(), state }
    }

    #[test]
    fn round_trip_and_states() {
        let folder = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::read(folder.path(), "a/b");
        assert!(manifest.files.is_empty());
        manifest.put(record("x.gguf", RecordState::Complete));
        manifest.put(record("x.gguf", RecordState::Partial));
        assert_eq!(manifest.files.len(), 2);
        manifest.put(record("x.gguf", RecordState::Complete));
        assert_eq!(manifest.files.len(), 1);
        manifest.write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path(), "a/b"), manifest);
    }

    /// The temporary file has a name that anybody knows.
    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_the_temporary_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join(TEMPORARY)).unwrap();
        let manifest = Manifest::empty("a/b");
        manifest.write(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(Manifest::read(folder.path(), "a/b"), manifest);
    }

    #[test]
    fn junk_counts_as_empty_and_hostile_records_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        for junk in ["", "[]", "{", "null", r#"{"version":9,"repository":"","files":[]}"#] {
            fs::write(&path, junk).unwrap();
            assert!(Manifest::read(folder.path(), "a/b").files.is_empty(), "{junk}");
        }
        let mut manifest = Manifest::empty("a/b");
        manifest.put(record("../../etc/passwd", RecordState::Complete));
        manifest.put(record("fine.gguf", RecordState::Complete));
        manifest.write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path(), "a/b").files.len(), 1);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(Manifest::read(folder.path(), "a/b").files.is_empty());
    }
}
