//! A model with the draft that reads its caches, and where such a draft is left out again.

use std::fmt::Display;

use anyhow::Result;
use trine_backend::{BackendError, MemoryKind, Placement};
use trine_engine::EngineError;
use trine_model::Model;

use crate::model_source::Source;
use crate::{output, terminal};

/// A model, and where the draft that reads its caches comes from, if it has one.
pub(crate) struct Attached {
    pub(crate) model: Model,
    pub(crate) draft: Option<Source>,
    /// The model without the draft, if nobody named the draft: it may be left out.
    pub(super) plain: Option<Model>,
}

impl Attached {
    pub(super) fn without_draft(model: Model) -> Self {
        Self { model, draft: None, plain: None }
    }

    /// Returns whether it has a draft that nobody named.
    pub(crate) fn is_found(&self) -> bool {
        self.plain.is_some()
    }

    /// Leaves a draft out that nobody named, with a warning, if the model would lose by it. `place`
    /// says where a model would run, `placement` returns that of its result. Returns where the
    /// model would run; `None` if there was nothing to choose.
    pub(crate) fn choose<P, E: Display>(
        &mut self,
        place: impl Fn(&Model) -> Result<P, E>,
        placement: impl Fn(&P) -> &Placement,
    ) -> Option<Result<P, E>> {
        let (with, without) = (place(&self.model), place(self.plain.as_ref()?));
        let [own, others] = [&with, &without].map(|found| found.as_ref().map(&placement));
        let Some(reason) = loses(own, others) else { return Some(with) };
        self.leave_out(&reason);
        Some(without)
    }

    /// Loads the model. Leaves a draft out that nobody named, with a warning, if the model loads
    /// without it only: a device may lack something that only the draft needs, and the draft's
    /// weights may be damaged. Memory that is short has remedies of its own.
    ///
    /// # Errors
    /// Returns those of `load`.
    pub(crate) fn load<T>(
        &mut self,
        load: impl Fn(&Model) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let with = load(&self.model);
        let error = match &with {
            Ok(_) | Err(EngineError::Backend(BackendError::OutOfMemory { .. })) => return with,
            Err(error) => error,
        };
        let Some(plain) = &self.plain else { return with };
        let without = load(plain);
        if without.is_ok() {
            let reason = match error {
                EngineError::Backend(BackendError::Unsupported { device, what }) => {
                    format!("{device} cannot run it: {what}")
                }
                other => other.to_string(),
            };
            self.leave_out(&reason);
        }
        without
    }

    fn leave_out(&mut self, reason: &str) {
        let (Some(plain), Some(draft)) = (self.plain.take(), self.draft.take()) else { return };
        self.model = plain;
        let name = draft.name();
        let name = terminal::harmless(&name);
        output::warning(format_args!(
            "the draft {name} is left out: {reason}; --draft {name} takes it all the same"
        ));
    }
}

/// Says what a model loses by a draft, if it does: a Plan with drafts is not cut, so that one that
/// is too large for a GPU would be on the processor as a whole, and the draft's weights may take
/// the room of experts. `with` and `without` are where the model would run.
pub(crate) fn loses<E: Display>(
    with: Result<&Placement, E>,
    without: Result<&Placement, E>,
) -> Option<String> {
    let without = without.ok()?;
    let with = match with {
        Err(error) => return Some(error.to_string()),
        Ok(with) => with,
    };
    let (own, others) = (OffGpu::of(with), OffGpu::of(without));
    if own.layers > others.layers {
        return Some(
            "the model would have to be on one device with it, and that is not the GPU".to_owned(),
        );
    }
    (own > others).then(|| {
        let fewer = match others.experts {
            0 => "none".to_owned(),
            experts => format!("those of {experts}"),
        };
        let own = output::counted(own.experts, "layer");
        format!("with it the GPU has no room for the experts of {own}, {fewer} without")
    })
}

/// The parts of a model that the processor computes. A larger value takes more of its time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OffGpu {
    /// Whole layers.
    layers: usize,
    /// The layers of which it only computes the experts.
    experts: usize,
}

