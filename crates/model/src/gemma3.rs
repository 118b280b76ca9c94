//! The forward pass of Gemma 3 (text), as the reference implementation in transformers computes it.
//!
//! ```text
//! h = E[token] * sqrt(hidden)
//! for each layer:  h += norm(attention(norm(h)));  h += norm(ffn(norm(h)))
//! logits = E norm(h)
//! ```

use trine_weights::DType;

use crate::builder::Builder;
use crate::config::{Config, LayerConfig};
use crate::names;
use crate::plan::{BufferId, CacheId, Plan};

/// Builds the Plan. `dtype_of` returns how the tensor of a name is stored; `tied` says whether the
/// embedding table is also the output matrix.
pub fn plan(config: &Config, tied: bool, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    let mut p = Builder::new(dtype_of);
    let x = residual_stream(&mut p, config);
    let selected = p.select(x);
    let normed = p.norm("output_norm", selected, names::OUTPUT_NORM, config.norm_epsilon);
    let output = if tied { names::TOKEN_EMBEDDING } else { names::OUTPUT };
    let logits = p.matmul("logits", normed, output, config.vocabulary);
    if let Some(cap) = config.final_softcap {
        p.softcap(logits, cap);
    }
    p.finish(logits)
}

/// Builds the Plan that ends before the output matrix: `norm(h)` of every token, (tokens, hidden).
/// `dtype_of` returns how the tensor of a name is stored.
pub fn hidden_states(config: &Config, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    let mut p = Builder::new(dtype_of);
    let x = residual_stream(&mut p, config);
    let normed = p.norm("output_norm", x, names::OUTPUT_NORM, config.norm_epsilon);
    p.finish(normed)
}

/// Adds the layers and returns `h` after the last one, (tokens, hidden).
fn residual_stream(p: &mut Builder, config: &Config) -> BufferId {
    let (rows, scale) = (config.vocabulary, config.embedding_scale);
    let x = p.embed("residual", names::TOKEN_EMBEDDING, rows, config.hidden, scale);
    let mut caches: Vec<CacheId> = Vec::new();
    for (index, layer) in config.layers.iter().enumerate() {
        p.scope(format!("blk.{index}."));
        attention(p, config, index, layer, x, &mut caches);
        feed_forward(p, config, index, layer, x);
    }
    p.scope("");
    x
}

fn attention(
    p: &mut Builder,
    config: &Config,
    index: usize,
    layer: &LayerConfig,
    x: BufferId,
    caches: &mut Vec<CacheId>,
) {
    let name = |part| names::layer(index, part);
    let epsilon = config.norm_epsilon;
    let normed = p.norm("attn_norm", x, &name("attn_norm"), epsilon);
    let query = p.matmul("query", normed, &name("attn_q"), layer.query_width());
    let cache = if layer.kv_owner == index {
        let key = p.matmul("key", normed, &name("attn_k"), layer.kv_width());
        let value = p.matmul("value", normed, &name("attn_v"), layer.kv_width());
        p.head_norm(query, Some(&name("attn_q_norm")), layer.heads, epsilon);
        p.head_norm(key, Some(&name("attn_k_norm")), layer.kv_heads, epsilon);
        p.rotate(query, layer.heads, layer.rope);
        p.rotate(key, layer.kv_heads, layer.rope);
        let cache = p.cache(index, layer);
        p.store_kv(key, value, cache);
        cache
    } else {
        p.head_norm(query, Some(&name("attn_q_norm")), layer.heads, epsilon);
        p.rotate(query, layer.heads, layer.rope);
        caches[layer.kv_owner]
    };
    caches.push(cache);
    let attended = p.attend(query, cache, layer);
    let delta = p.matmul("attn_delta", attended, &name("attn_output"), config.hidden);
    let delta = p.norm("post_attention_norm", delta, &name("post_attention_norm"), epsilon);
    p.add(delta, x);
}

fn feed_forward(p: &mut Builder, config: &Config, index: usize, layer: &LayerConfig, x: BufferId) {
    let name = |part| names::layer(index, part);
    let normed = p.norm("ffn_norm", x, &name("ffn_norm"), config.norm_epsilon);
    let gate = p.matmul("gate", normed, &name("ffn_gate"), layer.feed_forward);
    let up = p.matmul("up", normed, &name("ffn_up"), layer.feed_forward);
    let gated = p.geglu("gated", gate, up, 0);
    let delta = p.matmul("ffn_delta", gated, &name("ffn_down"), config.hidden);
    let delta = p.norm("post_ffw_norm", delta, &name("post_ffw_norm"), config.norm_epsilon);
    p.add(delta, x);
}
