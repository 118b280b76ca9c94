//! The model store: `<store>/owner/repo/<file>`.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::HubError;
use crate::local::Origin;
use crate::manifest::{Manifest, RecordState};
use crate::name::ModelName;
use crate::once::warn_once;
use crate::progress::Progress;
use crate::retry::wait;
use crate::shelf::{Shelf, ShelfFile, find_files};
use crate::temporary::is_at;

/// The most folders that are considered in one listing.
const MOST_FOLDERS: usize = 10_000;
/// How often a waiting process tries to take the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// The store below one root folder, which need not exist.
#[derive(Debug)]
pub(crate) struct Store {
    root: PathBuf,
}

/// Holds the lock of one repository until it is dropped or the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The file that is locked, and its name; nothing on a disk without locks.
    file: Option<(File, PathBuf)>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Names that clients ask for leave nothing. A waiting process sees that its file is gone.
        if let Some((file, path)) = self.file.take()
            && cfg!(unix)
        {
            let _ = fs::remove_file(path);
            drop(file);
        }
    }
}

impl Store {
    pub(crate) fn new(root: PathBuf) -> Self {
        Store { root }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of a repository, whether it exists or not.
    pub(crate) fn folder(&self, name: &ModelName) -> PathBuf {
        self.root.join(name.owner()).join(name.repo())
    }

    /// Waits for the lock of a repository. Its file is removed with the lock, and one that was
    /// removed locks nothing: others would no longer find it.
    pub(crate) fn lock(
        &self,
        name: &ModelName,
        progress: &mut dyn Progress,
    ) -> Result<Lock, HubError> {
        let mut told = false;
        loop {
            if let Some(lock) = self.try_lock(name)? {
                return Ok(lock);
            }
            if !std::mem::replace(&mut told, true) {
                let repository = name.repository();
                progress.waiting(&format!("another process works on {repository}"));
            }
            wait(LOCK_INTERVAL, progress)?;
        }
    }

    /// Returns the lock of a repository, or `None` while another process holds it.
    pub(crate) fn try_lock(&self, name: &ModelName) -> Result<Option<Lock>, HubError> {
        let folder = self.root.join(".locks");
        fs::create_dir_all(&folder).map_err(|error| HubError::file("create", &folder, error))?;
        let path = folder.join(format!("{}--{}.lock", name.owner(), name.repo()));
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|error| HubError::file("create", &path, error))?;
            return match file.try_lock() {
                Ok(()) if !is_at(&file, &path) => continue,
                Ok(()) => Ok(Some(Lock { file: Some((file, path)) })),
                Err(TryLockError::WouldBlock) => Ok(None),
                Err(TryLockError::Error(error))
                    if error.kind() == std::io::ErrorKind::Unsupported =>
                {
                    tracing::warn!(path = %path.display(),
                        "this disk knows no locks: going on without");
                    Ok(Some(Lock { file: None }))
                }
                Err(TryLockError::Error(error)) => Err(HubError::file("lock", path, error)),
            };
        }
    }

    /// Creates a repository's folder; refuses one that a link leads out of the store.
    pub(crate) fn prepare(&self, name: &ModelName) -> Result<PathBuf, HubError> {
        let folder = self.folder(name);
        self.create_inside(&folder)?;
        Ok(folder)
    }

    /// Creates a folder inside the store.
    pub(crate) fn create_inside(&self, folder: &Path) -> Result<(), HubError> {
        fs::create_dir_all(folder).map_err(|error| HubError::file("create", folder, error))?;
        self.inside(folder)
    }

    /// Makes sure that a folder really lies in the store, after resolving all links.
    pub(crate) fn inside(&self, folder: &Path) -> Result<(), HubError> {
        let real = |path: &Path| {
            fs::canonicalize(path).map_err(|error| HubError::file("examine", path, error))
        };
        if real(folder)?.starts_with(real(&self.root)?) {
            return Ok(());
        }
        let reason = "a link leads out of the folder of downloaded models; work on the folder it \
            names yourself";
        Err(HubError::Refused { path: folder.to_owned(), reason: reason.to_owned() })
    }

    /// Returns all repositories that hold anything.
    pub(crate) fn shelves(&self) -> Vec<Shelf> {
        let mut names = Vec::new();
        let mut budget = MOST_FOLDERS;
        for (owner, folder) in self.folders(&self.root, &mut budget) {
            for (repo, _) in self.folders(&folder, &mut budget) {
                names.extend(ModelName::from_parts(&owner, &repo));
            }
        }
        names.sort_by_key(ModelName::repository);
        names.iter().filter_map(|name| self.shelf(name)).collect()
    }

    /// Returns the files of one repository, if there are any.
    pub(crate) fn shelf(&self, name: &ModelName) -> Option<Shelf> {
        let folder = self.folder(name);
        let manifest = Manifest::read(&folder, &name.repository());
        let (parts, whole): (Vec<_>, Vec<_>) =
            find_files(&folder).into_iter().partition(|found| found.name.ends_with(".part"));
        let records = manifest.records();
        let mut files: Vec<ShelfFile> = Vec::new();
        for found in whole {
            if found.name == crate::manifest::FILE_NAME {
                continue;
            }
            let record = records.get(&(&*found.name, RecordState::Complete));
            let total = record.and_then(|record| record.size).unwrap_or(found.bytes);
            files.push(ShelfFile {
                here: found.bytes,
                total: Some(total),
                sha256: record.and_then(|record| record.sha256.clone()),
                complete: total == found.bytes,
                name: found.name,
                at: None,
            });
        }
        let mut known: HashSet<String> = files.iter().map(|file| file.name.clone()).collect();
        let mut add_partial = |name: &str, here: u64| {
            if known.insert(name.to_owned()) {
                let record = records.get(&(name, RecordState::Partial));
                files.push(ShelfFile {
                    name: name.to_owned(),
                    here,
                    total: record.and_then(|record| record.size),
                    sha256: record.and_then(|record| record.sha256.clone()),
                    complete: false,
                    at: None,
                });
            }
        };
        for part in &parts {
            add_partial(part.name.trim_end_matches(".part"), part.bytes);
        }
        // Files of a set that have not begun to arrive, or that were deleted by hand.
        for record in &manifest.files {
            add_partial(&record.name, 0);
        }
        let name = name.with_selection(crate::name::Selection::Default);
        Shelf::new(name, folder, Origin::Store, manifest.revision.clone(), files)
    }

    /// Returns the folders in a folder, with their names, in no order. A link counts if it leads to
    /// a folder that neither contains the store nor lies in it: otherwise a listing could go in
    /// circles.
    fn folders(&self, folder: &Path, budget: &mut usize) -> Vec<(String, PathBuf)> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let mut folders = Vec::new();
        for entry in entries.flatten() {
            if *budget == 0 {
                warn_once(format_args!(
                    "{} has too many folders; the rest is left out",
                    folder.display()
                ));
                break;
            }
            *budget -= 1;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() || (kind.is_symlink() && self.leads_elsewhere(&entry.path())) {
                folders.push((name.to_owned(), entry.path()));
            }
        }
        folders
    }

    fn leads_elsewhere(&self, link: &Path) -> bool {
        let (Ok(target), Ok(root)) = (fs::canonicalize(link), fs::canonicalize(&self.root)) else {
            return false;
        };
        target.is_dir() && !target.starts_with(&root) && !root.starts_with(&target)
    }

    /// Deletes a file and the remains of its download. Returns the bytes freed.
    pub(crate) fn delete_file(&self, path: &Path) -> Result<u64, HubError> {
        let Some(folder) = path.parent() else { return Ok(0) };
        if !folder.exists() {
            return Ok(0);
        }
        self.inside(folder)?;
        let mut freed = 0u64;
        for path in [path.to_owned(), crate::part::part_path(path)] {
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            fs::remove_file(&path).map_err(|error| HubError::file("delete", &path, error))?;
            freed = freed.saturating_add(metadata.len());
        }
        Ok(freed)
    }

    /// Removes the folders that a repository's files leave empty, up to the store's root.
    pub(crate) fn tidy(&self, name: &ModelName, files: &[String]) {
        let folder = self.folder(name);
        for file in files {
            let mut sub = Path::new(file).parent();
            while let Some(path) = sub.filter(|path| !path.as_os_str().is_empty()) {
                // Only an empty folder can be removed this way.
                let _ = fs::remove_dir(folder.join(path));
                sub = path.parent();
            }
        }
        let _ = fs::remove_dir(&folder);
        let _ = fs::remove_dir(self.root.join(name.owner()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let name = ModelName::parse("owner/repo").unwrap();
        let files = || fs::read_dir(folder.path().join(".locks")).unwrap().count();
        for _ in 0..2 {
            let lock = store.try_lock(&name).unwrap();
            assert!(lock.is_some() && store.try_lock(&name).unwrap().is_none());
            assert_eq!(files(), 1);
            drop(lock);
            assert_eq!(files(), usize::from(!cfg!(unix)));
        }
        // Who opened the file before it was removed does not hold the lock of the next one.
        let path = folder.path().join("a");
        let removed = File::create(&path).unwrap();
        assert!(is_at(&removed, &path));
        fs::remove_file(&path).unwrap();
        File::create(&path).unwrap();
        assert!(!is_at(&removed, &path) || !cfg!(unix));
    }
}
