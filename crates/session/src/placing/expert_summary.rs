//! The experts of a model, for people and reports.

use serde::Serialize;
use trine_model::{Model, Weight};

use crate::words;

/// What the layers with experts have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Experts {
    /// The layers with experts.
    layers: usize,
    /// The experts of each.
    count: usize,
    /// Those that a token takes of them.
    used: usize,
    /// The feed-forward width of each.
    width: usize,
    /// The bytes of all their matrices.
    bytes: u64,
    /// The bytes of those that a token reads.
    token_bytes: u64,
}

impl Experts {
    /// Returns those of a model, if it has any. All layers with experts have the same numbers.
    pub fn of(model: &Model) -> Option<Self> {
        let layers = || model.config().layers.iter().filter_map(|layer| layer.experts);
        let first = layers().next()?;
        let plan = model.base_plan();
        let of_experts = |weight: &&Weight| weight.name.ends_with("_exps.weight");
        let bytes = plan.weights.iter().filter(of_experts).map(Weight::bytes).sum();
        Some(Self {
            layers: layers().count(),
            count: first.count,
            used: first.used,
            width: first.width,
            bytes,
            token_bytes: bytes / first.count as u64 * first.used as u64,
        })
    }

    /// Describes them in one line.
    pub fn text(&self) -> String {
        let Self { layers, count, used, width, bytes, token_bytes } = *self;
        format!(
            "{count} of width {width} in each of {}; a token takes {used} and reads {} of their {}",
            words::counted(layers, "layer"),
            words::bytes(token_bytes),
            words::bytes(bytes)
        )
    }
}
