//! What guesses tokens for a model: the choice, a draft model, and its place on a device
//! (`docs/decisions/034-drafts.md`).

mod attached;
mod choice;

use anyhow::{Context, Result, anyhow, bail};
use trine_backend::{Demand, Device, Facts, Memory, placement};
use trine_engine::{Drafter, Drafts, EngineOptions, GUESSES_MAX, ModelDrafter, ReadingDrafter};
use trine_model::{KvType, Model, Plan, Weight, Workload, gather, names};
use trine_text::Tokenizer;

use crate::device::{DeviceChoice, GpuOptions, Opened};
use crate::failure::{Interrupted, usage};
use crate::finding::embedded::Embedded;
use crate::finding::fetch::Download;
use crate::finding::model_source::{Source, find};
use crate::finding::vocabulary::tokenizer;
use crate::library::ModelLibrary;
use crate::options::Options;
use crate::words;

pub use attached::{Attached, Attempts};
pub use choice::{DraftChoice, DraftOptions};

/// The most rows for guesses in a step of several sequences. The logits of a row take 1 MB with a
/// vocabulary of 262,144, and a step of many sequences has little to gain from more rows.
const ROWS_MAX: usize = 32;

/// What guesses tokens for a model that is to be loaded, and how many.
#[derive(Debug, Clone, Default)]
pub struct Drafting {
    by: Guesser,
    /// The guesses of each sequence in every step; `None` for as many as pay.
    depth: Option<usize>,
    /// Whether a draft that reads the model's caches keeps the formats that it has in its files.
    is_exact: bool,
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
    Model(DraftSource, Option<DeviceChoice>),
}

/// A draft model.
#[derive(Debug, Clone)]
enum DraftSource {
    /// The one that belongs to the model, if there is one.
    Auto,
    /// This one, whatever the model. `is_strict` makes it an error that it cannot guess for it.
    Named { source: Source, is_strict: bool },
}

/// What was loaded to guess tokens.
#[derive(Default)]
pub struct Guessing {
    /// Whether tokens are looked up.
    pub lookup: bool,
    /// The draft model.
    pub model: Option<(DraftFacts, ModelDrafter)>,
}

/// A loaded draft model, for people and reports.
#[derive(Debug, Clone)]
pub struct DraftFacts {
    /// Where it comes from.
    pub source: Source,
    /// The device that runs it.
    pub device: String,
    /// The memory that it takes.
    pub memory: Memory,
    /// The part of it that GPUs hold, in bytes.
    pub gpu_bytes: u64,
    /// Whether nobody named it.
    pub is_found: bool,
    /// Whether it is a part of the model's Program, whose memory contains its own.
    pub is_part: bool,
}

impl DraftFacts {
    /// Returns what it takes beside the model's Program: bytes in all, and those that GPUs hold.
    pub fn beside(&self) -> (u64, u64) {
        if self.is_part { (0, 0) } else { (self.memory.total(), self.gpu_bytes) }
    }

    /// Says what it takes of a memory that the model has too little of, that of GPUs or of the
    /// processor; `None` if it takes nothing of it.
    pub fn taking(&self, is_on_gpus: bool) -> Option<String> {
        let (bytes, whose) = match is_on_gpus {
            true => (self.gpu_bytes, "the GPU's memory"),
            false => (self.memory.total() - self.gpu_bytes, "the memory"),
        };
        (bytes > 0).then(|| taking(&self.source.name(), bytes, whose))
    }
}

/// Says what a draft model takes of a memory that the model has too little of.
pub fn taking(name: &str, bytes: u64, whose: &str) -> String {
    format!(
        "the draft model {} takes {} of {whose}, which --draft off leaves to the model",
        words::harmless(name),
        words::bytes(bytes)
    )
}

