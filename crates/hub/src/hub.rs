//! The hub's public face: local models and the operations on them that need no network.

use std::collections::HashSet;

use crate::cache;
use crate::catalog;
use crate::config::HubConfig;
use crate::error::HubError;
use crate::http::Client;
use crate::local::{EntryState, LocalModel, Origin, RemovedModel, StoreEntry};
use crate::manifest::Manifest;
use crate::name::{ModelName, Selection};
use crate::neighbours;
use crate::shelf::Shelf;
use crate::shelves::Shelves;
use crate::short;
use crate::store::Store;

/// A client of one Hugging Face server together with the local models.
pub struct Hub {
    pub(crate) client: Client,
    pub(crate) store: Store,
}

impl Hub {
    /// Makes a hub with these settings. Neither connects nor touches the disk.
    ///
    /// # Errors
    /// [`HubError::InvalidSetting`] if the endpoint is not an http or https address.
    pub fn new(config: HubConfig) -> Result<Self, HubError> {
        let client = Client::new(&config)?;
        Ok(Hub { client, store: Store::new(config.store) })
    }

    /// Returns the complete local model that `name` means, from the store or else from the Hugging
    /// Face cache. Does not connect. For a name without a quantisation, the usual preference
    /// applies to the models that are here.
    ///
    /// # Errors
    /// [`HubError::Ambiguous`] if several local models match.
    pub fn resolve(&self, name: &ModelName) -> Result<Option<LocalModel>, HubError> {
        let model = Shelves::new(self.shelves_of(name)).resolve(name)?;
        match model {
            // How it is called depends on all others.
            Some(model) if model.origin.is_neighbour() => self.inventory().resolve(name),
            model => Ok(model),
        }
    }

    /// Returns all that lies on this machine: the store, the Hugging Face cache, other programs.
    pub(crate) fn shelves(&self) -> Vec<Shelf> {
        let cache = self.client.config().hugging_face_cache.as_deref();
        let cached = cache.map(cache::shelves).unwrap_or_default();
        let others = neighbours::shelves(self.client.config());
        self.store.shelves().into_iter().chain(cached).chain(others).collect()
    }

    /// Returns the names that mean something else than a model of another program.
    pub(crate) fn taken_names(&self) -> HashSet<String> {
        let presets = self.preset_names().unwrap_or_default();
        presets.into_iter().chain(self.client.config().reserved.iter().cloned()).collect()
    }

    /// Returns what has the name of a repository in the store and the Hugging Face cache.
    pub(crate) fn own_shelves_of(&self, name: &ModelName) -> impl Iterator<Item = Shelf> {
        let cache = self.client.config().hugging_face_cache.as_deref();
        let cached = cache.and_then(|cache| cache::shelf(cache, name));
        self.store.shelf(name).into_iter().chain(cached)
    }

    /// Returns one model of the store (complete or not) or of the Hugging Face cache.
    ///
    /// # Errors
    /// [`HubError::NotLocal`] if it is not here, [`HubError::Ambiguous`] if several match.
    pub fn show(&self, name: &ModelName) -> Result<StoreEntry, HubError> {
        let found = Shelves::new(self.shelves_of(name)).show(name)?;
        found.ok_or_else(|| self.not_local(name))
    }