impl OffGpu {
    fn of(placement: &Placement) -> Self {
        let parts = &placement.parts;
        let host = parts.iter().filter(|part| part.device_memory.kind == MemoryKind::Host);
        Self {
            layers: host.map(|part| part.plan.layers()).sum(),
            experts: (0..parts.len()).map(|part| placement.aside_layers(part).len()).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::ProgramOptions;
    use trine_model::{KvType, Width};

    use super::*;

    fn model(source: &Source) -> Model {
        source.open(None).unwrap()
    }

    /// Returns a model with a "draft". The model with it and the one without differ in layers.
    fn attached(is_found: bool) -> (Attached, [usize; 2]) {
        let [model, plain] = [Source::DEMO, Source::DEMO_DRAFT].map(|source| model(&source));
        let layers = [&model, &plain].map(|model| model.config().layers.len());
        assert_ne!(layers[0], layers[1]);
        let draft = Some(Source::DEMO_DRAFT);
        (Attached { model, draft, plain: is_found.then_some(plain) }, layers)
    }

    fn unsupported() -> EngineError {
        let what = "its heads have 1024 elements".to_owned();
        EngineError::Backend(BackendError::Unsupported { device: "gpu".to_owned(), what })
    }

    #[test]
    fn a_device_that_lacks_something_for_a_found_draft_runs_the_model_without_it() {
        let (mut found, [with, without]) = attached(true);
        let load = |fails: &'static [usize]| {
            move |model: &Model| {
                let layers = model.config().layers.len();
                if fails.contains(&layers) { Err(unsupported()) } else { Ok(layers) }
            }
        };
        let lacks = |layers: usize| -> &'static [usize] { Vec::leak(vec![layers]) };
        assert_eq!(found.load(load(&[])).unwrap(), with);
        assert!(found.is_found() && found.draft.is_some(), "it is kept");
        assert_eq!(found.load(load(lacks(with))).unwrap(), without);
        assert!(!found.is_found() && found.draft.is_none());
        assert_eq!(found.model.config().layers.len(), without);

        let (mut found, _) = attached(true);
        let neither = |_: &Model| -> Result<(), _> { Err(unsupported()) };
        assert!(found.load(neither).is_err());
        assert!(found.is_found(), "the processor may run both");
        let (mut named, _) = attached(false);
        assert!(named.load(load(lacks(with))).is_err());
        assert!(named.draft.is_some());
    }

    #[test]
    fn a_found_draft_that_cannot_be_loaded_is_left_out() {
        let load = |error: fn() -> BackendError, with: usize| {
            move |model: &Model| match model.config().layers.len() == with {
                true => Err(EngineError::Backend(error())),
                false => Ok(()),
            }
        };
        let damaged = || BackendError::Failed {
            device: "cpu".to_owned(),
            what: "element 0 is NaN".to_owned(),
        };
        let (mut found, [with, _]) = attached(true);
        assert!(found.load(load(damaged, with)).is_ok());
        assert!(!found.is_found() && found.draft.is_none());
        let full = || BackendError::OutOfMemory {
            what: "weights".to_owned(),
            needed: 1,
            device: "gpu".to_owned(),
        };
        let (mut found, [with, _]) = attached(true);
        assert!(found.load(load(full, with)).is_err());
        assert!(found.is_found(), "what is short has a remedy of its own");
    }

    #[test]
    fn a_found_draft_that_has_no_room_is_left_out() {
        let width = Width { tokens: 1, outputs: 1 };
        let options =
            ProgramOptions { width, kv: KvType::F16, context: 1, sequences: 1, blocks: 1 };
        let placement =
            || Placement { parts: Vec::new(), options, running: 1, full_blocks: 1, depth: 1 };
        let place = |_: &Model| Ok::<_, &str>(placement());
        fn itself(placement: &Placement) -> &Placement {
            placement
        }
        let (mut named, [with, without]) = attached(false);
        assert!(named.choose(place, itself).is_none());
        let (mut found, _) = attached(true);
        assert!(found.choose(place, itself).unwrap().is_ok());
        assert!(found.draft.is_some());
        let only_without = |model: &Model| match model.config().layers.len() {
            layers if layers == with => Err("there is no room"),
            _ => Ok(placement()),
        };
        assert!(found.choose(only_without, itself).unwrap().is_ok());
        assert!(found.draft.is_none());
        assert_eq!(found.model.config().layers.len(), without);
    }
}
