//! A fixed pool of threads for work that consists of phases.
//!
//! A decode step is a few hundred phases of 5 to 500 us. Waking threads for each would cost more
//! than the work, so the whole step is one dispatch ([`Pool::run`]), and threads look for the next
//! phase on a [`Board`]. A phase is a number of units, which threads take one after the other. It
//! ends when all units are *done*. No thread has to take part, and the pool waits only for threads
//! that hold a unit: a thread that another program keeps from its core delays nothing ([decision
//! 022](../../../docs/decisions/022-threads-on-a-busy-machine.md)). Which thread computed a unit
//! must never show in the result.

mod board;
mod job;
mod sleepers;
mod time_slice;
mod work;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use board::Units;
use board::{Board, Claim, MAX_UNITS};
use job::JobSlot;
use sleepers::Seats;
use time_slice::TimeSlice;
pub use work::Work;

/// The most threads that a pool accepts; far more than one memory bus can feed.
pub const MAX_THREADS: usize = 512;

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
        /// The system's reason.
        reason: String,
    },
    /// `run` was called inside a dispatch of the same pool, or by two threads at once.
    #[error("the thread pool is already running a dispatch: one caller at a time, never nested")]
    Busy,
    /// The work panicked. Units that other threads had begun were finished, the others were never
    /// begun.
    #[error("thread {thread} panicked: {message}")]
    Panicked {
        /// Index of the first thread that panicked.
        thread: usize,
        /// The panic's message.
        message: String,
    },
}

/// The state that the workers and the caller share.
struct Shared {
    job: JobSlot,
    board: Board,
    sleepers: Seats,
    /// Whether the dispatch is still under way. Cleared by the thread that finds no further phase.
    running: AtomicBool,
    /// Whether the dispatch ends with the current phase, because of `failure`.
    failed: AtomicBool,
    failure: Mutex<Option<PoolError>>,
    /// Whether the pool is being dropped.
    stop: AtomicBool,
}