impl Drafting {
    /// Returns what is asked for. A draft model that is not on this machine is fetched as
    /// `download` says. `is_strict` says whether one that is typed has to fit the model.
    ///
    /// # Errors
    /// Returns an error if there is no model of that name, or it is not fetched; a warning says so
    /// of one that is set.
    pub fn new(
        library: &ModelLibrary,
        asked: &DraftOptions,
        download: Download,
        is_strict: bool,
    ) -> Result<Self> {
        let is_strict = is_strict && asked.is_typed;
        let depth = asked.depth;
        let chosen = Self::chosen(library, asked, download, is_strict);
        match (chosen, &asked.origin) {
            (Err(error), Some(origin)) if !error.is::<Interrupted>() => {
                library.warn(format_args!(
                    "{origin} sets {error:#}; tokens are looked up, as with --draft ngram"
                ));
                Ok(Self { by: Guesser::Lookup, depth, is_exact: false })
            }
            (chosen, _) => chosen,
        }
    }

    /// Returns what is typed, or else what is chosen where nothing is set: for commands that tell
    /// of a model itself.
    ///
    /// # Errors
    /// As [`Drafting::new`].
    pub fn typed(
        library: &ModelLibrary,
        draft: Option<&DraftChoice>,
        download: Download,
    ) -> Result<Self> {
        let asked = DraftOptions { draft: draft.cloned(), ..DraftOptions::default() };
        Self::chosen(library, &asked, download, true)
    }

    fn chosen(
        library: &ModelLibrary,
        asked: &DraftOptions,
        download: Download,
        is_strict: bool,
    ) -> Result<Self> {
        let DraftOptions { draft, device, depth, .. } = asked.clone();
        let by = match draft.unwrap_or_default() {
            DraftChoice::Off => Guesser::Off,
            DraftChoice::Ngram => Guesser::Lookup,
            DraftChoice::Auto => Guesser::Model(DraftSource::Auto, device),
            DraftChoice::Model(name) => {
                let source = find(library, Some(&name), download)
                    .with_context(|| format!("--draft {}", words::harmless(&name)))?
                    .source;
                Guesser::Model(DraftSource::Named { source, is_strict }, device)
            }
        };
        Ok(Self { by, depth, is_exact: false })
    }

    /// Returns the draft of a name, which has to read the caches of the model, as its files have
    /// it.
    ///
    /// # Errors
    /// Returns an error if there is no model of that name, or it reads no caches.
    pub fn reading(library: &ModelLibrary, name: &str, download: Download) -> Result<Self> {
        let source = find(library, Some(name), download)
            .with_context(|| format!("--draft {}", words::harmless(name)))?
            .source;
        if source.open_assistant()?.is_none() {
            bail!(
                "--draft {}: {} is a model of its own; only the guesses of a draft that reads the \
                 model's caches are written, such as gemma-4-E4B-it-assistant",
                words::harmless(name),
                words::harmless(&source.name())
            );
        }
        let by = Guesser::Model(DraftSource::Named { source, is_strict: true }, None);
        Ok(Self { by, depth: None, is_exact: true })
    }

    /// Returns one that only looks tokens up.
    pub fn lookup() -> Self {
        Self { by: Guesser::Lookup, depth: None, is_exact: false }
    }

    /// Refuses typed options that have no effect on what guesses.
    ///
    /// # Errors
    /// Returns an error about the command's usage.
    pub fn check(self, asked: &DraftOptions) -> Result<Self> {
        let (option, choice) = match &self.by {
            Guesser::Off if asked.depth.is_some() => ("--drafts", "off"),
            Guesser::Off if asked.is_device_typed => ("--draft-device", "off"),
            Guesser::Lookup if asked.is_device_typed => ("--draft-device", "ngram"),
            _ => return Ok(self),
        };
        let origin =
            asked.origin.as_ref().map_or(String::new(), |origin| format!(", which {origin} sets"));
        Err(usage(format!(
            "{option} has no effect with --draft {choice}{origin}; leave it out, or type another \
             --draft"
        )))
    }

    /// Returns whether nothing is guessed.
    pub fn is_off(&self) -> bool {
        matches!(self.by, Guesser::Off)
    }

