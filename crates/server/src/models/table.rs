//! The table of models: what is loaded, who uses it, and what has failed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::keep::KeepAlive;
use super::loader::LoadedModel;

/// The result of a load, once it has ended.
pub(super) type LoadOutcome = Option<Result<(), String>>;

/// Steps in which the device may fail without producing a text in between before the model is
/// loaded again. A request that fails has been tried twice.
pub(super) const FAILED_STEPS: u64 = 4;

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) slots: HashMap<String, Slot>,
    /// Bytes that each model took when it was loaded; before its first load there is only an
    /// estimate.
    pub(super) sizes: HashMap<String, u64>,
    /// The stamp of each model's files when it was last loaded.
    pub(super) stamps: HashMap<String, u64>,
    /// Models that cannot be used at the moment, as far as is known.
    pub(super) problems: HashMap<String, Problem>,
    /// Loads that wait for room, the oldest first: models leave for that one.
    pub(super) room: VecDeque<u64>,
    pub(super) waiters: usize,
    pub(super) is_closed: bool,
}

#[derive(Debug)]
pub(super) enum Slot {
    /// Being loaded. Whoever waits for it has a receiver of this sender.
    Loading(Arc<watch::Sender<LoadOutcome>>),
    Ready(Ready),
    /// Its engine is ending; this many bytes are free when it has ended.
    Stopping(u64),
}

#[derive(Debug)]
pub(super) struct Ready {
    pub(super) model: Arc<LoadedModel>,
    pub(super) leases: usize,
    pub(super) used: Instant,
    pub(super) keep: KeepAlive,
    /// Whether a load waits for its room: there are no more leases until it is gone, or stays after
    /// all.
    pub(super) is_leaving: bool,
    /// Whether it writes no more texts: there are no more leases until it is gone.
    pub(super) has_failed: bool,
    /// Number of steps in which its device had failed when it last wrote a text.
    pub(super) failed_steps: u64,
}

impl Ready {
    /// Returns when it is unloaded if nobody uses it any more, or `None` if never.
    pub(super) fn expires(&self) -> Option<Instant> {
        match self.keep {
            KeepAlive::Forever => None,
            KeepAlive::For(time) => {
                let last = if self.leases > 0 { Instant::now() } else { self.used };
                last.checked_add(time)
            }
        }
    }
}

/// Why a model cannot be used.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    /// Whether its files differ from those that were loaded last.
    pub(super) has_changed: bool,
    /// The stamp of its files when it failed.
    pub(super) stamp: u64,
    pub(super) since: Instant,
}

impl Problem {
    /// Returns the message for clients; paths are nobody's business but the machine's.
    pub(super) fn message(&self, shown: &str) -> String {
        if self.has_changed {
            format!(
                "the model {shown} cannot be used: its file was changed, cut or removed after it \
                 was loaded; put it back, and the next request loads it again"
            )
        } else {
            format!(
                "the model {shown} cannot be loaded; the server's log says why. Try another model, \
                 or later"
            )
        }
    }
}

/// The result of a search for room.
pub(super) enum RoomFound {
    Enough,
    Unload(String, Arc<LoadedModel>),
    InUse,
    /// Nothing is loaded any more: the server is shutting down.
    Closed,
}

/// A model whose time is over, or when the next one's time is over.
pub(super) enum Expired {
    Now(String, Arc<LoadedModel>),
    At(Option<Instant>),
}

impl Table {
    /// Returns the bytes that a model took when it was last loaded, or 0 if it never was.
    pub(super) fn size(&self, name: &str) -> u64 {
        self.sizes.get(name).copied().unwrap_or(0)
    }

    pub(super) fn ready(&self, name: &str) -> Option<&Ready> {
        match self.slots.get(name) {
            Some(Slot::Ready(ready)) => Some(ready),
            _ => None,
        }
    }

    pub(super) fn ready_mut(&mut self, name: &str) -> Option<&mut Ready> {
        match self.slots.get_mut(name) {
            Some(Slot::Ready(ready)) => Some(ready),
            _ => None,
        }
    }

    /// Begins to unload a model that nobody uses. The caller that gets it ends its engine.
    pub(super) fn begin_to_stop(&mut self, name: &str) -> Option<Arc<LoadedModel>> {
        let ready = self.ready(name).filter(|ready| ready.leases == 0)?;
        let model = Arc::clone(&ready.model);
        self.slots.insert(name.to_owned(), Slot::Stopping(model.bytes));
        Some(model)
    }

