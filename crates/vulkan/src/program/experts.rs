//! Launches of feed-forward parts that a router chooses: the choice, and products with the matrices
//! of the experts. An entry is a row with one of its experts (`kernels::experts`).

use trine_model::WeightId;

use super::values::{Form, Made, OperandValue, Touch, ValueId, read, write};
use crate::kernels::experts::Grouping;
use crate::weights::Joint;

/// What becomes of the products of entries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum EntryOutput {
    /// (rows, used x rows of an expert) f32.
    Rows(ValueId),
    /// `gelu(gate) * up`, with `up` this many rows after the gate.
    Gated { made: Made, split: usize },
}

/// A product of rows with the matrices of their experts.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ExpertsProduct {
    /// The matrices of all experts.
    pub(super) joint: Joint,
    /// The first row of the first expert's matrix, or of its gate.
    pub(super) first: usize,
    /// Rows from one expert to the next.
    pub(super) step: usize,
    /// Rows of an expert that are multiplied, or of its gate.
    pub(super) rows: usize,
    pub(super) grouping: Grouping,
    /// The sorted entries, or the numbers of the experts if none are sorted.
    pub(super) order: ValueId,
    pub(super) input: Form,
    /// Entries that share a row of the input.
    pub(super) shared: usize,
    pub(super) output: EntryOutput,
}

/// Work with experts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ExpertsWork {
    /// The experts of each row, and their shares.
    Choose {
        logits: ValueId,
        factors: Option<WeightId>,
        scale: f32,
        chosen: ValueId,
        shares: ValueId,
    },
    /// Sorts entries by expert.
    Sort {
        grouping: Grouping,
        chosen: ValueId,
        sorted: ValueId,
    },
    /// Brings rows into the order of sorted entries, for matrix units.
    Gather {
        grouping: Grouping,
        sorted: ValueId,
        source: ValueId,
        operand: OperandValue,
        /// Entries that share a row of the source.
        shared: usize,
        /// Entries of a row of the step.
        used: usize,
    },
    Product(ExpertsProduct),
    /// `result = sum of shares * parts`, over the experts of a row.
    Sum {
        parts: ValueId,
        shares: ValueId,
        result: ValueId,
    },
}

impl ExpertsWork {
    /// Passes each value that the launch reads or writes to `see`, those that it reads first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        match self {
            ExpertsWork::Choose { logits, chosen, shares, .. } => {
                [read(*logits), write(*chosen), write(*shares)].into_iter().for_each(see);
            }
            ExpertsWork::Sort { chosen, sorted, .. } => {
                [read(*chosen), write(*sorted)].into_iter().for_each(see);
            }
            ExpertsWork::Gather { sorted, source, operand, .. } => {
                let made = Touch::Write(Form::Operand(*operand));
                [read(*sorted), read(*source), made].into_iter().for_each(see);
            }
            ExpertsWork::Product(product) => {
                see(Touch::Read(product.input));
                see(read(product.order));
                match product.output {
                    EntryOutput::Rows(rows) => see(write(rows)),
                    EntryOutput::Gated { made, .. } => made.touches(see),
                }
            }
            ExpertsWork::Sum { parts, shares, result } => {
                [read(*parts), read(*shares), write(*result)].into_iter().for_each(see);
            }
        }
    }

    /// Returns what is launched.
    pub(super) fn name(&self) -> &'static str {
        match self {
            ExpertsWork::Choose { .. } => "choose experts",
            ExpertsWork::Sort { .. } => "sort by expert",
            ExpertsWork::Gather { .. } => "gather by expert",
            ExpertsWork::Product(product) => match product.output {
                EntryOutput::Rows(_) => "experts",
                EntryOutput::Gated { .. } => "experts + geglu",
            },
            ExpertsWork::Sum { .. } => "sum of experts",
        }
    }

    /// Returns the weights that it reads.
    pub(super) fn weights(&self) -> Vec<WeightId> {
        match self {
            ExpertsWork::Choose { factors, .. } => factors.iter().copied().collect(),
            ExpertsWork::Product(product) => product.joint.weights.clone(),
            ExpertsWork::Sort { .. } | ExpertsWork::Gather { .. } | ExpertsWork::Sum { .. } => {
                Vec::new()
            }
        }
    }
}
