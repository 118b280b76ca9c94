//! Which matrices lie together on the device and are multiplied as one.
//!
//! Everything that depends on the format of a product's matrices goes through a [`Joint`]: how they
//! are packed, which kernel multiplies them, and which operand it takes. A file may store every
//! matrix in a different format, so an operation of a Plan can have several joints.

use trine_model::{Op, Plan, WeightId};

use crate::capabilities::Capabilities;
use crate::kernels::matmul::MatmulShape;
use crate::pack::{Format, format_of, fragments};

/// Most matrices of a joint: a product writes to at most this many places.
const PARTS_MAX: usize = 3;

/// Matrices of one format with equally many columns, one after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Joint {
    /// Its weights, in their order.
    pub(crate) weights: Vec<WeightId>,
    /// Their format on the device.
    pub(crate) format: Format,
    /// Columns of each.
    pub(crate) columns: usize,
}

impl Joint {
    /// Returns a weight by itself.
    pub(crate) fn of(plan: &Plan, id: WeightId) -> Self {
        let weight = plan.weight(id);
        Self { weights: vec![id], format: format_of(weight.dtype), columns: weight.columns }
    }

    /// Returns the rows of each of its weights.
    pub(crate) fn rows(&self, plan: &Plan) -> Vec<usize> {
        self.weights.iter().map(|id| plan.weight(*id).rows).collect()
    }

    /// Returns whether its format is one of 16 bits in rows.
    pub(crate) fn is_short(&self) -> bool {
        matches!(self.format, Format::F16 | Format::Bf16)
    }

    /// Returns whether products of many rows take activations in halves, which matrix units
    /// multiply, so that such a product can also give halves. `of_picture`: of a Plan for pictures.
    pub(crate) fn takes_halves(&self, capabilities: &Capabilities, of_picture: bool) -> bool {
        let kind = match of_picture && self.is_short() {
            true => MatmulShape::short_operand(capabilities),
            false => MatmulShape::operand_for(capabilities, self.format, usize::MAX),
        };
        kind.is_halves()
    }

    /// Returns the joints of an operation's matrices on a device: those of one format together,
    /// ordered by where each format appears first. Empty for an operation without matrices. A gated
    /// product can be computed as one product only if it has one joint. Where a matrix is a slice
    /// of another one, nothing that is adjacent in the operation need be so in memory, and each is
    /// by itself.
    pub(crate) fn all(capabilities: &Capabilities, plan: &Plan, op: &Op) -> Vec<Self> {
        let ids = match op {
            Op::MatMul { products, .. } => products.iter().map(|product| product.weight).collect(),
            Op::GatedMatMul { gate, up, .. } => vec![*gate, *up],
            Op::Embed { table, .. } | Op::PositionEmbedding { table, .. } => vec![*table],
            // Gate and up of all experts may be one weight.
            Op::GatedExperts { gate_and_up: [gate, up], .. } if gate.weight == up.weight => {
                vec![gate.weight]
            }
            Op::GatedExperts { gate_and_up, .. } => {
                gate_and_up.iter().map(|matrix| matrix.weight).collect()
            }
            Op::SumExperts { down, .. } => vec![down.weight],
            Op::Search { clusters, .. } => vec![clusters.weight],
            _ => Vec::new(),
        };
        let in_fragments = lie_in_fragments(capabilities, plan, op, &ids);
        let own = |id| {
            let own = Self::of(plan, id);
            let format =
                if in_fragments && own.is_short() { Format::F16Fragments } else { own.format };
            Self { format, ..own }
        };
        if ids.iter().any(|&id| plan.holder(id) != id) {
            return ids.into_iter().map(own).collect();
        }
        let mut joints: Vec<Self> = Vec::new();
        for id in ids {
            let own = own(id);
            let takes =
                |joint: &&mut Self| joint.format == own.format && joint.weights.len() < PARTS_MAX;
            match joints.iter_mut().find(takes) {
                Some(joint) => joint.weights.push(id),
                None => joints.push(own),
            }
        }
        joints
    }
}

/// Returns whether the weights of 16 bits among an operation's matrices lie in fragments: those of
/// products of pictures on a device that takes them, if they are whole left factors. Slices lie as
/// what they are slices of.
fn lie_in_fragments(capabilities: &Capabilities, plan: &Plan, op: &Op, ids: &[WeightId]) -> bool {
    capabilities.fragments
        && plan.is_of_picture()
        && matches!(op, Op::MatMul { .. } | Op::GatedMatMul { .. })
        && ids.iter().all(|&id| plan.weight(plan.holder(id)).rows.is_multiple_of(fragments::ROWS))
}
