//! A fixed pool of threads that runs one closure per token on all of them.
//!
//! A decode step is a few hundred small steps of 5 to 500 us. Waking threads for each would cost
//! more than the work, so the whole token is one dispatch ([`Pool::run`]) and the steps inside are
//! separated by a spinning [`Barrier`] (under 1 us while every thread has a core of its own).
//! [`ChunkCounters`] hands out the parts of a step, so that a thread disturbed by another program
//! takes fewer of them instead of holding up everyone. Which thread computed a part must never
//! show in the result.

mod barrier;
mod chunks;
mod job;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

pub use barrier::Barrier;
use barrier::PeerPanicked;
pub use chunks::ChunkCounters;
use job::{JobSlot, Task};

/// Most threads a pool accepts; far above what one memory bus can feed.
pub const MAX_THREADS: usize = 512;

/// Looks at the next dispatch before a worker stops spinning (about 50 us on a free core).
const IDLE_SPINS: usize = 10_000;
/// Times a worker gives its core away before it sleeps.
const IDLE_YIELDS: usize = 50;

/// Which of the pool's threads runs the closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadIndex {
    /// 0 is the thread that called [`Pool::run`].
    pub index: usize,
    /// Threads in the pool.
    pub count: usize,
}

impl ThreadIndex {
    /// This thread's part of `0..total`, cut into equal multiples of `granule` (at least 1).
    pub fn share_of(self, total: usize, granule: usize) -> std::ops::Range<usize> {
        let granules = total.div_ceil(granule.max(1));
        let cut = |index: usize| {
            // Split without overflow: whole parts first, then the remainder one by one.
            let whole = granules / self.count;
            let extra = granules % self.count;
            (index * whole + index.min(extra)).saturating_mul(granule.max(1)).min(total)
        };
        cut(self.index)..cut(self.index + 1)
    }
}

/// Why a dispatch did not run to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The thread count is zero or absurd.
    #[error("a thread pool needs 1 to {MAX_THREADS} threads, not {threads}: set --threads")]
    ThreadCount {
        /// Threads asked for.
        threads: usize,
    },
    /// The system refused to start a thread.
    #[error("cannot start thread {index} of {threads}: {reason}; use fewer with --threads")]
    Spawn {
        /// Index of the thread that failed.
        index: usize,
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        reason: String,
    },
    /// `run` was called inside a dispatch of the same pool, or by two threads at once.
    #[error("the thread pool is already running a dispatch: one caller at a time, never nested")]
    Busy,
    /// The closure panicked; the other threads were stopped at their next barrier.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// Index of the first thread that panicked.
        thread: usize,
        /// The panic's message.
        message: String,
    },
}

/// What the workers and the caller share.
struct Shared {
    count: usize,
    job: JobSlot,
    /// Number of dispatches so far; a change is the signal to start.
    epoch: AtomicUsize,
    /// Workers that have not finished the current dispatch.
    unfinished: AtomicUsize,
    stop: AtomicBool,
    barrier: Barrier,
    /// Per worker: it sleeps, or is about to.
    asleep: Vec<AtomicBool>,
    failure: Mutex<Option<PoolError>>,
}

/// A fixed set of threads; see the module.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts `threads - 1` workers; the thread that calls [`run`](Pool::run) is the last member.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(PoolError::ThreadCount { threads });
        }
        let shared = Arc::new(Shared {
            count: threads,
            job: JobSlot::empty(),
            epoch: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            barrier: Barrier::new(threads),
            asleep: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            failure: Mutex::new(None),
        });
        let mut pool = Pool { shared, workers: Vec::new(), busy: AtomicBool::new(false) };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = thread::Builder::new()
                .name(format!("trine-cpu-{index}"))
                .spawn(move || work(&shared, index))
                .map_err(|error| PoolError::Spawn { index, threads, reason: error.to_string() })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads of the pool, the caller of [`run`](Pool::run) included.
    pub fn threads(&self) -> usize {
        self.shared.count
    }

    /// Runs `closure` once on every thread and returns when all are done.
    ///
    /// Every thread must pass the same barriers in the same order. A panic in one thread stops the
    /// others at their next barrier and comes back as an error; the pool stays usable. Allocates
    /// nothing.
    pub fn run<F>(&self, closure: F) -> Result<(), PoolError>
    where
        F: Fn(ThreadIndex, &Barrier) + Sync,
    {
        if self.busy.swap(true, Ordering::Acquire) {
            return Err(PoolError::Busy);
        }
        let shared = &*self.shared;
        shared.barrier.reset();
        let task: &Task<'_> = &closure;
        if shared.count > 1 {
            shared.unfinished.store(shared.count - 1, Ordering::Relaxed);
            // SAFETY: no worker looks at the slot between dispatches (`unfinished` reached 0 at
            // the end of the last one and `busy` admits one caller), and `task` outlives the
            // dispatch because this function waits for every worker before it returns; nothing
            // between here and that wait can unwind.
            unsafe { shared.job.set(task) };
            shared.epoch.fetch_add(1, Ordering::SeqCst);
            self.wake_sleepers();
        }
        shared.execute(task, 0);
        shared.wait_for_workers();
        let failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.busy.store(false, Ordering::Release);
        failure.map_or(Ok(()), Err)
    }

    fn wake_sleepers(&self) {
        for (worker, asleep) in self.workers.iter().zip(&self.shared.asleep[1..]) {
            if asleep.load(Ordering::SeqCst) {
                Thread::unpark(worker.thread());
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker cannot panic: the closures' panics are caught.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Runs the task as thread `index` and keeps its panic from spreading.
    fn execute(&self, task: &Task<'_>, index: usize) {
        let thread = ThreadIndex { index, count: self.count };
        let outcome = catch_unwind(AssertUnwindSafe(|| task(thread, &self.barrier)));
        if let Err(payload) = outcome {
            self.barrier.poison();
            if !payload.is::<PeerPanicked>() {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(PoolError::Panicked {
                    thread: index,
                    message: panic_message(&*payload),
                });
            }
            // Dropping a payload runs foreign code, which may panic again.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
        }
    }

    fn wait_for_workers(&self) {
        let mut patience = barrier::Patience::new();
        while self.unfinished.load(Ordering::Acquire) != 0 {
            patience.wait();
        }
    }

    /// Waits for a dispatch after `seen`; `None` when the pool is being dropped.
    fn next_epoch(&self, index: usize, seen: usize) -> Option<usize> {
        let mut looks = 0_usize;
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            if epoch != seen {
                return Some(epoch);
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            looks += 1;
            if looks <= IDLE_SPINS {
                std::hint::spin_loop();
            } else if looks <= IDLE_SPINS + IDLE_YIELDS {
                thread::yield_now();
            } else {
                // The flag is raised before the last look, and the caller changes the epoch before
                // it reads the flag: one of the two sees the other, so no wake-up is lost.
                self.asleep[index].store(true, Ordering::SeqCst);
                if self.epoch.load(Ordering::SeqCst) == seen && !self.stop.load(Ordering::SeqCst) {
                    thread::park();
                }
                self.asleep[index].store(false, Ordering::SeqCst);
            }
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    while let Some(epoch) = shared.next_epoch(index, seen) {
        seen = epoch;
        // SAFETY: the epoch changed, so the slot holds the task of a dispatch whose caller waits
        // until `unfinished` is 0; this worker lowers it only after the last use of the task.
        let task = unsafe { shared.job.get() };
        shared.execute(task, index);
        shared.unfinished.fetch_sub(1, Ordering::Release);
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|message| (*message).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests;