    /// Deletes a model, complete or not, from the store. A name without a quantisation must match
    /// only one model. Other models of the same repository stay, and a vision tower that goes with
    /// one of them.
    ///
    /// # Errors
    /// [`HubError::NotLocal`], [`HubError::Ambiguous`], or [`HubError::Refused`] if the model lies
    /// outside the store or is being pulled.
    pub fn remove(&self, name: &ModelName) -> Result<RemovedModel, HubError> {
        let Some(shelf) = self.store.shelf(name) else {
            return Err(self.elsewhere(name));
        };
        let Some(_lock) = self.store.try_lock(name)? else {
            let reason = "another process works on it; stop that one first".to_owned();
            return Err(HubError::Refused { path: shelf.folder, reason });
        };
        let candidates = shelf.candidates();
        let models = candidates.models(&shelf.name);
        if *name.selection() == Selection::Default && models.len() > 1 {
            return Err(HubError::Ambiguous {
                name: name.to_string(),
                available: models.iter().map(|(name, _)| name.to_string()).collect(),
            });
        }
        let pick = match candidates.pick(name) {
            Ok(pick) => pick,
            Err(error @ HubError::Ambiguous { .. }) => return Err(error),
            Err(_) => return Err(self.elsewhere(name)),
        };
        let is_shared = |file: &String| {
            let others = models.iter().filter(|(_, other)| *other != pick);
            pick.mmproj() == Some(file)
                && others.clone().any(|(_, other)| other.mmproj() == Some(file))
        };
        let files: Vec<String> = pick.files().filter(|file| !is_shared(file)).cloned().collect();
        self.store.inside(&shelf.folder)?;
        let mut manifest = Manifest::read(&shelf.folder, &name.repository());
        let mut bytes = 0u64;
        for file in &files {
            bytes = bytes.saturating_add(self.store.delete_file(&shelf.folder.join(file))?);
            manifest.forget(file);
        }
        let rest = self
            .store
            .shelf(name)
            .is_some_and(|shelf| shelf.files.iter().any(|file| !files.contains(&file.name)));
        if rest {
            manifest.write(&shelf.folder)?;
        } else {
            Manifest::delete(&shelf.folder);
        }
        self.store.tidy(name, &files);
        Ok(RemovedModel { name: name.clone(), files, bytes })
    }

    /// Returns the names of the complete local models, as people ask for them.
    pub(crate) fn local_names(&self) -> Vec<String> {
        let entries = self.list().unwrap_or_default();
        let complete = entries.iter().filter(|entry| entry.state == EntryState::Complete);
        let mut names: Vec<String> = complete.map(|entry| entry.short.clone()).collect();
        names.dedup();
        names
    }

    pub(crate) fn shelves_of(&self, name: &ModelName) -> Vec<Shelf> {
        let others = neighbours::shelves(self.client.config()).into_iter();
        let others = others.filter(|shelf| shelf.name.repository() == name.repository());
        self.own_shelves_of(name).chain(others).collect()
    }

    fn not_local(&self, name: &ModelName) -> HubError {
        HubError::NotLocal { name: name.to_string(), local: self.local_names() }
    }

    /// Returns why a model cannot be removed from the store although it may be somewhere.
    fn elsewhere(&self, name: &ModelName) -> HubError {
        let cache = self.client.config().hugging_face_cache.as_deref();
        let shelf = cache.and_then(|cache| Some((cache, cache::shelf(cache, name)?)));
        match shelf {
            Some((cache, shelf)) if shelf.candidates().pick(name).is_ok() => {
                let path = cache::repository_folder(cache, name);
                let reason = "it belongs to the Hugging Face cache, which other programs use; \
                              delete that folder or use 'hf cache delete'";
                HubError::Refused { path, reason: reason.to_owned() }
            }
            _ => match self.neighbouring(name) {
                Some(entry) => HubError::Refused {
                    reason: how_to_remove(entry.origin, entry.called.as_deref()),
                    path: entry.path,
                },
                None => self.not_local(name),
            },
        }
    }

    /// Returns the model of another program that a name means.
    fn neighbouring(&self, name: &ModelName) -> Option<StoreEntry> {
        let shelves = neighbours::shelves(self.client.config());
        let picked = shelves.iter().filter(|shelf| shelf.name.repository() == name.repository());
        let picked = picked.filter_map(|shelf| {
            let pick = shelf.candidates().pick(name).ok()?;
            Some(shelf.entry(name, &pick))
        });
        let known = || {
            let model = catalog::of(name)?;
            shelves.iter().flat_map(Shelf::entries).find(|entry| short::is_same(model, entry))
        };
        picked.into_iter().next().or_else(known)
    }
}

/// Returns why a model of another program is not removed, and how that is done.
fn how_to_remove(origin: Origin, called: Option<&str>) -> String {
    let place = origin.place().unwrap_or_default();
    let how = match (origin, called) {
        (Origin::Ollama, Some(called)) => format!("remove it with `ollama rm {called}`"),
        (Origin::Ollama, None) => "remove it with `ollama rm`".to_owned(),
        (Origin::LmStudio, _) => "remove it there, in My Models".to_owned(),
        _ => "delete that file".to_owned(),
    };
    format!("it is one of {place}, which trine only reads; {how}")
}
