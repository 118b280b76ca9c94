//! A partner as a device sees it: multiplies rows of prompts beside it.
//!
//! [`lend`](trine_model::lend) says in the Plan what is given to it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use trine_model::Weight;
use trine_weights::Tensor;

use crate::error::BackendError;

/// Something that multiplies bulk rows beside the device that runs a Plan.
pub trait Partner: fmt::Debug + Send + Sync {
    /// Returns its name, for people.
    fn name(&self) -> String;

    /// Returns how many rows of a matrix stay with the device; all of them if this is at least the
    /// number of its rows.
    fn kept(&self, weight: &Weight) -> usize;

    /// Returns the bytes of the machine's memory that a matrix (or slice of one) takes here.
    fn bytes(&self, weight: &Weight) -> u64;

    /// Takes in matrices (out-features, in-features).
    ///
    /// # Errors
    /// [`BackendError`] if there is no room for them, or the partner fails.
    fn load(&self, matrices: &[Tensor]) -> Result<Box<dyn Loan>, BackendError>;

    /// Returns what it has done so far.
    fn tally(&self) -> &Tally;

    /// Says why nothing was given to it, for people, where nothing was.
    fn idle(&self) -> String {
        "nothing was lent to it".to_owned()
    }
}

/// Matrices that a partner has taken in.
///
/// One product at a time: it is begun, and then finished. Beginning one forgets another that was
/// not finished.
pub trait Loan: Send {
    /// Begins the products of `input`, (rows, in-features), with matrices, by their numbers in
    /// [`Partner::load`]. Copies the input and returns without waiting for any product.
    ///
    /// # Errors
    /// [`BackendError`] if it cannot be begun. Then there is nothing to finish.
    fn begin(&mut self, input: &[f32], matrices: &[usize]) -> Result<(), BackendError>;

    /// Waits for the products that were begun and writes each, (rows, out-features), in the order
    /// of the matrices.
    ///
    /// # Errors
    /// [`BackendError`] if any of them was not computed by the partner. The outputs are undefined.
    fn finish(&mut self, outputs: &mut [&mut [f32]]) -> Result<(), BackendError>;
}

/// Counts of products, of all Programs together.
#[derive(Debug, Default)]
pub struct Tally {
    products: AtomicU64,
    rows: AtomicU64,
    refused: AtomicU64,
    busy_ns: AtomicU64,
    waited_ns: AtomicU64,
}

impl Tally {
    /// Counts a product that the partner computed.
    pub fn computed(&self, rows: usize) {
        self.products.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Counts a product that the device computed instead.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds time in which the partner computed.
    pub fn busy_for(&self, time: Duration) {
        add(&self.busy_ns, time);
    }

    /// Adds time in which a device waited for the partner.
    pub fn waited_for(&self, time: Duration) {
        add(&self.waited_ns, time);
    }

    /// Returns the time in which the partner computed. What is more than [`Tally::waited`] was
    /// computed while the device did its own part.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy_ns.load(Ordering::Relaxed))
    }

    /// Returns the time in which devices waited for the partner.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed))
    }

    /// Returns the number of products that the partner computed.
    pub fn products(&self) -> u64 {
        self.products.load(Ordering::Relaxed)
    }

    /// Returns the number of rows in these, counted once for each product.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Returns the number of delegated products that the device had to compute itself.
    pub fn instead(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    sum.fetch_add(nanoseconds, Ordering::Relaxed);
}
