//! The state of a model's files.

use std::collections::hash_map::DefaultHasher;
use std::fs::Metadata;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};

use crate::model_source::Source;

/// The most files of a folder whose state is checked.
const FILES_MAX: usize = 4096;

/// Returns a number that changes with the files of a model.
pub(in crate::commands) fn stamp(source: &Source) -> u64 {
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
