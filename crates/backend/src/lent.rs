//! What a device keeps of the part of its products that a partner computes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use trine_model::{Model, Op, Plan, WeightId};

use crate::error::BackendError;
use crate::partner::{Loan, Partner};

/// Returns the matrices that a Plan delegates, in order.
pub fn delegated(plan: &Plan) -> Vec<WeightId> {
    let of_op = |op: &Op| match op {
        Op::Delegate { weights, .. } => weights.clone(),
        _ => Vec::new(),
    };
    plan.steps.iter().flat_map(|step| of_op(&step.op)).collect()
}

/// A partner with the matrices of a Plan that are lent to it.
pub struct Lent {
    // Dropped before the partner, which it may belong to.
    loan: Mutex<Box<dyn Loan>>,
    partner: Arc<dyn Partner>,
    /// The weights that were lent, in the partner's order.
    weights: Vec<WeightId>,
    /// Whether a product has failed: no other is delegated then.
    has_failed: AtomicBool,
}

impl Lent {
    /// Hands the matrices that a Plan delegates to a partner; `None` if there is none, if the Plan
    /// delegates nothing, or if the partner fails. Then the device computes everything.
    ///
    /// # Errors
    /// Returns an error if a matrix cannot be converted.
    pub fn load(
        partner: Option<&Arc<dyn Partner>>,
        model: &Model,
        plan: &Plan,
    ) -> Result<Option<Self>, BackendError> {
        let weights = delegated(plan);
        let Some(partner) = partner.filter(|_| !weights.is_empty()) else { return Ok(None) };
        let tensors = weights.iter().map(|id| model.converted_part(plan, *id));
        let loan = match partner.load(&tensors.collect::<Result<Vec<_>, _>>()?) {
            Ok(loan) => loan,
            Err(error) => {
                tracing::warn!(
                    "{} takes no part of the model: {error}. The device computes all of it",
                    partner.name()
                );
                return Ok(None);
            }
        };
        Ok(Some(Self {
            loan: Mutex::new(loan),
            partner: Arc::clone(partner),
            weights,
            has_failed: AtomicBool::new(false),
        }))
    }

    /// Returns whether products can be delegated.
    pub fn is_open(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed)
    }

    /// Begins the products of `input`, (rows, in-features), with weights that the Plan delegates.
    /// Returns whether they were begun.
    ///
    /// # Panics
    /// Panics if the Plan does not delegate one of the weights.
    pub fn begin(&self, input: &[f32], weights: &[WeightId]) -> bool {
        let number = |id: &WeightId| self.weights.iter().position(|lent| lent == id);
        let numbers: Option<Vec<usize>> = weights.iter().map(number).collect();
        let numbers = numbers.expect("what is delegated was lent when the Plan was loaded");
        let mut loan = self.loan.lock().unwrap_or_else(PoisonError::into_inner);
        self.note(loan.begin(input, &numbers), weights.len())
    }

    /// Waits for the products that were begun, and writes each, (rows, out-features). Returns
    /// whether the partner has computed them.
    pub fn finish(&self, outputs: &mut [&mut [f32]]) -> bool {
        let mut loan = self.loan.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let outcome = loan.finish(outputs);
        self.partner.tally().waited_for(start.elapsed());
        self.note(outcome, outputs.len())
    }

    fn note(&self, outcome: Result<(), BackendError>, products: usize) -> bool {
        let Err(error) = outcome else { return true };
        (0..products).for_each(|_| self.partner.tally().refused());
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{} has not computed what was delegated: {error}. The device itself does \
                 it, and nothing more is delegated",
                self.partner.name()
            );
        }
        false
    }
}
