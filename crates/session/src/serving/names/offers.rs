//! The models of the catalogue, for clients that may pull them.

use std::sync::OnceLock;

use crate::library::ModelLibrary;
use crate::suiting::Suited;
use trine_hub::catalog::{self, CatalogModel};
use trine_hub::{EntryState, StoreEntry};
use trine_server::{Catalog, Offer, OfferState};

/// This machine as it was measured once.
#[derive(Debug, Default)]
pub(super) struct Measured(OnceLock<Suited>);

impl Measured {
    /// Returns the machine with the memory that is free now; measures it first if that may take
    /// time and nobody did. Where nothing can be measured only the memory is known.
    pub(super) fn machine(&self, measures: bool) -> Suited {
        if measures && self.0.get().is_none() {
            match Suited::measured(&ModelLibrary::default()) {
                // Somebody else may have measured too.
                Ok(measured) => drop(self.0.set(measured)),
                Err(error) => tracing::warn!("the devices cannot be measured: {error:#}"),
            }
        }
        self.0.get().map_or_else(Suited::unmeasured, Suited::now)
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
