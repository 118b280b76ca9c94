//! The models of the catalogue, for clients that may pull them.

use std::sync::OnceLock;

use anyhow::Result;
use trine_hub::catalog::{self, CatalogModel};
use trine_hub::{EntryState, Inventory, LocalModel, StoreEntry};
use trine_server::{Catalog, Offer, OfferState};

use crate::finding::model_source::{Chosen, Resolved, Source, resolve_model};
use crate::finding::suiting::Suited;
use crate::library::ModelLibrary;

/// This machine: its models, and how fast it was once measured to be.
#[derive(Debug)]
pub(super) struct ThisMachine {
    library: ModelLibrary,
    suited: OnceLock<Suited>,
}

impl ThisMachine {
    pub(super) fn new(library: &ModelLibrary) -> Self {
        Self { library: library.clone(), suited: OnceLock::new() }
    }

    /// Returns the machine with the memory that is free now; measures it first if that may take
    /// time and nobody did. Where nothing can be measured only the memory is known.
    pub(super) fn suited(&self, measures: bool) -> Suited {
        let Self { library, suited } = self;
        if measures && suited.get().is_none() {
            match Suited::measured(library) {
                // Somebody else may have measured too.
                Ok(measured) => drop(suited.set(measured)),
                Err(error) => tracing::warn!("the devices cannot be measured: {error:#}"),
            }
        }
        suited.get().map_or_else(|| Suited::unmeasured(library), Suited::now)
    }

    /// Returns a complete model of the store by any of its names.
    pub(super) fn local(
        &self,
        inventory: &Inventory<'_>,
        name: &str,
    ) -> Result<Option<LocalModel>> {
        Ok(match resolve_model(&self.library, inventory, name)? {
            Resolved::Here(Chosen { source: Source::Local(model), .. }) => Some(*model),
            Resolved::Here(_) | Resolved::Missing(_) | Resolved::Unknown => None,
        })
    }
}

/// Returns the models of the catalogue with what is forecast for a machine and which of them are
/// `here`; `listed` gives the name under which one is served.
pub(super) fn catalog(
    machine: &Suited,
    here: &[StoreEntry],
    listed: impl Fn(&StoreEntry) -> String,
) -> Catalog {
    let (best, usual) = (machine.best(), catalog::offered());
    let state = |model: &CatalogModel| {
        let own = here.iter().filter(|entry| entry.short == model.name());
        match own.min_by_key(|entry| entry.state != EntryState::Complete) {
            Some(entry) if entry.state == EntryState::Complete => OfferState::Here(listed(entry)),
            Some(entry) => OfferState::Partial(entry.percent),
            None => OfferState::Absent,
        }
    };
    let offer = |model: &'static CatalogModel| Offer {
        names: model.names(),
        model: model.model().to_string(),
        quantization: model.quant().to_owned(),
        bytes: model.bytes,
        fits: machine.room.fits(model),
        tokens_per_second: machine.rate(model),
        is_recommended: model == best,
        is_usual: usual.contains(&model),
        sees: model.sees,
        state: state(model),
    };
    Catalog {
        device: machine.is_measured().then(|| machine.device()),
        free_bytes: machine.room.free,
        models: catalog::models().iter().map(offer).collect(),
    }
}
