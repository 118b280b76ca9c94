//! What guesses tokens for a model: the choice, a draft model, and its place on a device
//! (`docs/decisions/034-drafts.md`).

use anyhow::{Context, Result, anyhow};
use trine_backend::{Device, Facts, Memory, placement};
use trine_engine::{Drafts, EngineOptions, GUESSES_MAX, ModelDrafter};
use trine_model::Model;
use trine_text::Tokenizer;

use crate::cli::{DraftArgs, DraftChoice, FetchArgs};
use crate::device::{DeviceChoice, GpuOptions, Opened};
use crate::embedded::Embedded;
use crate::model_source::{Source, find};
use crate::options::Settings;
use crate::vocabulary::tokenizer;
use crate::{output, settings, terminal};

/// The most rows for guesses in a step of several sequences. The logits of a row take 1 MB with a
/// vocabulary of 262,144, and a step of many sequences has little to gain from more rows.
const ROWS_MAX: usize = 32;

/// What guesses tokens for a model that is to be loaded, and how many.
#[derive(Debug, Clone, Default)]
pub(crate) struct Drafting {
    by: Guesser,
    /// The guesses of each sequence in every step; `None` for as many as pay.
    depth: Option<usize>,
}

/// What guesses tokens.
#[derive(Debug, Clone, Default)]
enum Guesser {
    /// Nothing.
    #[default]
    Off,
    /// The text so far and earlier answers.
    Lookup,
    /// That, and a model on a device, or on the model's.
    Model(Choice, Option<DeviceChoice>),
}

/// A draft model.
#[derive(Debug, Clone)]
enum Choice {
    /// The one that belongs to the model, if there is one.
    Auto,
    /// This one, whatever the model. `is_strict` makes it an error that it cannot guess for it.
    Named { source: Source, is_strict: bool },
}

/// What was loaded to guess tokens.
#[derive(Default)]
pub(crate) struct Guessing {
    /// Whether tokens are looked up.
    pub(crate) lookup: bool,
    /// The draft model.
    pub(crate) model: Option<(DraftFacts, ModelDrafter)>,
}

/// A loaded draft model, for people and reports.
#[derive(Debug, Clone)]
pub(crate) struct DraftFacts {
    /// Its name.
    pub(crate) name: String,
    /// The device that runs it.
    pub(crate) device: String,
    /// The memory that it takes.
    pub(crate) memory: Memory,
    /// The part of it that GPUs hold, in bytes.
    pub(crate) gpu_bytes: u64,
}

impl Drafting {
    /// Returns what is typed, or else set. A draft model that is not on this machine is fetched if
    /// the user agrees. `is_strict` says whether one that is typed has to fit the model.
    ///
    /// # Errors
    /// Returns an error if there is no model of that name, or it is not fetched.
    pub(crate) fn new(typed: &DraftArgs, fetch: &FetchArgs, is_strict: bool) -> Result<Self> {
        let set = settings::get().drafts();
        let choice = typed.draft.as_ref().or(set.draft.as_ref()).cloned().unwrap_or_default();
        let device = typed.draft_device.as_ref().or(set.draft_device.as_ref()).cloned();
        let is_strict = is_strict && typed.draft.is_some();
        let depth = typed.drafts;
        let by = match choice {
            DraftChoice::Off => Guesser::Off,
            DraftChoice::Ngram => Guesser::Lookup,
            DraftChoice::Auto => Guesser::Model(Choice::Auto, device),
            DraftChoice::Model(name) => {
                let source = find(Some(&name), fetch)
                    .with_context(|| format!("--draft {}", terminal::harmless(&name)))?
                    .source;
                Guesser::Model(Choice::Named { source, is_strict }, device)
            }
        };
        Ok(Self { by, depth })
    }

    /// Returns one that only looks tokens up.
    pub(crate) fn lookup() -> Self {
        Self { by: Guesser::Lookup, depth: None }
    }

