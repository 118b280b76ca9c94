//! The server's life: accepting requests, draining, ending at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// What the server is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It accepts requests.
    Running,
    /// It finishes the requests that it has.
    Draining,
    /// It ends the requests that it has with an error.
    Aborting,
}

/// Tells every part of the server what phase it is in, and counts the requests in flight.
#[derive(Debug, Clone)]
pub(crate) struct Lifecycle {
    phase: Arc<watch::Sender<Phase>>,
    in_flight: Arc<watch::Sender<usize>>,
    /// Time that a request may take.
    request: Option<Duration>,
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<watch::Sender<usize>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Lifecycle {
    /// Returns the lifecycle of a server that runs, and that gives each request this much time.
    pub(crate) fn new(request: Option<Duration>) -> Self {
        Self {
            phase: Arc::new(watch::Sender::new(Phase::Running)),
            in_flight: Arc::new(watch::Sender::new(0)),
            request,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Advances to a later phase; an earlier one is ignored.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let is_later = phase > *current;
            *current = phase.max(*current);
            is_later
        });
    }

    /// Waits until the server is in `phase` or a later one.
    pub(crate) async fn reached(&self, phase: Phase) {
        // The sender lives as long as self.
        let _ = self.phase.subscribe().wait_for(|current| *current >= phase).await;
    }

    /// Returns when a request that came at `came` has to end.
    pub(crate) fn deadline(&self, came: Instant) -> Option<Instant> {
        self.request.and_then(|time| came.checked_add(time))
    }

    pub(crate) fn begin(&self) -> InFlight {
        self.in_flight.send_modify(|count| *count += 1);
        InFlight(Arc::clone(&self.in_flight))
    }

    /// Returns the number of requests that are being answered.
    pub(crate) fn in_flight(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Waits until no request is in flight, but not longer than `at_most`.
    pub(crate) async fn idle(&self, at_most: Duration) {
        let mut receiver = self.in_flight.subscribe();
        let idle = receiver.wait_for(|count| *count == 0);
        let _ = tokio::time::timeout(at_most, idle).await;
    }
}