/// A fixed set of threads; see the module.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The slice of the thread that calls [`run`](Pool::run); held for the length of a dispatch.
    caller: Mutex<TimeSlice>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts `threads - 1` workers. The thread that calls [`run`](Pool::run) is the last member.
    pub fn new(threads: usize) -> Result<Pool, PoolError> {
        Pool::with_slices(threads, time_slice::LENGTH)
    }

    /// Does the same with slices of another length.
    fn with_slices(threads: usize, length: Duration) -> Result<Pool, PoolError> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(PoolError::ThreadCount { threads });
        }
        let shared = Arc::new(Shared {
            job: JobSlot::empty(),
            board: Board::default(),
            sleepers: Seats::new(threads),
            running: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        // A pool of one thread keeps no other thread waiting, so its slice has no end.
        let length = if threads > 1 { length } else { Duration::MAX };
        let caller = Mutex::new(TimeSlice::new(length));
        let mut pool = Pool { shared, workers: Vec::new(), caller };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let worker = thread::Builder::new()
                .name(format!("trine-cpu-{index}"))
                .spawn(move || shared.serve(index, &mut TimeSlice::new(length)))
                .map_err(|error| PoolError::Spawn { index, threads, reason: error.to_string() })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// The number of threads, including the caller of [`run`](Pool::run), whose index is 0.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Does the work and returns when all of it is done. It does not wait for workers that hold no
    /// unit.
    ///
    /// A panic in one thread ends the work after the units already begun and is returned as an
    /// error; the pool stays usable. Allocates nothing.
    pub fn run(&self, work: &dyn Work) -> Result<(), PoolError> {
        let mut slice = match self.caller.try_lock() {
            Ok(slice) => slice,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(PoolError::Busy),
        };
        let shared = &*self.shared;
        // SAFETY: a thread reads the slot only while it holds a unit, and between dispatches there
        // are no units. The work outlives the dispatch: this function returns after `running` has
        // been cleared, which happens after the last unit was reported and after the last use of
        // the work. Nothing between here and there can unwind.
        unsafe { shared.job.set(work) };
        shared.running.store(true, Ordering::Relaxed);
        if let Some(claim) = shared.advance(work, 0, 0, 1) {
            shared.take_part(claim, 0, &slice);
        }
        shared.work_until(0, &mut slice, || !shared.running.load(Ordering::SeqCst));
        shared.failed.store(false, Ordering::Relaxed);
        let failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.sleepers.wake(self.workers.len());
        for worker in self.workers.drain(..) {
            // A worker cannot panic: panics of the work are caught.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Runs a worker until the pool is dropped.
    fn serve(&self, index: usize, slice: &mut TimeSlice) {
        self.work_until(index, slice, || self.stop.load(Ordering::SeqCst));
    }

    /// Takes part in phases, and waits while no unit is open, until `ended` returns true.
    fn work_until(&self, index: usize, slice: &mut TimeSlice, ended: impl Fn() -> bool) {
        while !ended() {
            if slice.is_over() {
                slice.end();
            }
            if let Some(claim) = self.board.claim() {
                self.take_part(claim, index, slice);
            } else if self.sleepers.wait(index, || self.board.is_open() || ended()) {
                slice.restart();
            }
        }
    }

    /// Does units as thread `index`, beginning with a claimed one. Goes on to the next phase if it
    /// did the last unit of this one.
    fn take_part(&self, mut claim: Claim, index: usize, slice: &TimeSlice) {
        loop {
            // SAFETY: this thread holds a unit. It last uses the work before it reports that unit
            // or, if the board told it that all units are done, before it declares the end of the
            // work.
            let work = unsafe { self.job.get() };
            let mut units = Units::new(&self.board, claim, slice);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                work.run(claim.phase, index, &mut units);
                assert!(units.handed() > 0, "a thread left the unit that it had");
            }));
            let mut done = units.handed().max(1);
            if let Err(payload) = outcome {
                self.fail(index, payload);
                done += self.board.take_rest(claim.units);
            }
            if !claim.is_only_unit() && !self.board.report(done, claim.units) {
                return;
            }
            let taken = usize::from(!slice.is_over());
            match self.advance(work, index, claim.phase + 1, taken) {
                Some(next) => claim = next,
                None => return,
            }
        }
    }

    /// Publishes the first phase from `phase` on that has units. The first `taken` of them, at most
    /// 1, belong to the calling thread. A phase of one unit is not published: it belongs to the
    /// calling thread in any case. If there is no further phase, the dispatch ends.
    ///
    /// May be called only by the one thread that knows all units of earlier phases to be done.
    fn advance(&self, work: &dyn Work, index: usize, phase: usize, taken: usize) -> Option<Claim> {
        let next = || {
            if self.failed.load(Ordering::Relaxed) {
                return None;
            }
            let mut phases = (phase..).map(|phase| work.units(phase).map(|units| (phase, units)));
            let found = phases.find(|found| !matches!(found, Some((_, 0))))?;
            found.inspect(|(_, units)| assert!(*units <= MAX_UNITS, "{units} units in one phase"))
        };
        let next = catch_unwind(AssertUnwindSafe(next)).unwrap_or_else(|payload| {
            self.fail(index, payload);
            None
        });
        let Some((phase, units)) = next else {
            self.running.store(false, Ordering::SeqCst);
            if index != 0 {
                self.sleepers.wake_one(0);
            }
            return None;
        };
        let claim = Claim { phase, units, unit: 0 };
        if claim.is_only_unit() {
            return Some(claim);
        }
        self.board.publish(phase, units, taken);
        self.sleepers.wake(units - taken);
        (taken > 0).then_some(claim)
    }

    /// Records a panic, after which the work ends.
    fn fail(&self, index: usize, payload: Box<dyn Any + Send>) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(PoolError::Panicked {
            thread: index,
            message: panic_message(&*payload),
        });
        drop(failure);
        self.failed.store(true, Ordering::Relaxed);
        // Dropping a payload runs foreign code, which may panic, and so may dropping that panic's
        // payload.
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
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
