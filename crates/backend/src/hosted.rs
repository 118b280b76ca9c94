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
    /// The number of results of each job.
    results: Vec<usize>,
    /// Whether a partner has failed: nothing more is begun then.
    has_failed: AtomicBool,
}

impl Hosted {
    /// Keeps what computes the jobs of a Plan, whose failure is the step's.
    pub fn new(guest: impl Guest + 'static, plan: &Plan) -> Self {
        Self::of(Box::new(guest), None, plan)
    }

    fn of(guest: Box<dyn Guest>, partner: Option<Arc<dyn Partner>>, plan: &Plan) -> Self {
        let results = away::jobs(plan).iter().map(|job| job.op(plan).writes().len()).collect();
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
            Ok(guest) => Ok(Some(Self::of(guest, Some(Arc::clone(partner)), plan))),
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
    ///
    /// # Panics
    /// If the guest does not give each result once.
    pub fn finish(
        &self,
        job: &Job<'_>,
        is_idle: &dyn Fn() -> bool,
        give: &mut Give<'_>,
    ) -> Result<(), BackendError> {
        let mut guest = self.guest();
        let start = Instant::now();
        let mut is_given = vec![false; self.results[job.number]];
        let outcome = guest.finish(job, &mut |index, rows| {
            assert!(!std::mem::replace(&mut is_given[index], true), "result {index} came twice");
            give(index, rows);
        });
        let elapsed = start.elapsed();
        let is_whole = is_given.iter().all(|given| *given);
        assert!(outcome.is_err() || is_whole, "a guest gives all results of job {}", job.number);
        if let Some(partner) = self.partner.as_ref().filter(|_| is_idle()) {
            partner.tally().waited_for(elapsed);
        }
        self.note(outcome, job)
    }

    /// Lets a job be stopped, as [`Program::stop_on`](crate::Program::stop_on) does.
    pub fn stop_on(&self, stop: Arc<AtomicBool>) {
        self.guest().stop_on(stop);
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use trine_model::{Buffer, BufferId, Op, Product, Rows, Step, WeightId};

    use super::*;

    /// A guest that gives these results.
    struct Gives(&'static [usize]);

    impl Guest for Gives {
        fn begin(&mut self, _: &Job<'_>) -> Result<(), BackendError> {
            Ok(())
        }

        fn finish(&mut self, _: &Job<'_>, give: &mut Give<'_>) -> Result<(), BackendError> {
            self.0.iter().for_each(|&index| give(index, &[1.0]));
            Ok(())
        }
    }

    /// A Plan with two results of one job.
    fn plan() -> Plan {
        let buffer = |name: &str| Buffer { name: name.to_owned(), rows: Rows::Tokens, columns: 1 };
        let product = |output| Product { weight: WeightId(0), output: BufferId(output) };
        let op = Op::MatMul { input: BufferId(0), products: vec![product(1), product(2)] };
        let step = |label: &str, op| Step { label: label.to_owned(), op };
        let steps = vec![step("inner", op)];
        let weight = trine_model::Weight {
            name: "w".to_owned(),
            kind: trine_model::WeightKind::Matrix,
            rows: 1,
            columns: 1,
            dtype: trine_weights::DType::F32,
            place: trine_model::WeightPlace::Aside,
        };
        Plan {
            buffers: ["x", "y", "z"].map(buffer).to_vec(),
            weights: vec![weight],
            caches: Vec::new(),
            steps: vec![step("away", Op::Away { steps })],
            inputs: Vec::new(),
            outputs: vec![BufferId(1)],
            ends: Vec::new(),
        }
    }

    /// A result that is missing would leave that of an earlier step in its place.
    #[test]
    fn a_guest_gives_each_result_once() {
        for (gives, is_right) in
            [(&[0, 1][..], true), (&[1, 0], true), (&[0], false), (&[0, 1, 1], false)]
        {
            let hosted = Hosted::new(Gives(gives), &plan());
            let job = Job { number: 0, inputs: &[&[1.0]], rows: 1, exact: 0 };
            hosted.begin(&job).unwrap();
            let mut given = 0;
            let finished = catch_unwind(AssertUnwindSafe(|| {
                hosted.finish(&job, &|| true, &mut |_, _| given += 1)
            }));
            assert_eq!(finished.is_ok(), is_right, "{gives:?}");
            assert!(!is_right || given == 2);
        }
    }
}
