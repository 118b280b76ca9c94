//! Several models by name: loaded when a request wants them, unloaded when their time is over, and
//! the least recently used ones to stay within a budget of memory.
//!
//! Where all models are in use, a load marks as many models as have to go as leaving. Their
//! requests go on, further ones wait until the model is gone and then ask for it in turn: steady
//! work on other models keeps no model out.
//!
//! | module | holds |
//! |---|---|
//! | `loader`, `preset`, `catalog` | the interface to the crate that has devices and files |
//! | `facts` | what lists say about models that are not loaded |
//! | `keep` | how long a model stays loaded |
//! | `table` | what is loaded, pure |
//! | `loading` | loading and unloading |
//! | `shared` | what the parts below have in common |
//! | `lease` | a model that stays loaded while a request uses it |

mod catalog;
mod facts;
mod keep;
mod lease;
mod loader;
mod loading;
mod preset;
mod shared;
mod table;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use crate::clock::unix_seconds;
use crate::error::{ApiError, Code, shown};

pub use catalog::{Catalog, Offer, OfferState};
use facts::Known;
pub(crate) use facts::{Facts, capabilities};
pub use keep::KeepAlive;
pub(crate) use lease::Lease;
pub use loader::{
    Description, Files, Found, Library, LibraryError, Listed, LoadError, LoadedModel, Loader,
    ModelSummary, Pictures, PullProgress, Refusal,
};
use loading::Look;
pub use preset::{Preset, Recipe};
pub(crate) use shared::Named;
use shared::{Shared, Waiter, bounded};
use table::{LoadOutcome, Problem, Ready, Slot, Table};

/// Time after which a list of names that may change is asked for again.
const LIST_AGE: Duration = Duration::from_secs(1);
/// Time after which a model that has failed for a reason other than its files may be tried again,
/// for clients that ask whether the server is ready. A request tries it at any time.
const PROBLEM_PAUSE: Duration = Duration::from_secs(30);
/// Most names in the message about one that does not exist.
const NAMES_SHOWN: usize = 20;

/// The table of models.
#[derive(Debug, Clone)]
pub(crate) struct Models {
    shared: Arc<Shared>,
}

/// A name or model as it is shown to people.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The model that the name stands for.
    pub(crate) base: String,
    /// The model, while it is loaded.
    pub(crate) model: Option<Arc<LoadedModel>>,
    pub(crate) bytes: u64,
    /// Bytes of its files; 0 if nobody knows.
    pub(crate) file_bytes: u64,
    /// When it is unloaded if nobody uses it any more, in seconds since 1970; `None` if never, or
    /// if it is not loaded.
    pub(crate) expires: Option<u64>,
    /// Why it cannot be used.
    pub(crate) problem: Option<String>,
    pub(crate) modified: Option<u64>,
    /// What identifies its files; empty if that is not known.
    pub(crate) digest: String,
    /// What its files say, once they were looked at.
    pub(crate) facts: Option<Arc<Facts>>,
    /// Positions of a sequence under this name; before the model is loaded, the most that can be.
    pub(crate) context: Option<usize>,
}

/// The result of a request to unload a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unloaded {
    /// It is not loaded any more, or never was.
    Gone,
    /// Requests use it.
    InUse,
}

/// Why there is no lease.
enum Failure {
    Refused(ApiError),
    NotLoaded(String),
}

