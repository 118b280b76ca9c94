//! Norms of rows in a graph.

use trine_model::WeightId;

use super::values::{Touch, ValueId, read, write};

/// A norm of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum NormWork {
    /// `norm(source)`.
    Norm { source: ValueId, weight: WeightId, epsilon: f32 },
    /// `norm(source)` with factors of 1.
    Bare { source: ValueId, epsilon: f32 },
    /// `layer_norm(source)`.
    Layer { source: ValueId, layer: LayerWeights },
    /// `updated = target + source + bias`, and the result is `layer_norm(updated)`.
    AddLayer {
        source: ValueId,
        bias: Option<WeightId>,
        target: ValueId,
        updated: ValueId,
        layer: LayerWeights,
    },
    /// `updated = (target + norm(source)) * scale`, and the result is `norm(updated)`.
    NormAddNorm {
        source: ValueId,
        weight: WeightId,
        target: ValueId,
        scale: f32,
        updated: ValueId,
        next_weight: WeightId,
        epsilon: f32,
    },
}

/// The weights of a layer norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LayerWeights {
    pub(super) weight: WeightId,
    pub(super) bias: WeightId,
    pub(super) epsilon: f32,
}

impl NormWork {
    /// Returns the rows that are normed first.
    pub(super) fn source_mut(&mut self) -> &mut ValueId {
        match self {
            NormWork::Norm { source, .. }
            | NormWork::Bare { source, .. }
            | NormWork::Layer { source, .. }
            | NormWork::AddLayer { source, .. }
            | NormWork::NormAddNorm { source, .. } => source,
        }
    }

    pub(super) fn touches(self, see: &mut dyn FnMut(Touch)) {
        match self {
            NormWork::Norm { source, .. }
            | NormWork::Bare { source, .. }
            | NormWork::Layer { source, .. } => see(read(source)),
            NormWork::AddLayer { source, target, updated, .. }
            | NormWork::NormAddNorm { source, target, updated, .. } => {
                [read(source), read(target), write(updated)].into_iter().for_each(see);
            }
        }
    }
}
