//! Plans of models that are not here, for tests of places.

use trine_model::{
    AttentionKind, Config, ExpertsConfig, Family, Gates, Gemma4Config, LayerConfig, Plan, Rope,
    Values, base_plan, fusion, narrow,
};
use trine_weights::DType;

/// The sizes of a model whose layers have no experts.
struct Dense {
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    feed_forward: usize,
    vocabulary: usize,
    /// The positions that local layers see; every sixth layer is global. `None` if all are.
    window: Option<usize>,
}

impl Dense {
    /// Returns the fused Plan of such a model, in Gemma 3's form, with all matrices in one format.
    fn plan(&self, dtype: DType) -> Plan {
        let layer = |index: usize| {
            let (attention, rope) = match self.window {
                Some(window) if index % 6 != 5 => {
                    (AttentionKind::Local { window }, Rope::full(1e4, 1.0))
                }
                _ => (AttentionKind::Global, Rope::full(1e6, 8.0)),
            };
            LayerConfig {
                attention,
                heads: self.heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
                score_scale: (self.head_dim as f32).powf(-0.5),
                rope,
                feed_forward: self.feed_forward,
                values: Values::Plain,
                experts: None,
                output_scale: 1.0,
                cutoff: None,
                kv_owner: index,
            }
        };
        let config = Config {
            family: Family::Gemma3,
            hidden: self.hidden,
            vocabulary: self.vocabulary,
            context: 131_072,
            norm_epsilon: 1e-6,
            embedding_scale: (self.hidden as f32).sqrt(),
            final_softcap: None,
            layers: (0..self.layers).map(layer).collect(),
        };
        let stored = |name: &str| if name.contains("norm") { DType::F32 } else { dtype };
        fusion::fuse(narrow::narrow(base_plan(&config, true, &stored)))
    }
}

/// Returns Gemma 3 27B with all matrices in one format.
pub(crate) fn plan(dtype: DType) -> Plan {
    let model = Dense {
        layers: 62,
        hidden: 5376,
        heads: 32,
        kv_heads: 16,
        head_dim: 128,
        feed_forward: 21_504,
        vocabulary: 262_144,
        window: Some(1024),
    };
    model.plan(dtype)
}

/// Returns a Plan of the sizes of Llama 3.1 8B, of which speeds are published where none of a Gemma
/// is.
pub(crate) fn llama_8b(dtype: DType) -> Plan {
    let model = Dense {
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 14_336,
        vocabulary: 128_256,
        window: None,
    };
    model.plan(dtype)
}

/// Returns layers of Gemma 4 26B-A4B, which has 30, with all matrices in one format.
pub(crate) fn plan_with_experts(layers: usize, dtype: DType) -> Plan {
    let layer = |index: usize| {
        let is_global = index % 6 == 5;
        let local = AttentionKind::Local { window: 1024 };
        LayerConfig {
            attention: if is_global { AttentionKind::Global } else { local },
            heads: 16,
            kv_heads: if is_global { 2 } else { 8 },
            head_dim: if is_global { 512 } else { 256 },
            score_scale: 1.0,
            rope: match is_global {
                true => Rope { pairs: Some(64), ..Rope::full(1e6, 1.0) },
                false => Rope::full(1e4, 1.0),
            },
            feed_forward: 2112,
            values: if is_global { Values::Keys } else { Values::Normed },
            experts: Some(ExpertsConfig {
                count: 128,
                used: 8,
                width: 704,
                gates: Gates::Joined,
                has_factors: true,
            }),
            output_scale: 0.5,
            cutoff: None,
            kv_owner: index,
        }
    };
    let config = Config {
        family: Family::Gemma4(Gemma4Config { inputs: None, sees_ahead: true }),
        hidden: 2816,
        vocabulary: 262_144,
        context: 262_144,
        norm_epsilon: 1e-6,
        embedding_scale: 2816f32.sqrt(),
        final_softcap: Some(30.0),
        layers: (0..layers).map(layer).collect(),
    };
    let stored = |name: &str| match name {
        name if name.contains("norm") || name.contains("scale") => DType::F32,
        _ => dtype,
    };
    fusion::fuse(narrow::narrow(base_plan(&config, true, &stored)))
}

/// Returns layers of Gemma 3 4B, which has 34, with all matrices in one format.
pub(crate) fn small_plan(layers: usize, dtype: DType) -> Plan {
    let model = Dense {
        layers,
        hidden: 2560,
        heads: 8,
        kv_heads: 4,
        head_dim: 256,
        feed_forward: 10_240,
        vocabulary: 262_144,
        window: Some(1024),
    };
    model.plan(dtype)
}
