//! A model with the drafts that may read its caches, and which of them are left out again.

use anyhow::{Context, Result, bail};
use trine_backend::BackendError;
use trine_engine::{EngineError, EngineOptions};
use trine_model::{Assistant, Model, Plan};
use trine_weights::DType;

use super::{DraftSource, Drafting, Guesser};
use crate::failure::usage;
use crate::finding::model_source::Source;
use crate::library::ModelLibrary;
use crate::placing::planner::LeftOut;
use crate::{finding::assistants, words};

/// The format of a draft that reads the model's caches, if its files have floats: most of its bytes
/// are those of its output matrix.
const DRAFT_FORMAT: DType = DType::Q8_0;
/// The most drafts for models of its size that are tried for a model: one that cannot be loaded may
/// have taken as long as the model.
const TRIED_MAX: usize = 4;

/// A model, and the drafts that may read its caches.
pub struct Attached {
    /// The model, with a draft only if that was named.
    plain: Model,
    /// The draft that was named.
    named: Option<Source>,
    /// The model with each draft that was found, as far as they were opened; the one to be
    /// preferred comes first.
    found: Vec<(Model, Source)>,
    /// The same with drafts that were not opened yet.
    others: Box<dyn Iterator<Item = (Model, Source)>>,
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
            Guesser::Model(DraftSource::Auto, _) => Ok(self.attach_found(library, source, model)),
            Guesser::Model(DraftSource::Named { source: draft, .. }, _) => {
                let attached = self.attach_named(library, draft, source, model.clone());
                Ok(match self.or_none(library, attached)? {
                    Some(with) => {
                        Attached { named: Some(draft.clone()), ..Attached::without_draft(with) }
                    }
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
        let others = found.filter_map(move |(draft, assistant)| {
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
        let mut attached = Attached { others: Box::new(others), ..Attached::without_draft(plain) };
        if let (Some((_, draft)), true) = (attached.found(0), self.device().is_some()) {
            // The option may be for the drafts of other models.
            library.note(no_device(draft));
        }
        attached
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
    fn without_draft(plain: Model) -> Self {
        Self { plain, named: None, found: Vec::new(), others: Box::new(std::iter::empty()) }
    }

    /// Opens the draft of a number among those that were found, if there are so many.
    fn found(&mut self, number: usize) -> Option<&(Model, Source)> {
        while self.found.len() <= number {
            self.found.push(self.others.next()?);
        }
        self.found.get(number)
    }

    /// Returns the Plans of the model with the drafts that were found, from a number on.
    pub fn plans<'a>(
        &'a mut self,
        options: &'a EngineOptions,
        from: usize,
    ) -> impl Iterator<Item = (usize, Plan)> + 'a {
        (from..).map_while(|number| Some((number, options.plan(&self.found(number)?.0))))
    }

    /// Returns the model with the draft of a number among those that were found and opened, or as
    /// it is without one.
    pub fn model(&self, found: Option<usize>) -> &Model {
        found.and_then(|number| self.found.get(number)).map_or(&self.plain, |(model, _)| model)
    }

    /// Returns the same model, and where its draft comes from.
    pub fn with(self, found: Option<usize>) -> (Model, Option<Source>) {
        let Self { plain, named, found: mut all, .. } = self;
        match found.filter(|&number| number < all.len()) {
            Some(number) => {
                let (model, draft) = all.swap_remove(number);
                (model, Some(draft))
            }
            None => (plain, named),
        }
    }

    /// Returns the model with the draft that comes first, before anything is placed.
    pub fn first(self) -> (Model, Option<Source>) {
        self.with(Some(0))
    }

    /// Checks that the model is not spread over devices by a number of layers for GPUs, which a
    /// draft does not allow. Drafts that nobody named are left out, with a warning.
    ///
    /// # Errors
    /// Returns an error with a remedy if the draft was named.
    pub fn check_layers(&mut self, library: &ModelLibrary, layers: Option<usize>) -> Result<()> {
        let all = self.plain.config().layers.len();
        let layers = layers.filter(|layers| (1..all).contains(layers));
        let found = self.found.first().map(|(_, draft)| draft);
        let (Some(layers), Some(draft)) = (layers, self.named.as_ref().or(found)) else {
            return Ok(());
        };
        let draft = draft.name();
        let draft = words::harmless(&draft);
        let what = format!(
            "--gpu-layers {layers} puts {layers} of {all} layers on GPUs, and with a draft that \
             reads its caches the model has to be on one device"
        );
        if self.named.is_some() {
            bail!(
                "the draft {draft} cannot be used: {what}; leave --gpu-layers out or, to keep it, \
                 give --draft ngram"
            );
        }
        library.warn(format_args!(
            "the draft {draft} is left out: {what}; without --gpu-layers the draft is used"
        ));
        *self = Self::without_draft(self.plain.clone());
        Ok(())
    }

    /// Says that drafts are left out, and why.
    pub fn tell_left_out(&self, library: &ModelLibrary, drafts: &[LeftOut]) {
        for LeftOut { number, what, can_be_named } in drafts {
            let draft = self.found[*number].1.name();
            let draft = words::harmless(&draft);
            let remedy = match can_be_named {
                true => format!("; --draft {draft} takes it all the same"),
                false => String::new(),
            };
            library.warn(format_args!("the draft {draft} is left out: {what}{remedy}"));
        }
    }
}

/// The attempts to load a model on its devices: with one draft after another that nobody named,
/// and without one. A device may lack something that only a draft needs, and its weights may be
/// damaged.
#[derive(Debug, Default)]
pub struct Attempts {
    /// The number of the first draft that is to be tried.
    pub from: usize,
    /// The drafts that could not be loaded.
    pub refused: Vec<LeftOut>,
}

impl Attempts {
    /// Takes note of an error with the draft of a number. Returns whether there is something else
    /// to try on the same devices: not if memory is short, which has remedies of its own, and not
    /// without a draft, whose fault it is not then.
    pub fn go_on(&mut self, found: Option<usize>, error: &EngineError) -> bool {
        let Some(number) = found else { return false };
        let what = match error {
            EngineError::Backend(BackendError::OutOfMemory { .. }) if self.refused.is_empty() => {
                return false;
            }
            EngineError::Backend(BackendError::Unsupported { device, what }) => {
                format!("{device} cannot run it: {what}")
            }
            other => other.to_string(),
        };
        self.refused.push(LeftOut { number, what, can_be_named: false });
        self.from = number + 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use trine_model::Config;

    use super::*;

    fn layers(model: &Model) -> usize {
        let Config { layers, .. } = model.config();
        layers.len()
    }

    /// Returns a model with a "draft" that was named, or two that were found, and the layers of
    /// each: first those of the model without what was found.
    fn attached(is_named: bool) -> (Attached, [usize; 3]) {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/gemma4-dense");
        let sources = [Source::DEMO_DRAFT, Source::DEMO, Source::Path(golden.into())];
        let [plain, first, second] = sources.map(|source| (source.open(None).unwrap(), source));
        let all = [&plain, &first, &second].map(|(model, _)| layers(model));
        let attached = Attached::without_draft(plain.0);
        let attached = match is_named {
            true => Attached { named: Some(first.1), ..attached },
            false => Attached { others: Box::new([first, second].into_iter()), ..attached },
        };
        (attached, all)
    }

    #[test]
    fn drafts_are_opened_as_they_are_asked_for() {
        let (mut attached, [_, first, second]) = attached(false);
        let options = EngineOptions::default();
        let plans = |attached: &mut Attached, from, most| -> Vec<usize> {
            attached.plans(&options, from).take(most).map(|(_, plan)| plan.layers()).collect()
        };
        assert_eq!(plans(&mut attached, 0, 1), [first]);
        assert_eq!(attached.found.len(), 1);
        assert_eq!(plans(&mut attached, 1, 9), [second]);
        assert_eq!(plans(&mut attached, 0, 9), [first, second]);
        assert!(plans(&mut attached, 2, 9).is_empty());
    }

    #[test]
    fn the_model_has_the_draft_that_was_chosen() {
        for (found, draft) in
            [(Some(0), Some("demo")), (Some(1), Some("gemma4-dense")), (None, None)]
        {
            let (mut all, counts) = attached(false);
            all.found(1);
            let (model, source) = all.with(found);
            assert_eq!(layers(&model), counts[found.map_or(0, |number| number + 1)]);
            let name = source.map(|source| source.name());
            assert_eq!(
                name.as_deref().map(|name| name.contains(draft.unwrap())),
                draft.map(|_| true)
            );
        }
        let (named, [plain, ..]) = attached(true);
        let (model, source) = named.first();
        assert_eq!((layers(&model), source.unwrap().name().as_str()), (plain, "demo"));
    }

    #[test]
    fn layers_on_two_devices_leave_found_drafts_out_and_refuse_a_named_one() {
        let library = ModelLibrary::default();
        let (mut named, [all, ..]) = attached(true);
        for layers in [None, Some(0), Some(all), Some(99)] {
            named.check_layers(&library, layers).unwrap();
        }
        let error = named.check_layers(&library, Some(1)).unwrap_err().to_string();
        for part in ["draft demo ", "--gpu-layers 1 ", "leave --gpu-layers out", "--draft ngram"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let (mut found, _) = attached(false);
        found.found(0);
        found.check_layers(&library, Some(1)).unwrap();
        assert!(found.found(0).is_none() && found.named.is_none());
        found.check_layers(&library, Some(1)).unwrap();
    }

    #[test]
    fn what_fails_with_a_found_draft_is_tried_with_the_next() {
        let unsupported = || {
            let what = "its heads have 1024 elements".to_owned();
            BackendError::Unsupported { device: "gpu".to_owned(), what }
        };
        let damaged = || {
            let what = "element 0 is NaN".to_owned();
            BackendError::Failed { device: "cpu".to_owned(), what }
        };
        let short = || {
            let what = "weights".to_owned();
            BackendError::OutOfMemory { what, needed: 1, device: "gpu".to_owned() }
        };
        // The errors with drafts and, at the end, without one; how many are followed by another
        // attempt.
        let failed = |errors: Vec<(Option<usize>, BackendError)>| -> (usize, Attempts) {
            let mut attempts = Attempts::default();
            let again = errors
                .into_iter()
                .map_while(|(found, error)| attempts.go_on(found, &error.into()).then_some(()));
            (again.count(), attempts)
        };
        for (errors, again, from) in [
            (vec![(Some(0), unsupported())], 1, 1),
            (vec![(Some(0), damaged()), (Some(2), unsupported())], 2, 3),
            (vec![(Some(0), damaged()), (Some(1), short())], 2, 2),
            (vec![(Some(0), unsupported()), (None, unsupported())], 1, 1),
            (vec![(Some(0), short())], 0, 0),
            (vec![(None, damaged())], 0, 0),
        ] {
            let (found, attempts) = failed(errors);
            assert_eq!((found, attempts.from, attempts.refused.len()), (again, from, again));
        }
        let (_, attempts) = failed(vec![(Some(0), unsupported()), (Some(1), damaged())]);
        let [first, second] = &attempts.refused[..] else { panic!("{attempts:?}") };
        assert_eq!(first.what, "gpu cannot run it: its heads have 1024 elements");
        assert!(second.number == 1 && second.what.contains("element 0 is NaN"), "{second:?}");
    }
}
