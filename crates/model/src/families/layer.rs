//! The parts of a layer that families share.

use crate::checkpoint::config::{Config, Values};
use crate::families::builder::Builder;
use crate::names;
use crate::plan::{BufferId, CacheId, Plan};

/// Adds `norm(attention(n))`. A layer that owns a cache writes its keys and values; `caches` are
/// those of the layers before it, to which its own is added.
pub(crate) fn attention(
    p: &mut Builder<'_>,
    config: &Config,
    index: usize,
    n: BufferId,
    caches: &mut Vec<CacheId>,
) -> BufferId {
    let name = |part| names::layer(index, part);
    let (layer, epsilon) = (&config.layers[index], config.norm_epsilon);
    let query = p.matmul("query", n, &name("attn_q"), layer.query_width());
    let cache = if layer.kv_owner == index {
        let key = p.matmul("key", n, &name("attn_k"), layer.kv_width());
        let value = match layer.values {
            Values::Plain | Values::Normed => {
                p.matmul("value", n, &name("attn_v"), layer.kv_width())
            }
            Values::Keys => p.sum("value", [(key, 1.0)]),
        };
        if layer.values != Values::Plain {
            p.head_norm(value, None, layer.kv_heads, epsilon);
        }
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
    attended(p, config, index, query, cache)
}

/// Adds `norm(attention(n))` over a cache that another Plan's layer writes.
pub(crate) fn attention_over(
    p: &mut Builder<'_>,
    config: &Config,
    index: usize,
    n: BufferId,
    cache: CacheId,
) -> BufferId {
    let name = |part| names::layer(index, part);
    let layer = &config.layers[index];
    let query = p.matmul("query", n, &name("attn_q"), layer.query_width());
    p.head_norm(query, Some(&name("attn_q_norm")), layer.heads, config.norm_epsilon);
    p.rotate(query, layer.heads, layer.rope);
    attended(p, config, index, query, cache)
}

/// Adds what prepared queries attend to, through the output matrix and the norm after it.
fn attended(
    p: &mut Builder<'_>,
    config: &Config,
    index: usize,
    query: BufferId,
    cache: CacheId,
) -> BufferId {
    let name = |part| names::layer(index, part);
    let attended = p.attend(query, cache, &config.layers[index], config.ahead(index));
    let delta = p.matmul("attn_delta", attended, &name("attn_output"), config.hidden);
    p.norm("post_attention_norm", delta, &name("post_attention_norm"), config.norm_epsilon)
}

/// Adds `x += norm(ffn(norm(x)))`.
pub(crate) fn feed_forward(p: &mut Builder<'_>, config: &Config, index: usize, x: BufferId) {
    let delta = dense(p, config, index, x);
    let name = names::layer(index, "post_ffw_norm");
    let delta = p.norm("post_ffw_norm", delta, &name, config.norm_epsilon);
    p.add(delta, x);
}

/// Adds `ffn(norm(x))`, with the layer's cutoff of the gate if it has one.
pub(crate) fn dense(p: &mut Builder<'_>, config: &Config, index: usize, x: BufferId) -> BufferId {
    let name = |part| names::layer(index, part);
    let (layer, epsilon) = (&config.layers[index], config.norm_epsilon);
    let normed = p.norm("ffn_norm", x, &name("ffn_norm"), epsilon);
    let gate = p.matmul("gate", normed, &name("ffn_gate"), layer.feed_forward);
    let up = p.matmul("up", normed, &name("ffn_up"), layer.feed_forward);
    if let Some(deviations) = layer.cutoff {
        p.cutoff(gate, deviations);
    }
    let gated = p.geglu("gated", gate, up, 0);
    p.matmul("ffn_delta", gated, &name("ffn_down"), config.hidden)
}

/// Ends a Plan with the logits of the wanted rows of the residual stream `h`. `tied` says whether
/// the embedding table is also the output matrix.
pub(crate) fn logits(mut p: Builder<'_>, config: &Config, tied: bool, h: BufferId) -> Plan {
    let selected = p.select(h);
    let normed = p.norm("output_norm", selected, names::OUTPUT_NORM, config.norm_epsilon);
    let output = if tied { names::TOKEN_EMBEDDING } else { names::OUTPUT };
    let logits = p.matmul("logits", normed, output, config.vocabulary);
    if let Some(cap) = config.final_softcap {
        p.softcap(logits, cap);
    }
    p.finish(logits)
}

/// Ends a Plan with `norm(h)` of every token, (tokens, hidden).
pub(crate) fn hidden_states(mut p: Builder<'_>, config: &Config, h: BufferId) -> Plan {
    let normed = p.norm("output_norm", h, names::OUTPUT_NORM, config.norm_epsilon);
    p.finish(normed)
}