    /// Returns the guesses of each sequence in every step; `None` for as many as pay.
    pub fn depth(&self) -> Option<usize> {
        self.depth
    }

    /// Returns the name of the lookup, as it is typed, if it guesses.
    pub fn lookup_name(&self) -> Option<String> {
        (!self.is_off()).then(|| "ngram".to_owned())
    }

    /// Returns the rows with logits that guesses of `sequences` sequences take in a step: all that
    /// one sequence may have, and a number that several share.
    pub fn rows(&self, sequences: usize) -> usize {
        if self.is_off() { 0 } else { (sequences * GUESSES_MAX).min(ROWS_MAX) }
    }

    /// Opens the device that a draft model is to have for itself, if one is chosen. Returns neither
    /// if this machine does not have it, with a warning.
    ///
    /// # Errors
    /// Returns an error instead of the warning for a draft model that has to fit the model.
    pub fn with_device(
        &self,
        library: &ModelLibrary,
        draft: Option<Draft>,
        settings: &Options,
    ) -> Result<(Option<Draft>, Option<Opened>)> {
        let Some(device) = self.device().filter(|_| draft.is_some()) else {
            return Ok((draft, None));
        };
        let opened = self.or_none(library, open(library, device, settings).map(Some))?;
        Ok((draft.filter(|_| opened.is_some()), opened))
    }

    /// Loads what guesses for a model. It comes before the model, so that the model's placement
    /// sees the memory that is left. `sizes` are the sequences at once and the most rows of a step.
    ///
    /// # Errors
    /// Returns an error if a draft model that has to fit the model cannot be loaded.
    pub fn load(
        &self,
        library: &ModelLibrary,
        draft: Option<&Draft>,
        settings: &Options,
        sizes: (usize, usize),
        device: &dyn Device,
    ) -> Result<Guessing> {
        let loaded = draft.map(|draft| draft.load(settings, sizes, device)).transpose();
        Ok(Guessing { lookup: !self.is_off(), model: self.or_none(library, loaded)? })
    }

    /// Warns of a draft model that cannot guess, unless it has to.
    fn or_none<T>(&self, library: &ModelLibrary, found: Result<Option<T>>) -> Result<Option<T>> {
        let has_to =
            matches!(self.by, Guesser::Model(DraftSource::Named { is_strict: true, .. }, _));
        found.or_else(|error| match has_to {
            true => Err(error),
            false => {
                library.warn(format_args!("no model guesses tokens: {error:#}"));
                Ok(None)
            }
        })
    }

    /// Returns the draft model for a model, opened and compared with it, if there is one. A draft
    /// that reads the model's caches is none: that is [`Drafting::attach`]'s.
    ///
    /// # Errors
    /// Returns an error if one that has to fit the model cannot be opened, or has other tokens.
    pub fn find(
        &self,
        library: &ModelLibrary,
        source: &Source,
        model: &Model,
        settings: &Options,
    ) -> Result<Option<Draft>> {
        self.or_none(library, self.open(library, source, model, settings))
    }

    fn open(
        &self,
        library: &ModelLibrary,
        source: &Source,
        model: &Model,
        settings: &Options,
    ) -> Result<Option<Draft>> {
        let draft = match &self.by {
            Guesser::Off | Guesser::Lookup => return Ok(None),
            Guesser::Model(DraftSource::Auto, _) => match source {
                Source::Embedded(Embedded::Demo) => &Source::DEMO_DRAFT,
                _ => return Ok(None),
            },
            Guesser::Model(DraftSource::Named { source, .. }, _) => source,
        };
        let name = source.name();
        if draft.lasting_name() == source.lasting_name() {
            library.note(format!(
                "{} is not loaded a second time to guess for itself: tokens are looked up, as with \
                 --draft ngram",
                words::harmless(&name)
            ));
            return Ok(None);
        }
        if draft.open_assistant()?.is_some() {
            return Ok(None);
        }
        let draft = Draft { source: draft.clone(), model: draft.open(settings.quantize)? };
        if draft.model.config().family.only_embeds() {
            bail!(
                "{} makes embeddings and guesses no tokens; --draft takes a smaller model of the \
                 same family, or ngram",
                draft.source.name()
            );
        }
        let [own, others] = [&draft.model, model].map(|model| tokenizer(model.checkpoint()));
        check_tokens((&draft.source.name(), &own?), (&name, &others?))?;
        if let Some(reason) = draft.is_too_large(&name, model, settings.kv) {
            library.warn(reason);
        }
        Ok(Some(draft))
    }

