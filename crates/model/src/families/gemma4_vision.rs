//! The forward pass of the vision tower of Gemma 4's E2B, E4B, 26B-A4B and 31B and its projector,
//! as the reference implementation in transformers computes it.
//!
//! ```text
//! h = W patch + X[column] + Y[row]
//! for each layer:
//!     h += norm(attention(norm(h)))
//!     h += norm(W3 (gelu(W1 norm(h)) * W2 norm(h)))
//!     h *= s                                                    in files that have it
//! soft = projection * rms(sqrt(hidden) * mean over squares of patches(h))
//! ```
//!
//! Queries and keys have a norm for each head and are rotated by the patch's place: the first half
//! of a head by its column, the second by its row. Values have a norm without weights. In E2B and
//! E4B each product `W x` of a layer is `clamp(W clamp(x))`. In 26B-A4B and 31B the mean `m` is
//! replaced by `(m - bias) * scale`. All patches see one another.
//!
//! Rows are as for SigLIP: patches, those of a soft token next to one another, whose tokens are
//! their places ([`TowerConfig::places`]).

use std::collections::HashMap;

use trine_weights::DType;

use crate::checkpoint::tower_config::{TowerConfig, TowerLayers};
use crate::checkpoint::tower_names as names;
use crate::families::builder::Builder;
use crate::plan::{BufferId, Cache, Plan};

/// The least and the largest value that a product reads, and that it writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// The limits of what the product reads.
    pub input: [f32; 2],
    /// The limits of what the product writes.
    pub output: [f32; 2],
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self {
        input: [f32::NEG_INFINITY, f32::INFINITY],
        output: [f32::NEG_INFINITY, f32::INFINITY],
    };
}

/// Numbers that files have as tensors.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// Limits of products by their names without `.weight`. A product that is not in it has none.
    pub limits: HashMap<String, Limits>,
    /// The factor on the residual stream after each layer; 1 for layers that are not in it.
    pub scales: Vec<f32>,
}

/// The numbers of the forward pass beside those that all towers have.
#[derive(Debug, Clone, Copy)]
pub struct Gemma4Vision<'a> {
    /// Its layers.
    pub layers: TowerLayers,
    /// Base of the frequencies by which places rotate.
    pub theta: f32,
    /// Whether the means of patches are moved and scaled by vectors.
    pub standardizes: bool,
    /// What files have as tensors.
    pub numbers: &'a Numbers,
}

/// Builds the Plan. `dtype_of` returns how the tensor of a name is stored.
///
/// Its input is (patches, rows x columns x colours), from -1 to 1. Its outputs are (soft tokens,
/// hidden size of the text model), and with `states` the rows before the projector, (soft tokens,
/// hidden).
pub fn plan(
    config: &TowerConfig,
    own: Gemma4Vision<'_>,
    states: bool,
    dtype_of: &dyn Fn(&str) -> DType,
) -> Plan {
    let TowerConfig { hidden, epsilon, .. } = *config;
    let mut p = Builder::new(dtype_of);
    let values = p.patches(config.patch_values());
    let mut x = p.matmul("residual", values, names::PATCHES, hidden);
    let places = p.places("places", names::PLACES, config.side(), hidden);
    p.add(places, x);
    let heads = own.layers.heads;
    // Keys and values are read in their layer only, so all layers share one cache.
    let cache = Cache { layer: 0, kv_heads: heads.kv, head_dim: heads.dim, window: None };
    let cache = p.cache_of(cache);
    for index in 0..own.layers.count {
        p.scope(format!("{}{index}.", names::LAYERS));
        let mut layer = Layer { p: &mut p, own, index, epsilon };
        let n = layer.norm("ln1", x);
        let [query, key, value] = layer.products(
            n,
            [
                ("query", "attn_q", heads.query * heads.dim),
                ("key", "attn_k", heads.kv * heads.dim),
                ("value", "attn_v", heads.kv * heads.dim),
            ],
        );
        layer.heads(query, Some("attn_q_norm"), heads.query);
        layer.heads(key, Some("attn_k_norm"), heads.kv);
        layer.heads(value, None, heads.kv);
        for (buffer, count) in [(query, heads.query), (key, heads.kv)] {
            layer.p.rotate_places(buffer, count, own.theta, config.side());
        }
        layer.p.store_kv(key, value, cache);
        let attended = layer.p.attend_all(query, cache, heads, 1.0);
        let [delta] = layer.products(attended, [("attn_delta", "attn_out", hidden)]);
        let delta = layer.norm("attn_post_norm", delta);
        layer.p.add(delta, x);
        let n = layer.norm("ln2", x);
        let width = own.layers.feed_forward;
        let [gate, up] = layer.products(n, [("gate", "ffn_gate", width), ("up", "ffn_up", width)]);
        let gated = layer.p.geglu("gated", gate, up, 0);
        let [delta] = layer.products(gated, [("ffn_delta", "ffn_down", hidden)]);
        let delta = layer.norm("ffn_post_norm", delta);
        layer.p.add(delta, x);
        let scale = own.numbers.scales.get(index).copied().unwrap_or(1.0);
        if scale != 1.0 {
            x = p.sum("scaled", [(x, scale)]);
        }
    }
    p.scope("");
    let pooled = p.pool("pooled", x, config.pooled());
    let mut soft = p.sum("pooled_scaled", [(pooled, (hidden as f64).sqrt() as f32)]);
    if own.standardizes {
        p.bias(soft, names::STANDARD_BIAS);
        soft = p.scale("standard", soft, names::STANDARD_SCALE);
    }
    projected(p, config, soft, states)
}

