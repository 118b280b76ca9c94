//! The forward pass of EmbeddingGemma, as transformers and sentence-transformers compute it.
//!
//! ```text
//! h = the residual stream of Gemma 3, with attention that looks both ways
//! rows = D3 (D2 norm(h));  vector = mean(rows) / |mean(rows)|
//! ```
//!
//! The makers take the mean before the two products. They have no bias and nothing between them, so
//! that the mean of products is the product of the mean; the Plan then ends with a row for each
//! token, as those of other models do that embed texts.

use trine_weights::DType;

use crate::checkpoint::config::{Config, EmbeddingConfig};
use crate::families::builder::Builder;
use crate::families::gemma3;
use crate::names;
use crate::plan::Plan;
use crate::plan::goal::{End, Goal};

/// Builds the Plan: (tokens, dimensions) for [`Goal::States`]. `dtype_of` returns how the tensor of
/// a name is stored.
pub fn plan(config: &Config, own: EmbeddingConfig, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    let mut p = Builder::new(dtype_of);
    let h = gemma3::residual_stream(&mut p, config);
    let normed = p.norm("output_norm", h, names::OUTPUT_NORM, config.norm_epsilon);
    let [first, second] = names::DENSE;
    let inner = p.matmul("dense", normed, first, own.inner);
    let rows = p.matmul("embedding", inner, second, own.dimensions);
    Plan { ends: vec![End { goal: Goal::States, outputs: 1 }], ..p.finish(rows) }
}
