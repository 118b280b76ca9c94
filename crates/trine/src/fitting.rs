//! Which models of the catalogue have room in this machine's memory.

use trine_hub::catalog::{self, CatalogModel};

use crate::embedded::Embedded;
use crate::{machine, output};

/// The context in tokens that a model is to have room for: the usual one.
pub(crate) const CONTEXT: u64 = 8192;

/// The memory of a machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bytes of the machine's memory that are free; `None` if the system does not tell.
    pub(crate) free: Option<u64>,
    /// Bytes of a GPU's own memory.
    pub(crate) beside: u64,
}

impl Room {
    /// Looks at the machine's free memory, which takes no time.
    pub(crate) fn now() -> Self {
        Self { free: machine::available_memory(), beside: 0 }
    }

    /// Returns whether there is memory for a model with its context; `None` if nobody knows.
    pub(crate) fn fits(&self, model: &CatalogModel) -> Option<bool> {
        self.has(model.demand(CONTEXT).memory_bytes)
    }

    fn has(&self, bytes: u64) -> Option<bool> {
        Some(bytes <= self.free?.saturating_add(self.beside))
    }

    /// Returns the model that most people take, or the largest smaller one that fits.
    pub(crate) fn usual(&self) -> &'static CatalogModel {
        let offered = catalog::offered();
        let usual = offered.iter().position(|model| *model == catalog::usual()).unwrap_or_default();
        let fits = |model: &&&CatalogModel| self.fits(model) != Some(false);
        let fitting = offered[..=usual].iter().rev().find(fits);
        fitting.or(offered.first()).copied().unwrap_or_else(catalog::usual)
    }

    /// Returns what there is to say before a download of a model that has no memory here; `None` if
    /// it fits, or nobody knows. `bytes` is the size of its files.
    pub(crate) fn misfit(&self, model: Option<&CatalogModel>, bytes: u64) -> Option<String> {
        let needed = model.map_or(bytes, |model| model.demand(CONTEXT).memory_bytes);
        if self.has(needed)? {
            return None;
        }
        let offered = catalog::offered().into_iter().rev();
        let fitting =
            offered.into_iter().find(|model| model.bytes < bytes && self.fits(model) == Some(true));
        Some(format!(
            "It needs about {} of memory, and this machine has {} free: it will not run, or crawl.{}",
            output::bytes(needed),
            output::bytes(self.free?),
            fitting.map_or(String::new(), |model| format!(
                " `{}` fits ({}).",
                model.name(),
                output::about_bytes(model.bytes)
            )),
        ))
    }
}

/// Returns the sentence that says what the model inside the program is, and what to take instead.
pub(crate) fn about_demo(name: &str) -> Option<String> {
    if name != Embedded::Demo.name() {
        return None;
    }
    let room = Room::now();
    let model = room.usual();
    let fits = if room.fits(model) == Some(true) { ", fits this machine" } else { "" };
    Some(format!(
        "demo is a tiny model that only tells short stories. For a real one: trine run {} ({}{fits})",
        model.name(),
        output::about_bytes(model.bytes),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> &'static CatalogModel {
        match catalog::find(name) {
            Some(catalog::Known::Model(model)) => model,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_what_does() {
        let room = Room { free: Some(25 << 30), beside: 0 };
        let model = known("gemma3:27b-it-fp16");
        let told = room.misfit(Some(model), model.bytes).unwrap();
        let said = ["this machine has 26.8 GB free", "`gemma4:31b` fits (about 19 GB)"];
        assert!(said.iter().all(|said| told.contains(said)), "{told}");
        assert_eq!(room.misfit(Some(known("gemma3:4b")), 3_340_000_000), None);
        assert!(room.misfit(None, 30 << 30).is_some() && room.misfit(None, 1 << 30).is_none());
        assert_eq!(Room::default().misfit(None, 30 << 30), None, "nobody knows");
    }

    #[test]
    fn the_usual_model_or_the_largest_smaller_one_is_taken() {
        for (free, usual) in [(24 << 30, "gemma4:e4b"), (6 << 30, "gemma4:e2b"), (1, "gemma3:270m")]
        {
            let room = Room { free: Some(free), beside: 0 };
            assert_eq!(room.usual().name(), usual);
        }
        let beside = Room { free: Some(2 << 30), beside: 8 << 30 };
        assert_eq!(beside.usual(), catalog::usual(), "GPU and machine together");
    }
}
