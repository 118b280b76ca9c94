//! Models for a server: the default implementation of its [`Loader`].

mod names;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use trine_backend::placement::CONTEXT_USUAL;
use trine_engine::disk::{DiskStore, Folder, Origin};
use trine_engine::{Pooling, SamplingParams, Service};
use trine_model::{KvType, Model};
use trine_server::{
    Description, Files, Found, Library, Limits, Listed, LoadError, LoadedModel, Loader,
    ModelSummary, Pictures,
};
use trine_text::{ChatTemplate, TaskPrompts};

use crate::draft::{DraftFacts, Drafting};
use crate::failure::{lacks_memory, message};
use crate::finding::fetch::Download;
use crate::finding::model_source::{Source, find};
use crate::finding::vocabulary::{TextSide, template};
use crate::library::ModelLibrary;
use crate::options::Options;
use crate::session::{Detail, PLACES_LEAST, Session, Sizes, formats};
use crate::words;

pub use names::{Names, Served};
use names::{Sources, digest, laid, served_name, stamp};

/// The most prompt tokens in a model's queue, in multiples of the context.
const QUEUE_CONTEXTS: usize = 64;
/// The most bytes of prefixes that wait to be written, unless a single prefix is larger.
const PREFIXES_WAITING: usize = 256 << 20;

/// Opens models for a server.
pub struct Models {
    /// Where they are found.
    pub library: ModelLibrary,
    /// The names by which clients ask for them.
    pub names: Names,
    /// The chat template of all models, in place of their own.
    pub template: Option<ChatTemplate>,
    /// Where they run.
    pub settings: Options,
    /// What guesses tokens.
    pub drafting: Drafting,
    /// Requests that a model runs at once, if that was chosen.
    pub sequences: Option<usize>,
    /// How texts are embedded.
    pub pooling: Pooling,
    /// The folder for prefixes that memory has no room for, and how many bytes they may take there.
    pub prefixes: Option<(PathBuf, u64)>,
    /// The most requests that wait in the queue.
    pub queue: usize,
    /// Whether priorities count across clients.
    pub shares_priorities: bool,
    /// What is told of one when it is open.
    pub detail: Detail,
}

/// Makes an engine keep prefixes in a folder, if they are of use to it.
///
/// # Errors
/// Returns an error if its device does not export the KV cache, or the folder cannot be used.
fn keep_prefixes(session: &mut Session, folder: &Path, limit: u64) -> Result<()> {
    if !session.engine.keeps_prefixes() {
        return Ok(());
    }
    let origin = Origin::new(session.model.fingerprint(), session.engine.program().facts());
    let origin = origin.ok_or_else(|| anyhow!("{} does not give its KV cache", session.device))?;
    let store = DiskStore::start(Folder::open(folder, limit)?, PREFIXES_WAITING)
        .with_context(|| format!("the folder {} cannot be read", folder.display()))?;
    session.engine.set_page_store(Box::new(store), origin);
    Ok(())
}

impl Models {
    /// Serves models of these names as is usual. The fields change that.
    pub fn new(library: ModelLibrary, names: Names, settings: Options) -> Self {
        Self {
            library,
            names,
            template: None,
            settings,
            drafting: Drafting::default(),
            sequences: None,
            pooling: Pooling::default(),
            prefixes: None,
            queue: Limits::default().waiters,
            shares_priorities: false,
            detail: Detail::Least,
        }
    }

    fn source(&self, model: &str) -> Result<Source> {
        self.names.sources().of(model).ok_or_else(|| gone(model))
    }

