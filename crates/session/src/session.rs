//! A model on a device, ready to run, and the decisions made on the way.

mod opening;

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::Builder;

use anyhow::{Result, anyhow, bail};
use trine_backend::placement::PLACES_MAX;
use trine_backend::{Device, Facts, MemoryKind, Partner, Program, Share};
use trine_engine::{Engine, EngineOptions, Guess};
use trine_model::{Model, Weight, Workload};
use trine_weights::DType;

use self::opening::{Loaded, Opening};
use crate::device::{GpuOptions, Opened};
use crate::draft::{DraftFacts, Drafting};
use crate::finding::model_source::Source;
use crate::finding::vocabulary::TextSide;
use crate::library::{Decision, ModelLibrary};
use crate::options::{ContextFrom, Options};
use crate::placing::forecast::{PREFILL, PREFILL_MAX};
use crate::tower::TowerRequest;
use crate::vision::{TowerPlacement, Vision};
use crate::words;

/// Most slots of a server that are kept because later prompts may begin like their sequences.
const KEPT_MAX: usize = 8;
/// Requests that a server runs at once, as far as memory goes, if nobody chooses; more where that
/// is worth it.
pub const PLACES_LEAST: usize = 8;
/// Fewest rows with logits in a step of a server.
const OUTPUTS_LEAST: usize = 32;

/// Sizes of an engine that a command chooses.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Most sequences at the same time.
    pub sequences: usize,
    /// How many more run at once where memory and speed make use of them.
    pub further: usize,
    /// Places for ended sequences besides those of running ones.
    pub kept: usize,
    /// Most tokens in a pass; `None` for what the settings say.
    pub prefill: Option<usize>,
    /// Most rows with logits in a pass.
    pub outputs: usize,
    /// Whether it also computes embeddings.
    pub embeds: bool,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { sequences: 1, further: 0, kept: 0, prefill: None, outputs: 1, embeds: false }
    }
}

impl Sizes {
    /// Returns the sizes for a server that runs as many sequences at once as were chosen; otherwise
    /// placement chooses.
    pub fn serving(chosen: Option<usize>) -> Self {
        let sequences = chosen.unwrap_or(PLACES_LEAST);
        let further = if chosen.is_none() { PLACES_MAX - PLACES_LEAST } else { 0 };
        let kept = sequences.min(KEPT_MAX);
        // Prompts whose log-probabilities are wanted are computed in pieces of at least this many
        // rows.
        Self { sequences, further, kept, outputs: OUTPUTS_LEAST, embeds: true, ..Self::default() }
    }

    /// Returns the most tokens in a pass, and how many more memory and speed may add.
    fn rows(&self, settings: &Options) -> (usize, usize) {
        match self.prefill.or(settings.prefill) {
            Some(rows) => (rows, 0),
            None => (PREFILL, PREFILL_MAX - PREFILL),
        }
    }

    /// Returns the sizes of a draft model's Program: sequences, and the most tokens in a pass.
    pub fn of_draft(&self, settings: &Options) -> (usize, usize) {
        (self.sequences, self.rows(settings).0)
    }

    /// Returns the sizes with room for guesses in a step.
    pub fn guessing(self, drafting: &Drafting) -> Self {
        match drafting.rows(self.sequences) {
            0 => self,
            rows => Self { outputs: self.outputs.max(self.sequences + rows), ..self },
        }
    }

    /// Returns the options of an engine with these sizes.
    ///
    /// # Errors
    /// Returns an error if the context that is asked for is more than the model's.
    pub fn options(
        &self,
        name: &str,
        model: &Model,
        settings: &Options,
        library: &ModelLibrary,
    ) -> Result<EngineOptions> {
        let (prefill, further_rows) = self.rows(settings);
        Ok(EngineOptions {
            context: checked_context(name, model, settings, library)?,
            kv: settings.kv,
            sequences: self.sequences,
            further: self.further,
            kept: self.kept,
            prefill,
            further_rows,
            outputs: self.outputs,
            kv_memory: settings.kv_memory,
            embeds: self.embeds,
        })
    }
}

