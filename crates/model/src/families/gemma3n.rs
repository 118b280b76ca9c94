//! The forward pass of Gemma 3n (text), as the reference implementation in transformers computes
//! it.
//!
//! The residual stream is several streams `x` (AltUp), of which the layers work on the first. All
//! have `e` as their origin, with its magnitude. Each layer has an input `g` of its own for a
//! token (`per_layer.rs`).
//!
//! ```text
//! e = E[token] * sqrt(hidden)
//! x[0] = e;  x[i] = A[i] e with the magnitude of e
//! for each layer:
//!     p[i] = x[i] + sum of c[i, j] x[j]                   c = C tanh(R norm(x[0]) / hidden)
//!     n = norm(p[0])
//!     u = (p[0] + norm(attention(n)) + n + norm(L' L n)) / sqrt(2)
//!     u += norm(ffn(norm(u)))
//!     x[i] = p[i] + (1 + k[i]) (u - p[0])                 k = K tanh(R norm(u) / hidden)
//!     x[1..] += norm(G' (gelu(G (x[0] * s)) * g))
//! h = mean of x[0] and of B[i] x[i] with the magnitude of x[0]
//! logits = cap(E norm(h))
//! ```
//!
//! Two spellings differ from the reference's. `tanh(r / hidden)` is `cap(r) / hidden` with a cap of
//! `hidden`, and the quotient is a factor of the mix. `norm(y / sqrt(hidden))` is `norm(y)` with
//! `hidden` times the epsilon.

use std::f32::consts::FRAC_1_SQRT_2;

use trine_weights::DType;

use crate::checkpoint::config::{Config, Gemma3nConfig, STREAMS_MAX};
use crate::families::builder::Builder;
use crate::plan::{BufferId, CacheId, Plan, TERMS_MAX, Term};
use crate::{families::layer, families::per_layer, names};

/// The least mean square of a stream that gets another's magnitude.
const MAGNITUDE_FLOOR: f32 = 1e-5;

const _: () = assert!(STREAMS_MAX <= TERMS_MAX, "a step mixes all streams");

/// Builds the Plan. `dtype_of` returns how the tensor of a name is stored; `tied` says whether the
/// embedding table is also the output matrix.
pub fn plan(
    config: &Config,
    own: Gemma3nConfig,
    tied: bool,
    dtype_of: &dyn Fn(&str) -> DType,
) -> Plan {
    let mut p = Builder::new(dtype_of);
    let h = Pass::new(config, own, &mut p).run();
    layer::logits(p, config, tied, h)
}

/// Builds the Plan that ends before the output matrix: `norm(h)` of every token, (tokens, hidden).
/// `dtype_of` returns how the tensor of a name is stored.
pub fn hidden_states(
    config: &Config,
    own: Gemma3nConfig,
    dtype_of: &dyn Fn(&str) -> DType,
) -> Plan {
    let mut p = Builder::new(dtype_of);
    let h = Pass::new(config, own, &mut p).run();
    layer::hidden_states(p, config, h)
}

/// A forward pass under construction.
struct Pass<'a, 'b> {
    config: &'a Config,
    own: Gemma3nConfig,
    p: &'a mut Builder<'b>,
    /// The cache that each layer reads.
    caches: Vec<CacheId>,
}

impl<'a, 'b> Pass<'a, 'b> {
    fn new(config: &'a Config, own: Gemma3nConfig, p: &'a mut Builder<'b>) -> Self {
        Self { config, own, p, caches: Vec::new() }
    }

