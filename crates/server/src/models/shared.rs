//! The state that the table of models and its leases share: the names, the slots, and who waits for
//! them.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::facts::Known;
use super::keep::KeepAlive;
use super::loader::{Found, Listed, LoadedModel, Loader};
use super::preset::Preset;
use super::table::Table;
use crate::error::ApiError;

/// The result of looking up a request's name.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    /// The name that was asked for, or the default one.
    pub(crate) name: Arc<str>,
    /// The model.
    pub(crate) base: Arc<str>,
    pub(crate) preset: Arc<Preset>,
}

/// The state that the table of models and its leases share.
pub(super) struct Shared {
    pub(super) loader: Arc<dyn Loader>,
    /// The names, and when they were asked for.
    pub(super) list: Mutex<(Instant, Arc<[Listed]>)>,
    /// What the files of the listed models say.
    pub(super) facts: Mutex<Known>,
    /// Held by the request that asks for the names again.
    pub(super) looking: tokio::sync::Mutex<()>,
    /// Held by the request that reads again what the files say.
    pub(super) reading: tokio::sync::Mutex<()>,
    pub(super) keep: KeepAlive,
    pub(super) budget: Option<u64>,
    pub(super) waiters_max: usize,
    pub(super) table: Mutex<Table>,
    /// Held by a load: one at a time.
    pub(super) loading: tokio::sync::Mutex<()>,
    /// Notified when a lease ends, a model is gone or its time has changed, and when the table is
    /// closed.
    pub(super) released: Notify,
    /// Whether the server is loading its first model, whose failure is the program's own error.
    pub(super) is_starting: AtomicBool,
    /// Notified when models that were leaving are gone or stay, and when the table is closed.
    pub(super) settled: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Models").finish_non_exhaustive()
    }
}

/// A request that waits for a load, or for a model to leave.
pub(super) struct Waiter(Arc<Shared>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.table().waiters -= 1;
    }
}

/// Returns the positions of a sequence; a name may set fewer than the model has.
pub(super) fn bounded(context: Option<usize>, model: &LoadedModel) -> usize {
    let most = model.service.limits().context;
    context.map_or(most, |context| context.min(most))
}

impl Shared {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn list(&self) -> MutexGuard<'_, (Instant, Arc<[Listed]>)> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn facts(&self) -> MutexGuard<'_, Known> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.table().is_closed
    }

    /// Returns what a name stands for. Ollama's clients add a tag if none was typed.
    pub(super) fn look_up(&self, asked: &str) -> Result<Option<Found>, String> {
        let found = self.loader.find(asked)?;
        match asked.strip_suffix(":latest") {
            Some(bare) if found.is_none() => self.loader.find(bare),
            _ => Ok(found),
        }
    }

    /// Returns [`Loader::stamp`], computed on a thread that may wait.
    pub(super) async fn stamp(self: &Arc<Self>, base: &str) -> u64 {
        let (loader, base) = (Arc::clone(&self.loader), base.to_owned());
        tokio::task::spawn_blocking(move || loader.stamp(&base)).await.unwrap_or_default()
    }

    pub(super) fn wait(self: &Arc<Self>) -> Result<Waiter, ApiError> {
        let mut table = self.table();
        if table.waiters >= self.waiters_max {
            return Err(ApiError::overloaded(format!(
                "{} requests are waiting for models to be loaded, no more are taken; try again \
                 later",
                table.waiters
            )));
        }
        table.waiters += 1;
        drop(table);
        Ok(Waiter(Arc::clone(self)))
    }
}
