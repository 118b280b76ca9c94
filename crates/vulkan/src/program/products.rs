//! Products in a graph.

use trine_model::WeightId;

use super::values::{Form, Made, OperandValue, Touch, ValueId, read, write};
use crate::weights::Joint;

/// What a product multiplies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Input {
    /// The result of another launch.
    Given(Form),
    /// The norm of a row, which every workgroup of the product computes for itself.
    Norm { source: ValueId, weight: WeightId, epsilon: f32 },
    /// The norm of a row to which another's norm was added. All workgroups read the target, so the
    /// updated one has a home of its own. Of several products with the same norm one writes that.
    NormAddNorm {
        source: ValueId,
        weight: WeightId,
        target: ValueId,
        scale: f32,
        updated: Option<ValueId>,
        next_weight: WeightId,
        epsilon: f32,
    },
}

/// What happens to the results of a product.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    /// (rows, rows of a matrix) f32 for each matrix.
    Parts(Vec<ValueId>),
    /// `gelu(first matrix's part) * second matrix's part`.
    Gated(Made),
    /// `gelu(product)`.
    Activated(OperandValue),
    /// Queries, keys and values, those as attention of a picture takes them.
    Heads { query: ValueId, keys: ValueId, values: ValueId, dim: usize },
    /// `gelu(product) * by`, with the columns of `by` from `first` on.
    Gates { by: ValueId, first: usize, result: ValueId },
}

/// The kernel of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProductKernel {
    /// For one row.
    Stream,
    /// For few rows.
    Matvec,
    /// For more.
    Matmul,
}

/// A product with matrices that lie together.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProductWork {
    pub(super) kernel: ProductKernel,
    pub(super) joint: Joint,
    pub(super) input: Input,
    /// Added to the results of each matrix; empty if none are.
    pub(super) biases: Vec<WeightId>,
    pub(super) output: Output,
}

impl ProductWork {
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        match self.input {
            Input::Given(form) => see(Touch::Read(form)),
            Input::Norm { source, .. } => see(read(source)),
            Input::NormAddNorm { source, target, updated, .. } => {
                [source, target].map(read).into_iter().for_each(&mut *see);
                updated.into_iter().for_each(|id| see(write(id)));
            }
        }
        match &self.output {
            Output::Parts(parts) => parts.iter().for_each(|&id| see(write(id))),
            Output::Gated(made) => made.touches(see),
            Output::Activated(operand) => see(Touch::Write(Form::Operand(*operand))),
            Output::Heads { query, keys, values, .. } => {
                [*query, *keys, *values].map(write).into_iter().for_each(see);
            }
            Output::Gates { by, result, .. } => {
                [read(*by), write(*result)].into_iter().for_each(see)
            }
        }
    }
}
