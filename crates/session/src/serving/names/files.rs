//! The state of a model's files.

use std::collections::hash_map::DefaultHasher;
use std::fs::Metadata;
use std::hash::{Hash, Hasher};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::finding::model_source::Source;

use sha2::{Digest, Sha256};

/// The most files of a folder whose state is checked.
const FILES_MAX: usize = 4096;

/// The parts of a model's files that are read to tell them from others, and their bytes.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 16 << 10;

/// Returns 64 hexadecimal digits that identify the files of a model: the SHA-256 of their names,
/// lengths and samples. Files of gigabytes are not read for it. A model inside the program is.
pub(in crate::serving) fn digest(source: &Source) -> String {
    let mut hash = Sha256::new();
    let files = files(source);
    if let Source::Embedded(model) = source {
        hash.update(model.bytes());
    } else {
        hash.update(b"trine: a sample of files\n");
    }
    let each = SAMPLES / (files.len() as u64).max(1);
    for path in &files {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        // What cannot be read, or is no file, has no samples.
        let _ = sample(&mut hash, path, each);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Adds the length of a file and parts of it at equal distances, the first and the last included.
fn sample(hash: &mut Sha256, path: &Path, samples: u64) -> std::io::Result<()> {
    let facts = std::fs::metadata(path)?;
    hash.update(facts.len().to_le_bytes());
    // Opening a pipe would wait for its other end.
    if !facts.is_file() || samples == 0 {
        return Ok(());
    }
    let mut file = std::fs::File::open(path)?;
    let last = facts.len().saturating_sub(SAMPLE_BYTES);
    let mut bytes = Vec::new();
    for index in 0..samples {
        let at = u128::from(last) * u128::from(index) / u128::from((samples - 1).max(1));
        file.seek(SeekFrom::Start(at as u64))?;
        bytes.clear();
        file.by_ref().take(SAMPLE_BYTES).read_to_end(&mut bytes)?;
        hash.update(&bytes);
    }
    Ok(())
}

/// Returns a number that changes with the files of a model.
pub(in crate::serving) fn stamp(source: &Source) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in files(source) {
        path.hash(&mut hasher);
        match std::fs::metadata(&path) {
            Ok(facts) => {
                (facts.len(), facts.modified().ok(), inode(&facts)).hash(&mut hasher);
            }
            Err(error) => error.kind().hash(&mut hasher),
        }
    }
    hasher.finish()
}

#[cfg(unix)]
fn inode(facts: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (facts.dev(), facts.ino())
}

#[cfg(not(unix))]
fn inode(_facts: &Metadata) -> (u64, u64) {
    (0, 0)
}

/// Returns the files of a model in a fixed order.
fn files(source: &Source) -> Vec<PathBuf> {
    let within = |folder: &Path, is_part: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(FILES_MAX);
        let paths = entries.filter(|entry| is_part(&entry.file_name().to_string_lossy()));
        let mut paths: Vec<PathBuf> = paths.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    match source {
        Source::Embedded(_) => Vec::new(),
        Source::Local(model) => model.files.iter().map(|file| file.path.clone()).collect(),
        Source::Path(path) if path.is_dir() => within(path, &|_| true),
        Source::Path(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match (name.find("-00001-of-"), path.parent()) {
                (Some(end), Some(folder)) => {
                    within(folder, &|other| other.starts_with(&name[..end]))
                }
                _ => vec![path.clone()],
            }
        }
    }
}
