//! Launches of feed-forward parts that a router chooses: the choice, and products with the matrices
//! of the experts. An entry is a row with one of its experts (`kernels::experts`).

use trine_model::WeightId;

use super::values::{Form, Ids, Made, OperandValue, Touch, ValueId, read, write};
use crate::kernels::experts::Grouping;
use crate::kernels::sum::Finish;
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
    /// Entries of a row of the step.
    pub(super) used: usize,
    pub(super) output: EntryOutput,
}

/// A router with the norm before it, and another norm of the same rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NormedRouter {
    pub(super) source: ValueId,
    pub(super) norm: WeightId,
    /// Of all norms.
    pub(super) epsilon: f32,
    pub(super) router: WeightId,
    pub(super) other: Option<Finish<Ids>>,
}

/// Work with experts.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ExpertsWork {
    /// The experts of each row, and their shares. A choice with a router makes its logits itself.
    Choose {
        router: Option<NormedRouter>,
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
    /// The products of a row's clusters at their tokens, in a row of logits of all tokens.
    Spread {
        products: ValueId,
        chosen: ValueId,
        shares: ValueId,
        tokens: WeightId,
        result: ValueId,
    },
}

impl ExpertsWork {
    /// Passes each value that the launch reads or writes to `see`, those that it reads first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        match self {
            ExpertsWork::Choose { router, logits, chosen, shares, .. } => {
                match router {
                    None => see(read(*logits)),
                    Some(router) => {
                        see(read(router.source));
                        see(write(*logits));
                        router.other.iter().for_each(|other| other.made.touches(see));
                    }
                }
                [write(*chosen), write(*shares)].into_iter().for_each(see);
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
            ExpertsWork::Spread { products, chosen, shares, result, .. } => {
                let reads = [products, chosen, shares].map(|id| read(*id));
                reads.into_iter().chain([write(*result)]).for_each(see);
            }
        }
    }

    /// Returns what is launched.
    pub(super) fn name(&self) -> &'static str {
        match self {
            ExpertsWork::Choose { router: None, .. } => "choose experts",
            ExpertsWork::Choose { router: Some(NormedRouter { other: None, .. }), .. } => {
                "norm + router + choose experts"
            }
            ExpertsWork::Choose { .. } => "norm + router + choose experts + norm",
            ExpertsWork::Sort { .. } => "sort by expert",
            ExpertsWork::Gather { .. } => "gather by expert",
            ExpertsWork::Product(product) => match product.output {
                EntryOutput::Rows(_) => "experts",
                EntryOutput::Gated { .. } => "experts + geglu",
            },
            ExpertsWork::Spread { .. } => "logits of clusters",
        }
    }

    /// Returns the weights that it reads.
    pub(super) fn weights(&self) -> Vec<WeightId> {
        match self {
            ExpertsWork::Choose { factors, router, .. } => {
                let router = router.iter().flat_map(|router| {
                    let other = router.other.map(|other| other.weight);
                    [router.norm, router.router].into_iter().chain(other)
                });
                router.chain(*factors).collect()
            }
            ExpertsWork::Product(product) => product.joint.weights.clone(),
            ExpertsWork::Spread { tokens, .. } => vec![*tokens],
            ExpertsWork::Sort { .. } | ExpertsWork::Gather { .. } => Vec::new(),
        }
    }
}