/// Ends a Plan with the projection of a norm without weights, and with `states` also the rows
/// before it.
pub(crate) fn projected(
    mut p: Builder<'_>,
    config: &TowerConfig,
    rows: BufferId,
    states: bool,
) -> Plan {
    let normed = if states { p.sum("soft_norm", [(rows, 1.0)]) } else { rows };
    p.head_norm(normed, None, 1, config.epsilon);
    let soft = p.matmul("soft", normed, names::PROJECTION, config.output);
    p.finish_with(if states { vec![soft, rows] } else { vec![soft] })
}

/// A product under construction.
struct Product<'a> {
    label: &'a str,
    /// The name of its matrix without `.weight`.
    name: String,
    rows: usize,
    /// What it reads, within its limits.
    input: BufferId,
    /// The least and the largest value that it writes.
    limits: [f32; 2],
}

/// A layer under construction.
struct Layer<'a, 'b> {
    p: &'a mut Builder<'b>,
    own: Gemma4Vision<'a>,
    index: usize,
    epsilon: f32,
}

impl Layer<'_, '_> {
    fn norm(&mut self, part: &str, input: BufferId) -> BufferId {
        let name = format!("{}.weight", names::layer(self.index, part));
        self.p.norm(part, input, &name, self.epsilon)
    }

    fn heads(&mut self, buffer: BufferId, part: Option<&str>, heads: usize) {
        let name = part.map(|part| format!("{}.weight", names::layer(self.index, part)));
        self.p.head_norm(buffer, name.as_deref(), heads, self.epsilon);
    }

    /// Adds products (label, part, rows) of what their limits leave of one input, within their
    /// limits. Products of equal limits read one buffer and follow one another, so that fusion
    /// makes one step of them.
    fn products<const N: usize>(
        &mut self,
        input: BufferId,
        products: [(&str, &str, usize); N],
    ) -> [BufferId; N] {
        // The limited forms of the input so far, each with its limits.
        let mut inputs = vec![(Limits::NONE.input, input)];
        let limited = products.map(|(label, part, rows)| {
            let name = names::layer(self.index, part);
            let limits = self.own.numbers.limits.get(&name).copied().unwrap_or(Limits::NONE);
            let input = match inputs.iter().find(|(own, _)| *own == limits.input) {
                Some((_, within)) => *within,
                None => {
                    let within = self.p.clamp("within", input, limits.input);
                    inputs.push((limits.input, within));
                    within
                }
            };
            Product { label, name, rows, input, limits: limits.output }
        });
        let made = limited.map(|own| {
            let weight = format!("{}.weight", own.name);
            (self.p.matmul(own.label, own.input, &weight, own.rows), own)
        });
        made.map(|(product, own)| match own.limits == Limits::NONE.output {
            true => product,
            false => self.p.clamp(&format!("{}_within", own.label), product, own.limits),
        })
    }
}