    /// Returns the device of its own that a draft model is to have, if one is chosen.
    pub fn device(&self) -> Option<&DeviceChoice> {
        match &self.by {
            Guesser::Model(_, device) => device.as_ref(),
            Guesser::Off | Guesser::Lookup => None,
        }
    }
}

impl Guessing {
    /// Returns what an engine takes, and the facts of the draft model. `reading` is where that of a
    /// Program comes from which has a draft as a part, and whether nobody named it.
    pub fn split(
        self,
        reading: Option<(Source, bool)>,
        facts: &Facts,
    ) -> (Drafts, Option<DraftFacts>) {
        let Self { lookup, model } = self;
        if let Some(drafter) = ReadingDrafter::of(facts) {
            let own = reading.map(|reading| facts_of_reading(reading, facts));
            return (Drafts { lookup, drafter: Some(Box::new(drafter)) }, own);
        }
        let (facts, drafter) = model.unzip();
        let drafter = drafter.map(|drafter| Box::new(drafter) as Box<dyn Drafter>);
        (Drafts { lookup, drafter }, facts)
    }
}

/// Returns what a draft is that is a part of a loaded Program.
fn facts_of_reading((source, is_found): (Source, bool), facts: &Facts) -> DraftFacts {
    let weights = facts.plan.weights.iter();
    let own = weights.filter(|weight| weight.name.starts_with(names::DRAFT_PREFIX));
    let memory = Memory { weights: own.map(Weight::bytes).sum(), ..Memory::default() };
    // The processor may only compute experts, of which a draft has none.
    let gpu_bytes = if facts.has_layers_on_gpus() { memory.weights } else { 0 };
    let device = facts.device.clone();
    DraftFacts { source, device, memory, gpu_bytes, is_found, is_part: true }
}

/// A draft model that has the tokens of a model.
pub struct Draft {
    /// Where it comes from.
    pub source: Source,
    /// The model.
    pub model: Model,
}

impl Draft {
    /// Returns the sizes of its Program: a sequence has a row for each guess, and as many positions
    /// as the model's unless the draft's own are fewer. Beyond them it guesses nothing.
    pub fn options(
        &self,
        settings: &Options,
        (sequences, prefill): (usize, usize),
    ) -> EngineOptions {
        let most = self.model.config().context;
        EngineOptions {
            context: settings.context.map(|context| context.min(most)),
            kv: settings.kv,
            sequences,
            further: 0,
            kept: 0,
            prefill,
            further_rows: 0,
            outputs: sequences,
            kv_memory: settings.kv_memory,
            embeds: false,
        }
    }

    /// Returns its Plan and sizes for placement. Its tables stay in the file: it gets its place
    /// before the model, whose layers and caches may need the room.
    ///
    /// # Errors
    /// As [`EngineOptions::demand_of`].
    pub fn needs(&self, settings: &Options, sizes: (usize, usize)) -> Result<(Plan, Demand)> {
        let options = self.options(settings, sizes);
        let plan = gather::gather(options.plan(&self.model));
        Ok((plan, options.demand_of(&self.model)?))
    }

