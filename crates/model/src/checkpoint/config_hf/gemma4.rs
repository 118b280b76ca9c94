//! What a `config.json` of Gemma 4 has beyond the settings of earlier families.
//!
//! Numbers of global layers have keys of their own (`global_head_dim`,
//! `num_global_key_value_heads`), or stand in `per_layer_config` under the layer's number.

use serde_json::Value;

use super::parts::{Defaults, attention_kinds, feed_forward, kv_owners, layer_count, ropes};
use crate::checkpoint::config::{
    AttentionKind, ExpertsConfig, Family, Gates, Gemma4Config, LayerConfig, PerLayerConfig, Values,
};
use crate::checkpoint::fields::{Fields, as_count};
use crate::error::ModelError;

/// What transformers takes for absent settings of `gemma4_text`.
const TEXT: Defaults = Defaults {
    vocabulary: 262_144,
    hidden: 2304,
    feed_forward: 9216,
    layers: 30,
    heads: 8,
    kv_heads: 4,
    head_dim: 256,
    context: 131_072,
    window: 512,
    pattern: 6,
    shared_kv_layers: 0,
    softcap: None,
    global_share: Some(0.25),
};

/// What transformers takes for absent settings of `gemma4_unified_text`, the text model of 12B.
const UNIFIED: Defaults = Defaults { context: 262_144, window: 1024, ..TEXT };

/// Values for absent settings that other families lack.
const GLOBAL_HEAD_DIM: usize = 512;
const PER_LAYER_WIDTH: usize = 256;
const PER_LAYER_VOCABULARY: usize = 262_144;

/// Returns whether the text model is that of 12B, whose configuration has other defaults.
fn is_unified(kind: &str) -> bool {
    kind.starts_with("gemma4_unified")
}

/// Returns the defaults of a model type.
pub(super) fn defaults(kind: &str) -> &'static Defaults {
    if is_unified(kind) { &UNIFIED } else { &TEXT }
}

/// Reads the numbers that belong to no single layer.
pub(super) fn family(text: Fields, kind: &str) -> Result<Family, ModelError> {
    let default = if is_unified(kind) { 0 } else { PER_LAYER_WIDTH };
    let width = text.count("hidden_size_per_layer_input", default)?;
    let vocabulary = text.count("vocab_size_per_layer_input", PER_LAYER_VOCABULARY)?;
    let inputs = (width > 0).then_some(PerLayerConfig { width, vocabulary });
    Ok(Family::Gemma4(Gemma4Config { inputs, sees_ahead: sees_ahead(text, kind) }))
}

/// Reads the layers. Their output scales are tensors, and 1 here.
pub(super) fn layers(text: Fields, default: &Defaults) -> Result<Vec<LayerConfig>, ModelError> {
    let count = layer_count(text, default)?;
    let mut kinds = attention_kinds(text, count, default)?;
    if text.given("layer_types").is_none()
        && let Some(last) = kinds.last_mut()
    {
        *last = AttentionKind::Global;
    }
    let owners = kv_owners(text, &kinds, default.shared_kv_layers)?;
    let mut feed_forward = feed_forward(text, count, default)?;
    if is_set(text, "use_double_wide_mlp")? {
        let sharing = owners.iter().enumerate().filter(|(index, owner)| *index != **owner);
        sharing.for_each(|(index, _)| feed_forward[index] = feed_forward[index].saturating_mul(2));
    }
    let (rope_global, rope_local) = ropes(text, default)?;
    let heads = text.count("num_attention_heads", default.heads)?;
    let kv_heads = text.count("num_key_value_heads", default.kv_heads)?;
    let head_dim = text.count("head_dim", default.head_dim)?;
    let values_are_keys = is_set(text, "attention_k_eq_v")?;
    let global_kv_heads = match values_are_keys {
        true => text.count("num_global_key_value_heads", kv_heads)?,
        false => kv_heads,
    };
    let global_head_dim = text.count("global_head_dim", GLOBAL_HEAD_DIM)?;
    let experts = experts(text)?;
    check_per_layer(text, count)?;
    let mut layers = Vec::with_capacity(count);
    for (index, &attention) in kinds.iter().enumerate() {
        let is_global = attention == AttentionKind::Global;
        let kind = match is_global {
            true => (global_kv_heads, global_head_dim),
            false => (kv_heads, head_dim),
        };
        let (kv_heads, head_dim) = own_heads(text, index, kind)?;
        let rotation = if is_global { &rope_global } else { &rope_local };
        layers.push(LayerConfig {
            attention,
            heads,
            kv_heads,
            head_dim,
            score_scale: 1.0,
            rope: rotation.of(head_dim),
            feed_forward: feed_forward[index],
            values: match is_global && values_are_keys && owners[index] == index {
                true => Values::Keys,
                false => Values::Normed,
            },
            experts,
            output_scale: 1.0,
            cutoff: None,
            kv_owner: owners[index],
        });
    }
    Ok(layers)
}

