//! A model with the draft that reads its caches, and where such a draft is left out again.

use std::fmt::Display;

use anyhow::{Context, Result, bail};
use trine_backend::{BackendError, MemoryKind, Placement};
use trine_engine::EngineError;
use trine_model::{Assistant, Model};
use trine_weights::DType;

use super::{Choice, Drafting, Guesser};
use crate::failure::usage;
use crate::library::ModelLibrary;
use crate::model_source::Source;
use crate::{assistants, words};

/// The format of a draft that reads the model's caches, if its files have floats: most of its bytes
/// are those of its output matrix.
const DRAFT_FORMAT: DType = DType::Q8_0;
/// The most drafts for models of its size that are tried for a model: one that cannot be loaded may
/// have taken as long as the model.
const TRIED_MAX: usize = 4;

/// A model, and where the draft that reads its caches comes from, if it has one.
pub struct Attached {
    /// The model.
    pub model: Model,
    /// Where its draft comes from.
    pub draft: Option<Source>,
    /// What may take the place of a draft that nobody named.
    instead: Option<Instead>,
}

/// What may take the place of a draft that was found.
struct Instead {
    /// The model with other drafts that were found, in the order in which they are tried.
    others: Box<dyn Iterator<Item = (Model, Source)>>,
    /// The model without a draft.
    plain: Model,
}

impl Drafting {
    /// Gives a model the draft that reads its caches, if that is the one that is chosen or, with
    /// nothing chosen, one is found. `source` is where the model comes from.
    ///
    /// # Errors
    /// Returns an error if one that has to fit the model does not, or cannot be opened.
    pub fn attach(
        &self,
        library: &ModelLibrary,
        source: &Source,
        model: Model,
    ) -> Result<Attached> {
        match &self.by {
            Guesser::Off | Guesser::Lookup => Ok(Attached::without_draft(model)),
            Guesser::Model(Choice::Auto, _) => Ok(self.attach_found(library, source, model)),
            Guesser::Model(Choice::Named { source: draft, .. }, _) => {
                let attached = self.attach_named(library, draft, source, model.clone());
                let attached = self.or_none(library, attached)?;
                Ok(match attached {
                    Some(model) => Attached { model, draft: Some(draft.clone()), instead: None },
                    None => Attached::without_draft(model),
                })
            }
        }
    }

    fn attach_found(&self, library: &ModelLibrary, source: &Source, model: Model) -> Attached {
        let (name, is_exact) = (source.name(), self.is_exact);
        let plain = model.clone();
        // Those that turn out not to fit count too.
        let found = assistants::find(library, source, &model).take(TRIED_MAX);
        let told = library.clone();
        let mut others = found.filter_map(move |(draft, assistant)| {
            match joined(model.clone(), assistant, is_exact) {
                Ok(model) => Some((model, draft)),
                Err(error) => {
                    let draft = draft.name();
                    let [draft, name] = [&draft, &name].map(|name| words::harmless(name));
                    told.warn(format_args!("{draft} does not guess for {name}: {error:#}"));
                    None
                }
            }
        });
        let Some((model, draft)) = others.next() else { return Attached::without_draft(plain) };
        if self.device().is_some() {
            // The option may be for the drafts of other models.
            library.note(no_device(&draft));
        }
        let instead = Instead { others: Box::new(others), plain };
        Attached { model, draft: Some(draft), instead: Some(instead) }
    }

    /// Returns the model with a draft; `None` if that is a model of its own.
    fn attach_named(
        &self,
        library: &ModelLibrary,
        draft: &Source,
        source: &Source,
        model: Model,
    ) -> Result<Option<Model>> {
        let Some(assistant) = draft.open_assistant()? else { return Ok(None) };
        if self.device().is_some() {
            return Err(usage(format!("{}; leave it out", no_device(draft))));
        }
        let mismatch = assistants::mismatch((draft, &assistant), source, &model);
        let attached = joined(model, assistant, self.is_exact)
            .with_context(|| format!("{} does not guess for {}", draft.name(), source.name()))?;
        if let Some(reason) = mismatch {
            library.warn(reason);
        }
        Ok(Some(attached))
    }
}

