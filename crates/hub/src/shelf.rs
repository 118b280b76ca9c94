//! The model files of one repository on this disk, wherever they lie.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::catalog;
use crate::local::{EntryState, LocalModel, ModelFile, OLLAMA, Origin, StoreEntry, StoredFile};
use crate::name::{ModelName, has_extension, valid_file};
use crate::once::warn_once;
use crate::select::{self, Candidates, Pick};

/// The deepest folder below a repository's that is searched.
const DEEPEST: usize = 5;
/// The most folder entries of one repository that are considered.
const MOST_ENTRIES: usize = 20_000;

/// The files of one repository.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// The repository, without a selection.
    pub(crate) name: ModelName,
    /// The name that the program has for it that downloaded it, if that is another one.
    pub(crate) called: Option<String>,
    pub(crate) folder: PathBuf,
    pub(crate) origin: Origin,
    pub(crate) revision: Option<String>,
    /// Sorted by name.
    pub(crate) files: Vec<ShelfFile>,
}

/// One file, whole or in part.
#[derive(Debug, Clone)]
pub(crate) struct ShelfFile {
    /// Path inside the repository.
    pub(crate) name: String,
    /// Bytes on disk.
    pub(crate) here: u64,
    /// The bytes of the whole file, if known.
    pub(crate) total: Option<u64>,
    pub(crate) sha256: Option<String>,
    pub(crate) complete: bool,
    /// Where it is, if not under its name in the shelf's folder.
    pub(crate) at: Option<PathBuf>,
}

impl ShelfFile {
    /// Returns its path. `folder` is the shelf's.
    pub(crate) fn place(&self, folder: &Path) -> PathBuf {
        self.at.clone().unwrap_or_else(|| folder.join(&self.name))
    }
}

impl Shelf {
    /// Makes a shelf of files in any order; `None` if there are none.
    pub(crate) fn new(
        name: ModelName,
        folder: PathBuf,
        origin: Origin,
        revision: Option<String>,
        mut files: Vec<ShelfFile>,
    ) -> Option<Self> {
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let called = None;
        (!files.is_empty()).then_some(Shelf { name, called, folder, origin, revision, files })
    }

    /// Returns all models, complete or not, each with the name that picks it.
    pub(crate) fn entries(&self) -> Vec<StoreEntry> {
        let models = self.candidates().models(&self.name);
        // Each model of Ollama's library is a repository of its own.
        let is_library = self.origin == Origin::Ollama && self.name.owner() == OLLAMA;
        let only = is_library.then(|| self.name.clone());
        models.iter().map(|(name, pick)| self.entry(only.as_ref().unwrap_or(name), pick)).collect()
    }

    /// Returns the models among all files, whole or in part.
    pub(crate) fn candidates(&self) -> Candidates {
        Candidates::new(self.files.iter().map(|file| file.name.clone()).collect())
    }

    /// Returns the names of all whole files.
    pub(crate) fn whole_names(&self) -> impl Iterator<Item = String> {
        self.files.iter().filter(|file| file.complete).map(|file| file.name.clone())
    }

