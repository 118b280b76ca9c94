//! The barrier between two steps of a dispatch.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The panic payload of threads that were stopped because another one panicked.
pub(super) struct PeerPanicked;

/// All threads wait for the last one, then all go on.
///
/// The generation plays the part of the sense: a waiter watches for its change, so the barrier is
/// ready for the next step the moment the last thread arrives. What a thread wrote before `wait`
/// is seen by every thread after it.
#[derive(Debug)]
pub struct Barrier {
    count: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    poisoned: AtomicBool,
}

impl Barrier {
    pub(super) fn new(count: usize) -> Self {
        Barrier {
            count,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            poisoned: AtomicBool::new(false),
        }
    }

    /// Waits until every thread of the pool has called this.
    ///
    /// When another thread has panicked, unwinds to the end of the dispatch instead: that thread
    /// will never arrive.
    pub fn wait(&self) {
        if self.count == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.store(0, Ordering::Relaxed);
            self.generation.store(generation.wrapping_add(1), Ordering::Release);
        } else {
            let mut patience = Patience::new();
            while self.generation.load(Ordering::Acquire) == generation {
                if self.poisoned.load(Ordering::Relaxed) {
                    // Not a new panic but the end of this thread's part: the hook stays silent.
                    resume_unwind(Box::new(PeerPanicked));
                }
                patience.wait();
            }
        }
    }

    /// Stops every thread that waits or will wait.
    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::Relaxed);
    }

    /// Forgets a dispatch that was stopped half way. Only between dispatches.
    pub(super) fn reset(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.poisoned.store(false, Ordering::Relaxed);
    }
}

/// How to wait for something that is expected within microseconds, but may take long when another
/// program holds the core of the thread waited for: spin, then give the core away, then nap.
pub(super) struct Patience(u32);

/// About 20 us of spinning: longer than the spread of a balanced step.
const SPINS: u32 = 2_000;
/// Yields before naps; on an oversubscribed machine a yield is what lets the late thread run.
const YIELDS: u32 = 2_000;
const NAP: Duration = Duration::from_micros(50);

impl Patience {
    pub(super) fn new() -> Self {
        Patience(0)
    }

    pub(super) fn wait(&mut self) {
        if self.0 < SPINS {
            std::hint::spin_loop();
        } else if self.0 < SPINS + YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
            return;
        }
        self.0 += 1;
    }
}