/// A loaded model.
pub struct Session {
    /// Name of the model, for people and reports.
    pub name: String,
    /// The model.
    pub model: Model,
    /// The model on its device.
    pub engine: Engine,
    /// The device that runs it, for people and reports.
    pub device: String,
    /// The GPU, if it runs the whole model.
    pub gpu: Option<Arc<dyn Device>>,
    /// Threads of the processor that run it.
    pub threads: usize,
    /// The model that guesses tokens for it, if one does.
    pub draft: Option<DraftFacts>,
    /// What computes a part of prompts beside the processor or the GPU.
    pub npu: Option<Arc<dyn Partner>>,
    /// What reads pictures, if anything does.
    pub vision: Option<Vision>,
    /// Most positions of a sequence that the device computes, if memory is not all that bounds
    /// them.
    pub most_context: Option<usize>,
    /// What was decided while it was opened.
    pub decisions: Vec<Decision>,
    /// Whether a GPU was to run the whole model, but has too little memory for that.
    reduced: bool,
}

/// How much [`Session::description`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// That a GPU has too little memory for the model, if so.
    Least,
    /// What runs where, in a line.
    Short,
    /// All that was chosen.
    Full,
}

impl Session {
    /// Finds, opens and loads a model.
    ///
    /// # Errors
    /// Returns an error if any of that fails.
    pub fn open(
        library: &ModelLibrary,
        source: &Source,
        settings: &Options,
        sizes: Sizes,
    ) -> Result<Self> {
        Self::open_with(library, source, settings, sizes, &Drafting::default(), |program| program)
    }

    /// Does the same, with something that guesses tokens. `decorate` may put something between
    /// engine and Program.
    ///
    /// # Errors
    /// As [`Session::open`], and if a draft model that has to fit does not.
    pub fn open_with(
        library: &ModelLibrary,
        source: &Source,
        settings: &Options,
        sizes: Sizes,
        drafting: &Drafting,
        decorate: impl Fn(Box<dyn Program>) -> Box<dyn Program>,
    ) -> Result<Self> {
        let library = &library.recording();
        let Options { threads, gpu_layers, tune, batch_invariant, .. } = *settings;
        let gpu = GpuOptions { batch_invariant, ..GpuOptions::tuned(tune.into()) };
        let name = source.name();
        let (model, opened) = both(
            || source.open(settings.quantize),
            || settings.device.open(library, threads, gpu_layers, gpu),
        );
        let (model, opened) = (model?, opened?);
        if model.config().family.only_embeds() && !sizes.embeds {
            bail!(
                "{name} makes embeddings of texts and writes none: `trine serve {name}` serves \
                 them at /v1/embeddings and /api/embed"
            );
        }
        let seeing = settings.vision.attach(library, source, model)?;
        let mut attached = drafting.attach(library, source, seeing)?;
        attached.check_layers(library, gpu_layers)?;
        let plain = attached.model(None);
        let draft = drafting.find(library, source, plain, settings)?;
        let (draft, own) = drafting.with_device(library, draft, settings)?;
        let options = sizes.guessing(drafting).options(&name, plain, settings, library)?;
        let most = sizes.of_draft(settings);
        let opening = Opening { library, name: &name, settings, drafting, most, options };
        let loaded = opening.load(&mut attached, draft.as_ref(), opened, own)?;
        let Loaded { program, running, guessing, found, tower, devices } = loaded;
        let (model, reading) = attached.with(found);
        let mut engine = Engine::with_running(decorate(program), running);
        let reading = reading.map(|source| (source, found.is_some()));
        let (drafts, draft) = guessing.split(reading, engine.program().facts());
        engine.set_drafts(drafts);
        engine.set_guesses(drafting.depth());
        let Opened { device: host, gpus, threads, npu, .. } = devices.model;
        if let Some(npu) = &npu {
            engine.set_partner(Arc::clone(npu));
        }
        let Facts { device, gpu: runs_on_gpu, shares, .. } = engine.program().facts();
        let device = device.clone();
        let has_host = shares.iter().any(|share| share.device_memory.kind == MemoryKind::Host);
        let reduced = settings.gpu_layers.is_none() && has_host;
        // Its name may be that of another one too.
        let gpu = gpus.into_iter().find(|gpu| runs_on_gpu.is_some() && gpu.uuid() == *runs_on_gpu);
        let threads = if gpu.is_some() { 1 } else { threads };
        let rows = engine.limits().picture.unwrap_or(0);
        let tower = settings.tower_for(library, tower, &model, rows)?;
        let vision = tower.map(|tower| Vision::start(tower, &model)).transpose()?;
        let decisions = library.recorded();
        let most_context = host.most_context();
        Ok(Self {
            name,
            model,
            engine,
            device,
            gpu,
            threads,
            draft,
            npu,
            vision,
            most_context,
            decisions,
            reduced,
        })
    }