    fn looked_at(&self) -> LookedAt<'_> {
        LookedAt { models: self, sources: self.names.sources() }
    }

    fn summarised(&self, source: &Source) -> Result<ModelSummary> {
        let opened = source.open(self.settings.quantize)?;
        let opened = self.settings.vision.attach_quietly(source, opened)?;
        let most = opened.config().context;
        let served = self.settings.context.map_or(most, |context| context.min(most));
        let own = self.template.clone();
        let template = own.map_or_else(|| template(opened.checkpoint()), |own| Ok(Some(own)))?;
        Ok(ModelSummary {
            description: Description { served, ..described(&opened) },
            template: template.map(|template| template.source().to_owned()),
        })
    }

    fn open(&self, name: &str) -> Result<LoadedModel> {
        let source = self.source(name)?;
        let (library, settings, drafting) = (&self.library, &self.settings, &self.drafting);
        let sizes = Sizes::serving(self.sequences);
        let mut session =
            Session::open_with(library, &source, settings, sizes, drafting, |program| program)?;
        let tokens = session.engine.context().saturating_mul(QUEUE_CONTEXTS);
        session.engine.set_queue(self.queue, tokens);
        session.engine.share_priorities(self.shares_priorities);
        if let Some((folder, limit)) = &self.prefixes
            && let Err(error) = keep_prefixes(&mut session, folder, *limit)
        {
            tracing::warn!("no prefixes are kept on disk: {error:#}");
        }
        let defaults = session.model.defaults().clone();
        let (checkpoint, own) = (session.model.checkpoint(), self.template.clone());
        let text = TextSide::read(checkpoint, &defaults.stop_ids, true, own)?;
        session.description(self.detail).into_iter().for_each(|line| library.note(line));
        let program = session.engine.program();
        let memory = program.memory();
        let draft = session.draft.take();
        let (draft_bytes, draft_gpu_bytes) = draft.as_ref().map_or((0, 0), DraftFacts::beside);
        let vision = session.vision.as_ref();
        // It is set aside for the tower from the start.
        let vision_bytes = vision.map_or(0, |vision| vision.memory.total());
        let bytes = memory.total() + draft_bytes + vision_bytes;
        let reduced = Reduced {
            device: &session.device,
            sequences: (self.sequences, session.engine.limits().sequences),
            context: (session.model.config().context, session.engine.context()),
            is_context_chosen: self.settings.context.is_some(),
            most_context: session.most_context,
            kv: self.settings.kv,
            kv_memory: self.settings.kv_memory,
            caches: memory.caches,
            taking: draft
                .as_ref()
                .and_then(|draft| draft.taking(program.facts().has_layers_on_gpus())),
        };
        // Chosen contexts are as short as they are whatever others hold.
        let is_short = self.settings.context.is_none()
            && session.engine.context() < session.model.config().context.min(CONTEXT_USUAL);
        reduced.lines().into_iter().for_each(|line| library.note(line));
        if let (Some(npu), Some(asked)) = (&session.npu, &self.settings.npu) {
            library.note(format!("{}, for prompts; share: {}", npu.name(), asked.share));
        }
        let description = Description {
            device: session.device.clone(),
            gpu_bytes: program.facts().gpu_bytes(&memory)
                + draft_gpu_bytes
                + vision.filter(|vision| vision.is_on_gpu).map_or(0, |_| vision_bytes),
            draft: draft
                .map(|draft| served_name(&draft.source))
                .or_else(|| self.drafting.lookup_name()),
            sees: vision.is_some(),
            served: session.engine.context(),
            ..described(&session.model)
        };
        let (pooling, tasks) = self.embedding_of(&session.model)?;
        let service = Service::start(session.engine).context("the system gives no thread")?;
        Ok(LoadedModel {
            sampling: SamplingParams {
                suppressed: text.tokenizer.suppressed_ids().into(),
                ..SamplingParams::from_defaults(&defaults, 0)
            },
            grammars: trine_server::grammar_cache(&text.tokenizer),
            tokenizer: text.tokenizer,
            template: text.template,
            pooling,
            tasks,
            pictures: session
                .vision
                .map(|vision| Pictures { preparation: vision.preparation, tower: vision.tower }),
            service,
            description,
            bytes,
            is_short,
        })
    }

    /// Returns how texts are pooled, and the prompts by task of a model that only embeds. Its
    /// vectors are made as it was trained.
    fn embedding_of(&self, model: &Model) -> Result<(Pooling, Option<TaskPrompts>)> {
        if !model.config().family.only_embeds() {
            return Ok((self.pooling, None));
        }
        if self.pooling != Pooling::Mean {
            self.library.note(format!(
                "--pooling {} is left out: the model is trained for means",
                self.pooling.name()
            ));
        }
        Ok((Pooling::Mean, Some(TaskPrompts::from_checkpoint(model.checkpoint())?)))
    }
}

