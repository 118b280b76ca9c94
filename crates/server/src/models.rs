//! Several models by name: loaded when a request wants them, the least recently used ones unloaded to stay within a
//! budget of memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use trine_engine::{SamplingParams, Service};
use trine_text::{ChatTemplate, GrammarCache, Tokenizer};

use crate::error::{ApiError, shown};

/// How long a load waits for the requests of other models to end when there is no room beside these.
const ROOM_WAIT: Duration = Duration::from_secs(300);

/// Finds and opens models.
pub trait Loader: Send + Sync + 'static {
    /// The names under which models are asked for, the default one first. Never empty, and always the same.
    fn names(&self) -> Vec<String>;

    /// Bytes that a model will take about, before it is loaded.
    fn bytes(&self, name: &str) -> u64;

    /// Opens a model. Called on a thread that may wait; never for two models at once.
    ///
    /// # Errors
    /// What is wrong with the model and what to do, for the log: clients are told only that it cannot be loaded.
    fn load(&self, name: &str) -> Result<LoadedModel, String>;
}

/// A model ready for requests.
#[derive(Debug)]
pub struct LoadedModel {
    /// Text to token ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How conversations are written; base models have none.
    pub template: Option<ChatTemplate>,
    /// How its makers sample it.
    pub sampling: SamplingParams,
    /// Its compiled grammars ([`grammar_cache`](crate::grammar_cache) makes one).
    pub grammars: GrammarCache,
    /// The engine that runs it.
    pub service: Service,
    /// Facts for people.
    pub description: Description,
    /// Bytes that it takes.
    pub bytes: u64,
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
    /// What runs it.
    pub device: String,
}

/// A model that stays loaded while this lives.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Name of the model.
    pub(crate) name: Arc<str>,
    /// The model.
    pub(crate) model: Arc<LoadedModel>,
    shared: Arc<Shared>,
}

/// The table of models.
#[derive(Debug, Clone)]
pub(crate) struct Models {
    shared: Arc<Shared>,
}

/// A model's state for people.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Present while it is loaded.
    pub(crate) model: Option<Arc<LoadedModel>>,
    pub(crate) bytes: u64,
}

struct Shared {
    loader: Arc<dyn Loader>,
    names: Vec<String>,
    /// What [`Loader::bytes`] said of each name at the start: it may read the disk.
    bytes: HashMap<String, u64>,
    aliases: HashMap<String, String>,
    budget: Option<u64>,
    waiters_max: usize,
    table: Mutex<Table>,
    /// One load at a time.
    loading: tokio::sync::Mutex<()>,
    /// Told when a lease ends.
    released: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Models").field("names", &self.names).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<String, Slot>,
    waiters: usize,
    is_closed: bool,
}

#[derive(Debug)]
enum Slot {
    Loading(watch::Receiver<Option<Result<(), String>>>),
    Ready { model: Arc<LoadedModel>, leases: usize, used: Instant },
}

impl Models {
    /// No model is loaded yet. `aliases` are further names, each with the name that is meant.
    pub(crate) fn new(
        loader: Arc<dyn Loader>,
        aliases: &[(String, String)],
        budget: Option<u64>,
        waiters_max: usize,
    ) -> Self {
        let names = loader.names();
        let shared = Shared {
            bytes: names.iter().map(|name| (name.clone(), loader.bytes(name))).collect(),
            names,
            aliases: aliases.iter().cloned().collect(),
            loader,
            budget,
            waiters_max,
            table: Mutex::new(Table::default()),
            loading: tokio::sync::Mutex::new(()),
            released: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The models' names, the default one first.
    pub(crate) fn names(&self) -> &[String] {
        &self.shared.names
    }

    /// The name that is meant by a request's; the default one for none.
    pub(crate) fn resolve(&self, asked: Option<&str>) -> Result<&str, ApiError> {
        let names = self.names();
        let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(&names[0]) };
        // Ollama's clients add a tag where none was typed.
        let bare = asked.strip_suffix(":latest").unwrap_or(asked);
        let meant = self.shared.aliases.get(bare).map_or(bare, String::as_str);
        let found = names.iter().find(|name| *name == asked || *name == meant);
        found.map(String::as_str).ok_or_else(|| ApiError::unknown_model(asked, names))
    }

    /// The model of a name that [`Models::resolve`] gave; loads it if need be.
    ///
    /// # Errors
    /// 503 if it cannot be loaded, or too many requests are waiting for loads.
    pub(crate) async fn acquire(&self, name: &str) -> Result<Lease, ApiError> {
        self.open(name).await.map_err(|failure| match failure {
            Failure::Refused(error) => error,
            Failure::NotLoaded(_) => {
                let message = format!(
                    "the model {} cannot be loaded; the server's log says why. Try another model, or later",
                    shown(name)
                );
                ApiError { code: "model_not_loaded", ..ApiError::overloaded(message) }
            }
        })
    }

    /// Loads a model before anybody asks for it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) async fn preload(&self, name: &str) -> Result<(), String> {
        self.open(name).await.map(drop).map_err(|failure| match failure {
            Failure::Refused(error) => error.message,
            Failure::NotLoaded(message) => message,
        })
    }

