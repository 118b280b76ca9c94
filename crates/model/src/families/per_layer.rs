//! Inputs that each layer has of its own for a token, as Gemma 3n and Gemma 4 have them.
//!
//! ```text
//! g = (norm(P e) + E'[token] * sqrt(width)) / sqrt(2), of all layers
//! delta = norm(G' (gelu(G x) * g)), of one layer
//! ```

use std::f32::consts::FRAC_1_SQRT_2;

use crate::checkpoint::config::{Config, PerLayerConfig};
use crate::families::builder::Builder;
use crate::names;
use crate::plan::BufferId;

/// Adds the inputs of all layers side by side, (tokens, layers x width), for the embeddings `e` of
/// the tokens.
pub(crate) fn inputs(
    p: &mut Builder<'_>,
    config: &Config,
    own: PerLayerConfig,
    e: BufferId,
) -> BufferId {
    let PerLayerConfig { width, vocabulary } = own;
    let layers = config.layers.len();
    let scale = (width as f64).sqrt() as f32;
    let table = names::PER_LAYER_EMBEDDING;
    let looked_up = p.embed("per_layer_embedding", table, vocabulary, layers * width, scale);
    let projected = p.matmul("per_layer_proj", e, names::PER_LAYER_PROJECTION, layers * width);
    // The product has a factor of hidden^-0.5, which a norm undoes but for its epsilon.
    let epsilon = config.norm_epsilon * config.hidden as f32;
    p.head_norm(projected, Some(names::PER_LAYER_NORM), layers, epsilon);
    let terms = [(projected, FRAC_1_SQRT_2), (looked_up, FRAC_1_SQRT_2)];
    p.sum("per_layer_inputs", terms)
}

/// Adds what a layer's own input gives to the residual stream, (tokens, hidden), for `x` and the
/// inputs of all layers.
pub(crate) fn delta(
    p: &mut Builder<'_>,
    config: &Config,
    index: usize,
    width: usize,
    x: BufferId,
    inputs: BufferId,
) -> BufferId {
    let name = |part| names::layer(index, part);
    let gate = p.matmul("per_layer_gate", x, &name("inp_gate"), width);
    let gated = p.geglu("per_layer_gated", gate, inputs, index * width);
    let delta = p.matmul("per_layer_delta", gated, &name("proj"), config.hidden);
    p.norm("per_layer_norm", delta, &name("post_norm"), config.norm_epsilon)
}
