//! The Hugging Face cache, which is only read: `models--owner--repo/snapshots/<commit>/<file>`,
//! where the files are usually links into `blobs`, named after their hash (huggingface_hub,
//! "Understand caching").

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::local::Origin;
use crate::name::{ModelName, sha256_text};
use crate::shelf::{Shelf, ShelfFile, find_files};

/// The most repositories of a cache that are considered.
const MOST_REPOSITORIES: usize = 10_000;
/// The most snapshots of a repository that are considered.
const MOST_SNAPSHOTS: usize = 1000;

/// Returns all repositories of the cache that hold anything.
pub(crate) fn shelves(cache: &Path) -> Vec<Shelf> {
    let Ok(entries) = fs::read_dir(cache) else { return Vec::new() };
    let mut names: Vec<ModelName> = entries
        .flatten()
        .take(MOST_REPOSITORIES)
        .filter_map(|entry| {
            let folder = entry.file_name();
            let (owner, repo) = folder.to_str()?.strip_prefix("models--")?.split_once("--")?;
            ModelName::from_parts(owner, repo)
        })
        .collect();
    names.sort_by_key(ModelName::repository);
    names.iter().filter_map(|name| shelf(cache, name)).collect()
}

/// Returns the current snapshot of one repository: the one that `refs/main` names, else the latest.
pub(crate) fn shelf(cache: &Path, name: &ModelName) -> Option<Shelf> {
    let folder = repository_folder(cache, name);
    let snapshots = folder.join("snapshots");
    let main = current_commit(&folder.join("refs").join("main"));
    let commit = main.filter(|commit| snapshots.join(commit).is_dir()).or_else(|| {
        let entries = fs::read_dir(&snapshots).ok()?;
        let dated = entries.flatten().take(MOST_SNAPSHOTS).filter_map(|entry| {
            let commit = entry.file_name().to_str().filter(|text| is_commit(text))?.to_owned();
            let metadata = fs::metadata(entry.path()).ok().filter(fs::Metadata::is_dir)?;
            Some((metadata.modified().ok(), commit))
        });
        dated.max().map(|(_, commit)| commit)
    })?;
    snapshot(cache, name, &commit)
}

/// Returns one snapshot of one repository.
pub(crate) fn snapshot(cache: &Path, name: &ModelName, commit: &str) -> Option<Shelf> {
    if !is_commit(commit) {
        return None;
    }
    let folder = repository_folder(cache, name).join("snapshots").join(commit);
    if !folder.is_dir() {
        return None;
    }
    let files: Vec<ShelfFile> = find_files(&folder)
        .into_iter()
        .map(|found| ShelfFile {
            sha256: blob_hash(&found.path),
            name: found.name,
            here: found.bytes,
            total: Some(found.bytes),
            complete: true,
            at: None,
        })
        .collect();
    (!files.is_empty()).then(|| Shelf {
        called: None,
        name: name.clone(),
        folder,
        origin: Origin::HuggingFaceCache,
        revision: Some(commit.to_owned()),
        files,
    })
}

/// Returns the folder of one repository in the cache.
pub(crate) fn repository_folder(cache: &Path, name: &ModelName) -> PathBuf {
    cache.join(format!("models--{}--{}", name.owner(), name.repo()))
}

fn current_commit(path: &Path) -> Option<String> {
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    fs::File::open(path).ok()?.take(128).read_to_string(&mut text).ok()?;
    let commit = text.trim();
    is_commit(commit).then(|| commit.to_owned())
}

fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns the hash in the name of the blob that a snapshot's file links to.
fn blob_hash(path: &Path) -> Option<String> {
    sha256_text(fs::read_link(path).ok()?.file_name()?.to_str()?)
}