    async fn open(&self, name: &str) -> Result<Lease, Failure> {
        let mut waiter: Option<Waiter> = None;
        loop {
            let found = self.shared.find_or_load(name).map_err(Failure::Refused)?;
            let mut receiver = match found {
                Found::Ready(lease) => return Ok(lease),
                Found::Loading(receiver) => receiver,
            };
            if waiter.is_none() {
                waiter = Some(self.shared.wait().map_err(Failure::Refused)?);
            }
            let outcome = receiver.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
            match outcome {
                // Loaded, and possibly unloaded again since: looked up anew.
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(message))) => return Err(Failure::NotLoaded(message)),
                Ok(None) | Err(_) => {
                    return Err(Failure::NotLoaded(
                        "loading it met a defect of the server".to_owned(),
                    ));
                }
            }
        }
    }

    /// All models and what they are at.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        let table = self.shared.table();
        self.names().iter().map(|name| self.shared.entry(&table, name)).collect()
    }

    /// The model of a name that [`Models::resolve`] gave.
    pub(crate) fn entry(&self, name: &str) -> Entry {
        self.shared.entry(&self.shared.table(), name)
    }

    /// Takes no more requests.
    pub(crate) fn drain(&self) {
        let mut table = self.shared.table();
        table.is_closed = true;
        for slot in table.slots.values() {
            if let Slot::Ready { model, .. } = slot {
                model.service.drain();
            }
        }
    }

    /// Ends all engines. Waits for their threads: for a thread that may wait.
    pub(crate) fn stop(&self) {
        self.drain();
        let slots = std::mem::take(&mut self.shared.table().slots);
        for slot in slots.into_values() {
            if let Slot::Ready { model, .. } = slot {
                model.service.stop();
            }
        }
    }
}

/// Why there is no lease.
enum Failure {
    Refused(ApiError),
    NotLoaded(String),
}

enum Found {
    Ready(Lease),
    Loading(watch::Receiver<Option<Result<(), String>>>),
}