    /// Says what runs where, a line for each thing.
    pub fn description(&self, detail: Detail) -> Vec<String> {
        let shares = shares(&self.engine.program().facts().shares);
        let device = words::harmless(shares.as_ref().unwrap_or(&self.device));
        let name = words::harmless(&self.name);
        match detail {
            Detail::Least if self.reduced => {
                let taking = self.draft.as_ref().and_then(|draft| draft.taking(true));
                let taking = taking.map_or(String::new(), |taking| format!("; {taking}"));
                let short = "the model does not fit into the GPU's memory";
                return vec![format!("{short}: {device}{taking}")];
            }
            Detail::Least => return Vec::new(),
            Detail::Short => return vec![format!("{name} on {device}")],
            Detail::Full => {}
        }
        let memory = self.engine.program().memory();
        let options = &self.engine.program().facts().options;
        let formats = formats(&self.model);
        let size = words::bytes(self.model.checkpoint().file_bytes());
        let mut lines = vec![
            format!("model: {name}, {size}, {}", formats.join(" ")),
            format!("device: {device}"),
            format!(
                "context: {} of the model's {} tokens; KV cache in {}, {}",
                self.engine.context(),
                self.model.config().context,
                options.kv.name(),
                words::bytes(memory.caches),
            ),
        ];
        if let Some(vision) = &self.vision {
            lines.push(format!(
                "images: {}, {} once the first one comes",
                words::harmless(&vision.device),
                words::bytes(vision.memory.total()),
            ));
        }
        if let Some(draft) = &self.draft {
            lines.push(format!(
                "draft: {}, {}, {}{}",
                words::harmless(&draft.source.name()),
                words::bytes(draft.memory.total()),
                words::harmless(&draft.device),
                if draft.is_found {
                    "; found for the model, --draft ngram leaves it out"
                } else {
                    ""
                },
            ));
        }
        lines
    }

    /// Returns the tokenizer and the chat template of the model.
    ///
    /// # Errors
    /// As [`TextSide::read`].
    pub fn text(&self) -> Result<TextSide> {
        let stop_ids = &self.model.defaults().stop_ids;
        TextSide::read(self.model.checkpoint(), stop_ids, true, None)
    }

    /// Returns the longest context that the model was made for, if it is longer than the one at
    /// hand.
    pub fn longer_context(&self) -> Option<usize> {
        Some(self.model.config().context).filter(|&most| most > self.engine.context())
    }

    /// Calls `each(position, logits)` for every position of `ids`, in order, as [`Engine::logits`]
    /// does.
    ///
    /// # Errors
    /// As [`Session::logits_and_guesses`].
    pub fn logits(
        &mut self,
        ids: &[u32],
        chunk: usize,
        each: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        self.logits_and_guesses(ids, chunk, 0, each).map(drop)
    }

