//! Loading and unloading: one load at a time, and no load that nobody waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::keep::KeepAlive;
use super::lease::Lease;
use super::loader::LoadedModel;
use super::shared::{Named, Shared};
use super::table::{Expired, LoadOutcome, Problem, Ready, RoomFound, Slot};
use crate::error::{ApiError, shown};

/// How long a load waits for the requests of other models to end when there is no room beside these
/// models.
const ROOM_WAIT: Duration = Duration::from_secs(300);
/// Most time that a model is kept for the requests that waited for it. They take it as soon as they
/// run.
const TAKE_WAIT: Duration = Duration::from_secs(5);
/// Why nothing is loaded any more.
const CLOSED: &str = "the server is shutting down";

/// What makes a loaded model take less memory.
const LESS: &str = "use a smaller --kv-memory or fewer --sequences";
const MEGABYTE: u64 = 1_000_000;

/// The number of the next load.
static LOADS: AtomicU64 = AtomicU64::new(0);

/// Ends the engine of a model.
async fn stop(name: &str, model: Arc<LoadedModel>) {
    let stopped = tokio::task::spawn_blocking(move || model.stop()).await;
    if stopped.is_err() {
        tracing::error!(model = %shown(name), "its engine could not be stopped");
    }
}

/// A load that may wait for room. Once it has room or gives up, the models that are still there
/// stay.
struct WaitingLoad<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for WaitingLoad<'_> {
    fn drop(&mut self) {
        if self.shared.table().leave_room(self.number) {
            self.shared.settled.notify_waiters();
            // The next load that waits is now the first.
            self.shared.released.notify_waiters();
        }
    }
}

/// What a request finds under its model's name.
pub(super) enum Look {
    Ready(Lease),
    Loading(watch::Receiver<LoadOutcome>),
    /// Loaded, and about to be unloaded.
    Leaving,
}

impl Shared {
    pub(super) fn find_or_load(
        self: &Arc<Self>,
        named: &Named,
        keep: Option<KeepAlive>,
    ) -> Result<Look, ApiError> {
        let base = &*named.base;
        let mut table = self.table();
        if table.is_closed {
            return Err(ApiError::draining());
        }
        if table.ready(base).is_some_and(|ready| !ready.model.service.is_alive()) {
            tracing::error!(model = %shown(base), "its engine met a defect; it is loaded again");
            table.slots.remove(base);
        }
        match table.slots.get_mut(base) {
            Some(Slot::Ready(ready)) if ready.is_leaving || ready.has_failed => Ok(Look::Leaving),
            Some(Slot::Stopping(_)) => Ok(Look::Leaving),
            Some(Slot::Ready(ready)) => {
                ready.leases += 1;
                ready.used = Instant::now();
                ready.keep = keep.unwrap_or(ready.keep);
                Ok(Look::Ready(Lease::new(named, &ready.model, ready.used, self)))
            }
            Some(Slot::Loading(sender)) => Ok(Look::Loading(sender.subscribe())),
            None => {
                let (sender, receiver) = watch::channel(None);
                let sender = Arc::new(sender);
                table.slots.insert(base.to_owned(), Slot::Loading(Arc::clone(&sender)));
                // In a task of its own: the client that asked first may go away.
                tokio::spawn(Arc::clone(self).load_when_there_is_room(base.to_owned(), sender));
                Ok(Look::Loading(receiver))
            }
        }
    }

