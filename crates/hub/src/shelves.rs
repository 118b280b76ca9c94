//! The shelves of one repository together.

use std::cell::OnceCell;

use crate::error::HubError;
use crate::local::{LocalModel, StoreEntry};
use crate::name::ModelName;
use crate::select::Candidates;
use crate::shelf::Shelf;

/// All shelves of one repository: the store's first, then those of other programs.
pub(crate) struct Shelves(Vec<Sorted>);

/// A shelf, and what is on it once that was asked for.
struct Sorted {
    shelf: Shelf,
    /// Its models, complete or not.
    all: OnceCell<Candidates>,
    choice: OnceCell<Choice>,
}

/// What can be chosen of a shelf.
struct Choice {
    complete: Candidates,
    /// Its files and the whole files of all shelves: a vision tower may lie on another one.
    everywhere: Candidates,
}

impl Shelves {
    pub(crate) fn new(shelves: Vec<Shelf>) -> Self {
        let sorted = |shelf| Sorted { shelf, all: OnceCell::new(), choice: OnceCell::new() };
        Self(shelves.into_iter().map(sorted).collect())
    }

    /// Returns the complete model that a name picks on the first shelf that has one.
    pub(crate) fn resolve(&self, name: &ModelName) -> Result<Option<LocalModel>, HubError> {
        for Sorted { shelf, choice, .. } in &self.0 {
            let choice = choice.get_or_init(|| self.choice(shelf));
            let pick = match choice.complete.choose(name) {
                Ok(pick) if pick.mmproj().is_some() => pick,
                Ok(pick) => choice.everywhere.with_mmproj(pick, &[]),
                Err(error @ HubError::Ambiguous { .. }) => return Err(error),
                Err(_) => continue,
            };
            return Ok(Some(shelf.local(name, &pick, self.shelves())));
        }
        Ok(None)
    }

    /// Returns the model, complete or not, that a name picks on the first shelf that has one.
    pub(crate) fn show(&self, name: &ModelName) -> Result<Option<StoreEntry>, HubError> {
        for Sorted { shelf, all, .. } in &self.0 {
            match all.get_or_init(|| shelf.candidates()).pick(name) {
                Ok(pick) => return Ok(Some(shelf.entry(name, &pick))),
                Err(error @ HubError::Ambiguous { .. }) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    fn shelves(&self) -> impl Iterator<Item = &Shelf> {
        self.0.iter().map(|sorted| &sorted.shelf)
    }

    fn choice(&self, shelf: &Shelf) -> Choice {
        let names = shelf.complete_names();
        let whole = self.shelves().flat_map(Shelf::whole_names);
        let mut everywhere: Vec<String> = names.iter().cloned().chain(whole).collect();
        everywhere.sort_unstable();
        everywhere.dedup();
        let (complete, everywhere) = (Candidates::new(names), Candidates::new(everywhere));
        Choice { complete, everywhere }
    }
}