    /// Calls `each(position, logits)` for every position of `ids`, in order, as [`Engine::logits`]
    /// does. Returns guesses that follow, if the model has a draft that reads its caches.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::logits`], the first one of `each`, and an error for logits
    /// and hidden states that are infinite or not numbers.
    pub fn logits_and_guesses(
        &mut self,
        ids: &[u32],
        chunk: usize,
        guesses: usize,
        mut each: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<Vec<Guess>> {
        let Self { name, engine, model, .. } = self;
        let (mut outcome, mut broken) = (Ok(()), None);
        let mut each = |position: usize, row: &[f32]| {
            broken = not_finite(name, position, row);
            outcome = match &broken {
                Some(what) => Err(anyhow::Error::msg(what.clone())),
                None => each(position, row),
            };
            match outcome.is_ok() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        let made = match guesses > 0 && model.assistant().is_some() {
            false => engine.logits(ids, chunk, &mut each).map(|()| Vec::new())?,
            true => engine.logits_and_guesses(ids, chunk, guesses, &mut each)?,
        };
        if let Some(what) = broken {
            return Err(overflown(&what, &engine.overflow()));
        }
        outcome?;
        check_guesses(name, guesses, &made)?;
        Ok(made)
    }

    /// Returns the bytes that a step of one sequence with `rows` rows costs with `depth` positions
    /// before it: what has to come from memory.
    pub fn bytes_per_step(&self, depth: usize, rows: usize) -> u64 {
        let Facts { plan, options, .. } = self.engine.program().facts();
        let (context, kv) = (depth, options.kv);
        let step = Workload { sequences: 1, tokens: rows, context, outputs: rows, kv };
        plan.cost(step).memory_bytes()
    }
}

/// Calls two functions at the same time, the first one on a thread of its own if the system has one
/// for it.
fn both<A: Send, B>(first: impl Fn() -> A + Sync, second: impl FnOnce() -> B) -> (A, B) {
    std::thread::scope(|scope| {
        let thread = Builder::new().name("opening".to_owned()).spawn_scoped(scope, &first);
        let second = second();
        let first = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => first(),
        };
        (first, second)
    })
}

/// Returns what is wrong with logits that are not finite: statistics over them look like results
/// but are not. [`overflown`] makes an error of it.
pub fn not_finite(name: &str, position: usize, row: &[f32]) -> Option<String> {
    let id = row.iter().position(|logit| !logit.is_finite())?;
    let logit = row[id];
    Some(format!(
        "{name} gives logits that are not finite: at position {position} token id {id} has {logit}"
    ))
}

/// Returns the error about logits that are not finite; `place` says where that began.
pub fn overflown(what: &str, place: &str) -> anyhow::Error {
    anyhow!(
        "{what} ({place}); the model file is damaged or its values overflow: download it again, or \
         try --device reference to rule the device out"
    )
}

/// Returns an error for guesses whose logits or hidden states are not finite, or that are fewer
/// than `count` because logits are not numbers.
fn check_guesses(name: &str, count: usize, guesses: &[Guess]) -> Result<()> {
    let is_finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
    let is_sound = |guess: &Guess| is_finite(&guess.logits) && is_finite(&guess.state);
    let sound = guesses.iter().take_while(|guess| is_sound(guess)).count();
    if sound == count {
        return Ok(());
    }
    bail!(
        "guess {sound} after the ids of {name} is not finite; the draft's file is damaged or its \
         values overflow: download it again, or try --device reference to rule the device out"
    )
}

/// Describes the parts of a model that several devices run. Returns `None` if one device runs it
/// all.
fn shares(shares: &[Share]) -> Option<String> {
    let all: usize = shares.iter().map(|share| share.layers).sum();
    let describe = |share: &Share| {
        let free = share
            .device_memory
            .free
            .map_or(String::new(), |free| format!(" of {} free", words::bytes(free)));
        let taken = words::bytes(share.memory.total());
        let what = match share.experts {
            0 => format!("{} of {all} layers", share.layers),
            1 => "experts of 1 layer".to_owned(),
            experts => format!("experts of {experts} layers"),
        };
        format!("{}: {what} ({taken}{free})", share.device)
    };
    // The device that runs the last layers is the one that was asked for.
    let parts: Vec<String> = shares.iter().rev().map(describe).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

impl Options {
    /// Returns a tower's place if the model runs steps that are wide enough for its pictures. If
    /// they are not, and no picture was given, a note says so.
    ///
    /// # Errors
    /// Returns an error with a remedy if there are pictures.
    fn tower_for(
        &self,
        library: &ModelLibrary,
        place: Option<TowerPlacement>,
        model: &Model,
        rows: usize,
    ) -> Result<Option<TowerPlacement>> {
        let wanted = model.tower().map_or(0, |tower| tower.config().soft_tokens());
        if wanted <= rows {
            return Ok(place);
        }
        let remedy = match self.context.filter(|&context| context < wanted) {
            Some(_) => "raise --context",
            None => "take --device cpu",
        };
        let what = format!(
            "an image has {wanted} rows, which one step runs, and a step has {rows} here: {remedy}"
        );
        if matches!(self.vision, TowerRequest::Needed(_)) {
            bail!(what);
        }
        library.note(format!("no images are taken: {what}"));
        Ok(None)
    }
}

/// Returns the context, checked. A context beyond the model's is an error: positions it never saw
/// give nonsense. A preset's is a bound, as it is for a server, and becomes the model's.
fn checked_context(
    name: &str,
    model: &Model,
    settings: &Options,
    library: &ModelLibrary,
) -> Result<Option<usize>> {
    let most = model.config().context;
    let Some(asked) = settings.context.filter(|&asked| asked > most) else {
        return Ok(settings.context);
    };
    let than = format!("is more than the {most} tokens that {name} was made for");
    match settings.context_from {
        ContextFrom::Option => bail!("--context {asked} {than}; use at most {most}"),
        ContextFrom::Settings => bail!(
            "the setting context = {asked} {than}; `trine config` shows where it is set, and \
             --context {most} comes before it"
        ),
        ContextFrom::Preset => {
            library.warn(format_args!("the preset's num_ctx of {asked} {than}: {most} are used"));
            Ok(Some(most))
        }
    }
}

/// Returns the formats of a model's matrices, the one with most bytes first.
pub fn formats(model: &Model) -> Vec<String> {
    formats_of(model.base_plan().weights.iter())
}

/// Returns the formats of the matrices among weights, the one with most bytes first.
pub fn formats_of<'a>(weights: impl Iterator<Item = &'a Weight>) -> Vec<String> {
    let mut sizes: Vec<(DType, u64)> = Vec::new();
    for weight in weights.filter(|weight| weight.is_matrix()) {
        match sizes.iter_mut().find(|(dtype, _)| *dtype == weight.dtype) {
            Some((_, size)) => *size += weight.bytes(),
            None => sizes.push((weight.dtype, weight.bytes())),
        }
    }
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    sizes.into_iter().map(|(dtype, _)| dtype.name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_that_are_not_finite_are_errors() {
        let guess = |logit: f32, state: f32| Guess {
            token: 0,
            logits: vec![logit, 1.0],
            state: vec![state, 0.0],
        };
        let sound = guess(1.0, 2.0);
        check_guesses("m", 0, &[]).unwrap();
        check_guesses("m", 2, &[sound.clone(), sound.clone()]).unwrap();
        for (guesses, first) in [
            (vec![sound.clone(), guess(f32::NAN, 0.0)], "guess 1 "),
            (vec![guess(1.0, f32::INFINITY), sound.clone()], "guess 0 "),
            (vec![sound.clone()], "guess 1 "),
        ] {
            let error = check_guesses("m", 2, &guesses).unwrap_err().to_string();
            assert!(error.contains(first) && error.contains("damaged"), "{error}");
        }
    }
}
