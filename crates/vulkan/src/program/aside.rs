//! The host's part where experts are with another device: it hands the rows that a submission has
//! written to that device, and writes the sums for a later one.
//!
//! Every pass that runs such a layer meets the host there ([`crate::raw::meeting`]).

use std::time::Instant;

use trine_backend::{Aside, BackendError, Handed};
use trine_model::Rows;

use super::loans::{Loan, Loans, StepRows};
use crate::raw::meeting::Host;

/// The host during a pass.
pub(super) struct AsideTable<'a> {
    pub(super) loans: &'a mut Loans,
    pub(super) of_pass: &'a [Loan],
    pub(super) aside: &'a mut Aside,
    /// The time of each step of the Plan in seconds, if they are measured.
    pub(super) profile: Option<&'a mut [f64]>,
    /// Why the other device has not computed what was handed over.
    pub(super) failure: Option<BackendError>,
}

impl AsideTable<'_> {
    fn sum(&mut self, meeting: usize) -> Result<(), BackendError> {
        let Loan { rows, number, handed: of_step, products, .. } = &self.of_pass[meeting];
        let StepRows { tokens, outputs, exact } = self.loans.step_rows;
        let (rows, exact) = match rows {
            Rows::Tokens | Rows::Soft => (tokens, exact),
            Rows::Outputs => (outputs, outputs),
        };
        if rows == 0 {
            return Ok(());
        }
        let values = |index: usize| {
            let (first, columns) = of_step[index];
            self.loans.input.values::<f32>(first, rows * columns)
        };
        let [input, chosen, shares] = [0, 1, 2].map(values);
        let handed = Handed { input, chosen, shares, rows, exact };
        let sums = self.aside.sum(*number, handed)?;
        let (first, _) = products[0];
        self.loans.output.write(4 * first as u64, bytemuck::cast_slice(sums));
        Ok(())
    }
}

impl Host for AsideTable<'_> {
    fn begin(&mut self, _: usize) {}

    fn end(&mut self, meeting: usize, _: &dyn Fn() -> bool) -> bool {
        let start = Instant::now();
        self.failure = self.sum(meeting).err();
        if let Some(profile) = &mut self.profile {
            profile[self.of_pass[meeting].step] += start.elapsed().as_secs_f64();
        }
        self.failure.is_none()
    }
}