/// The numbers that a layer may have of its own in `per_layer_config`.
const OWN: [&str; 2] = ["num_key_value_heads", "head_dim"];

/// Refuses what `per_layer_config` says beyond that, of layers that are not there, or twice of one.
fn check_per_layer(text: Fields, layers: usize) -> Result<(), ModelError> {
    let Some(Fields(Value::Object(all))) = text.object("per_layer_config")? else {
        return Ok(());
    };
    let mut is_known = vec![false; layers];
    for (key, own) in all {
        let place = key.parse().ok().and_then(|index: usize| is_known.get_mut(index));
        let Some(is_known @ false) = place else {
            let expected = format!("the numbers of layers, each once, below {layers}");
            return Err(ModelError::bad("a key of per_layer_config", format!("{key:?}"), expected));
        };
        *is_known = true;
        let Value::Object(own) = own else { continue };
        let others =
            own.iter().filter(|(name, value)| !value.is_null() && !OWN.contains(&&***name));
        if let Some((name, value)) = others.into_iter().next() {
            let key = format!("per_layer_config.{key}.{name}");
            let expected = format!("nothing: a layer has only {} of its own", OWN.join(" and "));
            return Err(ModelError::bad(&key, value, expected));
        }
    }
    Ok(())
}

/// Returns KV heads and head dimension of a layer: those of its kind, or of `per_layer_config`.
fn own_heads(
    text: Fields,
    index: usize,
    (kv_heads, head_dim): (usize, usize),
) -> Result<(usize, usize), ModelError> {
    let Some(Fields(Value::Object(all))) = text.object("per_layer_config")? else {
        return Ok((kv_heads, head_dim));
    };
    // Some files pad the numbers with zeros.
    let is_own = |(key, _): &(&String, &Value)| key.parse() == Ok(index);
    let Some((key, own)) = all.iter().find(is_own) else { return Ok((kv_heads, head_dim)) };
    if !own.is_object() {
        return Err(ModelError::bad(&format!("per_layer_config.{key}"), own, "an object"));
    }
    let own = Fields(own);
    Ok((own.count("num_key_value_heads", kv_heads)?, own.count("head_dim", head_dim)?))
}

/// Reads the experts, which all layers have, or none.
fn experts(text: Fields) -> Result<Option<ExpertsConfig>, ModelError> {
    if !is_set(text, "enable_moe_block")? {
        return Ok(None);
    }
    let number = |key: &str| match text.given(key) {
        Some(value) => as_count(key, value),
        None => Err(ModelError::bad(key, "nothing", "a number, because enable_moe_block is true")),
    };
    Ok(Some(ExpertsConfig {
        count: number("num_experts")?,
        used: number("top_k_experts")?,
        width: number("moe_intermediate_size")?,
        gates: Gates::Joined,
        has_factors: true,
    }))
}

fn is_set(text: Fields, key: &str) -> Result<bool, ModelError> {
    match text.given(key) {
        None => Ok(false),
        Some(Value::Bool(is_set)) => Ok(*is_set),
        Some(other) => Err(ModelError::bad(key, other, "true or false")),
    }
}

/// In which direction rows see each other.
const DIRECTION: &str = "use_bidirectional_attention";

/// Returns whether rows of a picture see those after them. Only 12B's do if the configuration does
/// not say so.
fn sees_ahead(text: Fields, kind: &str) -> bool {
    match text.0.get(DIRECTION) {
        None => is_unified(kind),
        Some(of) => of == "vision",
    }
}

