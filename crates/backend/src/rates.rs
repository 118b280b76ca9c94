//! How long a step takes by what it reads and computes and by the rates of a device: a roofline for
//! each of three parts of a pass, which follow each other.
//!
//! ```text
//! time = max(weights / reads, products / matrices(rows))     every weight is read once, however many rows there are
//!      + max(cache / reads, 2 attention / matrices(rows))    keys and values; attention reaches half the rate of products
//!      + launches x gap                                      nothing overlaps the gap between dependent launches
//! ```
//!
//! The work of the host between passes is not counted. Nothing here reads a clock or a device.

use serde::Serialize;
use trine_model::{Op, Plan, Workload};

/// The most rows that kernels for few rows take. Products of more rows run at
/// [`Rates::tops_wide`].
pub const SKINNY_ROWS_MAX: usize = 64;
/// The factor by which operations of attention count: its tiles are narrow, and half of a causal
/// tile is masked.
pub const ATTENTION_FACTOR: f64 = 2.0;

/// The rates of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// The rate in GB/s at which kernels read weights.
    pub gbps: f64,
    /// The rate in GB/s that nothing exceeds.
    pub gbps_limit: f64,
    /// 10^12 operations per second of products with up to [`SKINNY_ROWS_MAX`] rows.
    pub tops_skinny: f64,
    /// 10^12 operations per second of products with more rows.
    pub tops_wide: f64,
    /// 10^12 operations per second that no f16 product exceeds.
    pub tops_limit: f64,
    /// The microseconds of idle time between a launch and the next one that needs its result.
    pub gap_us: f64,
}

impl Rates {
    /// Returns 10^12 operations per second of products with this many rows.
    pub fn tops(&self, rows: usize) -> f64 {
        if rows > SKINNY_ROWS_MAX { self.tops_wide } else { self.tops_skinny }
    }

    /// Returns the time of a pass.
    pub fn seconds(&self, work: &Work) -> Seconds {
        let gaps = work.launches as f64 * self.gap_us * 1e-6;
        pass(work, self.gbps, self.tops(work.rows), ATTENTION_FACTOR, gaps)
    }

    /// Returns the time of a pass at the best rates, without gaps, and with attention at the rate
    /// of products.
    pub fn limit(&self, work: &Work) -> Seconds {
        pass(work, self.gbps_limit, self.tops_limit, 1.0, 0.0)
    }
}

/// The work of one pass, computed from the Plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Work {
    /// The bytes of weights that are read.
    pub weight_bytes: u64,
    /// The bytes of keys and values that are read and written.
    pub cache_bytes: u64,
    /// The operations of everything but attention, nearly all of them in matrix products.
    pub product_operations: u64,
    /// The operations of attention over the cache.
    pub attention_operations: u64,
    /// The number of token rows of the pass.
    pub rows: usize,
    /// The number of launches, each of which waits for the one before.
    pub launches: usize,
}

impl Work {
    /// Returns the work of one pass of a Plan that has this many launches.
    pub fn of(plan: &Plan, workload: Workload, launches: usize) -> Self {
        let rows = workload.sequences * workload.tokens;
        let mut work = Self { rows, launches, ..Self::default() };
        for step in &plan.steps {
            let cost = plan.step_cost(step, workload);
            work.weight_bytes += cost.weight_bytes;
            work.cache_bytes += cost.cache_bytes;
            match step.op {
                Op::Attend { .. } => work.attention_operations += cost.operations,
                _ => work.product_operations += cost.operations,
            }
        }
        work
    }
}

/// What limits the speed of a pass most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Reading weights, keys and values.
    Memory,
    /// Arithmetic.
    Arithmetic,
    /// Gaps between launches.
    Gaps,
}

impl Bound {
    /// Returns the word for this limit.
    pub fn name(self) -> &'static str {
        match self {
            Bound::Memory => "memory",
            Bound::Arithmetic => "arithmetic",
            Bound::Gaps => "gaps",
        }
    }
}

/// The seconds of one or more passes, by what they are spent on.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Seconds {
    memory: f64,
    arithmetic: f64,
    gaps: f64,
}

impl Seconds {
    /// Returns the sum of all parts.
    pub fn total(self) -> f64 {
        self.memory + self.arithmetic + self.gaps
    }

    /// Returns what most of it is spent on.
    pub fn bound(self) -> Bound {
        if self.gaps > self.memory.max(self.arithmetic) {
            Bound::Gaps
        } else if self.arithmetic > self.memory {
            Bound::Arithmetic
        } else {
            Bound::Memory
        }
    }

    /// Adds the times of another pass.
    pub fn add(&mut self, other: Self) {
        self.memory += other.memory;
        self.arithmetic += other.arithmetic;
        self.gaps += other.gaps;
    }

    /// Adds a part that reads and computes at the same time, so that only the slower of the two
    /// counts.
    fn overlap(&mut self, memory: f64, arithmetic: f64) {
        if arithmetic > memory {
            self.arithmetic += arithmetic;
        } else {
            self.memory += memory;
        }
    }
}

fn pass(work: &Work, gbps: f64, tops: f64, attention_factor: f64, gaps: f64) -> Seconds {
    let read = |bytes: u64| bytes as f64 / (gbps * 1e9);
    let compute = |operations: u64| operations as f64 / (tops * 1e12);
    let mut seconds = Seconds { gaps, ..Seconds::default() };
    seconds.overlap(read(work.weight_bytes), compute(work.product_operations));
    seconds.overlap(read(work.cache_bytes), attention_factor * compute(work.attention_operations));
    seconds
}