    /// Returns a warning if a guess reads as much as a token of the model does.
    fn is_too_large(&self, name: &str, model: &Model, kv: KvType) -> Option<String> {
        let read = |model: &Model| model.plan().cost(Workload::decode(1, 0, kv)).weight_bytes;
        let (own, others) = (read(&self.model), read(model));
        (own >= others).then(|| {
            format!(
                "the draft model {} is not smaller than {}: a guess reads {} of weights, a token \
                 of the model itself {}, so that guessing saves no time; --draft takes a smaller \
                 model of the same family, or ngram",
                words::harmless(&self.source.name()),
                words::harmless(name),
                words::bytes(own),
                words::bytes(others),
            )
        })
    }

    fn load(
        &self,
        settings: &Options,
        sizes: (usize, usize),
        device: &dyn Device,
    ) -> Result<(DraftFacts, ModelDrafter)> {
        let (plan, demand) = self.needs(settings, sizes)?;
        let loaded = placement::load(&self.model, &plan, device, &demand, &[]);
        let (program, _) = loaded.with_context(|| self.not_loaded(device))?;
        let memory = program.memory();
        let Facts { device, .. } = program.facts();
        let gpu_bytes = program.facts().gpu_bytes(&memory);
        let (source, device) = (self.source.clone(), device.clone());
        let facts =
            DraftFacts { source, device, memory, gpu_bytes, is_found: false, is_part: false };
        Ok((facts, ModelDrafter::new(program)))
    }

    /// Returns what is said before the reason that a device cannot have it.
    pub fn not_loaded(&self, device: &dyn Device) -> String {
        format!(
            "the draft model {} cannot be loaded on {}; --draft-device names another device, \
             --draft ngram needs no model",
            words::harmless(&self.source.name()),
            device.name()
        )
    }
}

/// Opens a device for a draft model.
///
/// # Errors
/// Returns an error if this machine does not have it.
pub fn open(library: &ModelLibrary, device: &DeviceChoice, settings: &Options) -> Result<Opened> {
    let gpu = GpuOptions { option: "--draft-device", ..GpuOptions::tuned(settings.tune.into()) };
    device.open(library, settings.threads, None, gpu)
}

/// The control tokens that begin a turn of a conversation. Those that end one are end ids.
const TURNS: [&str; 2] = ["<start_of_turn>", "<|turn>"];

/// Checks that each id that two models have means the same token. Larger ones, such as those for
/// pictures in a family whose smaller members take none, are never guessed. Control tokens may
/// differ, such as those around pictures and sounds, unless they begin or end a text or a turn.
fn check_tokens(draft: (&str, &Tokenizer), model: (&str, &Tokenizer)) -> Result<()> {
    let [own, others] = [draft.1, model.1].map(Tokenizer::vocabulary_size);
    let spelled = |tokenizer: &Tokenizer, id| {
        let piece = tokenizer.piece(id);
        piece.map_or("nothing".to_owned(), |piece| format!("{:?}", words::harmless(&piece)))
    };
    let frames = |tokenizer: &Tokenizer, id| {
        tokenizer.bos_id() == Some(id)
            || tokenizer.eos_ids().contains(&id)
            || tokenizer.piece(id).is_some_and(|piece| TURNS.contains(&&*piece))
    };
    let both = [draft.1, model.1];
    let differs = |&id: &u32| {
        let [own, others] = both.map(|t| (t.token_bytes(id), t.is_special(id)));
        let may_differ = own.1 && others.1 && !both.iter().any(|tokenizer| frames(tokenizer, id));
        own != others && !may_differ
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
        "{} cannot guess for {}, because its tokenizer is another one: {difference}; give --draft \
         a smaller model of the same family, or ngram",
        words::harmless(draft.0),
        words::harmless(model.0)
    ))
}

#[cfg(test)]
mod tests {
    use trine_backend::{DeviceMemory, MemoryKind, ProgramOptions, Share};
    use trine_model::{Ends, Width};

    use super::*;

    #[test]
    fn steps_have_room_for_guesses() {
        for (sequences, expected) in [(1, 15), (2, 30), (3, 32), (100, 32)] {
            assert_eq!(Drafting::lookup().rows(sequences), expected);
            assert_eq!(Drafting::default().rows(sequences), 0);
        }
    }

