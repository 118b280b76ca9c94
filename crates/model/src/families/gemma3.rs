//! The forward pass of Gemma 3 (text), as the reference implementation in transformers computes it.
//!
//! ```text
//! h = E[token] * sqrt(hidden)
//! for each layer:  h += norm(attention(norm(h)));  h += norm(ffn(norm(h)))
//! logits = E norm(h)
//! ```

use trine_weights::DType;

use crate::checkpoint::config::Config;
use crate::families::builder::Builder;
use crate::families::layer;
use crate::names;
use crate::plan::{BufferId, CacheId, Plan};

/// Builds the Plan. `dtype_of` returns how the tensor of a name is stored; `tied` says whether the
/// embedding table is also the output matrix.
pub fn plan(config: &Config, tied: bool, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    let mut p = Builder::new(dtype_of);
    let x = residual_stream(&mut p, config);
    layer::logits(p, config, tied, x)
}

/// Builds the Plan that ends before the output matrix: `norm(h)` of every token, (tokens, hidden).
/// `dtype_of` returns how the tensor of a name is stored.
pub fn hidden_states(config: &Config, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    let mut p = Builder::new(dtype_of);
    let x = residual_stream(&mut p, config);
    layer::hidden_states(p, config, x)
}

/// Adds the layers and returns `h` after the last one, (tokens, hidden).
pub(crate) fn residual_stream(p: &mut Builder, config: &Config) -> BufferId {
    let (rows, scale) = (config.vocabulary, config.embedding_scale);
    let x = p.embed("residual", names::TOKEN_EMBEDDING, rows, config.hidden, scale);
    let mut caches: Vec<CacheId> = Vec::new();
    for index in 0..config.layers.len() {
        p.scope(format!("blk.{index}."));
        let name = names::layer(index, "attn_norm");
        let normed = p.norm("attn_norm", x, &name, config.norm_epsilon);
        let delta = layer::attention(p, config, index, normed, &mut caches);
        p.add(delta, x);
        layer::feed_forward(p, config, index, x);
    }
    p.scope("");
    x
}