/// What a model got of what it could have, to say where it is less, and why.
#[cfg_attr(test, derive(Clone))]
struct Reduced<'a> {
    device: &'a str,
    /// Sequences at once: asked for, if somebody did, and those that run.
    sequences: (Option<usize>, usize),
    /// Positions: those of the model, and those that are served.
    context: (usize, usize),
    /// Whether the context was asked for.
    is_context_chosen: bool,
    /// Most positions that the device computes, whatever its memory.
    most_context: Option<usize>,
    kv: KvType,
    /// The most bytes for keys and values, if that is set.
    kv_memory: Option<u64>,
    /// The bytes that they take.
    caches: u64,
    /// What a draft model takes of the device's memory, in words, if it takes something.
    taking: Option<String>,
}

impl Reduced<'_> {
    /// Returns a line for the context, with what limited it, and one for the sequences if nobody
    /// chose their number, or if fewer run, with the reason and what helps.
    fn lines(&self) -> Vec<String> {
        // What is left of a limit that decided is less than what was taken.
        let budget = self.kv_memory.filter(|&budget| budget < 2 * self.caches);
        let (limit, more) = match budget {
            Some(budget) => (format!("--kv-memory {}", words::bytes(budget)), "more of it"),
            None => (format!("the free memory of {}", words::harmless(self.device)), ""),
        };
        // What a draft model takes does not count against a limit that is set.
        let taking = self.taking.as_ref().filter(|_| budget.is_none());
        let taking = taking.map_or(String::new(), |taking| format!("; {taking}"));
        let smaller = if self.kv == KvType::Int8 { "" } else { "--kv int8" };
        let remedies = |others: &[&str]| {
            let all = [&[more, smaller], others].concat();
            all.into_iter().filter(|remedy| !remedy.is_empty()).collect::<Vec<_>>().join(" or ")
        };
        let mut lines = Vec::new();
        let (chosen, running) = self.sequences;
        let asked = chosen.unwrap_or(PLACES_LEAST);
        if running < asked {
            let (asked, run) =
                (words::counted(asked, "request"), if running == 1 { "runs" } else { "run" });
            lines.push(format!(
                "{running} of {asked} {run} at once: {limit} has room for no more; {} makes room, \
                 others wait{taking}",
                remedies(&["a shorter --context"])
            ));
        }
        if running >= asked && chosen.is_none() {
            lines.push(format!(
                "up to {} at once, as suits the device and its memory: --sequences chooses another \
                 number",
                words::counted(running, "request")
            ));
        }
        let (models, context) = self.context;
        let reason = match self.most_context {
            _ if self.is_context_chosen => "that was asked for".to_owned(),
            _ if context == models => "all that the model has".to_owned(),
            Some(most) if context == most => {
                format!("{} computes no more", words::harmless(self.device))
            }
            _ => format!(
                "{limit} has room for no more of the model's {models}; {} makes room{taking}",
                remedies(&["a smaller model"])
            ),
        };
        lines.push(format!("the context is {context} tokens: {reason}"));
        lines
    }
}

fn described(model: &Model) -> Description {
    let weights = model.base_plan().weights;
    Description {
        family: model.config().family.name().to_owned(),
        formats: formats(model),
        parameters: weights.iter().map(|weight| (weight.rows * weight.columns) as u64).sum(),
        context: model.config().context,
        hidden: model.config().hidden,
        sees: model.tower().is_some(),
        only_embeds: model.config().family.only_embeds(),
        ..Description::default()
    }
}

fn gone(model: &str) -> anyhow::Error {
    anyhow!("there is no model {model} any more")
}

/// The files of models as they are at one time.
struct LookedAt<'a> {
    models: &'a Models,
    sources: Sources<'a>,
}

impl Files for LookedAt<'_> {
    fn stamp(&self, model: &str) -> u64 {
        self.sources.of(model).map_or(0, |source| stamp(&source))
    }

    fn digest(&self, model: &str) -> String {
        self.sources.of(model).map_or_else(String::new, |source| digest(&source))
    }

    fn summary(&self, model: &str) -> Result<ModelSummary, String> {
        let source = self.sources.of(model).ok_or_else(|| gone(model));
        let summary = source.and_then(|source| self.models.summarised(&source));
        summary.map_err(|error| message(&error).unwrap_or_default())
    }
}

impl Files for Models {
    fn stamp(&self, model: &str) -> u64 {
        self.looked_at().stamp(model)
    }

    fn digest(&self, model: &str) -> String {
        self.looked_at().digest(model)
    }

