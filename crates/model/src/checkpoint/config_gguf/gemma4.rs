//! What the keys of a Gemma 4 say beyond the keys of earlier families.
//!
//! `attention.key_length` is the head dimension of global layers, `key_length_swa` that of local
//! ones. Whether a layer takes its values from the keys' product, and how many pairs rotate, is
//! seen only by the tensors.

use super::keys::{Keys, Tensors, attention_kinds, kv_owners, layer_count, ropes};
use crate::checkpoint::config::{
    AttentionKind, ExpertsConfig, Gates, Gemma4Config, LayerConfig, PerLayerConfig, Values,
};
use crate::error::ModelError;
use crate::names;

/// The number of layers that read caches of earlier ones.
pub(super) const SHARED: &str = "attention.shared_kv_layers";
/// The head dimension of global layers if the file has none.
const GLOBAL_HEAD_DIM: usize = 512;
/// The head dimension of local layers if the file has none.
const HEAD_DIM: usize = 256;
/// The share of the pairs of global heads that rotate if neither tensor nor key says so.
const ROTATING: f64 = 0.25;
/// The distance between global layers if the file has no pattern.
const PATTERN: usize = 6;
/// Files divide the frequencies of pairs that do not rotate by at least this.
const STANDS_STILL: f32 = 1e20;

/// Reads the numbers that belong to no single layer.
pub(super) fn family(keys: &Keys, tensors: &dyn Tensors) -> Result<Gemma4Config, ModelError> {
    let key = "embedding_length_per_layer_input";
    let width = keys.count_or(key, 0)?;
    let inputs = match width {
        0 => None,
        width => {
            let rows = tensors.rows(names::PER_LAYER_EMBEDDING);
            let vocabulary = rows.map_err(|error| match error {
                ModelError::MissingTensor { name } => {
                    let (key, width) = (keys.name(key), width.to_string());
                    ModelError::contradiction(&key, &width, &name, false)
                }
                other => other,
            })?;
            Some(PerLayerConfig { width, vocabulary })
        }
    };
    // Files do not say it. Models with inputs of layers (E2B, E4B) are causal, the others are not.
    Ok(Gemma4Config { inputs, sees_ahead: inputs.is_none() })
}

/// Reads the layers, of which the last `shared` read caches of earlier ones. Their output scales
/// are tensors, and 1 here.
pub(super) fn layers(
    keys: &Keys,
    tensors: &dyn Tensors,
    shared: usize,
) -> Result<Vec<LayerConfig>, ModelError> {
    let count = layer_count(keys)?;
    let heads = keys.per_layer("attention.head_count", count)?;
    let kv_heads = keys.per_layer("attention.head_count_kv", count)?;
    let feed_forward = keys.per_layer("feed_forward_length", count)?;
    let global_dim = head_dim(keys, "", GLOBAL_HEAD_DIM)?;
    let local_dim = head_dim(keys, "_swa", HEAD_DIM)?;
    let kinds = attention_kinds(keys, count, PATTERN)?;
    let owners = kv_owners(keys, &kinds, shared)?;
    let (mut global_rope, local_rope) = ropes(keys)?;
    let pairs = rotating_pairs(keys, tensors, global_dim)?;
    global_rope.pairs = (pairs < global_dim / 2).then_some(pairs);
    let mut layers = Vec::with_capacity(count);
    for (index, &attention) in kinds.iter().enumerate() {
        let is_global = attention == AttentionKind::Global;
        layers.push(LayerConfig {
            attention,
            heads: heads[index],
            kv_heads: kv_heads[index],
            head_dim: if is_global { global_dim } else { local_dim },
            score_scale: 1.0,
            rope: if is_global { global_rope } else { local_rope },
            feed_forward: feed_forward[index],
            values: match is_global && owners[index] == index {
                true => values(tensors, index),
                false => Values::Normed,
            },
            experts: experts(keys, tensors, count, index)?,
            output_scale: 1.0,
            cutoff: None,
            kv_owner: owners[index],
        });
    }
    Ok(layers)
}

/// Reads the head dimension of a kind of layer, by the end of its keys.
fn head_dim(keys: &Keys, kind: &str, default: usize) -> Result<usize, ModelError> {
    let found = keys.count_or(&format!("attention.key_length{kind}"), default)?;
    for other in ["attention.value_length", "rope.dimension_count"] {
        let key = format!("{other}{kind}");
        let same = keys.count_or(&key, found)?;
        if same != found {
            return Err(ModelError::bad(&keys.name(&key), same, found));
        }
    }
    Ok(found)
}

/// Returns where a global layer with a cache of its own has its values from.
fn values(tensors: &dyn Tensors, index: usize) -> Values {
    let has_own = ["attn_v", "attn_qkv"].iter().any(|part| tensors.has(&names::layer(index, part)));
    if has_own { Values::Normed } else { Values::Keys }
}

/// Reads how many of the pairs of a global head rotate: those before the first divisor of
/// frequencies that stops them.
fn rotating_pairs(
    keys: &Keys,
    tensors: &dyn Tensors,
    head_dim: usize,
) -> Result<usize, ModelError> {
    let half = head_dim / 2;
    let Some(divisors) = tensors.floats(names::ROPE_FACTORS)? else {
        let key = "rope.partial_rotary_factor";
        let share = keys.number_or(key, ROTATING)?;
        if !(0.0..=1.0).contains(&share) {
            return Err(ModelError::bad(&keys.name(key), share, "a number from 0 to 1"));
        }
        return Ok((share * half as f64) as usize);
    };
    let pairs = divisors.iter().take_while(|&&divisor| divisor == 1.0).count();
    let is_known =
        divisors.len() == half && divisors[pairs..].iter().all(|&other| other >= STANDS_STILL);
    if !is_known {
        let found = format!("{} divisors, the first {pairs} of which are 1", divisors.len());
        let expected = format!("{half} divisors: ones, then numbers of at least {STANDS_STILL:e}");
        return Err(ModelError::bad(names::ROPE_FACTORS, found, expected));
    }
    Ok(pairs)
}

/// Reads the experts of a layer, if it has any.
fn experts(
    keys: &Keys,
    tensors: &dyn Tensors,
    layers: usize,
    index: usize,
) -> Result<Option<ExpertsConfig>, ModelError> {
    let has = |part: &str| tensors.has(&names::layer(index, part));
    let count = keys.count_or("expert_count", 0)?;
    if count == 0 || !["ffn_gate_inp", "ffn_down_exps"].into_iter().any(has) {
        return Ok(None);
    }
    let widths = keys.per_layer("expert_feed_forward_length", layers)?;
    let gates = if has("ffn_gate_up_exps") { Gates::Joined } else { Gates::Apart };
    Ok(Some(ExpertsConfig {
        count,
        used: keys.count("expert_used_count")?,
        width: widths[index],
        gates,
        has_factors: tensors.has(&names::layer_scale(index, "ffn_down_exps")),
    }))
}
