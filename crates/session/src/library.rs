//! What finding and opening a model needs of the program around it: where models are, and who is
//! told, is asked, and is shown what takes time.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use trine_hub::{EntryState, Hub, HubConfig, HubError, Progress, StoreEntry};
use trine_npu::partner::NpuPartner;
use trine_vulkan::capabilities::Capabilities;
use trine_vulkan::{Settled, best_device};

use crate::finding::embedded::Embedded;

/// Something that was decided on the way to an open model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A choice that was made as expected.
    Note(String),
    /// An outcome of what was asked for, worth a line even to those who want no notes.
    Remark(String),
    /// A choice that costs something, with what to do about it.
    Warning(String),
}

/// Counts what is done of a whole.
pub type Count<T> = Arc<dyn Fn(T, T) + Send + Sync>;

/// What the program around the library does while models are found and opened. The defaults say
/// nothing, show nothing, and agree to no download.
pub trait Callbacks: Send + Sync {
    /// Hears a decision when it is made.
    fn decided(&self, _decision: &Decision) {}

    /// Returns whether a person can be asked.
    fn can_ask(&self) -> bool {
        false
    }

    /// Asks a question about a download of `what`; `is_usual` says whether an empty answer means
    /// yes. A refusal is told by the callback.
    fn agrees(&self, _question: &str, _what: &str, _is_usual: bool) -> bool {
        false
    }

    /// Returns what shows a download, and may stop it.
    fn download(&self) -> Box<dyn Progress> {
        Box::new(Unseen)
    }

    /// Shows that something takes its time, until the result is dropped.
    fn busy(&self, _what: &'static str) -> Box<dyn Any> {
        Box::new(())
    }

    /// Returns what counts bytes of weights on their way to a device.
    fn loading(&self) -> Option<Count<u64>> {
        None
    }

    /// Returns what counts kernels that are measured for the GPU of this name.
    fn tuning(&self, _gpu: &str) -> Option<Count<usize>> {
        None
    }
}

/// The callbacks of a program that has none.
struct Silent;

impl Callbacks for Silent {}

/// A download that nobody watches.
struct Unseen;

impl Progress for Unseen {
    fn start(&mut self, _file: &str, _total: Option<u64>) {}

    fn advance(&mut self, _bytes: u64) {}

    fn done(&mut self, _file: &str) {}
}

/// Where models are found, and the program around them.
#[derive(Clone)]
pub struct ModelLibrary {
    /// The model that is meant where none is named; without it that is the embedded one.
    pub model: Option<String>,
    /// The folder of the model store; without it the environment says where that is.
    pub store: Option<PathBuf>,
    /// The program around them.
    pub callbacks: Arc<dyn Callbacks>,
    /// The decisions of a model that is being opened.
    record: Option<Arc<Mutex<Vec<Decision>>>>,
    /// What models of this library share.
    shared: Arc<Shared>,
}

/// What is known once for all models of a library.
#[derive(Default)]
struct Shared {
    /// Hashes of what was told.
    told: Mutex<BTreeSet<u64>>,
    /// The shapes of kernels that were chosen. A model that is loaded again keeps them.
    settled: Settled,
    /// The GPU that models run on.
    gpu: OnceLock<Option<Capabilities>>,
    /// The NPU with the folder of its pack. A process has one hardware context, which all models
    /// share.
    npu: Mutex<Option<(PathBuf, Arc<NpuPartner>)>>,
}

impl Default for ModelLibrary {
    fn default() -> Self {
        Self::new(Arc::new(Silent))
    }
}

impl fmt::Debug for ModelLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, store, .. } = self;
        f.debug_struct("ModelLibrary").field("model", model).field("store", store).finish()
    }
}

impl ModelLibrary {
    /// Makes a library of the models that the environment says where to find.
    pub fn new(callbacks: Arc<dyn Callbacks>) -> Self {
        Self { model: None, store: None, callbacks, record: None, shared: Arc::default() }
    }

    /// Returns the same library, with a record of what is decided from now on.
    pub(crate) fn recording(&self) -> Self {
        Self { record: Some(Arc::default()), ..self.clone() }
    }

    /// Returns what was recorded.
    pub(crate) fn recorded(&self) -> Vec<Decision> {
        let record = self.record.as_ref().map(|record| record.lock());
        record.map_or_else(Vec::new, |record| {
            std::mem::take(&mut *record.unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Tells and records a decision.
    pub(crate) fn decide(&self, decision: Decision) {
        self.callbacks.decided(&decision);
        if let Some(record) = &self.record {
            record.lock().unwrap_or_else(PoisonError::into_inner).push(decision);
        }
    }

    pub(crate) fn note(&self, text: impl Into<String>) {
        self.decide(Decision::Note(text.into()));
    }

    pub(crate) fn warn(&self, text: impl fmt::Display) {
        self.decide(Decision::Warning(text.to_string()));
    }

    /// Returns whether something was not told before.
    pub(crate) fn is_news(&self, what: impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        let mut told = self.shared.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert(hasher.finish())
    }

    /// Returns the shapes of kernels that were chosen for models of this library.
    pub(crate) fn settled(&self) -> Settled {
        self.shared.settled.clone()
    }

    /// Returns the GPU that models run on, if there is one that can be used.
    pub(crate) fn gpu(&self) -> Option<Capabilities> {
        let find = || best_device().map(|found| found.capabilities);
        self.shared.gpu.get_or_init(find).clone()
    }

    /// Returns the place of the NPU that models of this library share.
    pub(crate) fn npu(&self) -> MutexGuard<'_, Option<(PathBuf, Arc<NpuPartner>)>> {
        self.shared.npu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the hub.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be used; the message names it.
    pub fn hub(&self) -> Result<Hub, HubError> {
        Hub::new(self.hub_config()?)
    }

    /// Returns the settings of the hub: those of the environment, and the store of this library.
    ///
    /// # Errors
    /// Returns an error if a setting cannot be used; the message names it.
    pub fn hub_config(&self) -> Result<HubConfig, HubError> {
        let mut config = HubConfig::from_env(self.store.clone())?;
        config.judge = Some(|file, beginning| {
            trine_model::judge(file, beginning).map_err(|error| error.to_string())
        });
        config.reserved = Embedded::ALL.map(|model| model.name().to_owned()).to_vec();
        config.holds_header = Some(trine_weights::holds_header);
        config.judge_tower = Some(|file, beginning| {
            trine_model::judge_tower(file, beginning).map_err(|error| error.to_string())
        });
        Ok(config)
    }

    /// Returns the models on this machine; none if the store cannot be read.
    pub fn all_here(&self) -> Vec<StoreEntry> {
        self.hub().and_then(|hub| hub.list()).unwrap_or_default()
    }

    /// Returns names of complete local models, for messages.
    pub fn local_names(&self) -> Vec<String> {
        let entries = self.all_here();
        let complete = entries.iter().filter(|entry| entry.state == EntryState::Complete);
        complete.take(20).map(|entry| entry.short.clone()).collect()
    }
}
