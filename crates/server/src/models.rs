//! Several models by name: loaded when a request wants them, the least recently used ones unloaded to stay within a
//! budget of memory.
//!
//! Where all models are in use, a load marks as many as have to go as leaving. Their requests go on, further ones wait
//! until the model is gone and then ask for it in turn: no model is kept out by steady work on others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use trine_engine::{SamplingParams, Service};
use trine_text::{ChatTemplate, GrammarCache, Tokenizer};

use crate::error::{ApiError, shown};

/// How long a load waits for the requests of other models to end when there is no room beside these.
const ROOM_WAIT: Duration = Duration::from_secs(300);
/// Most time that a model is kept for those who waited for it. They take it as soon as they run.
const TAKE_WAIT: Duration = Duration::from_secs(5);
/// Why nothing is loaded any more.
const CLOSED: &str = "the server is shutting down";

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
    /// When it was asked for, which may be long before it was loaded.
    pub(crate) asked: Instant,
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
    /// Told when a lease ends, and when the table is closed.
    released: Notify,
    /// Told when models that were leaving are gone or stay, and when the table is closed.
    settled: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Models").field("names", &self.names).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Table {
    slots: HashMap<String, Slot>,
    /// Bytes that each model has taken when it was loaded: before that there is only an estimate.
    sizes: HashMap<String, u64>,
    waiters: usize,
    is_closed: bool,
}

#[derive(Debug)]
enum Slot {
    Loading(watch::Receiver<Outcome>),
    Ready {
        model: Arc<LoadedModel>,
        leases: usize,
        used: Instant,
        /// A load waits for its room: there are no more leases until it is gone, or stays after all.
        is_leaving: bool,
    },
}

