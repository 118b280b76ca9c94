//! Sums of squares of what matrices are multiplied with.

use std::sync::PoisonError;

use trine_model::Op;

use super::Frame;

impl Frame<'_> {
    /// Adds the rows that a step's matrices are multiplied with, if they are observed. One thread
    /// calls it, when all steps before have ended: the sums cost little beside the products.
    pub(super) fn observe(&self, step: usize) {
        let mut observed = self.fixed.observed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sums) = observed.as_mut().map(|all| &mut all[step]) else { return };
        match &self.fixed.facts.plan.steps[step].op {
            Op::MatMul { input, .. } | Op::GatedMatMul { input, .. } => {
                for row in 0..self.input_rows(*input).rows {
                    sums.add(0, 1, self.read(*input, row));
                }
            }
            op @ (Op::GatedExperts { .. } | Op::SumExperts { .. }) => {
                self.each_entry(op, |expert, experts, row| sums.add(expert, experts, row));
            }
            _ => {}
        }
    }
}
