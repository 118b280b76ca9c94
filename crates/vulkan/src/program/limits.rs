//! Work on rows whose values stay within limits before or after it.

use super::norms::NormWork;
use super::values::{Made, Touch, ValueId, read};
use crate::kernels::rows::RowLimits;

/// What is done to the rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LimitedRows {
    /// Nothing.
    Convert { source: ValueId },
    /// A norm.
    Norm(NormWork),
    /// `gelu(gate) * up`.
    Gate { gate: ValueId, up: ValueId },
}

/// Work on rows, with limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LimitedWork {
    pub(super) rows: LimitedRows,
    /// Limits of the result and of what is read: the normed row, or gate and up.
    pub(super) within: RowLimits,
    pub(super) made: Made,
}

impl LimitedWork {
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        match self.rows {
            LimitedRows::Convert { source } => see(read(source)),
            LimitedRows::Norm(norm) => norm.touches(see),
            LimitedRows::Gate { gate, up } => [gate, up].map(read).into_iter().for_each(&mut *see),
        }
        self.made.touches(see);
    }
}
