//! A guest as a device keeps it: counts, warns once, and closes when a partner fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use trine_model::{Model, Plan, away};

use crate::error::BackendError;
use crate::guest::{Give, Guest, Job};
use crate::partner::Partner;
use crate::program::Memory;

/// A guest as a device keeps it.
pub struct Hosted {
    // Dropped before the partner, which it may belong to.
    guest: Mutex<Box<dyn Guest>>,
    /// The partner whose it is, without which the device can do. Its failures are counted.
    partner: Option<Arc<dyn Partner>>,
    /// The number of results of each of a partner's jobs.
    results: Vec<usize>,
    /// Whether a partner has failed: nothing more is begun then.
    has_failed: AtomicBool,
}

impl Hosted {
    /// Keeps a guest whose failure is the step's.
    pub fn new(guest: impl Guest + 'static) -> Self {
        Self::of(Box::new(guest), None, Vec::new())
    }

    fn of(guest: Box<dyn Guest>, partner: Option<Arc<dyn Partner>>, results: Vec<usize>) -> Self {
        let (guest, has_failed) = (Mutex::new(guest), AtomicBool::new(false));
        Self { guest, partner, results, has_failed }
    }

    /// Hands the matrices of a Plan's jobs to a partner; `None` if there is none, if the Plan has
    /// no job, or if the partner fails. Then the device computes everything.
    ///
    /// # Errors
    /// Returns an error if a matrix cannot be converted.
    pub fn load(
        partner: Option<&Arc<dyn Partner>>,
        model: &Model,
        plan: &Plan,
    ) -> Result<Option<Self>, BackendError> {
        let jobs = away::weights(plan);
        let Some(partner) = partner.filter(|_| !jobs.is_empty()) else { return Ok(None) };
        let tensors = jobs.iter().map(|job| {
            job.iter().map(|id| model.converted_part(plan, *id)).collect::<Result<Vec<_>, _>>()
        });
        match partner.load(&tensors.collect::<Result<Vec<_>, _>>()?) {
            Ok(guest) => {
                let results = jobs.iter().map(Vec::len).collect();
                Ok(Some(Self::of(guest, Some(Arc::clone(partner)), results)))
            }
            Err(error) => {
                tracing::warn!(
                    "{} takes no part of the model: {error}. The device computes all of it",
                    partner.name()
                );
                Ok(None)
            }
        }
    }

    /// Returns whether jobs can be begun.
    pub fn is_open(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed)
    }

    /// Begins a job.
    ///
    /// # Errors
    /// As [`Guest::begin`]. A partner's is noted.
    pub fn begin(&self, job: &Job<'_>) -> Result<(), BackendError> {
        let outcome = self.guest().begin(job);
        self.note(outcome, job)
    }

    /// Finishes the job that was begun, while the device may still work, until `is_idle`. The
    /// device has waited for a partner only if it is idle when the partner has computed, and then
    /// at most as long as this takes.
    ///
    /// # Errors
    /// As [`Guest::finish`]. A partner's is noted.
    pub fn finish(
        &self,
        job: &Job<'_>,
        is_idle: &dyn Fn() -> bool,
        give: &mut Give<'_>,
    ) -> Result<(), BackendError> {
        let mut guest = self.guest();
        let start = Instant::now();
        let outcome = guest.finish(job, give);
        let elapsed = start.elapsed();
        if let Some(partner) = self.partner.as_ref().filter(|_| is_idle()) {
            partner.tally().waited_for(elapsed);
        }
        self.note(outcome, job)
    }

    /// Lets a job be stopped, as [`Program::heed`](crate::Program::heed) does.
    pub fn heed(&self, stop: Arc<AtomicBool>) {
        self.guest().heed(stop);
    }

    /// Returns the memory of another device that counts as the Program's.
    pub fn memory(&self) -> Memory {
        self.guest().memory()
    }

    fn guest(&self) -> MutexGuard<'_, Box<dyn Guest>> {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, outcome: Result<(), BackendError>, job: &Job<'_>) -> Result<(), BackendError> {
        let (Err(error), Some(partner)) = (&outcome, &self.partner) else { return outcome };
        (0..self.results[job.number]).for_each(|_| partner.tally().refused());
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{} has not computed what was delegated: {error}. The device itself does \
                 it, and nothing more is delegated",
                partner.name()
            );
        }
        outcome
    }
}
