//! Work handed out piece by piece.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a counter that hold the next chunk; the rest holds the dispatch it belongs to.
const CHUNK_BITS: u32 = 24;
const CHUNK_MASK: u64 = (1 << CHUNK_BITS) - 1;

/// One counter per cache line, so that threads in different steps do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(AtomicU64);

/// One next-chunk counter per step of a dispatch.
///
/// Resetting a counter between two steps would race with the threads that are late in the first,
/// so each step has its own, and [`begin`](Self::begin) makes all of them zero at once by changing
/// the dispatch number that a counter must carry to count.
#[derive(Debug)]
pub struct ChunkCounters {
    dispatch: AtomicU64,
    slots: Box<[Slot]>,
}

impl ChunkCounters {
    /// Most chunks of one step.
    pub const MAX_CHUNKS: usize = CHUNK_MASK as usize;

    /// Counters for `steps` steps.
    pub fn new(steps: usize) -> Self {
        ChunkCounters {
            dispatch: AtomicU64::new(1),
            slots: (0..steps).map(|_| Slot::default()).collect(),
        }
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.slots.len()
    }

    /// Sets every counter to zero. Call before [`super::Pool::run`], never during it.
    pub fn begin(&self) {
        self.dispatch.fetch_add(1, Ordering::Relaxed);
    }

    /// The next chunk of `0..total` that no thread has taken in `step`, or `None` when all are.
    ///
    /// Panics when `step` has no counter or `total` exceeds [`MAX_CHUNKS`](Self::MAX_CHUNKS).
    pub fn next(&self, step: usize, total: usize) -> Option<usize> {
        assert!(total <= Self::MAX_CHUNKS, "{total} chunks in one step");
        let counter = &self.slots[step].0;
        let dispatch = self.dispatch.load(Ordering::Relaxed) << CHUNK_BITS;
        let mut current = counter.load(Ordering::Relaxed);
        loop {
            let taken = if current & !CHUNK_MASK == dispatch { current & CHUNK_MASK } else { 0 };
            if taken >= total as u64 {
                return None;
            }
            // Relaxed: the barrier around the step orders the data, the counter only counts.
            match counter.compare_exchange_weak(
                current,
                dispatch | (taken + 1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(taken as usize),
                Err(found) => current = found,
            }
        }
    }
}