    /// Returns whether nothing is guessed.
    pub(crate) fn is_off(&self) -> bool {
        matches!(self.by, Guesser::Off)
    }

    /// Returns the guesses of each sequence in every step; `None` for as many as pay.
    pub(crate) fn depth(&self) -> Option<usize> {
        self.depth
    }

    /// Returns a word for what guesses without a draft model, if anything does.
    pub(crate) fn words(&self) -> Option<String> {
        (!self.is_off()).then(|| "ngram".to_owned())
    }

    /// Returns the rows with logits that guesses of `sequences` sequences take in a step: all that
    /// one sequence may have, and a number that several share.
    pub(crate) fn rows(&self, sequences: usize) -> usize {
        if self.is_off() { 0 } else { (sequences * GUESSES_MAX).min(ROWS_MAX) }
    }

    /// Loads what guesses for a model. It comes before the model, so that the model's placement
    /// sees the memory that is left. `sizes` are the sequences at once and the most rows of a step.
    ///
    /// # Errors
    /// Returns an error if a draft model that has to fit the model does not, or cannot be loaded.
    pub(crate) fn load(
        &self,
        source: &Source,
        model: &Model,
        settings: &Settings,
        sizes: (usize, usize),
        opened: &Opened,
    ) -> Result<Guessing> {
        let (choice, device) = match &self.by {
            Guesser::Off => return Ok(Guessing::default()),
            Guesser::Lookup => return Ok(Guessing { lookup: true, model: None }),
            Guesser::Model(choice, device) => (choice, device),
        };
        let looking = Guessing { lookup: true, model: None };
        let (draft, is_strict) = match choice {
            Choice::Auto => match source {
                Source::Embedded(Embedded::Demo) => (&Source::DEMO_DRAFT, false),
                _ => return Ok(looking),
            },
            // A model that guesses for itself would only take time.
            Choice::Named { source: draft, .. } if draft.name() == source.name() => {
                return Ok(looking);
            }
            Choice::Named { source, is_strict } => (source, *is_strict),
        };
        let loaded = open(draft, (&source.name(), model), settings)
            .and_then(|draft| place(draft, device.as_ref(), settings, sizes, opened));
        match loaded {
            Ok(loaded) => Ok(Guessing { model: Some(loaded), ..looking }),
            Err(error) if is_strict => Err(error),
            Err(error) => {
                output::warning(format_args!("no model guesses tokens: {error:#}"));
                Ok(looking)
            }
        }
    }
}

impl Guessing {
    /// Returns what an engine takes, and the facts of the draft model.
    pub(crate) fn split(self) -> (Drafts, Option<DraftFacts>) {
        let Self { lookup, model } = self;
        let (facts, drafter) = model.unzip();
        (Drafts { lookup, drafter: drafter.map(|drafter| Box::new(drafter) as _) }, facts)
    }
}

/// A draft model that has the tokens of a model.
struct Opening {
    name: String,
    model: Model,
}

/// Opens a draft model and checks that it has the tokens of a model.
fn open(draft: &Source, (name, model): (&str, &Model), settings: &Settings) -> Result<Opening> {
    let guessing = draft.open(settings.quantize)?;
    let [own, others] = [&guessing, model].map(|model| tokenizer(model.checkpoint()));
    check_tokens((&draft.name(), &own?), (name, &others?))?;
    Ok(Opening { name: draft.name(), model: guessing })
}

