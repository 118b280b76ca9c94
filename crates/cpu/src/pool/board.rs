//! The board on which threads find units of work, take them and report them.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::time_slice::TimeSlice;

/// Bits of the state that hold the next unit; the others hold the serial number of the phase.
const UNIT_BITS: u32 = 24;
const UNIT_MASK: u64 = (1 << UNIT_BITS) - 1;

/// The most units of one phase. Each thread may raise the next unit once past the last one; the
/// bits have room for that.
pub(super) const MAX_UNITS: usize = 1 << (UNIT_BITS - 2);
/// A bit of the next unit that puts it past the last unit of any phase.
const CLOSED: u64 = 1 << (UNIT_BITS - 1);

/// A value on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

/// The current phase.
///
/// A unit is open, taken or done. The serial number and the next open unit are one atomic word, so
/// a thread that was stopped between reading it and taking a unit cannot take a unit of a later
/// phase by mistake. While a taken unit is not done, its phase stays, and nothing that this phase
/// reads or writes is used for anything else. No thread waits for one that holds no unit, so the
/// system may stop such a thread for any length of time.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// The serial number of the phase, and its next open unit.
    state: Line<AtomicU64>,
    /// The number of units of the phase that are done.
    done: Line<AtomicUsize>,
    /// The current phase, at its serial number modulo 2, and the previous one, which a late thread
    /// may still read.
    phases: [Phase; 2],
}

#[derive(Debug, Default)]
struct Phase {
    index: AtomicUsize,
    units: AtomicUsize,
}

/// A taken unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// The index of the phase in the work.
    pub(super) phase: usize,
    /// The number of units of the phase.
    pub(super) units: usize,
    /// The index of the unit.
    pub(super) unit: usize,
}

impl Claim {
    /// Whether the phase has no other unit.
    pub(super) fn is_only_unit(&self) -> bool {
        self.units == 1
    }
}

impl Board {
    /// Takes the next open unit.
    pub(super) fn claim(&self) -> Option<Claim> {
        let mut state = self.state.0.load(Ordering::Acquire);
        loop {
            let phase = self.phase_of(state);
            // If the phase has ended since, the exchange below fails and the values read here are
            // not used.
            let units = phase.units.load(Ordering::Relaxed);
            let unit = (state & UNIT_MASK) as usize;
            if unit >= units {
                return None;
            }
            // Acquire: makes visible what earlier phases wrote.
            match self.state.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    let phase = phase.index.load(Ordering::Relaxed);
                    return Some(Claim { phase, units, unit });
                }
                Err(found) => state = found,
            }
        }
    }

    /// Returns whether a unit is open.
    pub(super) fn is_open(&self) -> bool {
        // Ordered after the flag of a thread that goes to sleep, see `Seats`.
        let state = self.state.0.load(Ordering::SeqCst);
        ((state & UNIT_MASK) as usize) < self.phase_of(state).units.load(Ordering::Relaxed)
    }

    fn phase_of(&self, state: u64) -> &Phase {
        &self.phases[(state >> UNIT_BITS) as usize & 1]
    }

    /// Publishes the next phase, of at most [`MAX_UNITS`]. Its first `taken` units belong to the
    /// calling thread. May be called only when all units of the previous phase are done, by the one
    /// thread that [`report`](Self::report) told so.
    pub(super) fn publish(&self, index: usize, units: usize, taken: usize) {
        let serial = (self.state.0.load(Ordering::Relaxed) >> UNIT_BITS).wrapping_add(1);
        let state = serial << UNIT_BITS;
        let phase = self.phase_of(state);
        phase.index.store(index, Ordering::Relaxed);
        phase.units.store(units, Ordering::Relaxed);
        self.done.0.store(0, Ordering::Relaxed);
        // Ordered before the check for sleeping threads, see `Seats`.
        self.state.0.store(state | taken as u64, Ordering::SeqCst);
    }

    /// Records `count` units of a phase of `units` as done. Returns whether they were the last
    /// ones; if so, only the caller decides what comes next.
    pub(super) fn report(&self, count: usize, units: usize) -> bool {
        self.done.0.fetch_add(count, Ordering::AcqRel) + count == units
    }

    /// Takes all open units of the phase at once and returns their number. The calling thread must
    /// hold a unit of the phase.
    pub(super) fn take_rest(&self, units: usize) -> usize {
        let state = self.state.0.fetch_or(CLOSED, Ordering::Relaxed);
        units.saturating_sub((state & UNIT_MASK) as usize)
    }
}

/// The units of a phase that one thread gets, one after the other.
#[derive(Debug)]
pub struct Units<'a> {
    board: &'a Board,
    claim: Claim,
    slice: &'a TimeSlice,
    /// The number of units handed out here.
    handed: usize,
    /// Whether no unit is left. The board must not be asked again then: its bits have room for one
    /// such question from each thread.
    is_empty: bool,
}

impl<'a> Units<'a> {
    /// Begins with a unit that the thread has taken.
    pub(super) fn new(board: &'a Board, claim: Claim, slice: &'a TimeSlice) -> Self {
        Units { board, claim, slice, handed: 0, is_empty: false }
    }

    /// The number of units handed out.
    pub(super) fn handed(&self) -> usize {
        self.handed
    }

    /// The number of units of the phase, including those of other threads.
    pub fn total(&self) -> usize {
        self.claim.units
    }
}

impl Iterator for Units<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let unit = if self.handed == 0 {
            self.claim.unit
        } else if self.is_empty || self.claim.is_only_unit() || self.slice.is_over() {
            return None;
        } else {
            // The thread holds units, so the phase cannot change meanwhile.
            let state = self.board.state.0.fetch_add(1, Ordering::Relaxed);
            (state & UNIT_MASK) as usize
        };
        if unit >= self.claim.units {
            self.is_empty = true;
            return None;
        }
        self.handed += 1;
        Some(unit)
    }
}
