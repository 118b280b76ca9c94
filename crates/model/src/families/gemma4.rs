//! The forward pass of Gemma 4 (text), as the reference implementation in transformers computes it.
//!
//! ```text
//! h = E[token] * sqrt(hidden)
//! for each layer:
//!     h += norm(attention(norm(h)))
//!     h += norm(ffn(norm(h))),  or  norm(norm(ffn(norm(h))) + norm(experts(norm(h))))
//!     h += norm(G' (gelu(G h) * g))                       in E2B and E4B
//!     h *= s
//! logits = cap * tanh(E norm(h) / cap)
//! ```
//!
//! A token's experts are those with the largest logits of `R (h / rms(h) * r)`. Each has a share of
//! the softmax over theirs, times a factor of its own.

use trine_weights::DType;

use crate::checkpoint::config::{Config, ExpertsConfig, Gates, Gemma4Config};
use crate::families::builder::Builder;
use crate::plan::{BufferId, CacheId, ExpertMatrix, Plan};
use crate::{families::layer, families::per_layer, names};

/// Builds the Plan. `dtype_of` returns how the tensor of a name is stored; `tied` says whether the
/// embedding table is also the output matrix.
pub fn plan(
    config: &Config,
    own: Gemma4Config,
    tied: bool,
    dtype_of: &dyn Fn(&str) -> DType,
) -> Plan {
    let mut p = Builder::new(dtype_of);
    let h = residual_stream(&mut p, config, own);
    layer::logits(p, config, tied, h)
}

/// Builds the Plan that ends before the output matrix: `norm(h)` of every token, (tokens, hidden).
/// `dtype_of` returns how the tensor of a name is stored.
pub fn hidden_states(config: &Config, own: Gemma4Config, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    let mut p = Builder::new(dtype_of);
    let h = residual_stream(&mut p, config, own);
    layer::hidden_states(p, config, h)
}

/// Adds the layers and returns `h` after the last one, (tokens, hidden).
fn residual_stream(p: &mut Builder<'_>, config: &Config, own: Gemma4Config) -> BufferId {
    let (rows, scale) = (config.vocabulary, config.embedding_scale);
    let mut h = p.embed("residual", names::TOKEN_EMBEDDING, rows, config.hidden, scale);
    let inputs = own.inputs.map(|own| (per_layer::inputs(p, config, own, h), own.width));
    let mut caches: Vec<CacheId> = Vec::new();
    for (index, layer) in config.layers.iter().enumerate() {
        p.scope(format!("blk.{index}."));
        let norm = names::layer(index, "attn_norm");
        let normed = p.norm("attn_norm", h, &norm, config.norm_epsilon);
        let delta = layer::attention(p, config, index, normed, &mut caches);
        p.add(delta, h);
        match layer.experts {
            Some(experts) => feed_forward_with_experts(p, config, index, experts, h),
            None => layer::feed_forward(p, config, index, h),
        }
        if let Some((inputs, width)) = inputs {
            let delta = per_layer::delta(p, config, index, width, h, inputs);
            p.add(delta, h);
        }
        if layer.output_scale != 1.0 {
            h = p.sum("scaled", [(h, layer.output_scale)]);
        }
    }
    p.scope("");
    h
}

/// Adds `x += norm(norm(ffn(norm(x))) + norm(experts(norm(x))))`.
fn feed_forward_with_experts(
    p: &mut Builder<'_>,
    config: &Config,
    index: usize,
    own: ExpertsConfig,
    x: BufferId,
) {
    let name = |part| names::layer(index, part);
    let epsilon = config.norm_epsilon;
    let dense = layer::dense(p, config, index, x);
    let dense = p.norm("post_ffw_norm_1", dense, &name("post_ffw_norm_1"), epsilon);
    let experts = experts(p, config, index, own, x);
    let experts = p.norm("post_ffw_norm_2", experts, &name("post_ffw_norm_2"), epsilon);
    let both = p.sum("ffn_sum", [(dense, 1.0), (experts, 1.0)]);
    let delta = p.norm("post_ffw_norm", both, &name("post_ffw_norm"), epsilon);
    p.add(delta, x);
}

/// Adds `experts(norm(x))`, (tokens, hidden).
fn experts(
    p: &mut Builder<'_>,
    config: &Config,
    index: usize,
    own: ExpertsConfig,
    x: BufferId,
) -> BufferId {
    let name = |part| names::layer(index, part);
    let ExpertsConfig { count, used, width, .. } = own;
    let router = names::layer_scale(index, "ffn_gate_inp");
    let routed = p.norm("router_norm", x, &router, config.norm_epsilon);
    let logits = p.matmul("router", routed, &name("ffn_gate_inp"), count);
    let factors = own.has_factors.then(|| names::layer_scale(index, "ffn_down_exps"));
    let scale = (1.0 / (config.hidden as f64).sqrt()) as f32;
    let routes = p.route(logits, factors.as_deref(), scale, used);
    let normed = p.norm("pre_ffw_norm_2", x, &name("pre_ffw_norm_2"), config.norm_epsilon);
    let gate_and_up = match own.gates {
        Gates::Joined => {
            let both = p.matrix(&name("ffn_gate_up_exps"), count * 2 * width, config.hidden);
            [0, width].map(|first| ExpertMatrix { weight: both, first, step: 2 * width })
        }
        Gates::Apart => ["ffn_gate_exps", "ffn_up_exps"].map(|part| {
            let weight = p.matrix(&name(part), count * width, config.hidden);
            ExpertMatrix { weight, first: 0, step: width }
        }),
    };
    let gated = p.gated_experts(normed, routes, gate_and_up, width);
    let weight = p.matrix(&name("ffn_down_exps"), count * config.hidden, width);
    let down = ExpertMatrix { weight, first: 0, step: config.hidden };
    p.sum_experts(gated, routes, down, config.hidden)
}