    /// Loads a model when it is its turn and there is room, and tells the requests that wait for
    /// it. A load that waits for room leaves the turn to others; one that nobody waits for any more
    /// is given up.
    pub(super) async fn load_when_there_is_room(
        self: Arc<Self>,
        name: String,
        sender: Arc<watch::Sender<LoadOutcome>>,
    ) {
        let waiting = WaitingLoad { shared: &self, number: LOADS.fetch_add(1, Ordering::Relaxed) };
        let deadline = tokio::time::Instant::now() + ROOM_WAIT;
        let message = loop {
            // Before the look: what is released between the look and the wait wakes the wait too.
            let released = self.released.notified();
            let turn = tokio::select! {
                turn = self.loading.lock() => turn,
                () = sender.closed() => match self.give_up(&name, &sender) {
                    true => return,
                    false => continue,
                },
            };
            match self.load(&name, waiting.number).await {
                Ok(Some(_lease)) => {
                    // The turn ends when the requests that waited have their leases: otherwise the
                    // next load might unload the model before anybody has used it.
                    sender.send_replace(Some(Ok(())));
                    let _ = tokio::time::timeout(TAKE_WAIT, sender.closed()).await;
                    return;
                }
                Ok(None) => drop(turn),
                Err(message) => break message,
            }
            tokio::select! {
                () = released => {}
                () = sender.closed() => {
                    if self.give_up(&name, &sender) {
                        return;
                    }
                }
                () = tokio::time::sleep_until(deadline) => {
                    break "there is no room for it beside models that requests are using"
                        .to_owned();
                }
            }
        };
        self.fail(&name, &sender, message).await;
    }

    /// Ends a load that nobody waits for; returns false if somebody does after all.
    fn give_up(&self, name: &str, sender: &watch::Sender<LoadOutcome>) -> bool {
        // A request begins to wait only under the table's lock.
        let mut table = self.table();
        if sender.receiver_count() > 0 {
            return false;
        }
        table.slots.remove(name);
        drop(table);
        tracing::info!(model = %shown(name),
            "nobody waits for the model any more; it is not loaded");
        true
    }

    async fn fail(
        self: &Arc<Self>,
        name: &str,
        sender: &watch::Sender<LoadOutcome>,
        message: String,
    ) {
        if !self.is_starting.load(Ordering::Relaxed) {
            tracing::error!(model = %shown(name), message, "the model was not loaded");
        }
        let stamp = self.stamp(name).await;
        let mut table = self.table();
        table.slots.remove(name);
        if !table.is_closed {
            let has_changed = table.stamps.get(name).is_some_and(|loaded| *loaded != stamp);
            let problem = Problem { has_changed, stamp, since: Instant::now() };
            table.problems.insert(name.to_owned(), problem);
        }
        drop(table);
        sender.send_replace(Some(Err(message)));
    }

    /// Loads a model and puts it in the table; returns `None` if there is no room for it at the
    /// moment. For one task at a time: the contents of the table decide what there is room for.
    async fn load(self: &Arc<Self>, name: &str, number: u64) -> Result<Option<Lease>, String> {
        let known = self.table().size(name);
        let bytes = self.loader.bytes(name).max(known);
        if !self.make_room(bytes, number, "use a smaller model").await? {
            return Ok(None);
        }
        let started = Instant::now();
        let (stamp, model) = self.load_with_context(name).await?;
        let seconds = started.elapsed().as_secs_f64();
        self.table().sizes.insert(name.to_owned(), model.bytes);
        // It may take more than was estimated.
        let placed = match self.make_room(model.bytes, number, LESS).await {
            Ok(true) => self.place(name, &model, stamp).map(Some),
            Ok(false) => Ok(None),
            Err(message) => Err(message),
        };
        if !matches!(placed, Ok(Some(_))) {
            // Its memory is free again before anything else is loaded.
            stop(name, model).await;
            return placed;
        }
        tracing::info!(model = %shown(name), seconds, "the model is loaded");
        placed
    }