/// A request that waits for a load.
struct Waiter(Arc<Shared>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.table().waiters -= 1;
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, table: &Table, name: &str) -> Entry {
        let model = match table.slots.get(name) {
            Some(Slot::Ready { model, .. }) => Some(Arc::clone(model)),
            _ => None,
        };
        let bytes = model.as_ref().map_or(self.bytes[name], |model| model.bytes);
        Entry { name: name.to_owned(), model, bytes }
    }

    fn wait(self: &Arc<Self>) -> Result<Waiter, ApiError> {
        let mut table = self.table();
        if table.waiters >= self.waiters_max {
            return Err(ApiError::overloaded(format!(
                "{} requests are waiting for models to be loaded, no more are taken; try again later",
                table.waiters
            )));
        }
        table.waiters += 1;
        drop(table);
        Ok(Waiter(Arc::clone(self)))
    }

    fn find_or_load(self: &Arc<Self>, name: &str) -> Result<Found, ApiError> {
        let mut table = self.table();
        if table.is_closed {
            return Err(ApiError::draining());
        }
        if let Some(Slot::Ready { model, .. }) = table.slots.get(name)
            && !model.service.is_alive()
        {
            tracing::error!(model = %shown(name), "its engine met a defect; it is loaded again");
            table.slots.remove(name);
        }
        match table.slots.get_mut(name) {
            Some(Slot::Ready { model, leases, used, .. }) => {
                *leases += 1;
                *used = Instant::now();
                let (name, model) = (Arc::from(name), Arc::clone(model));
                Ok(Found::Ready(Lease { name, model, shared: Arc::clone(self) }))
            }
            Some(Slot::Loading(receiver)) => Ok(Found::Loading(receiver.clone())),
            None => {
                let (sender, receiver) = watch::channel(None);
                table.slots.insert(name.to_owned(), Slot::Loading(receiver.clone()));
                // A task of its own: the client that asked first may go away.
                let (shared, name) = (Arc::clone(self), name.to_owned());
                tokio::spawn(async move {
                    let outcome = shared.load(&name).await;
                    if let Err(message) = &outcome {
                        tracing::error!(model = %shown(&name), message, "the model was not loaded");
                        shared.table().slots.remove(&name);
                    }
                    sender.send_replace(Some(outcome));
                });
                Ok(Found::Loading(receiver))
            }
        }
    }

    async fn load(self: &Arc<Self>, name: &str) -> Result<(), String> {
        let _turn = self.loading.lock().await;
        let bytes = self.loader.bytes(name);
        self.make_room(bytes).await?;
        let started = Instant::now();
        let (loader, asked) = (Arc::clone(&self.loader), name.to_owned());
        let loaded = tokio::task::spawn_blocking(move || loader.load(&asked)).await;
        let model = loaded.map_err(|_| "loading it met a defect of the server".to_owned())??;
        tracing::info!(
            model = %shown(name),
            seconds = started.elapsed().as_secs_f64(),
            "the model is loaded"
        );
        let mut table = self.table();
        if table.is_closed {
            return Err("the server is shutting down".to_owned());
        }
        let slot = Slot::Ready { model: Arc::new(model), leases: 0, used: Instant::now() };
        table.slots.insert(name.to_owned(), slot);
        Ok(())
    }

    /// Unloads models that nobody uses, the least recently used ones first, until there is room.
    async fn make_room(&self, bytes: u64) -> Result<(), String> {
        let Some(budget) = self.budget else { return Ok(()) };
        if bytes > budget {
            return Err(format!(
                "it takes about {bytes} bytes of memory, models may take {budget} in all"
            ));
        }
        let deadline = tokio::time::Instant::now() + ROOM_WAIT;
        loop {
            let released = self.released.notified();
            match self.take_idle(budget - bytes) {
                Room::Enough => return Ok(()),
                Room::Unload(name, model) => {
                    tracing::info!(model = %shown(&name), "unloading the model to make room");
                    let stopped = tokio::task::spawn_blocking(move || model.service.stop());
                    stopped.await.map_err(|_| "another model could not be unloaded".to_owned())?;
                }
                Room::AllInUse => {
                    let waited = tokio::time::timeout_at(deadline, released).await;
                    waited.map_err(|_| {
                        "the memory is taken by models that requests are using".to_owned()
                    })?;
                }
            }
        }
    }

    fn take_idle(&self, allowed: u64) -> Room {
        let mut table = self.table();
        let (mut taken, mut oldest) = (0_u64, None::<(Instant, &String)>);
        for (name, slot) in &table.slots {
            let Slot::Ready { model, leases, used } = slot else { continue };
            taken = taken.saturating_add(model.bytes);
            if *leases == 0 && oldest.is_none_or(|(other, _)| *used < other) {
                oldest = Some((*used, name));
            }
        }
        if taken <= allowed {
            return Room::Enough;
        }
        let Some((_, name)) = oldest else { return Room::AllInUse };
        let name = name.clone();
        match table.slots.remove(&name) {
            Some(Slot::Ready { model, .. }) => Room::Unload(name, model),
            _ => Room::AllInUse,
        }
    }
}

enum Room {
    Enough,
    Unload(String, Arc<LoadedModel>),
    AllInUse,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        if let Some(Slot::Ready { model, leases, used, .. }) = table.slots.get_mut(&*self.name)
            && Arc::ptr_eq(model, &self.model)
        {
            *leases = leases.saturating_sub(1);
            *used = Instant::now();
        }
        drop(table);
        self.shared.released.notify_one();
    }
}