/// Checks that each id that two models have means the same token. Larger ones, such as those for
/// pictures in a family whose smaller members take none, are never guessed.
fn check_tokens(draft: (&str, &Tokenizer), model: (&str, &Tokenizer)) -> Result<()> {
    let [own, others] = [draft.1, model.1].map(Tokenizer::vocabulary_size);
    let spelled = |tokenizer: &Tokenizer, id| {
        let piece = tokenizer.piece(id);
        piece.map_or("nothing".to_owned(), |piece| format!("{:?}", terminal::harmless(&piece)))
    };
    let differs = |&id: &u32| {
        let [own, others] = [draft.1, model.1].map(|t| (t.token_bytes(id), t.is_special(id)));
        own != others
    };
    let first = (0..own.min(others) as u32).find(differs);
    // A vocabulary that is the beginning of a much larger one is another one.
    let is_same = first.is_none() && own.abs_diff(others) <= own.max(others) / 100;
    if is_same {
        return Ok(());
    }
    let difference = match first {
        Some(id) => {
            format!("id {id} is {} there and {} here", spelled(draft.1, id), spelled(model.1, id))
        }
        None => format!("it has {own} tokens, not {others}"),
    };
    Err(anyhow!(
        "{} cannot guess for {}, because its tokenizer is another one: {difference}; give --draft a smaller model of the \
         same family, or ngram",
        terminal::harmless(draft.0),
        terminal::harmless(model.0)
    ))
}

/// Loads a draft model. Without a device of its own it is where the model is, on its first GPU if
/// there are any: each guess reads all of it and waits for the one before, so that it should not be
/// spread over several, and should not wait for the processor.
fn place(
    draft: Opening,
    device: Option<&DeviceChoice>,
    settings: &Settings,
    sizes: (usize, usize),
    opened: &Opened,
) -> Result<(DraftFacts, ModelDrafter)> {
    let Opening { name, model } = draft;
    let own = device.map(|device| {
        let gpu = GpuOptions { tuning: settings.tune.into(), batch_invariant: false };
        device.open(settings.threads, None, gpu)
    });
    let own = own.transpose()?;
    let is_split = opened.gpus.len() > 1 || settings.gpu_layers.is_some();
    let device: &dyn Device = match (&own, opened.gpus.first()) {
        (Some(own), _) => own.device.as_ref(),
        (None, Some(gpu)) if is_split => gpu,
        (None, _) => opened.device.as_ref(),
    };
    let options = options(&model, settings, sizes);
    let demand = options.demand(model.config().context)?;
    let loaded = placement::load(&model, &options.plan(&model), device, &demand);
    let (program, _) = loaded.with_context(|| {
        format!(
            "the draft model {} cannot be loaded on {}; --draft-device names another device, --draft ngram needs no model",
            terminal::harmless(&name),
            device.name()
        )
    })?;
    let memory = program.memory();
    let Facts { device, .. } = program.facts();
    let gpu_bytes = program.facts().gpu_bytes(&memory);
    let facts = DraftFacts { name, device: device.clone(), memory, gpu_bytes };
    Ok((facts, ModelDrafter::new(program)))
}

/// Returns the sizes of a draft model: a sequence has a row for each guess, and as many positions
/// as the model's unless the draft's own are fewer. Beyond them it guesses nothing.
fn options(
    draft: &Model,
    settings: &Settings,
    (sequences, prefill): (usize, usize),
) -> EngineOptions {
    EngineOptions {
        context: settings.context.map(|context| context.min(draft.config().context)),
        kv: settings.kv,
        sequences,
        kept: 0,
        prefill,
        outputs: sequences,
        kv_memory: settings.kv_memory,
        embeds: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_room_for_guesses() {
        for (sequences, expected) in [(1, 15), (2, 30), (3, 32), (100, 32)] {
            assert_eq!(Drafting::lookup().rows(sequences), expected);
            assert_eq!(Drafting::default().rows(sequences), 0);
        }
    }

    #[test]
    fn other_tokens_are_named() {
        let [demo, draft] = [Source::DEMO, Source::DEMO_DRAFT]
            .map(|source| tokenizer(&source.open_checkpoint().unwrap()).unwrap());
        check_tokens(("demo-draft", &draft), ("demo", &demo)).unwrap();
        let json = include_bytes!("../../../tests/goldens/tokenizer/tokenizer.json");
        let other = Tokenizer::from_json_bytes(json).unwrap();
        let error = check_tokens(("other", &other), ("demo", &demo)).unwrap_err().to_string();
        for part in ["other", "demo", "id ", "--draft", "ngram"] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