    /// Loads a model. As long as memory leaves it no room or too short a context, and there are
    /// models that nobody uses, the least recently used one of these is unloaded and it is loaded
    /// again.
    async fn load_with_context(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<(u64, Arc<LoadedModel>), String> {
        loop {
            let (loader, asked) = (Arc::clone(&self.loader), name.to_owned());
            let loaded = tokio::task::spawn_blocking(move || {
                // Before the files are opened: changes to them from then on are noticed.
                (loader.stamp(&asked), loader.load(&asked))
            });
            let (stamp, model) =
                loaded.await.map_err(|_| "loading it met a defect of the server".to_owned())?;
            let model = model.map(Arc::new);
            let is_short = match &model {
                Ok(model) => model.is_short,
                Err(error) => error.lacks_memory,
            };
            let oldest = if is_short { self.table().begin_to_stop_oldest() } else { None };
            let Some((other, unused)) = oldest else {
                return model.map(|model| (stamp, model)).map_err(|error| error.message);
            };
            tracing::info!(
                model = %shown(&other),
                "unloading the model: beside it there is too little memory for another and its \
                 context"
            );
            self.finish_to_stop(other, unused).await;
            if let Ok(model) = model {
                stop(name, model).await;
            }
        }
    }

    /// Puts a model for which there is room in the table.
    fn place(
        self: &Arc<Self>,
        name: &str,
        model: &Arc<LoadedModel>,
        stamp: u64,
    ) -> Result<Lease, String> {
        let mut table = self.table();
        if table.is_closed {
            return Err(CLOSED.to_owned());
        }
        let used = Instant::now();
        let ready = Ready {
            model: Arc::clone(model),
            leases: 1,
            used,
            keep: self.keep,
            is_leaving: false,
            has_failed: false,
            failed_steps: 0,
        };
        table.slots.insert(name.to_owned(), Slot::Ready(ready));
        table.stamps.insert(name.to_owned(), stamp);
        table.problems.remove(name);
        let name: Arc<str> = name.into();
        let named = Named { name: Arc::clone(&name), base: name, preset: Arc::default() };
        Ok(Lease::new(&named, model, used, self))
    }

    /// Unloads models that nobody uses, the least recently used ones first, until there is room.
    /// Where all are used, some leave as soon as their requests have ended, and there is no room
    /// yet. `remedy` is what helps besides a larger budget if there never is.
    async fn make_room(
        self: &Arc<Self>,
        bytes: u64,
        number: u64,
        remedy: &str,
    ) -> Result<bool, String> {
        let Some(budget) = self.budget else {
            return if self.is_closed() { Err(CLOSED.to_owned()) } else { Ok(true) };
        };
        if bytes > budget {
            return Err(format!(
                "it takes {} MB of memory, and --memory allows all models together {} MB; allow \
                 more, or {remedy}",
                bytes.div_ceil(MEGABYTE),
                budget / MEGABYTE
            ));
        }
        loop {
            let (room, is_settled) = self.table().look_for_room(budget - bytes, number);
            if is_settled {
                self.settled.notify_waiters();
            }
            match room {
                RoomFound::Enough => return Ok(true),
                RoomFound::InUse => return Ok(false),
                RoomFound::Closed => return Err(CLOSED.to_owned()),
                RoomFound::Unload(name, model) => {
                    tracing::info!(model = %shown(&name), "unloading the model to make room");
                    self.finish_to_stop(name, model).await;
                }
            }
        }
    }

    /// Ends the engine of a model that is marked in the table as stopping, and takes it out. Goes
    /// on even if nobody waits for it.
    pub(super) async fn finish_to_stop(self: &Arc<Self>, name: String, model: Arc<LoadedModel>) {
        let shared = Arc::clone(self);
        let task = tokio::spawn(async move {
            stop(&name, model).await;
            let mut table = shared.table();
            if matches!(table.slots.get(&name), Some(Slot::Stopping(_))) {
                table.slots.remove(&name);
            }
            drop(table);
            shared.settled.notify_waiters();
            shared.released.notify_waiters();
        });
        // The task does not panic, nor is it ended before the runtime is.
        let _ = task.await;
    }

    /// Unloads models when their time is over; never returns.
    pub(super) async fn expire(self: &Arc<Self>) {
        loop {
            let released = self.released.notified();
            let expired = self.table().take_expired(Instant::now());
            match expired {
                Expired::Now(name, model) => {
                    tracing::info!(model = %shown(&name), "unloading the model that nobody uses");
                    self.finish_to_stop(name, model).await;
                }
                Expired::At(None) => released.await,
                Expired::At(Some(at)) => {
                    // Whichever comes first.
                    let _ = tokio::time::timeout_at(at.into(), released).await;
                }
            }
        }
    }
}