/// How a load has ended, once it has.
type Outcome = Option<Result<(), String>>;

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
            settled: Notify::new(),
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
        let asked = Instant::now();
        let mut waiter: Option<Waiter> = None;
        // A load keeps its model as long as somebody has this.
        let mut loaded: Option<watch::Receiver<Outcome>> = None;
        loop {
            // Before the look: what happens between the look and the wait is told too.
            let settled = self.shared.settled.notified();
            let found = self.shared.find_or_load(name).map_err(Failure::Refused)?;
            drop(loaded.take());
            if !matches!(found, Found::Ready(_)) && waiter.is_none() {
                waiter = Some(self.shared.wait().map_err(Failure::Refused)?);
            }
            let mut receiver = match found {
                Found::Ready(mut lease) => {
                    lease.asked = asked;
                    return Ok(lease);
                }
                Found::Loading(receiver) => receiver,
                Found::Leaving => {
                    settled.await;
                    continue;
                }
            };
            let outcome = tokio::select! {
                biased;
                outcome = receiver.wait_for(Option::is_some) => Some(outcome.map(|outcome| outcome.clone())),
                () = settled => None,
            };
            // The server may be ending.
            let Some(outcome) = outcome else {
                loaded = Some(receiver);
                continue;
            };
            match outcome {
                // Loaded: the next look at the table gives a lease.
                Ok(Some(Ok(()))) => loaded = Some(receiver),
                _ if self.shared.is_closed() => {
                    return Err(Failure::Refused(ApiError::draining()));
                }
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

    /// Gives no more leases, and ends the waits for them. Requests that have one go on: they may give their engine as
    /// much work as they need.
    pub(crate) fn drain(&self) {
        self.shared.table().is_closed = true;
        self.shared.settled.notify_waiters();
        self.shared.released.notify_one();
    }

    /// Ends all engines. Waits for their threads: for a thread that may wait.
    pub(crate) fn stop(&self) {
        self.drain();
        let slots = std::mem::take(&mut self.shared.table().slots);
        let models = slots.into_values().filter_map(|slot| match slot {
            Slot::Ready { model, .. } => Some(model),
            Slot::Loading(_) => None,
        });
        let models: Vec<Arc<LoadedModel>> = models.collect();
        // None of them takes more while others end.
        models.iter().for_each(|model| model.service.drain());
        models.iter().for_each(|model| model.service.stop());
    }
}

/// Why there is no lease.
enum Failure {
    Refused(ApiError),
    NotLoaded(String),
}

enum Found {
    Ready(Lease),
    Loading(watch::Receiver<Outcome>),
    /// Loaded, and about to make room for another one.
    Leaving,
}

/// A request that waits for a load, or for a model to leave.
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

    fn is_closed(&self) -> bool {
        self.table().is_closed
    }

    fn entry(&self, table: &Table, name: &str) -> Entry {
        let model = match table.slots.get(name) {
            Some(Slot::Ready { model, .. }) => Some(Arc::clone(model)),
            _ => None,
        };
        let estimate = self.bytes[name].max(table.size(name));
        let bytes = model.as_ref().map_or(estimate, |model| model.bytes);
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
            Some(Slot::Ready { is_leaving: true, .. }) => Ok(Found::Leaving),
            Some(Slot::Ready { model, leases, used, .. }) => {
                *leases += 1;
                *used = Instant::now();
                let (name, model) = (Arc::from(name), Arc::clone(model));
                Ok(Found::Ready(Lease { name, model, asked: *used, shared: Arc::clone(self) }))
            }
            Some(Slot::Loading(receiver)) => Ok(Found::Loading(receiver.clone())),
            None => {
                let (sender, receiver) = watch::channel(None);
                table.slots.insert(name.to_owned(), Slot::Loading(receiver.clone()));
                // A task of its own: the client that asked first may go away.
                tokio::spawn(Arc::clone(self).load_in_turn(name.to_owned(), sender));
                Ok(Found::Loading(receiver))
            }
        }
    }

    /// Loads a model when it is its turn, and tells those who wait for it. The turn ends when these have their leases:
    /// otherwise the next load might unload the model before anybody has used it.
    async fn load_in_turn(self: Arc<Self>, name: String, sender: watch::Sender<Outcome>) {
        let _turn = self.loading.lock().await;
        match self.load(&name).await {
            Ok(_lease) => {
                sender.send_replace(Some(Ok(())));
                let _ = tokio::time::timeout(TAKE_WAIT, sender.closed()).await;
            }
            Err(message) => {
                tracing::error!(model = %shown(&name), message, "the model was not loaded");
                self.table().slots.remove(&name);
                sender.send_replace(Some(Err(message)));
            }
        }
    }

    /// Loads a model and puts it in the table. For one task at a time: what there is room for is decided by what is in
    /// the table.
    async fn load(self: &Arc<Self>, name: &str) -> Result<Lease, String> {
        let known = self.table().size(name);
        self.make_room(self.loader.bytes(name).max(known)).await?;
        let started = Instant::now();
        let (loader, asked) = (Arc::clone(&self.loader), name.to_owned());
        let loaded = tokio::task::spawn_blocking(move || loader.load(&asked)).await;
        let model = loaded.map_err(|_| "loading it met a defect of the server".to_owned())??;
        let (model, seconds) = (Arc::new(model), started.elapsed().as_secs_f64());
        self.table().sizes.insert(name.to_owned(), model.bytes);
        // It may take more than was thought.
        let room = self.make_room(model.bytes).await;
        let placed = room.and_then(|()| self.place(name, &model));
        if placed.is_err() {
            // Its memory is free again before anything else is loaded.
            let stopped = tokio::task::spawn_blocking(move || model.service.stop()).await;
            if stopped.is_err() {
                tracing::error!(model = %shown(name), "its engine could not be stopped");
            }
            return placed;
        }
        tracing::info!(model = %shown(name), seconds, "the model is loaded");
        placed
    }

    /// Puts a model for which there is room in the table.
    fn place(self: &Arc<Self>, name: &str, model: &Arc<LoadedModel>) -> Result<Lease, String> {
        let mut table = self.table();
        if table.is_closed {
            return Err(CLOSED.to_owned());
        }
        let asked = Instant::now();
        let slot =
            Slot::Ready { model: Arc::clone(model), leases: 1, used: asked, is_leaving: false };
        table.slots.insert(name.to_owned(), slot);
        let (name, model) = (Arc::from(name), Arc::clone(model));
        Ok(Lease { name, model, asked, shared: Arc::clone(self) })
    }

    /// Unloads models that nobody uses, the least recently used ones first, until there is room. Where all are used,
    /// some leave as soon as their requests have ended.
    async fn make_room(&self, bytes: u64) -> Result<(), String> {
        let Some(budget) = self.budget else { return Ok(()) };
        if bytes > budget {
            return Err(format!(
                "it takes {bytes} bytes of memory, models may take {budget} in all"
            ));
        }
        let _leaving = Leaving(self);
        let deadline = tokio::time::Instant::now() + ROOM_WAIT;
        loop {
            let released = self.released.notified();
            match self.look_for_room(budget - bytes) {
                Room::Enough => return Ok(()),
                Room::Closed => return Err(CLOSED.to_owned()),
                Room::Unload(name, model) => {
                    tracing::info!(model = %shown(&name), "unloading the model to make room");
                    let stopped = tokio::task::spawn_blocking(move || model.service.stop());
                    stopped.await.map_err(|_| "another model could not be unloaded".to_owned())?;
                }
                Room::AllInUse => {
                    let waited = tokio::time::timeout_at(deadline, released).await;
                    waited.map_err(|_| {
                        format!(
                            "it takes {bytes} bytes of memory, models may take {budget} in all, and requests are \
                             using those that take the rest"
                        )
                    })?;
                }
            }
        }
    }

    /// Takes the least recently used model that nobody uses out of the table, if others may take no more than `allowed`
    /// bytes. Marks those that have to leave if all are used.
    fn look_for_room(&self, allowed: u64) -> Room {
        let mut table = self.table();
        if table.is_closed {
            return Room::Closed;
        }
        let (mut taken, mut oldest) = (0_u64, None::<(Instant, &String)>);
        for (name, slot) in &table.slots {
            let Slot::Ready { model, leases, used, .. } = slot else { continue };
            taken = taken.saturating_add(model.bytes);
            if *leases == 0 && oldest.is_none_or(|(other, _)| *used < other) {
                oldest = Some((*used, name));
            }
        }
        if taken <= allowed {
            return Room::Enough;
        }
        let oldest = oldest.map(|(_, name)| name.clone());
        let (room, is_settled) = match oldest.and_then(|name| table.slots.remove_entry(&name)) {
            Some((name, Slot::Ready { model, .. })) => (Room::Unload(name, model), true),
            _ => (Room::AllInUse, table.mark_leaving(taken - allowed)),
        };
        drop(table);
        if is_settled {
            self.settled.notify_waiters();
        }
        room
    }
}

