//! The services of the crate that has devices and files: it finds models, opens them, and manages
//! those on disk.

use std::sync::Arc;

use axum::http::StatusCode;
use trine_engine::{Pooling, SamplingParams, Service, Tower};
use trine_pictures::Preparation;
use trine_text::{ChatTemplate, GrammarCache, TaskPrompts, Tokenizer};

use super::catalog::Catalog;
use super::preset::{Preset, Recipe};
use crate::error::{ApiError, Code};

/// Finds and opens models.
///
/// A *name* is what a client asks for. A *model* is what is loaded for it: several names may stand
/// for one model, which is loaded once for all of them. All methods may read the disk.
pub trait Loader: Files + Send + Sync + 'static {
    /// Returns the names that are listed, first the one for requests that name none. Never empty.
    /// May change while the server runs if there is a [`library`](Loader::library), and only then.
    fn list(&self) -> Vec<Listed>;

    /// Returns what a name stands for, or `None` if it stands for nothing. Names that are not
    /// listed may be found too.
    ///
    /// # Errors
    /// Why a known name stands for no model at the moment, and what to do, for clients.
    fn find(&self, name: &str) -> Result<Option<Found>, String>;

    /// Returns the approximate number of bytes of memory that a model will take, before it is
    /// loaded.
    fn bytes(&self, model: &str) -> u64;

    /// Returns the files of models as they are now, where looking at those of many models at once
    /// costs less than asking for each of them.
    fn files(&self) -> Option<Box<dyn Files + '_>> {
        None
    }

    /// Opens a model. Called on a thread that may wait; never for two models at once.
    ///
    /// # Errors
    /// What is wrong with the model and what to do, for the log: clients are told only that it
    /// cannot be loaded.
    fn load(&self, model: &str) -> Result<LoadedModel, LoadError>;

    /// Returns the library that manages the models on disk, if clients may use it.
    fn library(&self) -> Option<&dyn Library> {
        None
    }
}

/// Why a model was not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadError {
    /// What is wrong and what to do.
    pub message: String,
    /// Whether a device has too little free memory: models that nobody uses are unloaded, and it
    /// is tried again.
    pub lacks_memory: bool,
}

impl From<String> for LoadError {
    fn from(message: String) -> Self {
        Self { message, lacks_memory: false }
    }
}

/// What is known of models by their files alone.
pub trait Files {
    /// Returns a number that changes when the files of a model change: when they are written to,
    /// truncated, replaced or removed.
    fn stamp(&self, model: &str) -> u64;

    /// Returns 64 hexadecimal digits that identify the files of a model, the same as long as they
    /// are the same; empty if there are none. Not their SHA-256 if that would read all of them.
    fn digest(&self, _model: &str) -> String {
        String::new()
    }

    /// Describes a model without loading it.
    ///
    /// # Errors
    /// What is wrong with the model, for the log.
    fn summary(&self, model: &str) -> Result<ModelSummary, String>;
}

/// The result of looking up a name.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The model, for [`Loader::load`].
    pub model: String,
    /// Defaults of requests under this name, used where they say nothing of their own.
    pub preset: Arc<Preset>,
}

impl Found {
    /// Returns a model without a preset.
    pub fn plain(model: impl Into<String>) -> Self {
        Self { model: model.into(), preset: Arc::default() }
    }
}

/// A name in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// The model that it stands for.
    pub model: String,
    /// The name by which people ask for that model; the same if it has no other.
    pub short: String,
    /// Bytes of the model's files.
    pub bytes: u64,
    /// When it was added or changed, in seconds since 1970, if known.
    pub modified: Option<u64>,
    /// SHA-256 of its file in hexadecimal, if known; empty otherwise.
    pub digest: String,
    /// Most positions of a prompt and its answer that the name sets; see [`Preset::context`].
    pub context: Option<usize>,
}

impl Listed {
    /// Returns a name for the model of the same name.
    pub fn plain(name: impl Into<String>, bytes: u64) -> Self {
        let name = name.into();
        Self {
            model: name.clone(),
            short: name.clone(),
            name,
            bytes,
            modified: None,
            digest: String::new(),
            context: None,
        }
    }
}

/// A model ready for requests.
#[derive(Debug)]
pub struct LoadedModel {
    /// Text to token ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template; base models have none.
    pub template: Option<ChatTemplate>,
    /// The sampling that its makers recommend.
    pub sampling: SamplingParams,
    /// Its compiled grammars ([`grammar_cache`](crate::grammar_cache) makes one).
    pub grammars: GrammarCache,
    /// How it embeds texts.
    pub pooling: Pooling,
    /// The words before texts that it embeds, by task, if it is trained to embed: beginnings of its
    /// vectors are vectors too.
    pub tasks: Option<TaskPrompts>,
    /// What it does with pictures; `None` if it takes none.
    pub pictures: Option<Pictures>,
    /// The engine that runs it.
    pub service: Service,
    /// Facts for people.
    pub description: Description,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Whether memory that others hold made its context too short to be of use: models that nobody
    /// uses are unloaded for it.
    pub is_short: bool,
}

/// What a model does with pictures.
#[derive(Debug, Clone)]
pub struct Pictures {
    /// What its tower wants of them.
    pub preparation: Preparation,
    /// What makes rows of them.
    pub tower: Tower,
}