/// Checks the direction in which rows see each other: `"vision"` is about pictures only.
pub(super) fn check_direction(text: Fields) -> Result<(), ModelError> {
    let key = DIRECTION;
    match text.given(key) {
        None | Some(Value::Bool(false)) => Ok(()),
        Some(Value::String(of)) if of == "vision" => Ok(()),
        Some(other) => {
            let expected = "null or \"vision\": models that encode texts are not supported";
            Err(ModelError::bad(key, other, expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::checkpoint::config::{Config, Rope};
    use crate::checkpoint::config_hf::read;

    fn read_with(kind: &str, extra: Value) -> Result<Config, ModelError> {
        let mut text = json!({"model_type": format!("{kind}_text")});
        for (key, value) in extra.as_object().unwrap() {
            text[key] = value.clone();
        }
        read(&json!({ "model_type": kind, "text_config": text }))
    }

    #[test]
    fn a_text_config_takes_the_defaults_it_omits() {
        let config = read_with("gemma4", json!({})).unwrap();
        assert_eq!((config.layers.len(), config.hidden, config.final_softcap), (30, 2304, None));
        let inputs = Some(PerLayerConfig { width: 256, vocabulary: 262_144 });
        assert_eq!(config.family, Family::Gemma4(Gemma4Config { inputs, sees_ahead: false }));
        let (local, global) = (&config.layers[4], &config.layers[5]);
        assert_eq!((local.kv_heads, local.head_dim, local.rope), (4, 256, Rope::full(1e4, 1.0)));
        let rope = Rope { pairs: Some(64), ..Rope::full(1e6, 1.0) };
        assert_eq!((global.kv_heads, global.head_dim, global.rope), (4, 512, rope));
        assert_eq!((local.values, global.values), (Values::Normed, Values::Normed));
        let unified = read_with("gemma4_unified", json!({"attention_k_eq_v": true})).unwrap();
        assert_eq!(unified.family, Family::Gemma4(Gemma4Config { inputs: None, sees_ahead: true }));
        assert_eq!((unified.context, unified.layers[5].values), (262_144, Values::Keys));
    }

    #[test]
    fn the_last_layer_is_global_where_no_list_says_what_layers_are() {
        let config = read_with("gemma4", json!({"num_hidden_layers": 8})).unwrap();
        let is_global = |index: usize| config.layers[index].attention == AttentionKind::Global;
        assert_eq!((0..8).filter(|&index| is_global(index)).collect::<Vec<_>>(), [5, 7]);
    }

    #[test]
    fn both_spellings_of_global_heads_read_the_same() {
        let base = json!({"num_hidden_layers": 6, "attention_k_eq_v": true});
        let with = |extra: Value| {
            let mut all = base.clone();
            for (key, value) in extra.as_object().unwrap() {
                all[key] = value.clone();
            }
            read_with("gemma4", all).unwrap()
        };
        let keys = with(json!({"global_head_dim": 128, "num_global_key_value_heads": 1}));
        let own = json!({"head_dim": 128, "num_key_value_heads": 1});
        for number in ["5", "05"] {
            let listed = with(json!({ "per_layer_config": { number: own } }));
            assert_eq!(keys, listed, "{number}");
        }
        assert_eq!((keys.layers[5].kv_heads, keys.layers[5].rope.pairs), (1, Some(16)));
        let plain =
            read_with("gemma4", json!({"num_hidden_layers": 6, "num_global_key_value_heads": 1}));
        assert_eq!(plain.unwrap().layers[5].kv_heads, 4, "only with values from keys");
    }

    #[test]
    fn layers_that_share_keys_and_values_may_be_twice_as_wide() {
        let config = read_with(
            "gemma4",
            json!({
                "num_hidden_layers": 12, "num_kv_shared_layers": 6, "use_double_wide_mlp": true,
                "intermediate_size": 64
            }),
        );
        let layers = config.unwrap().layers;
        assert_eq!((layers[5].feed_forward, layers[6].feed_forward), (64, 128));
        assert_eq!((layers[6].kv_owner, layers[11].kv_owner), (4, 5));
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        let moe = |key: &str, value: Value| {
            let mut all = json!({
                "enable_moe_block": true, "num_experts": 8, "top_k_experts": 2,
                "moe_intermediate_size": 16
            });
            all[key] = value;
            all
        };
        for (bad, key) in [
            (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention"),
            (json!({"use_bidirectional_attention": true}), "use_bidirectional_attention"),
            (json!({"attention_k_eq_v": 1}), "attention_k_eq_v"),
            (json!({"use_double_wide_mlp": "yes"}), "use_double_wide_mlp"),
            (json!({"per_layer_config": []}), "per_layer_config"),
            (json!({"per_layer_config": {"3": 7}}), "per_layer_config.3"),
            (json!({"per_layer_config": {"3": {"head_dim": 7}}}), "head dimension of layer 3"),
            (
                json!({"per_layer_config": {"3": {"intermediate_size": 7}}}),
                "per_layer_config.3.intermediate_size",
            ),
            (json!({"per_layer_config": {"30": {"head_dim": 8}}}), "per_layer_config is \"30\""),
            (json!({"per_layer_config": {"x": {}}}), "per_layer_config is \"x\""),
            (json!({"per_layer_config": {"3": {}, "03": {}}}), "per_layer_config is \"03\""),
            (json!({"num_kv_shared_layers": 30}), "num_kv_shared_layers"),
            (json!({"hidden_size_per_layer_input": 1e14}), "per-layer input width"),
            (moe("num_experts", Value::Null), "num_experts"),
            (moe("num_experts", json!(1e6)), "expert count of layer 0"),
            (moe("top_k_experts", json!(9)), "used expert count of layer 0"),
            (moe("top_k_experts", json!(0)), "used expert count of layer 0"),
            (moe("moe_intermediate_size", json!(0)), "expert width of layer 0"),
            (
                json!({"rope_parameters": {"full_attention": {
                    "rope_type": "proportional", "partial_rotary_factor": 1.5}}}),
                "full_attention",
            ),
        ] {
            let error = read_with("gemma4", bad.clone()).unwrap_err().to_string();
            assert!(error.contains(key), "{bad}: {error}");
        }
    }
}
