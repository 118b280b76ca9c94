//! A device that takes, by a clock of its own, as long as a real one would.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trine_backend::{BackendError, Batch, Facts, InFlight, Memory, Program, Results};
use trine_engine::Engine;

use crate::fake::Fake;

/// What a step takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Nanoseconds to read the weights.
    pub(crate) weights: u64,
    /// Nanoseconds for each row.
    pub(crate) row: u64,
    /// Rows that cost nothing beside the weights, because the arithmetic hides behind the reading.
    pub(crate) hidden: u64,
    /// Percent by which times vary in either direction.
    pub(crate) noise: u64,
}

impl Cost {
    fn nanoseconds(self, rows: usize, step: u64) -> u64 {
        let exact = self.weights + self.row * (rows as u64).saturating_sub(self.hidden);
        // Weyl's sequence of the golden ratio: even, and the same in each run.
        let chance = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let percent = 100 - self.noise + ((chance * (2 * self.noise + 1)) >> 32);
        exact * percent / 100
    }
}

/// The fake device with a clock.
pub(crate) struct Timed {
    fake: Fake,
    cost: Cost,
    steps: u64,
    clock: Arc<AtomicU64>,
    /// The rows of all steps.
    pub(crate) rows: Arc<AtomicU64>,
}

impl Timed {
    /// Returns a device by a clock that others may share.
    pub(crate) fn new(fake: Fake, cost: Cost, clock: &Arc<AtomicU64>) -> Self {
        Timed { fake, cost, steps: 0, clock: Arc::clone(clock), rows: Arc::default() }
    }

    /// Returns an engine in simulated time, and its clock in nanoseconds.
    pub(crate) fn engine(fake: Fake, cost: Cost) -> (Engine, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(0));
        let program = Timed::new(fake, cost, &clock);
        let mut engine = Engine::from_program(Box::new(program));
        let time = Arc::clone(&clock);
        engine.set_clock(move || Duration::from_nanos(time.load(Ordering::Relaxed)));
        (engine, clock)
    }
}

impl Program for Timed {
    fn facts(&self) -> &Facts {
        self.fake.facts()
    }

    fn memory(&self) -> Memory {
        self.fake.memory()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        self.steps += 1;
        let taken = self.cost.nanoseconds(batch.tokens.len(), self.steps);
        self.clock.fetch_add(taken, Ordering::Relaxed);
        self.rows.fetch_add(batch.tokens.len() as u64, Ordering::Relaxed);
        self.fake.submit(batch)
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.fake.wait(step)
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.fake.copy_slot(from, to, positions)
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        self.fake.profile(on)
    }
}

/// Machines that differ in what a row takes beside the weights: much, little, and nothing for the
/// first ones.
pub(crate) fn costs() -> Vec<Cost> {
    let mut costs = Vec::new();
    for noise in [0, 5] {
        for (row, hidden) in [(900_000, 0), (300_000, 0), (50_000, 0), (5_000, 0), (150_000, 32)] {
            costs.push(Cost { weights: 10_000_000, row, hidden, noise });
        }
    }
    costs
}
