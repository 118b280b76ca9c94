//! Wakes an engine that waits for rows of pictures.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Is rung from the threads of towers.
#[derive(Default)]
pub(crate) struct WakeSignal {
    is_rung: Mutex<bool>,
    rings: Condvar,
    /// A function that is called whenever the wake rings.
    outer: Mutex<Option<Box<dyn Fn() + Send + Sync>>>,
}

impl WakeSignal {
    /// Sets what is called with each ring.
    pub(crate) fn set_outer(&self, outer: Box<dyn Fn() + Send + Sync>) {
        *self.outer.lock().unwrap_or_else(PoisonError::into_inner) = Some(outer);
    }

    pub(crate) fn has_outer(&self) -> bool {
        self.outer.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn ring(&self) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rings.notify_all();
        if let Some(outer) = &*self.outer.lock().unwrap_or_else(PoisonError::into_inner) {
            outer();
        }
    }

    /// Forgets the rings so far.
    pub(crate) fn rest(&self) {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    pub(crate) fn is_rung(&self) -> bool {
        *self.is_rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is rung, but no longer than this.
    pub(crate) fn wait(&self, most: Duration) {
        let is_rung = self.is_rung.lock().unwrap_or_else(PoisonError::into_inner);
        // Whether the time has passed does not matter.
        drop(self.rings.wait_timeout_while(is_rung, most, |is_rung| !*is_rung));
    }
}