/// Returns a model with a draft.
fn joined(model: Model, assistant: Assistant, is_exact: bool) -> Result<Model> {
    let attached = model.with_assistant(assistant)?;
    Ok(if is_exact { attached } else { attached.quantized_draft(DRAFT_FORMAT) })
}

fn no_device(draft: &Source) -> String {
    format!(
        "--draft-device has no effect with {}, which runs where the model does",
        words::harmless(&draft.name())
    )
}

impl Attached {
    fn without_draft(model: Model) -> Self {
        Self { model, draft: None, instead: None }
    }

    /// Returns whether it has a draft that nobody named.
    pub fn is_found(&self) -> bool {
        self.instead.is_some()
    }

    /// Checks that the model is not spread over devices by a number of layers for GPUs, which a
    /// draft does not allow. A draft that nobody named is left out, with a warning.
    ///
    /// # Errors
    /// Returns an error with a remedy if the draft was named.
    pub fn check_layers(&mut self, library: &ModelLibrary, layers: Option<usize>) -> Result<()> {
        let all = self.model.config().layers.len();
        let layers = layers.filter(|layers| (1..all).contains(layers));
        let (Some(layers), Some(draft)) = (layers, &self.draft) else { return Ok(()) };
        let draft = draft.name();
        let draft = words::harmless(&draft);
        let what = format!(
            "--gpu-layers {layers} puts {layers} of {all} layers on GPUs, and with a draft that \
             reads its caches the model has to be on one device"
        );
        let Some(instead) = self.instead.take() else {
            bail!(
                "the draft {draft} cannot be used: {what}; leave --gpu-layers out or, to keep it, \
                 give --draft ngram"
            );
        };
        library.warn(format_args!(
            "the draft {draft} is left out: {what}; without --gpu-layers the draft is used"
        ));
        *self = Self::without_draft(instead.plain);
        Ok(())
    }

    /// Leaves drafts out that nobody named, each with a warning, if the model would lose by them.
    /// `place` says where a model would run, `placement` returns that of its result. Returns where
    /// the model would run; `None` if there was nothing to choose.
    pub fn choose<P, E: Display>(
        &mut self,
        library: &ModelLibrary,
        place: impl Fn(&Model) -> Result<P, E>,
        placement: impl Fn(&P) -> &Placement,
    ) -> Option<Result<P, E>> {
        let without = place(&self.instead.as_ref()?.plain);
        loop {
            let with = place(&self.model);
            let [own, others] = [&with, &without].map(|found| found.as_ref().map(&placement));
            let can_be_named = own.is_ok();
            let Some(what) = loses(own, others) else { return Some(with) };
            self.leave_out(library, &what, can_be_named);
            if self.draft.is_none() {
                return Some(without);
            }
        }
    }

    /// Loads the model. Leaves drafts out that nobody named, each with a warning, if the model
    /// loads without them only: a device may lack something that only the draft needs, and the
    /// draft's weights may be damaged. Memory that is short has remedies of its own.
    ///
    /// # Errors
    /// Returns those of `load`.
    pub fn load<T>(
        &mut self,
        library: &ModelLibrary,
        load: impl Fn(&Model) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let with = load(&self.model);
        let (Err(error), Some(instead)) = (&with, &mut self.instead) else { return with };
        let (Some(what), Some(draft)) = (failed(error), self.draft.clone()) else { return with };
        // What fails without a draft too is not the drafts' fault, and none of them is left out.
        let mut left_out = vec![(draft, what)];
        let mut taken = None;
        for (model, draft) in instead.others.by_ref() {
            match load(&model) {
                Ok(loaded) => {
                    taken = Some((loaded, model, draft));
                    break;
                }
                Err(error) => {
                    left_out.push((draft, failed(&error).unwrap_or_else(|| error.to_string())));
                }
            }
        }
        let loaded = match taken {
            Some((loaded, model, draft)) => {
                (self.model, self.draft) = (model, Some(draft));
                loaded
            }
            None => {
                let loaded = load(&instead.plain)?;
                *self = Self::without_draft(instead.plain.clone());
                loaded
            }
        };
        for (draft, what) in left_out {
            tell_left_out(library, &draft, &what, false);
        }
        Ok(loaded)
    }

