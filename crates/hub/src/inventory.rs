//! What is on this machine, read once for any number of names.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use crate::catalog::CatalogModel;
use crate::error::HubError;
use crate::hub::Hub;
use crate::local::{EntryState, LocalModel, Origin, StoreEntry};
use crate::name::ModelName;
use crate::shelf::Shelf;
use crate::shelves::Shelves;
use crate::short;

/// The models of the store and of other programs as they were at one time. Folders are read when
/// something is asked for the first time, and never again: looking up `n` names in `n` models reads
/// no more than listing them.
pub struct Inventory<'a> {
    hub: &'a Hub,
    read: OnceCell<Read>,
}

struct Read {
    entries: Vec<StoreEntry>,
    /// The first entry of each path.
    by_path: HashMap<PathBuf, usize>,
    /// The shelves of each repository, those that come first in the order of [`Hub::shelves`].
    by_repository: HashMap<String, Shelves>,
}

impl Hub {
    /// Returns what is on this machine, to be read once for any number of names.
    #[must_use]
    pub fn inventory(&self) -> Inventory<'_> {
        Inventory::new(self)
    }

    /// Returns all models of the store, complete or not, and the complete ones of the Hugging Face
    /// cache and of other programs. Skips everything else that lies there.
    ///
    /// # Errors
    /// [`HubError::File`] if the store exists but cannot be read.
    pub fn list(&self) -> Result<Vec<StoreEntry>, HubError> {
        self.inventory().into_entries()
    }

    /// Returns the local model, complete or not, that a short name means, as
    /// [`Inventory::short_name`] does.
    ///
    /// # Errors
    /// Returns the errors of [`Inventory::short_name`].
    pub fn short_name(&self, text: &str) -> Result<Option<ModelName>, HubError> {
        self.inventory().short_name(text)
    }

    /// Returns short names of the local models, for messages.
    pub fn short_names(&self) -> Vec<String> {
        let entries = self.list().unwrap_or_default();
        let mut names: Vec<String> =
            entries.iter().map(|entry| short::without_gguf(entry.name.repo()).to_owned()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl<'a> Inventory<'a> {
    pub(crate) fn new(hub: &'a Hub) -> Self {
        Self { hub, read: OnceCell::new() }
    }

    fn read(&self) -> &Read {
        self.read.get_or_init(|| Read::new(self.hub.shelves(), &self.hub.taken_names()))
    }

    /// Returns the models as [`Hub::list`] does.
    ///
    /// # Errors
    /// [`HubError::File`] if the store exists but cannot be read.
    pub fn entries(&self) -> Result<&[StoreEntry], HubError> {
        self.check()?;
        Ok(&self.read().entries)
    }

    pub(crate) fn into_entries(self) -> Result<Vec<StoreEntry>, HubError> {
        self.check()?;
        self.read();
        Ok(self.read.into_inner().map(|read| read.entries).unwrap_or_default())
    }

    fn check(&self) -> Result<(), HubError> {
        let root = self.hub.store.root();
        match std::fs::read_dir(root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(HubError::file("read", root, error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the complete model that `name` means, as [`Hub::resolve`] does.
    ///
    /// # Errors
    /// [`HubError::Ambiguous`] if several local models match.
    pub fn resolve(&self, name: &ModelName) -> Result<Option<LocalModel>, HubError> {
        let model = self.with_shelves(name, |shelves| shelves.resolve(name))?;
        let Some(model) = model else { return Ok(None) };
        if !model.origin.is_neighbour() {
            return Ok(Some(model));
        }
        let short =
            self.entry_of(&model).map_or_else(|| model.short.clone(), |own| own.short.clone());
        Ok(Some(LocalModel { short, ..model }))
    }

    /// Returns the entry of a model that was found.
    fn entry_of(&self, model: &LocalModel) -> Option<&StoreEntry> {
        let read = self.read();
        let first = read.by_path.get(&model.path).map(|index| &read.entries[*index])?;
        // Two names of Ollama's may have one file.
        let is_its = |entry: &&StoreEntry| {
            entry.path == model.path && entry.name.repository() == model.name.repository()
        };
        let own = || read.entries.iter().find(is_its);
        Some(if is_its(&first) { first } else { own().unwrap_or(first) })
    }

    /// Returns a model, complete or not, as [`Hub::show`] does; `None` if it is not here.
    ///
    /// # Errors
    /// [`HubError::Ambiguous`] if several match.
    pub fn show(&self, name: &ModelName) -> Result<Option<StoreEntry>, HubError> {
        self.with_shelves(name, |shelves| shelves.show(name))
    }

    fn with_shelves<R>(&self, name: &ModelName, asked: impl FnOnce(&Shelves) -> R) -> R {
        match self.read().by_repository.get(&name.repository()) {
            Some(shelves) => asked(shelves),
            // A listing is bounded, and a disk may take upper and lower case for the same.
            None => asked(&Shelves::new(self.hub.own_shelves_of(name).collect())),
        }
    }

    /// Returns the local model, complete or not, that a short name means. A short name is a
    /// repository's name without its owner, with or without a final `-GGUF`, and optionally with a
    /// quantisation after a colon; or a file's name without `.gguf`. Upper and lower case are
    /// equal. Also finds `owner/repo` if only the case differs.
    ///
    /// # Errors
    /// [`HubError::Ambiguous`] if models of several repositories have that name,
    /// [`HubError::File`] if the store exists but cannot be read.
    pub fn short_name(&self, text: &str) -> Result<Option<ModelName>, HubError> {
        short::pick(text, self.entries()?)
    }

    /// Returns the name under which a model that was found is listed.
    #[must_use]
    pub fn name_of<'b>(&'b self, model: &'b LocalModel) -> &'b ModelName {
        self.entry_of(model).map_or(&model.name, |entry| &entry.name)
    }

    /// Returns a model of another program that is the same as one of the catalogue: of its name in
    /// Ollama's library, or of the same size, training and format.
    ///
    /// # Errors
    /// [`HubError::Ambiguous`] if several match.
    pub fn neighbour(&self, model: &CatalogModel) -> Result<Option<LocalModel>, HubError> {
        match self.read().entries.iter().find(|entry| short::is_same(model, entry)) {
            Some(entry) => self.resolve(&entry.name),
            None => Ok(None),
        }
    }
}

impl Read {
    fn new(shelves: Vec<Shelf>, taken: &HashSet<String>) -> Self {
        let is_listed = |entry: &StoreEntry| {
            entry.origin == Origin::Store || entry.state == EntryState::Complete
        };
        let mut entries: Vec<StoreEntry> =
            shelves.iter().flat_map(Shelf::entries).filter(is_listed).collect();
        short::shorten(&mut entries, taken);
        let mut by_path = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            by_path.entry(entry.path.clone()).or_insert(index);
        }
        let mut by_repository: HashMap<String, Vec<Shelf>> = HashMap::new();
        for shelf in shelves {
            by_repository.entry(shelf.name.repository()).or_default().push(shelf);
        }
        let sorted = by_repository.into_iter().map(|(name, all)| (name, Shelves::new(all)));
        Self { entries, by_path, by_repository: sorted.collect() }
    }
}