    /// Returns a picked model with the path to open. Its vision tower is here or on one of the
    /// `others`.
    pub(crate) fn local<'a>(
        &'a self,
        name: &ModelName,
        pick: &Pick,
        others: impl Iterator<Item = &'a Shelf>,
    ) -> LocalModel {
        let of = |shelf: &Shelf, file: &ShelfFile| ModelFile {
            name: file.name.clone(),
            path: file.place(&shelf.folder),
            bytes: file.here,
            sha256: file.sha256.clone(),
        };
        let own = self.files_of(pick.own_files().iter());
        let mut files: Vec<ModelFile> = own.map(|file| of(self, file)).collect();
        let mut shelves = std::iter::once(self).chain(others);
        let mmproj = pick.mmproj().and_then(|name| {
            shelves.find_map(|shelf| {
                let found = shelf.file(name).filter(|file| file.complete)?;
                Some(of(shelf, found))
            })
        });
        let mmproj_path = mmproj.as_ref().map(|file| file.path.clone());
        files.extend(mmproj);
        LocalModel {
            name: name.clone(),
            short: catalog::short(name),
            path: self.path(pick),
            bytes: files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes)),
            files,
            mmproj: mmproj_path,
            left_out: None,
            origin: self.origin,
            revision: self.revision.clone(),
        }
    }

    pub(crate) fn entry(&self, name: &ModelName, pick: &Pick) -> StoreEntry {
        let files: Vec<StoredFile> = self
            .picked(pick)
            .map(|file| StoredFile {
                name: file.name.clone(),
                bytes: file.here,
                total: file.total,
                sha256: file.sha256.clone(),
                complete: file.complete,
            })
            .collect();
        let bytes = files.iter().fold(0u64, |sum, file| sum.saturating_add(file.bytes));
        let total = files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.total?));
        let complete = self.is_complete(pick);
        let percent = total.filter(|total| *total > 0).map(|total| {
            let percent = u128::from(bytes) * 100 / u128::from(total);
            u8::try_from(percent.min(99)).unwrap_or(99)
        });
        StoreEntry {
            name: name.clone(),
            short: catalog::short(name),
            called: self.called.clone(),
            path: self.path(pick),
            files,
            bytes,
            total: if complete { Some(bytes) } else { total },
            state: if complete { EntryState::Complete } else { EntryState::Partial },
            percent: if complete { Some(100) } else { percent },
            origin: self.origin,
            revision: self.revision.clone(),
        }
    }

    /// Returns whether a model can be run. The file of its vision tower may be missing: it then
    /// takes texts only.
    fn is_complete(&self, pick: &Pick) -> bool {
        let whole = match pick {
            Pick::Gguf(set) => set.missing_part().is_none(),
            Pick::Folder(files) => select::folder_gap(files).is_none(),
        };
        whole && self.files_of(pick.own_files().iter()).all(|file| file.complete)
    }

    /// Returns the names of the files that belong to complete models.
    pub(crate) fn complete_names(&self) -> Vec<String> {
        let models = self.candidates().models(&self.name);
        let mut names: Vec<String> = models
            .iter()
            .filter(|(_, pick)| self.is_complete(pick))
            .flat_map(|(_, pick)| pick.own_files().to_vec())
            .collect();
        // Files that are not models of their own can still be requested by name.
        let others = self.files.iter().filter(|file| file.complete && is_gguf(&file.name));
        let in_models: HashSet<&String> =
            models.iter().flat_map(|(_, pick)| pick.own_files()).collect();
        names.extend(others.map(|f| &f.name).filter(|name| !in_models.contains(name)).cloned());
        names
    }

    fn path(&self, pick: &Pick) -> PathBuf {
        match pick {
            Pick::Gguf(set) => match set.files.first() {
                Some(name) => {
                    let place = |file: &ShelfFile| file.place(&self.folder);
                    self.file(name).map_or_else(|| self.folder.join(name), place)
                }
                None => self.folder.clone(),
            },
            Pick::Folder(_) => self.folder.clone(),
        }
    }

    fn picked<'a>(&'a self, pick: &'a Pick) -> impl Iterator<Item = &'a ShelfFile> {
        self.files_of(pick.files())
    }

    fn files_of<'a>(
        &'a self,
        names: impl Iterator<Item = &'a String>,
    ) -> impl Iterator<Item = &'a ShelfFile> {
        names.filter_map(|name| self.file(name))
    }

    /// Returns a file by its name.
    fn file(&self, name: &str) -> Option<&ShelfFile> {
        let index = self.files.partition_point(|file| file.name.as_str() < name);
        self.files.get(index).filter(|file| file.name == name)
    }
}

fn is_gguf(name: &str) -> bool {
    has_extension(name, ".gguf")
}

/// A regular file found in a repository's folder.
pub(crate) struct FoundFile {
    /// Path inside the repository, with '/'.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// Size in bytes.
    pub(crate) bytes: u64,
}

/// Returns the files below a folder whose names could come from a repository, apart from a final
/// `.part`. Skips everything else: names that are not text, links that lead nowhere or in circles,
/// devices, folders that may not be read.
pub(crate) fn find_files(folder: &Path) -> Vec<FoundFile> {
    tracing::trace!(folder = %folder.display(), "a repository is listed");
    let mut found = Vec::new();
    let mut budget = MOST_ENTRIES;
    let mut folders = vec![(folder.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if budget == 0 {
                warn_once(format_args!(
                    "{} has too many files; the rest is left out",
                    folder.display()
                ));
                return found;
            }
            budget -= 1;
            let file_name = entry.file_name();
            let Some(file_name) = file_name.to_str() else { continue };
            let name = format!("{prefix}{file_name}");
            if !valid_file(name.strip_suffix(".part").unwrap_or(&name)) {
                continue;
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                if depth < DEEPEST {
                    folders.push((entry.path(), format!("{name}/"), depth + 1));
                }
            } else if let Ok(metadata) = fs::metadata(entry.path())
                && metadata.is_file()
            {
                found.push(FoundFile { name, path: entry.path(), bytes: metadata.len() });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}