    /// Leaves a draft out that nobody named; the next one takes its place, if there is one.
    fn leave_out(&mut self, library: &ModelLibrary, what: &str, can_be_named: bool) {
        let (Some(mut instead), Some(draft)) = (self.instead.take(), self.draft.take()) else {
            return;
        };
        tell_left_out(library, &draft, what, can_be_named);
        *self = match instead.others.next() {
            Some((model, next)) => Self { model, draft: Some(next), instead: Some(instead) },
            None => Self::without_draft(instead.plain),
        };
    }
}

/// Says that a draft is left out, and why. `can_be_named` says whether the model can be loaded with
/// it.
fn tell_left_out(library: &ModelLibrary, draft: &Source, what: &str, can_be_named: bool) {
    let draft = draft.name();
    let draft = words::harmless(&draft);
    let remedy = match can_be_named {
        true => format!("; --draft {draft} takes it all the same"),
        false => String::new(),
    };
    library.warn(format_args!("the draft {draft} is left out: {what}{remedy}"));
}

/// Returns why a model was not loaded, unless that was for lack of memory.
fn failed(error: &EngineError) -> Option<String> {
    match error {
        EngineError::Backend(BackendError::OutOfMemory { .. }) => None,
        EngineError::Backend(BackendError::Unsupported { device, what }) => {
            Some(format!("{device} cannot run it: {what}"))
        }
        other => Some(other.to_string()),
    }
}

