//! The forward pass of Gemma 3's vision tower (SigLIP) and its projector, as the reference
//! implementation in transformers computes it.
//!
//! ```text
//! h = W patch + b + P[place]
//! for each layer:  h += attention(norm(h));  h += W2 gelu(W1 norm(h) + b1) + b2
//! soft = projection * rms_norm(mean over squares of patches(norm(h)))
//! ```
//!
//! Norms subtract the mean and have a bias, except that of soft tokens. All products but the last
//! have a bias. All patches see one another.
//!
//! Rows are the patches of a picture, those of a soft token next to one another
//! ([`TowerConfig::order`]). A row's token is the number of its patch, and the first row of each
//! soft token is an output row.

use trine_weights::DType;

use crate::checkpoint::tower_config::{TowerConfig, TowerLayers};
use crate::checkpoint::tower_names as names;
use crate::families::builder::Builder;
use crate::plan::{Cache, Plan};

/// Builds the Plan. `dtype_of` returns how the tensor of a name is stored.
///
/// Its input is (patches, colours x rows x columns). Its outputs are (soft tokens, hidden size of
/// the text model), and with `states` the rows before the projector, (patches, hidden).
pub fn plan(
    config: &TowerConfig,
    layers: TowerLayers,
    states: bool,
    dtype_of: &dyn Fn(&str) -> DType,
) -> Plan {
    let TowerConfig { hidden, epsilon, .. } = *config;
    let TowerLayers { count, heads, feed_forward } = layers;
    let mut p = Builder::new(dtype_of);
    let values = p.patches(config.patch_values());
    let x = p.matmul("residual", values, names::PATCHES, hidden);
    p.bias(x, names::PATCHES_BIAS);
    let places = p.embed("places", names::PLACES, config.places(), hidden, 1.0);
    p.add(places, x);
    // Keys and values are read in their layer only, so all layers share one cache.
    let cache = Cache { layer: 0, kv_heads: heads.kv, head_dim: heads.dim, window: None };
    let cache = p.cache_of(cache);
    for index in 0..count {
        p.scope(format!("v.blk.{index}."));
        let name = |part| names::layer(index, part);
        let weight = |part| format!("{}.weight", name(part));
        let bias = |part| format!("{}.bias", name(part));
        let n = p.layer_norm("ln1", x, &name("ln1"), epsilon);
        let parts = [("query", "attn_q"), ("key", "attn_k"), ("value", "attn_v")];
        let rows = parts.map(|(own, part)| p.matmul(own, n, &weight(part), hidden));
        for (buffer, (_, part)) in rows.into_iter().zip(parts) {
            p.bias(buffer, &bias(part));
        }
        let [query, key, value] = rows;
        p.store_kv(key, value, cache);
        let scale = (heads.dim as f32).powf(-0.5);
        let attended = p.attend_all(query, cache, heads, scale);
        let delta = p.matmul("attn_delta", attended, &weight("attn_out"), hidden);
        p.bias(delta, &bias("attn_out"));
        p.add(delta, x);
        let n = p.layer_norm("ln2", x, &name("ln2"), epsilon);
        let up = p.matmul("up", n, &weight("ffn_up"), feed_forward);
        p.bias(up, &bias("ffn_up"));
        p.gelu(up);
        let delta = p.matmul("ffn_delta", up, &weight("ffn_down"), hidden);
        p.bias(delta, &bias("ffn_down"));
        p.add(delta, x);
    }
    p.scope("");
    let h = p.layer_norm("post_ln", x, names::POST_NORM, epsilon);
    let pooled = p.pool("pooled", h, config.pooled());
    let normed = p.norm("soft_norm", pooled, names::SOFT_NORM, epsilon);
    let soft = p.matmul("soft", normed, names::PROJECTION, config.output);
    p.finish_with(if states { vec![soft, h] } else { vec![soft] })
}