    #[test]
    fn memory_that_a_draft_takes_is_where_it_is() {
        let memory = Memory { weights: 5_000_000, mapped: 9, caches: 1_000_000, scratch: 0 };
        let source = Source::DEMO_DRAFT;
        let of = |gpu_bytes, is_on_gpus| {
            let facts = DraftFacts {
                source: source.clone(),
                device: String::new(),
                memory,
                gpu_bytes,
                is_found: false,
                is_part: false,
            };
            facts.taking(is_on_gpus)
        };
        for (gpu_bytes, is_on_gpus, bytes) in [
            (0, false, Some("6.0 MB")),
            (6_000_000, true, Some("6.0 MB")),
            (0, true, None),
            (6_000_000, false, None),
        ] {
            let taking = of(gpu_bytes, is_on_gpus);
            assert_eq!(taking.is_some(), bytes.is_some(), "{taking:?}");
            let (Some(taking), Some(bytes)) = (taking, bytes) else { continue };
            for part in ["demo-draft", bytes, "--draft off"] {
                assert!(taking.contains(part), "{part}: {taking}");
            }
        }
    }

    /// A draft that reads the model's caches is in the Program's memory already.
    #[test]
    fn a_part_of_the_program_takes_nothing_beside_it() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/gemma4-dense");
        let source = Source::Path(golden.into());
        let by = Guesser::Model(DraftSource::Auto, None);
        let auto = Drafting { by, ..Drafting::default() };
        let attached =
            auto.attach(&ModelLibrary::default(), &source, source.open(None).unwrap()).unwrap();
        let width = Width { tokens: 1, outputs: 1 };
        let options =
            ProgramOptions { width, kv: KvType::F16, context: 1, sequences: 1, blocks: 1 };
        let (model, draft) = attached.first();
        let plan = model.plan_for(Ends { drafts: true, ..Ends::LOGITS });
        let mut facts = Facts::new("its device".to_owned(), plan, options);
        let found = |facts: &Facts| {
            let reading = draft.clone().map(|draft| (draft, true));
            Guessing { lookup: true, model: None }.split(reading, facts).1.unwrap()
        };
        let on_processor = found(&facts);
        assert_eq!((on_processor.gpu_bytes, on_processor.beside()), (0, (0, 0)));
        let share = |kind, layers| Share {
            device: String::new(),
            layers,
            experts: 2,
            memory: Memory::default(),
            device_memory: DeviceMemory { kind, free: None, largest_buffer: None },
        };
        facts.shares = vec![share(MemoryKind::Host, 0), share(MemoryKind::Own, 6)];
        let beside_experts = found(&facts);
        assert_eq!(beside_experts.beside(), (0, 0));
        assert!(beside_experts.gpu_bytes > 10_000, "{beside_experts:?}");
        assert!(beside_experts.taking(true).is_some() && beside_experts.taking(false).is_none());
        let apart = DraftFacts { is_part: false, ..beside_experts };
        assert_eq!(apart.beside(), (apart.memory.total(), apart.gpu_bytes));
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

    /// Gemma 3n has a token for sounds where Gemma 3 has one for pictures.
    #[test]
    fn control_tokens_that_frame_no_text_may_differ() {
        let json = include_str!("../../../tests/goldens/tokenizer/tokenizer.json");
        let tokenizer = |json: &str| Tokenizer::from_json_bytes(json.as_bytes()).unwrap();
        for (token, may_differ) in [
            ("<unused20>", true),
            ("<bos>", false),
            ("<eos>", false),
            ("<start_of_turn>", false),
            ("<end_of_turn>", false),
        ] {
            let other = json.replace(&format!("\"{token}\""), "\"<start_of_audio>\"");
            assert_ne!(other, json, "{token}");
            let (own, others) = (tokenizer(json), tokenizer(&other));
            let checked = check_tokens(("own", &own), ("others", &others));
            assert_eq!(checked.is_ok(), may_differ, "{token}: {checked:?}");
        }
    }
}