impl LoadedModel {
    /// Ends its threads, and by that frees its devices.
    pub(crate) fn stop(&self) {
        self.service.stop();
        if let Some(pictures) = &self.pictures {
            pictures.tower.stop();
        }
    }

    /// Returns the summary that [`Loader::summary`] returns before the model is loaded.
    pub(crate) fn summary(&self) -> ModelSummary {
        ModelSummary {
            description: Description { sees: self.pictures.is_some(), ..self.description.clone() },
            template: self.template.as_ref().map(|template| template.source().to_owned()),
        }
    }
}

/// Facts about a model.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// Family of the architecture, such as `gemma3`.
    pub family: String,
    /// Formats of the weights, the one with most bytes first.
    pub formats: Vec<String>,
    /// Numbers in the weights.
    pub parameters: u64,
    /// Positions that the model was made for.
    pub context: usize,
    /// Width of its residual stream, and so of its embeddings, in elements.
    pub hidden: usize,
    /// Positions of a sequence that are served; before it is loaded, the most that can be.
    pub served: usize,
    /// The device that runs it; empty if it is not loaded.
    pub device: String,
    /// What guesses tokens: `ngram`, or a model's name; `None` if nothing does.
    pub draft: Option<String>,
    /// Bytes of it in the memory of a GPU.
    pub gpu_bytes: u64,
    /// Whether it has a vision tower.
    pub sees: bool,
    /// Whether it makes embeddings and writes no texts.
    pub only_embeds: bool,
}

/// The facts about a model that are known without loading it.
#[derive(Debug, Clone, Default)]
pub struct ModelSummary {
    /// Facts for people.
    pub description: Description,
    /// Source of its chat template, if it has one.
    pub template: Option<String>,
}

/// Manages the models on disk. Every method may take long: they are called on threads that may
/// wait.
pub trait Library: Send + Sync {
    /// Returns the models that have a name of their own, with what is forecast for this machine.
    /// `measures` says whether that may take the second or two that measuring the devices takes;
    /// what was measured once is known from then on. Never called twice at once.
    ///
    /// # Errors
    /// [`Refusal::Failed`] if the disk cannot be read.
    fn catalog(&self, measures: bool) -> Result<Catalog, LibraryError>;

    /// Returns the canonical spelling of a name that can be fetched: requests for the same spelling
    /// share a download.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if it cannot be the name of a model.
    fn pullable(&self, name: &str) -> Result<String, LibraryError>;

    /// Fetches a model, or the part of it that is missing.
    ///
    /// # Errors
    /// What went wrong; [`Refusal::Cancelled`] after [`PullProgress::is_cancelled`].
    fn pull(&self, name: &str, progress: &mut dyn PullProgress) -> Result<(), LibraryError>;

    /// Returns the model whose files [`Library::delete`] removes under this name, or `None` if it
    /// removes only a name.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], or [`Refusal::Invalid`] for a name that cannot be removed.
    fn owned(&self, name: &str) -> Result<Option<String>, LibraryError>;

    /// Removes a name from the disk, and its model's files if it is a model of its own.
    ///
    /// # Errors
    /// [`Refusal::Unknown`], or what went wrong.
    fn delete(&self, name: &str) -> Result<(), LibraryError>;

    /// Gives a model a further name.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] for the first name, [`Refusal::Invalid`] for the second.
    fn copy(&self, from: &str, to: &str) -> Result<(), LibraryError>;

    /// Makes a name for another model with a preset added. An existing preset of that name is
    /// replaced.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] for the other model, [`Refusal::Invalid`] for the name or a parameter.
    fn create(&self, name: &str, recipe: &Recipe) -> Result<(), LibraryError>;
}

/// Receives the progress of a download.
pub trait PullProgress {
    /// Called when a file begins. Its length is in bytes, if known.
    fn file(&mut self, name: &str, bytes: Option<u64>);

    /// Called when this many more bytes of the file are on disk.
    fn advance(&mut self, bytes: u64);

    /// Called when the download pauses, with the reason.
    fn waiting(&mut self, reason: &str);

    /// Returns whether nobody wants the download any more.
    fn is_cancelled(&self) -> bool;
}

/// Why something was not done with the models on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryError {
    /// The kind.
    pub refusal: Refusal,
    /// What went wrong and what to do, for clients.
    pub message: String,
}

/// Kinds of [`LibraryError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The request is not valid.
    Invalid,
    /// There is no such model.
    Unknown,
    /// Something else uses it.
    Busy,
    /// No request waits for the work any more.
    Cancelled,
    /// The disk, the network or the other side failed.
    Failed,
}

impl LibraryError {
    /// Returns an error of a kind.
    pub fn new(refusal: Refusal, message: impl Into<String>) -> Self {
        Self { refusal, message: message.into() }
    }
}

impl From<LibraryError> for ApiError {
    fn from(error: LibraryError) -> Self {
        let LibraryError { refusal, message } = error;
        match refusal {
            Refusal::Invalid => Self::bad_request(message),
            Refusal::Unknown => Self {
                param: Some("model".to_owned()),
                ..Self::new(StatusCode::NOT_FOUND, Code::ModelNotFound, message)
            },
            Refusal::Busy => Self::new(StatusCode::CONFLICT, Code::ModelInUse, message),
            Refusal::Cancelled => Self::draining(),
            Refusal::Failed => Self::new(StatusCode::BAD_GATEWAY, Code::LibraryFailed, message),
        }
    }
}