impl Table {
    /// Bytes that a model has taken when it was loaded; 0 if it never was.
    fn size(&self, name: &str) -> u64 {
        self.sizes.get(name).copied().unwrap_or(0)
    }

    /// Has as many models leave as take so many bytes, the least recently used ones first. Whether one stays that was
    /// leaving.
    fn mark_leaving(&mut self, mut bytes: u64) -> bool {
        let ready = self.slots.values_mut().filter_map(|slot| match slot {
            Slot::Ready { model, used, is_leaving, .. } => Some((*used, model.bytes, is_leaving)),
            Slot::Loading(_) => None,
        });
        let mut ready: Vec<(Instant, u64, &mut bool)> = ready.collect();
        // Those that are leaving come first: each lease that ends makes its model a recently used one.
        ready.sort_by_key(|(used, _, is_leaving)| (!**is_leaving, *used));
        let mut one_stays = false;
        for (_, size, is_leaving) in ready {
            let leaves = bytes > 0;
            one_stays |= *is_leaving && !leaves;
            *is_leaving = leaves;
            bytes = bytes.saturating_sub(size);
        }
        one_stays
    }
}

enum Room {
    Enough,
    Unload(String, Arc<LoadedModel>),
    AllInUse,
    /// None is needed: the server ends.
    Closed,
}

/// The marks that a load sets while it waits for room. Once it has room or gives up, the models that are still there
/// stay.
struct Leaving<'a>(&'a Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut table = self.0.table();
        for slot in table.slots.values_mut() {
            if let Slot::Ready { is_leaving, .. } = slot {
                *is_leaving = false;
            }
        }
        drop(table);
        self.0.settled.notify_waiters();
    }
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