/// Says what a model loses by a draft, if it does: a Plan with drafts is not cut, so that one that
/// is too large for a GPU would be on the processor as a whole, and the draft's weights may take
/// the room of experts. `with` and `without` are where the model would run.
pub fn loses<E: Display>(
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
        let own = words::counted(own.experts, "layer");
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
        let instead = is_found.then(|| Instead { others: Box::new(std::iter::empty()), plain });
        (Attached { model, draft, instead }, layers)
    }

    /// Returns a model with two "drafts" that were found. All three differ in layers.
    fn attached_twice() -> (Attached, [usize; 3]) {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/gemma4-dense");
        let other = Source::Path(golden.into());
        let (mut attached, [first, without]) = attached(true);
        let second = model(&other);
        let layers = second.config().layers.len();
        assert!(layers != first && layers != without, "{layers}");
        let instead = attached.instead.as_mut().unwrap();
        instead.others = Box::new(std::iter::once((second, other)));
        (attached, [first, layers, without])
    }

    #[test]
    fn another_draft_that_was_found_takes_the_place_of_one_that_cannot_be_loaded() {
        let load = |fails: Vec<usize>| {
            move |model: &Model| {
                let layers = model.config().layers.len();
                if fails.contains(&layers) { Err(unsupported()) } else { Ok(layers) }
            }
        };
        let (mut attached, [first, second, without]) = attached_twice();
        assert_eq!(attached.load(&ModelLibrary::default(), load(vec![first])).unwrap(), second);
        assert!(attached.is_found() && attached.draft.as_ref().unwrap().name().contains("gemma4"));
        assert_eq!(attached.model.config().layers.len(), second);
        let (mut attached, _) = attached_twice();
        assert_eq!(
            attached.load(&ModelLibrary::default(), load(vec![first, second])).unwrap(),
            without
        );
        assert!(!attached.is_found() && attached.draft.is_none());
        let (mut attached, _) = attached_twice();
        assert!(
            attached.load(&ModelLibrary::default(), load(vec![first, second, without])).is_err()
        );
        assert_eq!(attached.model.config().layers.len(), first, "none of the drafts is at fault");
    }

    #[test]
    fn another_draft_that_was_found_takes_the_place_of_one_without_room() {
        let place = |fails: Vec<usize>| {
            move |model: &Model| match fails.contains(&model.config().layers.len()) {
                true => Err("there is no room"),
                false => Ok(empty_placement()),
            }
        };
        let (mut attached, [first, second, without]) = attached_twice();
        assert!(
            attached
                .choose(&ModelLibrary::default(), place(vec![first]), |placement| placement)
                .unwrap()
                .is_ok()
        );
        assert_eq!(attached.model.config().layers.len(), second);
        assert!(attached.is_found());
        let (mut attached, _) = attached_twice();
        assert!(
            attached
                .choose(&ModelLibrary::default(), place(vec![first, second]), |placement| placement)
                .is_some()
        );
        assert_eq!(attached.model.config().layers.len(), without);
        assert!(attached.draft.is_none());
    }

    #[test]
    fn layers_on_two_devices_leave_a_found_draft_out_and_refuse_a_named_one() {
        let (mut named, [all, _]) = attached(false);
        for layers in [None, Some(0), Some(all), Some(99)] {
            named.check_layers(&ModelLibrary::default(), layers).unwrap();
        }
        let error = named.check_layers(&ModelLibrary::default(), Some(1)).unwrap_err().to_string();
        for part in ["demo-draft", "--gpu-layers 1 ", "leave --gpu-layers out", "--draft ngram"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let (mut found, _) = attached(true);
        found.check_layers(&ModelLibrary::default(), Some(1)).unwrap();
        assert!(!found.is_found() && found.draft.is_none());
        found.check_layers(&ModelLibrary::default(), Some(1)).unwrap();
    }

    fn empty_placement() -> Placement {
        let width = Width { tokens: 1, outputs: 1 };
        let options =
            ProgramOptions { width, kv: KvType::F16, context: 1, sequences: 1, blocks: 1 };
        Placement { parts: Vec::new(), options, running: 1, full_blocks: 1, depth: 1 }
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
        assert_eq!(found.load(&ModelLibrary::default(), load(&[])).unwrap(), with);
        assert!(found.is_found() && found.draft.is_some(), "it is kept");
        assert_eq!(found.load(&ModelLibrary::default(), load(lacks(with))).unwrap(), without);
        assert!(!found.is_found() && found.draft.is_none());
        assert_eq!(found.model.config().layers.len(), without);

        let (mut found, _) = attached(true);
        let neither = |_: &Model| -> Result<(), _> { Err(unsupported()) };
        assert!(found.load(&ModelLibrary::default(), neither).is_err());
        assert!(found.is_found(), "the processor may run both");
        let (mut named, _) = attached(false);
        assert!(named.load(&ModelLibrary::default(), load(lacks(with))).is_err());
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
        assert!(found.load(&ModelLibrary::default(), load(damaged, with)).is_ok());
        assert!(!found.is_found() && found.draft.is_none());
        let full = || BackendError::OutOfMemory {
            what: "weights".to_owned(),
            needed: 1,
            device: "gpu".to_owned(),
        };
        let (mut found, [with, _]) = attached(true);
        assert!(found.load(&ModelLibrary::default(), load(full, with)).is_err());
        assert!(found.is_found(), "what is short has a remedy of its own");
    }

    #[test]
    fn a_found_draft_that_has_no_room_is_left_out() {
        let place = |_: &Model| Ok::<_, &str>(empty_placement());
        fn itself(placement: &Placement) -> &Placement {
            placement
        }
        let (mut named, [with, without]) = attached(false);
        assert!(named.choose(&ModelLibrary::default(), place, itself).is_none());
        let (mut found, _) = attached(true);
        assert!(found.choose(&ModelLibrary::default(), place, itself).unwrap().is_ok());
        assert!(found.draft.is_some());
        let only_without = |model: &Model| match model.config().layers.len() {
            layers if layers == with => Err("there is no room"),
            _ => Ok(empty_placement()),
        };
        assert!(found.choose(&ModelLibrary::default(), only_without, itself).unwrap().is_ok());
        assert!(found.draft.is_none());
        assert_eq!(found.model.config().layers.len(), without);
    }
}