    /// Adds everything up to `h`, (tokens, hidden).
    fn run(mut self) -> BufferId {
        let Config { vocabulary, hidden, embedding_scale, .. } = *self.config;
        let table = names::TOKEN_EMBEDDING;
        let e = self.p.embed("embedding", table, vocabulary, hidden, embedding_scale);
        let inputs = per_layer::inputs(self.p, self.config, self.own.inputs, e);
        let mut streams = vec![e; self.own.streams];
        self.project("altup_proj", &mut streams);
        let config = self.config;
        for index in 0..config.layers.len() {
            self.p.scope(format!("blk.{index}."));
            streams = self.layer(index, &streams, inputs);
        }
        self.p.scope("");
        self.project("altup_unembd_proj", &mut streams);
        let factor = 1.0 / streams.len() as f32;
        self.p.sum_of("mean", streams.iter().map(|&buffer| Term { buffer, factor }).collect())
    }

    /// Replaces all streams but the first by their products with matrices of their own, with the
    /// magnitude of the first.
    fn project(&mut self, part: &str, streams: &mut [BufferId]) {
        let [like, others @ ..] = streams else { return };
        for (index, x) in others.iter_mut().enumerate() {
            let stream = index + 1;
            let weight = names::of_stream(part, stream);
            *x = self.p.matmul(&format!("{part}.{stream}"), *x, &weight, self.config.hidden);
        }
        others.iter().for_each(|&x| self.p.rescale(x, *like, MAGNITUDE_FLOOR));
    }

    /// Adds a layer and returns its streams.
    fn layer(&mut self, index: usize, streams: &[BufferId], inputs: BufferId) -> Vec<BufferId> {
        let name = |part| names::layer(index, part);
        let (epsilon, scale) = (self.config.norm_epsilon, 1.0 / self.config.hidden as f32);
        let count = streams.len();
        let c = self.coefficients(index, "predict", streams[0], count * count);
        let predicted = self.p.mix("predicted", streams, streams, c, [0.0, scale]);
        let active = predicted[0];
        let n = self.p.norm("attn_norm", active, &name("attn_norm"), epsilon);
        // Beside the queries' product, with which it shares its input.
        let inner = self.p.matmul("laurel_inner", n, &name("laurel_l"), self.own.laurel_rank);
        let attended = layer::attention(self.p, self.config, index, n, &mut self.caches);
        let laurel = self.p.matmul("laurel_delta", inner, &name("laurel_r"), self.config.hidden);
        let laurel = self.p.norm("laurel_norm", laurel, &name("laurel_post_norm"), epsilon);
        let terms = [active, attended, n, laurel].map(|buffer| (buffer, FRAC_1_SQRT_2));
        let u = self.p.sum("updated", terms);
        layer::feed_forward(self.p, self.config, index, u);
        let k = self.coefficients(index, "correct", u, count);
        let innovation = self.p.sum("innovation", [(u, 1.0), (active, -1.0)]);
        let corrected = self.p.mix("corrected", &predicted, &[innovation], k, [1.0, scale]);
        let delta = self.per_layer_input(index, corrected[0], inputs);
        for &stream in &corrected[1..] {
            self.p.add(delta, stream);
        }
        corrected
    }

    /// Adds the coefficients of a mix, times `hidden`: (rows, `count`).
    fn coefficients(&mut self, index: usize, mix: &str, x: BufferId, count: usize) -> BufferId {
        let name = |part: &str| names::layer(index, part);
        let label = |part: &str| format!("{mix}_{part}");
        let (p, epsilon) = (&mut *self.p, self.config.norm_epsilon);
        let normed = p.norm(&label("norm"), x, &name("altup_router_norm"), epsilon);
        let router = p.matmul(&label("router"), normed, &name("altup_router"), self.own.streams);
        p.softcap(router, self.config.hidden as f32);
        p.matmul(&label("coefficients"), router, &name(&format!("altup_{mix}_coef")), count)
    }

    /// Adds what the layer's own input gives to all streams but the first.
    fn per_layer_input(&mut self, index: usize, x: BufferId, inputs: BufferId) -> BufferId {
        let name = |part| names::layer(index, part);
        let p = &mut *self.p;
        let x = match self.own.scales_correction {
            true => p.scale("scaled", x, &name("altup_correct_scale")),
            false => x,
        };
        per_layer::delta(p, self.config, index, self.own.inputs.width, x, inputs)
    }
}
