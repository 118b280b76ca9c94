//! Plans of vision towers in the shapes of published ones, without their files.

use trine_model::gemma4_vision::{self, Gemma4Vision, Limits, Numbers};
use trine_model::{Heads, Pixels, Plan, TowerConfig, TowerKind, TowerLayers, fusion, siglip_plan};
use trine_weights::DType;

/// The products of a layer of Gemma 4's towers, as their tensors are named.
const PRODUCTS: [&str; 7] =
    ["attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"];

/// A tower of Gemma 4 with layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gemma4Tower {
    /// The tower of E2B, whose products have limits.
    E2b,
    /// The tower of 31B, which standardises the means of patches.
    Large,
    /// The tower of E2B without limits, so that gated products have whole groups of results.
    Unlimited,
}

/// Returns Gemma 3's tower with the text model of 27B, and its fused Plan. The published one has 27
/// layers. `dtype_of` returns the formats of matrices; vectors are f32.
pub fn gemma3(layers: usize, dtype_of: &dyn Fn(&str) -> DType) -> (TowerConfig, Plan) {
    let heads = Heads { query: 16, kv: 16, dim: 72 };
    let layers = TowerLayers { count: layers, heads, feed_forward: 4304 };
    let config = TowerConfig {
        kind: TowerKind::Siglip(layers),
        pixels: Pixels::Square { side: 896, mean: [0.5; 3], deviation: [0.5; 3] },
        patch: 14,
        pool: 4,
        hidden: 1152,
        epsilon: 1e-6,
        output: 5376,
    };
    let plan = siglip_plan(&config, layers, false, &vectors_in_floats(dtype_of));
    (config, fusion::fuse(plan))
}

/// Returns a tower of Gemma 4 with matrices in f16, and its fused Plan. The published ones have 16
/// and 27 layers. `limits` returns the limits of a product by its number in a layer, if the tower
/// has any: queries, keys, values, the output of attention, gate, up and down.
pub fn gemma4(
    tower: Gemma4Tower,
    layers: usize,
    limits: &dyn Fn(usize) -> Limits,
) -> (TowerConfig, Plan) {
    let (hidden, heads, dim, feed_forward, output) = match tower {
        Gemma4Tower::E2b | Gemma4Tower::Unlimited => (768, 12, 64, 3072, 1536),
        Gemma4Tower::Large => (1152, 16, 72, 4304, 5376),
    };
    let clips = tower == Gemma4Tower::E2b;
    let heads = Heads { query: heads, kv: heads, dim };
    let layers = TowerLayers { count: layers, heads, feed_forward };
    let (theta, standardizes) = (100.0, tower == Gemma4Tower::Large);
    let config = TowerConfig {
        kind: TowerKind::Gemma4 { layers, theta, clips, standardizes },
        pixels: Pixels::Budget { soft_tokens: 280, side: 1024 },
        patch: 16,
        pool: 3,
        hidden,
        epsilon: 1e-6,
        output,
    };
    let mut numbers = Numbers::default();
    for layer in (0..layers.count).filter(|_| clips) {
        let named =
            |(number, part): (usize, &&str)| (format!("v.blk.{layer}.{part}"), limits(number));
        numbers.limits.extend(PRODUCTS.iter().enumerate().map(named));
    }
    let own = Gemma4Vision { layers, theta, standardizes, numbers: &numbers };
    let plan = gemma4_vision::plan(&config, own, false, &vectors_in_floats(&|_| DType::F16));
    (config, fusion::fuse(plan))
}

/// Returns the formats of all tensors.
fn vectors_in_floats(dtype_of: &dyn Fn(&str) -> DType) -> impl Fn(&str) -> DType {
    let is_vector = |name: &str| {
        name.ends_with(".bias")
            || [".ln", "_ln", "norm", ".std_"].iter().any(|part| name.contains(part))
    };
    move |name| if is_vector(name) { DType::F32 } else { dtype_of(name) }
}