    fn summary(&self, model: &str) -> Result<ModelSummary, String> {
        self.looked_at().summary(model)
    }
}

impl Loader for Models {
    fn list(&self) -> Vec<Listed> {
        self.names.list()
    }

    fn find(&self, name: &str) -> Result<Option<Found>, String> {
        let mut found = self.names.find(name)?;
        if let (Some(found), Some(_)) = (&mut found, &self.template) {
            // The option comes before the preset.
            Arc::make_mut(&mut found.preset).template = None;
        }
        Ok(found)
    }

    fn bytes(&self, model: &str) -> u64 {
        self.names.sources().of(model).map_or(0, |source| source.file_bytes())
    }

    fn files(&self) -> Option<Box<dyn Files + '_>> {
        Some(Box::new(self.looked_at()))
    }

    fn load(&self, model: &str) -> Result<LoadedModel, LoadError> {
        self.open(model).map_err(|error| LoadError {
            lacks_memory: lacks_memory(&error),
            message: message(&error).unwrap_or_default(),
        })
    }

    fn library(&self) -> Option<&dyn Library> {
        self.names.library()
    }
}

/// Returns the model that an argument names. A preset has its own name, and `model` is the name of
/// the model that it is based on.
///
/// # Errors
/// As [`find`].
pub fn served(library: &ModelLibrary, typed: &str, download: Download) -> Result<Served> {
    let chosen = find(library, Some(typed), download)?;
    let model = served_name(&chosen.source);
    let preset = chosen.preset.as_ref();
    let name = match (preset, &chosen.source) {
        (Some(preset), _) => preset.name.clone(),
        (None, Source::Local(local)) => local.short.clone(),
        (None, _) => model.clone(),
    };
    let laid = preset.map(|preset| Arc::new(laid(preset)));
    Ok(Served { name, model, source: chosen.source, laid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_less_than_asked_for_is_said_with_what_helps() {
        let full = Reduced {
            device: "gpu",
            sequences: (Some(8), 8),
            context: (8192, 8192),
            is_context_chosen: false,
            most_context: None,
            kv: KvType::F16,
            kv_memory: Some(1 << 30),
            caches: 1 << 30,
            taking: None,
        };
        let whole = "the context is 8192 tokens: all that the model has";
        assert_eq!(full.lines(), [whole]);
        let taking = Some("the draft takes 3 MB".to_owned());
        let with_draft = || Reduced { taking: taking.clone(), ..full.clone() };
        assert_eq!(with_draft().lines(), [whole]);
        let lines = Reduced { sequences: (Some(8), 2), ..with_draft() }.lines();
        assert_eq!(
            lines,
            [
                "2 of 8 requests run at once: --kv-memory 1.1 GB has room for no more; more of it \
                 or --kv int8 or a shorter --context makes room, others wait",
                whole
            ]
        );
        // Where the budget is not reached, the device is what is full.
        let lines =
            Reduced { sequences: (Some(8), 1), kv: KvType::Int8, caches: 1 << 20, ..full.clone() }
                .lines();
        assert_eq!(
            lines,
            [
                "1 of 8 requests runs at once: the free memory of gpu has room for no more; a \
                 shorter --context makes room, others wait",
                whole
            ]
        );
        let lines = Reduced { sequences: (None, 1), caches: 1 << 20, ..with_draft() }.lines();
        assert!(lines[0].ends_with("others wait; the draft takes 3 MB"), "{lines:?}");
        let lines = Reduced { context: (8192, 2048), kv_memory: None, ..with_draft() }.lines();
        assert_eq!(
            lines,
            ["the context is 2048 tokens: the free memory of gpu has room for no more of the \
                 model's 8192; --kv int8 or a smaller model makes room; the draft takes 3 MB"]
        );
        let open = Reduced { sequences: (None, 64), ..full.clone() };
        let said = "up to 64 requests at once, as suits the device and its memory: --sequences \
            chooses another number";
        assert_eq!(open.lines(), [said, whole]);
        let chosen = Reduced { context: (8192, 2048), is_context_chosen: true, ..full.clone() };
        assert_eq!(chosen.lines(), ["the context is 2048 tokens: that was asked for"]);
        let bounded = Reduced { context: (8192, 2048), most_context: Some(2048), ..full.clone() };
        assert_eq!(bounded.lines(), ["the context is 2048 tokens: gpu computes no more"]);
    }
}
