//! Seats on which threads wait when there is no work for them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread looks for work before it sleeps: longer than the spread of a balanced phase
/// and than most pauses between two dispatches, and about what a wake-up costs. The core of a
/// sleeping thread is free for a thread that was stopped elsewhere.
const LOOK: Duration = Duration::from_micros(50);

/// The number of looks between two readings of the clock.
const LOOKS: usize = 32;

/// One sleeper for each thread of the pool.
#[derive(Debug)]
pub(super) struct Seats {
    sleepers: Box<[Sleeper]>,
    /// The number of threads that sleep or are about to.
    asleep: AtomicUsize,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Sleeper {
    asleep: AtomicBool,
    /// The thread that sleeps.
    thread: Mutex<Option<Thread>>,
}

impl Seats {
    pub(super) fn new(threads: usize) -> Self {
        Seats {
            sleepers: (0..threads).map(|_| Sleeper::default()).collect(),
            asleep: AtomicUsize::new(0),
        }
    }

    /// Looks until `ready` holds, for at most [`LOOK`]; then sleeps until woken. Returns whether it
    /// stopped looking.
    ///
    /// A thread that makes `ready` true does so before it calls [`wake`](Self::wake), both in
    /// sequentially consistent order: either it sees the flag of this thread, or this thread sees
    /// that `ready` holds. So no wake-up is lost.
    pub(super) fn wait(&self, index: usize, ready: impl Fn() -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < LOOK {
            for _ in 0..LOOKS {
                if ready() {
                    return false;
                }
                std::hint::spin_loop();
            }
        }
        let sleeper = &self.sleepers[index];
        *sleeper.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.asleep.fetch_add(1, Ordering::SeqCst);
        sleeper.asleep.store(true, Ordering::SeqCst);
        if !ready() {
            thread::park();
        }
        sleeper.asleep.store(false, Ordering::SeqCst);
        self.asleep.fetch_sub(1, Ordering::SeqCst);
        true
    }

    /// Wakes up to `count` sleepers.
    pub(super) fn wake(&self, mut count: usize) {
        if self.asleep.load(Ordering::SeqCst) == 0 {
            return;
        }
        for index in 0..self.sleepers.len() {
            if count == 0 {
                break;
            }
            count -= usize::from(self.wake_one(index));
        }
    }

    /// Wakes the thread of one sleeper if it sleeps, and returns whether it did.
    pub(super) fn wake_one(&self, index: usize) -> bool {
        let sleeper = &self.sleepers[index];
        let wanted =
            sleeper.asleep.load(Ordering::SeqCst) && sleeper.asleep.swap(false, Ordering::SeqCst);
        if wanted
            && let Some(thread) = &*sleeper.thread.lock().unwrap_or_else(PoisonError::into_inner)
        {
            thread.unpark();
        }
        wanted
    }
}