impl Models {
    /// Makes the table, with no model loaded yet.
    pub(crate) fn new(
        loader: Arc<dyn Loader>,
        keep: KeepAlive,
        budget: Option<u64>,
        waiters_max: usize,
    ) -> Self {
        let shared = Shared {
            list: Mutex::new((Instant::now(), loader.list().into())),
            facts: Mutex::default(),
            loader,
            keep,
            budget,
            waiters_max,
            table: Mutex::new(Table::default()),
            loading: tokio::sync::Mutex::new(()),
            released: Notify::new(),
            looking: tokio::sync::Mutex::new(()),
            reading: tokio::sync::Mutex::new(()),
            is_starting: AtomicBool::new(false),
            settled: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the name that is meant if a request names none.
    pub(crate) fn default_name(&self) -> String {
        self.known()[0].name.clone()
    }

    /// Returns the names as of the last time that they were asked for.
    fn known(&self) -> Arc<[Listed]> {
        Arc::clone(&self.shared.list().1)
    }

    /// Returns the current names, asked for again if they may have changed.
    async fn names(&self) -> Arc<[Listed]> {
        let shared = Arc::clone(&self.shared);
        let is_young = |at: Instant| at.elapsed() < LIST_AGE;
        if shared.loader.library().is_none() || is_young(shared.list().0) {
            return self.known();
        }
        // Requests that come at once wait for one of them to look.
        let looking = Arc::clone(&shared);
        let _one = looking.looking.lock().await;
        if is_young(shared.list().0) {
            return self.known();
        }
        let looked = tokio::task::spawn_blocking(move || {
            let names: Arc<[Listed]> = shared.loader.list().into();
            // The default name is there whatever happens to the disk.
            if !names.is_empty() {
                *shared.list() = (Instant::now(), names);
            }
        });
        if looked.await.is_err() {
            tracing::error!("the models could not be listed");
        }
        self.known()
    }

    /// Marks the names as stale: the next call that wants them asks for them again.
    fn forget_names(&self) {
        let mut list = self.shared.list();
        if let Some(past) = list.0.checked_sub(LIST_AGE) {
            list.0 = past;
        }
    }

    /// Returns what a request's name stands for; the default name for `None` or an empty name.
    ///
    /// # Errors
    /// 404 if it stands for nothing.
    pub(crate) async fn find(&self, asked: Option<&str>) -> Result<Named, ApiError> {
        let asked = match asked.filter(|asked| !asked.is_empty()) {
            Some(asked) => asked.to_owned(),
            None => self.default_name(),
        };
        let found = match self.shared.loader.library() {
            None => self.shared.look_up(&asked),
            Some(_) => {
                let (shared, asked) = (Arc::clone(&self.shared), asked.clone());
                let found = tokio::task::spawn_blocking(move || shared.look_up(&asked)).await;
                found.map_err(|_| ApiError::internal("the request met a defect of the server"))?
            }
        };
        match found {
            Ok(Some(Found { model, preset })) => {
                Ok(Named { name: asked.into(), base: model.into(), preset })
            }
            Ok(None) => {
                let names = self.names().await;
                Err(ApiError::unknown_model(
                    &asked,
                    names.iter().map(|listed| &*listed.name).take(NAMES_SHOWN),
                ))
            }
            Err(message) => Err(LibraryError::new(Refusal::Unknown, message).into()),
        }
    }

    /// Returns a lease on a model, which stays loaded while the lease lives; loads it if necessary.
    /// `keep` is how long it stays loaded after that, if the request says so.
    ///
    /// # Errors
    /// 503 if it cannot be loaded, or too many requests are waiting for loads.
    pub(crate) async fn acquire(
        &self,
        named: &Named,
        keep: Option<KeepAlive>,
    ) -> Result<Lease, ApiError> {
        self.open(named, keep).await.map_err(|failure| match failure {
            Failure::Refused(error) => error,
            Failure::NotLoaded(_) => {
                let problem = self.shared.table().problems.get(&*named.base).cloned();
                let problem = problem.unwrap_or_else(|| Problem {
                    has_changed: false,
                    stamp: 0,
                    since: Instant::now(),
                });
                let message = problem.message(&shown(&named.name));
                ApiError { code: Code::ModelNotLoaded, ..ApiError::overloaded(message) }
            }
        })
    }

    /// Loads the default model before anybody asks for it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) async fn preload(&self) -> Result<(), String> {
        let named = self.find(None).await.map_err(|error| error.message)?;
        self.shared.is_starting.store(true, Ordering::Relaxed);
        let opened = self.open(&named, None).await;
        self.shared.is_starting.store(false, Ordering::Relaxed);
        opened.map(drop).map_err(|failure| match failure {
            Failure::Refused(error) => error.message,
            Failure::NotLoaded(message) => message,
        })
    }

    async fn open(&self, named: &Named, keep: Option<KeepAlive>) -> Result<Lease, Failure> {
        let asked = Instant::now();
        let mut waiter: Option<Waiter> = None;
        // A load keeps its model as long as somebody has this receiver.
        let mut loaded: Option<watch::Receiver<LoadOutcome>> = None;
        loop {
            // Before the look: what happens between the look and the wait wakes the wait too.
            let settled = self.shared.settled.notified();
            let look = self.shared.find_or_load(named, keep).map_err(Failure::Refused)?;
            drop(loaded.take());
            if !matches!(look, Look::Ready(_)) && waiter.is_none() {
                waiter = Some(self.shared.wait().map_err(Failure::Refused)?);
            }
            let mut receiver = match look {
                Look::Ready(mut lease) => {
                    lease.asked = asked;
                    return Ok(lease);
                }
                Look::Loading(receiver) => receiver,
                Look::Leaving => {
                    settled.await;
                    continue;
                }
            };
            let outcome = tokio::select! {
                biased;
                outcome = receiver.wait_for(Option::is_some) => {
                    Some(outcome.map(|outcome| outcome.clone()))
                }
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

    /// Returns all names, the default one first.
    pub(crate) async fn entries(&self) -> Vec<Entry> {
        let names = self.names().await;
        self.look_at_files().await;
        let known = Arc::clone(&self.shared.facts().of);
        let table = self.shared.table();
        names.iter().map(|listed| entry(&table, &known, listed)).collect()
    }

    /// Looks at the files of the listed models, if that was some time ago. Nothing is loaded.
    pub(crate) async fn look_at_files(&self) {
        if self.shared.facts().is_young() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        // Requests that come at once wait for one of them to look. Those that only want a name do
        // not.
        let reading = Arc::clone(&shared);
        let _one = reading.reading.lock().await;
        if shared.facts().is_young() {
            return;
        }
        let names = self.known();
        let looked = tokio::task::spawn_blocking(move || {
            let before = Arc::clone(&shared.facts().of);
            let models = names.iter().map(|listed| listed.model.clone());
            let known = Known::look(models, &before, &*shared.loader);
            *shared.facts() = known;
        });
        if looked.await.is_err() {
            tracing::error!("the files of the models could not be looked at");
        }
    }

    /// Returns all models that names stand for, each once and by the name for people, the default
    /// one first; then those that are still loaded though no name stands for them any more.
    pub(crate) fn engines(&self) -> Vec<Entry> {
        let names = self.known();
        let known = Arc::clone(&self.shared.facts().of);
        let table = self.shared.table();
        let (mut entries, mut seen) = (Vec::new(), HashSet::new());
        for listed in names.iter() {
            if seen.insert(listed.model.as_str()) {
                let own = Listed { name: listed.short.clone(), context: None, ..listed.clone() };
                entries.push(entry(&table, &known, &own));
            }
        }
        for (name, slot) in &table.slots {
            if matches!(slot, Slot::Ready(_)) && seen.insert(name.as_str()) {
                entries.push(entry(&table, &known, &Listed::plain(name.clone(), 0)));
            }
        }
        entries
    }

    /// Returns what is known of a name.
    pub(crate) fn entry(&self, named: &Named) -> Entry {
        let names = self.known();
        let of_name = names.iter().find(|listed| *listed.name == *named.name);
        let listed = of_name.or_else(|| names.iter().find(|listed| *listed.model == *named.base));
        let (bytes, modified, digest) = match listed {
            Some(listed) => (listed.bytes, listed.modified, listed.digest.clone()),
            None => (0, None, String::new()),
        };
        let (name, model) = (named.name.to_string(), named.base.to_string());
        let context = named.preset.context;
        let known = Arc::clone(&self.shared.facts().of);
        let short = model.clone();
        let listed = Listed { name, model, short, bytes, modified, digest, context };
        entry(&self.shared.table(), &known, &listed)
    }

    /// Describes a model, loaded or not.
    ///
    /// # Errors
    /// 503 if its files cannot be read.
    pub(crate) async fn summary(&self, named: &Named) -> Result<ModelSummary, ApiError> {
        if let Some(ready) = self.shared.table().ready(&named.base) {
            return Ok(ready.model.summary());
        }
        let (loader, base) = (Arc::clone(&self.shared.loader), Arc::clone(&named.base));
        let summary = tokio::task::spawn_blocking(move || loader.summary(&base)).await;
        let summary =
            summary.map_err(|_| ApiError::internal("the request met a defect of the server"))?;
        summary.map_err(|problem| {
            tracing::error!(model = %shown(&named.base), problem, "the model cannot be described");
            let name = shown(&named.name);
            let message = format!("the model {name} cannot be read; the server's log says why");
            ApiError { code: Code::ModelNotLoaded, ..ApiError::overloaded(message) }
        })
    }

    /// Checks whether the default model can be used as far as is known.
    ///
    /// # Errors
    /// 503 with the reason why it cannot be used.
    pub(crate) async fn check_default(&self) -> Result<(), ApiError> {
        let name = self.default_name();
        let base = self.known()[0].model.clone();
        let Some(problem) = self.shared.table().problems.get(&base).cloned() else { return Ok(()) };
        let stamp = self.shared.stamp(&base).await;
        if Table::may_work(&problem, stamp, PROBLEM_PAUSE) {
            return Ok(());
        }
        let message = problem.message(&shown(&name));
        Err(ApiError { code: Code::ModelNotLoaded, ..ApiError::overloaded(message) })
    }

    /// Returns whether any model has a problem.
    pub(crate) fn has_problem(&self) -> bool {
        !self.shared.table().problems.is_empty()
    }

    /// Returns the library that manages the models on disk, if clients may use it.
    ///
    /// # Errors
    /// 403 if this server serves only the models that it was started with.
    pub(crate) fn check_library(&self) -> Result<(), ApiError> {
        if self.shared.loader.library().is_some() {
            return Ok(());
        }
        let message = "this server serves the models that it was started with; start `trine serve` \
            without naming models to manage them through it";
        Err(ApiError::forbidden(Code::LibraryClosed, message))
    }

    /// Runs work on the models on disk, on a thread that may wait; the list of names may change
    /// through it.
    ///
    /// # Errors
    /// As [`Models::check_library`], and the errors of the work.
    pub(crate) async fn manage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Library) -> Result<T, LibraryError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.check_library()?;
        let loader = Arc::clone(&self.shared.loader);
        let done = tokio::task::spawn_blocking(move || loader.library().map(work)).await;
        self.forget_names();
        match done {
            Ok(Some(done)) => done.map_err(ApiError::from),
            Ok(None) | Err(_) => Err(ApiError::internal("the request met a defect of the server")),
        }
    }

    /// Runs the work of [`Models::manage`] on the calling thread.
    ///
    /// # Errors
    /// As [`Models::manage`].
    pub(crate) fn manage_here<T>(
        &self,
        work: impl FnOnce(&dyn Library) -> Result<T, LibraryError>,
    ) -> Result<T, LibraryError> {
        let done = self.shared.loader.library().map(work);
        self.forget_names();
        done.unwrap_or_else(|| Err(LibraryError::new(Refusal::Failed, "there is no library")))
    }

    /// Unloads a model that nobody uses; one that is in use is unloaded when its requests have
    /// ended.
    pub(crate) async fn unload(&self, base: &str) -> Unloaded {
        if let Some(ready) = self.shared.table().ready_mut(base) {
            ready.keep = KeepAlive::For(Duration::ZERO);
        }
        self.unload_idle(base).await
    }

    /// Unloads a model that nobody uses.
    pub(crate) async fn unload_idle(&self, base: &str) -> Unloaded {
        let model = {
            let mut table = self.shared.table();
            match table.begin_to_stop(base) {
                Some(model) => model,
                None if table.ready(base).is_some() => return Unloaded::InUse,
                None => return Unloaded::Gone,
            }
        };
        self.shared.finish_to_stop(base.to_owned(), model).await;
        Unloaded::Gone
    }

    /// Forgets what is known of a model that no longer exists.
    pub(crate) fn forget(&self, base: &str) {
        let mut table = self.shared.table();
        table.problems.remove(base);
        table.stamps.remove(base);
        table.sizes.remove(base);
    }

    /// Unloads models when their time is over; never returns.
    pub(crate) async fn expire(&self) {
        self.shared.expire().await;
    }

    /// Grants no more leases, and ends the waits for them. Requests that have a lease go on: they
    /// may give their engine as much work as they need.
    pub(crate) fn drain(&self) {
        self.shared.table().is_closed = true;
        self.shared.settled.notify_waiters();
        self.shared.released.notify_waiters();
    }

    /// Ends all engines. Waits for their threads: for a thread that may wait.
    pub(crate) fn stop(&self) {
        self.drain();
        let slots = std::mem::take(&mut self.shared.table().slots);
        let models = slots.into_values().filter_map(|slot| match slot {
            Slot::Ready(Ready { model, .. }) => Some(model),
            Slot::Loading(_) | Slot::Stopping(_) => None,
        });
        let models: Vec<Arc<LoadedModel>> = models.collect();
        // None of them goes on while others end.
        models.iter().for_each(|model| model.service.end());
        models.iter().for_each(|model| model.stop());
    }
}

fn entry(table: &Table, known: &HashMap<String, Arc<Facts>>, listed: &Listed) -> Entry {
    let facts = known.get(&listed.model).cloned();
    let ready = table.ready(&listed.model);
    let model = ready.map(|ready| Arc::clone(&ready.model));
    let estimate = listed.bytes.max(table.size(&listed.model));
    let expires = ready
        .and_then(Ready::expires)
        .map(|at| unix_seconds() + at.saturating_duration_since(Instant::now()).as_secs());
    let failed = table.problems.get(&listed.model);
    let served = || {
        let served = facts.as_ref()?.description.as_ref()?.served;
        Some(listed.context.map_or(served, |context| context.min(served))).filter(|&most| most > 0)
    };
    let context = model.as_ref().map(|model| bounded(listed.context, model)).or_else(served);
    let own = || facts.as_ref().map(|facts| facts.digest.clone()).unwrap_or_default();
    let digest = if listed.digest.is_empty() { own() } else { listed.digest.clone() };
    Entry {
        name: listed.name.clone(),
        base: listed.model.clone(),
        bytes: model.as_ref().map_or(estimate, |model| model.bytes),
        file_bytes: listed.bytes,
        model,
        expires,
        problem: failed.map(|problem| problem.message(&shown(&listed.name))),
        modified: listed.modified,
        digest,
        facts,
        context,
    }
}