    /// Begins to unload the least recently used model that nobody uses, if there is one.
    pub(super) fn begin_to_stop_oldest(&mut self) -> Option<(String, Arc<LoadedModel>)> {
        let ready = self.slots.keys().filter_map(|name| Some((name, self.ready(name)?)));
        let unused = ready.filter(|(_, ready)| ready.leases == 0);
        let oldest = unused.min_by_key(|(_, ready)| ready.used)?.0.clone();
        let model = self.begin_to_stop(&oldest)?;
        Some((oldest, model))
    }

    /// Takes the least recently used model that nobody uses out of the table, if others may take no
    /// more than `allowed` bytes. If all are used, marks those that have to leave, for the load
    /// that has waited longest. Also returns whether a model that was leaving stays.
    pub(super) fn look_for_room(&mut self, allowed: u64, load: u64) -> (RoomFound, bool) {
        if self.is_closed {
            return (RoomFound::Closed, false);
        }
        let (mut taken, mut stopping, mut oldest) = (0_u64, 0_u64, None::<(Instant, &String)>);
        for (name, slot) in &self.slots {
            match slot {
                Slot::Ready(ready) => {
                    taken = taken.saturating_add(ready.model.bytes);
                    if ready.leases == 0 && oldest.is_none_or(|(other, _)| ready.used < other) {
                        oldest = Some((ready.used, name));
                    }
                }
                Slot::Stopping(bytes) => stopping = stopping.saturating_add(*bytes),
                Slot::Loading(_) => {}
            }
        }
        if taken.saturating_add(stopping) <= allowed {
            return (RoomFound::Enough, false);
        }
        let oldest = oldest.map(|(_, name)| name.clone()).filter(|_| taken > allowed);
        if let Some(name) = oldest
            && let Some(model) = self.begin_to_stop(&name)
        {
            return (RoomFound::Unload(name, model), true);
        }
        if !self.room.contains(&load) {
            self.room.push_back(load);
        }
        let is_first = self.room.front() == Some(&load);
        let one_stays = is_first && self.mark_leaving(taken.saturating_sub(allowed));
        (RoomFound::InUse, one_stays)
    }

    /// Marks models to leave, the least recently used ones first, until they free `bytes`. Returns
    /// whether a model that was leaving stays.
    fn mark_leaving(&mut self, mut bytes: u64) -> bool {
        let mut ready: Vec<&mut Ready> = self.all_ready().collect();
        // Those that are leaving come first: each lease that ends makes its model a recently used
        // one.
        ready.sort_by_key(|ready| (!ready.is_leaving, ready.used));
        let mut one_stays = false;
        for ready in ready {
            let leaves = bytes > 0;
            one_stays |= ready.is_leaving && !leaves;
            ready.is_leaving = leaves;
            bytes = bytes.saturating_sub(ready.model.bytes);
        }
        one_stays
    }

    /// Ends a load's wait for room: the models that are still there stay. Returns whether models
    /// were leaving for it.
    pub(super) fn leave_room(&mut self, load: u64) -> bool {
        let was_first = self.room.front() == Some(&load);
        self.room.retain(|other| *other != load);
        if was_first {
            self.all_ready().for_each(|ready| ready.is_leaving = false);
        }
        was_first
    }

    /// Begins to unload a model whose time is over, or that has failed and that nobody uses any
    /// more.
    pub(super) fn take_expired(&mut self, now: Instant) -> Expired {
        let mut next = None::<Instant>;
        let mut over = None;
        for (name, slot) in &self.slots {
            let Slot::Ready(ready) = slot else { continue };
            if ready.leases > 0 {
                continue;
            }
            match ready.expires() {
                _ if ready.has_failed => over = Some(name.clone()),
                Some(at) if at <= now => over = Some(name.clone()),
                Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                None => {}
            }
        }
        match over.and_then(|name| self.begin_to_stop(&name).map(|model| (name, model))) {
            Some((name, model)) => Expired::Now(name, model),
            None => Expired::At(next),
        }
    }

    fn all_ready(&mut self) -> impl Iterator<Item = &mut Ready> {
        self.slots.values_mut().filter_map(|slot| match slot {
            Slot::Ready(ready) => Some(ready),
            Slot::Loading(_) | Slot::Stopping(_) => None,
        })
    }

    /// Returns whether the next request may try a model that has failed: its files have changed
    /// since or, if they are not the cause, some time has passed.
    pub(super) fn may_work(problem: &Problem, stamp: u64, pause: Duration) -> bool {
        stamp != problem.stamp || !problem.has_changed && problem.since.elapsed() >= pause
    }
}
