//! What computes parts of a step for the device that runs a Plan.
//!
//! [`away`](mod@trine_model::away) says in the Plan which parts these may be.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::BackendError;
use crate::program::Memory;

/// A part of a step for a guest.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The number of the operations ([`Away::job`](trine_model::away::Away::job)).
    pub number: usize,
    /// (rows, columns) of each buffer that they read, in order.
    pub inputs: &'a [&'a [f32]],
    /// The number of rows, at least one.
    pub rows: usize,
    /// The number of rows before the first bulk row
    /// ([`Batch::bulk_from`](crate::Batch::bulk_from)).
    pub exact: usize,
}

/// Takes (rows, columns) of the result with this number, of each once.
pub type Give<'a> = dyn FnMut(usize, &[f32]) + 'a;

/// Something that computes parts of a step: a partner's matrices, or a Program of another device.
///
/// One job at a time: it is begun, and then finished. Beginning one forgets another that was not
/// finished.
pub trait Guest: Send {
    /// Begins a job. Returns without waiting for it.
    ///
    /// # Errors
    /// [`BackendError`] if it cannot be begun. Then there is nothing to finish.
    fn begin(&mut self, job: &Job<'_>) -> Result<(), BackendError>;

    /// Waits for the job that was begun, which is the same, and gives its results.
    ///
    /// # Errors
    /// [`BackendError`] if any of them was not computed. What was given is undefined then.
    fn finish(&mut self, job: &Job<'_>, give: &mut Give<'_>) -> Result<(), BackendError>;

    /// Lets a job be stopped, as [`Program::stop_on`](crate::Program::stop_on) does.
    fn stop_on(&mut self, _stop: Arc<AtomicBool>) {}

    /// Returns the memory of another device that counts as the Program's.
    fn memory(&self) -> Memory {
        Memory::default()
    }
}
