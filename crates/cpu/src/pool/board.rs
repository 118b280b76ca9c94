//! Where threads see what is to be done, take it and report it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::turn::Turn;

/// Bits of the state that hold the next unit; the rest is the serial number of the phase.
const UNIT_BITS: u32 = 24;
const UNIT_MASK: u64 = (1 << UNIT_BITS) - 1;

/// Most units of one phase. Each thread may raise the next unit once past the last one; the bits have room for that.
pub(super) const MAX_UNITS: usize = 1 << (UNIT_BITS - 2);
/// Part of a next unit that is past the last one of any phase.
const CLOSED: u64 = 1 << (UNIT_BITS - 1);

/// A value on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<T>(T);

/// The phase at hand.
///
/// A unit is open, taken or done. The serial number and the next open unit are one atomic word, so a thread that was
/// stopped between reading it and taking a unit takes none of a later phase by mistake. While a taken unit is not done, its
/// phase stays, and nothing that this phase reads or writes is used for anything else. A thread without one is waited for by
/// nobody and may be stopped for as long as it pleases the system.
#[derive(Debug, Default)]
pub(super) struct Board {
    /// Serial number of the phase, and its next open unit.
    state: Line<AtomicU64>,
    /// Units of the phase that are done.
    done: Line<AtomicUsize>,
    /// The phase at hand, at its serial number modulo 2; beside it the one before, which a late thread may still look at.
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
    /// Index of the phase in the work.
    pub(super) phase: usize,
    /// Units of the phase.
    pub(super) units: usize,
    /// The unit.
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
            // What is read of a phase that has gone by since is not used: then the exchange fails.
            let units = phase.units.load(Ordering::Relaxed);
            let unit = (state & UNIT_MASK) as usize;
            if unit >= units {
                return None;
            }
            // Acquire: what earlier phases wrote is seen.
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

    /// Whether a unit is open.
    pub(super) fn is_open(&self) -> bool {
        // Ordered after the flag of a thread that goes to sleep, see `Seats`.
        let state = self.state.0.load(Ordering::SeqCst);
        ((state & UNIT_MASK) as usize) < self.phase_of(state).units.load(Ordering::Relaxed)
    }

    fn phase_of(&self, state: u64) -> &Phase {
        &self.phases[(state >> UNIT_BITS) as usize & 1]
    }

    /// Puts up the next phase, of at most [`MAX_UNITS`]; its first `taken` units belong to the calling thread. Only where all
    /// units of the phase before are done, by the one thread that was told so by [`report`](Self::report).
    pub(super) fn publish(&self, index: usize, units: usize, taken: usize) {
        let serial = (self.state.0.load(Ordering::Relaxed) >> UNIT_BITS).wrapping_add(1);
        let state = serial << UNIT_BITS;
        let phase = self.phase_of(state);
        phase.index.store(index, Ordering::Relaxed);
        phase.units.store(units, Ordering::Relaxed);
        self.done.0.store(0, Ordering::Relaxed);
        // Ordered before the look at who sleeps, see `Seats`.
        self.state.0.store(state | taken as u64, Ordering::SeqCst);
    }

    /// Notes `count` units of the phase of `units` as done. Whether they were the last ones: then only the caller decides
    /// what comes next.
    pub(super) fn report(&self, count: usize, units: usize) -> bool {
        self.done.0.fetch_add(count, Ordering::AcqRel) + count == units
    }

    /// Takes all open units of the phase at once, of which the calling thread holds a unit; their number.
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
    turn: &'a Turn,
    /// Units that were handed out here.
    handed: usize,
    /// No unit is left. Nobody may then ask the board again: its bits have room for one question of each thread.
    is_empty: bool,
}

impl<'a> Units<'a> {
    /// Begins with a unit that the thread has taken.
    pub(super) fn new(board: &'a Board, claim: Claim, turn: &'a Turn) -> Self {
        Units { board, claim, turn, handed: 0, is_empty: false }
    }

    /// Units that were handed out.
    pub(super) fn handed(&self) -> usize {
        self.handed
    }

    /// Units of the phase, those of other threads included.
    pub fn total(&self) -> usize {
        self.claim.units
    }
}

impl Iterator for Units<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let unit = if self.handed == 0 {
            self.claim.unit
        } else if self.is_empty || self.claim.is_only_unit() || self.turn.is_over() {
            return None;
        } else {
            // The thread holds units, so the phase cannot change under it.
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
