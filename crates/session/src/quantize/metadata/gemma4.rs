//! What only files of Gemma 4 have: keys, and numbers of the configuration as tensors.

use anyhow::Result;
use trine_model::{
    AssistantConfig, AttentionKind, Config, Family, Gemma4Config, LayerConfig, names,
};
use trine_weights::gguf::{Array, GgufMetadata as Entries, Value};

use super::values::{number, per_layer};

/// The architecture of drafts.
pub(super) const DRAFT: &str = "gemma4-assistant";
/// What files divide the frequencies of pairs by that do not rotate.
const STANDS_STILL: f32 = 1e30;

/// Sets the keys, with the types of published files.
pub(super) fn parameters(
    config: &Config,
    own: Gemma4Config,
    set: &mut impl FnMut(&str, Value),
) -> Result<()> {
    let layers = || config.layers.iter();
    let is_local = layers().map(|layer| layer.attention != AttentionKind::Global).collect();
    set("attention.sliding_window_pattern", Value::Array(Array::Bool(is_local)));
    let shared = layers().enumerate().filter(|(index, layer)| layer.kv_owner != *index).count();
    set("attention.shared_kv_layers", number(shared)?);
    let inputs = own.inputs.map_or(0, |inputs| inputs.width);
    set("embedding_length_per_layer_input", number(inputs)?);
    for (kind, of) in [("", global(config)), ("_swa", local(config))] {
        let Some(layer) = of else { continue };
        for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            set(&format!("{key}{kind}"), number(layer.head_dim)?);
        }
    }
    if let Some(experts) = layers().find_map(|layer| layer.experts) {
        set("expert_count", number(experts.count)?);
        set("expert_used_count", number(experts.used)?);
        let width = |layer: &LayerConfig| layer.experts.map_or(experts.width, |own| own.width);
        set("expert_feed_forward_length", per_layer(config, width)?);
    }
    Ok(())
}

/// Sets the keys that only drafts have. All of their layers read caches of the model.
pub(super) fn draft_parameters(own: &AssistantConfig, entries: &mut Entries) -> Result<()> {
    let layers = own.config.layers.len();
    let keys = [
        ("embedding_length_out", own.backbone),
        ("nextn_predict_layers", layers),
        ("attention.shared_kv_layers", layers),
    ];
    let clusters =
        own.centroids.map(|own| [("n_centroids", own.count), ("centroid_top_k", own.used)]);
    for (key, count) in keys.into_iter().chain(clusters.into_iter().flatten()) {
        entries.insert(&format!("{DRAFT}.{key}"), number(count)?);
    }
    Ok(())
}

/// Returns the numbers of the configuration that a file has as tensors, with their names.
pub fn numbers(config: &Config) -> Vec<(String, Vec<f32>)> {
    if !matches!(config.family, Family::Gemma4(_)) {
        return Vec::new();
    }
    let scale = |(index, layer): (usize, &LayerConfig)| {
        (names::layer(index, "layer_output_scale"), vec![layer.output_scale])
    };
    let mut numbers: Vec<_> = config.layers.iter().enumerate().map(scale).collect();
    if let Some(layer) = global(config) {
        let half = layer.head_dim / 2;
        let pairs = layer.rope.pairs.unwrap_or(half);
        let divisor = |pair| if pair < pairs { 1.0 } else { STANDS_STILL };
        numbers.push((names::ROPE_FACTORS.to_owned(), (0..half).map(divisor).collect()));
    }
    numbers
}

fn global(config: &Config) -> Option<&LayerConfig> {
    config.layers.iter().find(|layer| layer.attention == AttentionKind::Global)
}

fn local(config: &Config) -> Option<&LayerConfig> {
    config.layers.iter().find(|layer| layer.attention != AttentionKind::Global)
}
