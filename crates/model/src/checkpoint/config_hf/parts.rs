//! What the readers of all families' `config.json` share.

use serde_json::Value;

use crate::checkpoint::config::{self, AttentionKind, LAYERS_MAX, Rope, every_nth_global};
use crate::checkpoint::fields::{Fields, as_count};
use crate::error::ModelError;

/// The values of transformers' configuration of a family, which published files may omit.
pub(super) struct Defaults {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) feed_forward: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) context: usize,
    pub(super) window: usize,
    pub(super) pattern: usize,
    pub(super) shared_kv_layers: usize,
    pub(super) softcap: Option<f64>,
    /// The share of the pairs of global heads that rotate, if not all do.
    pub(super) global_share: Option<f64>,
}

/// Defaults that all families have.
pub(super) mod default {
    pub(in crate::checkpoint::config_hf) const EPSILON: f64 = 1e-6;
    pub(in crate::checkpoint::config_hf) const THETA_GLOBAL: f64 = 1e6;
    pub(in crate::checkpoint::config_hf) const THETA_LOCAL: f64 = 1e4;
    /// Only Gemma 3 has it.
    pub(in crate::checkpoint::config_hf) const QUERY_PRE_ATTENTION_SCALAR: f64 = 256.0;
    /// Only Gemma 3n has those that follow.
    pub(in crate::checkpoint::config_hf) const STREAMS: usize = 4;
    pub(in crate::checkpoint::config_hf) const LAUREL_RANK: usize = 64;
    pub(in crate::checkpoint::config_hf) const PER_LAYER_WIDTH: usize = 256;
    pub(in crate::checkpoint::config_hf) const PER_LAYER_VOCABULARY: usize = 262_144;
}

pub(super) fn layer_count(text: Fields, default: &Defaults) -> Result<usize, ModelError> {
    let key = "num_hidden_layers";
    let count = text.count(key, default.layers)?;
    if count > LAYERS_MAX {
        return Err(ModelError::bad(key, count, format!("at most {LAYERS_MAX}")));
    }
    Ok(count)
}

/// Reads whose KV cache each layer uses.
pub(super) fn kv_owners(
    text: Fields,
    kinds: &[AttentionKind],
    default: usize,
) -> Result<Vec<usize>, ModelError> {
    let key = "num_kv_shared_layers";
    let shared = text.count(key, default)?;
    let expected = "few enough to leave a layer of each kind that has keys and values";
    config::kv_owners(kinds, shared).ok_or_else(|| ModelError::bad(key, shared, expected))
}

/// Reads `intermediate_size`, one number for all layers or one for each.
pub(super) fn feed_forward(
    text: Fields,
    layers: usize,
    default: &Defaults,
) -> Result<Vec<usize>, ModelError> {
    let key = "intermediate_size";
    let Some(Value::Array(list)) = text.0.get(key) else {
        return Ok(vec![text.count(key, default.feed_forward)?; layers]);
    };
    if list.len() != layers {
        return Err(ModelError::bad(
            key,
            format!("a list of {}", list.len()),
            format!("{layers} numbers"),
        ));
    }
    list.iter().map(|value| as_count(key, value)).collect()
}

/// Reads whether each layer is local or global: from `layer_types`, or as every n-th layer global.
pub(super) fn attention_kinds(
    text: Fields,
    layers: usize,
    default: &Defaults,
) -> Result<Vec<AttentionKind>, ModelError> {
    let window = text.count("sliding_window", default.window)?;
    if let Some(types) = text.given("layer_types") {
        let list = types.as_array().map(Vec::as_slice).unwrap_or_default();
        if list.len() != layers {
            return Err(ModelError::bad(
                "layer_types",
                types,
                format!("a list of {layers} strings"),
            ));
        }
        return list
            .iter()
            .map(|value| match value.as_str() {
                Some("sliding_attention") => Ok(AttentionKind::Local { window }),
                Some("full_attention") => Ok(AttentionKind::Global),
                _ => Err(ModelError::bad(
                    "layer_types",
                    value,
                    "sliding_attention or full_attention",
                )),
            })
            .collect();
    }
    let key = if text.given("sliding_window_pattern").is_some() {
        "sliding_window_pattern"
    } else {
        "_sliding_window_pattern"
    };
    let pattern = text.count(key, default.pattern)?;
    if pattern == 0 {
        return Err(ModelError::bad(key, pattern, "at least 1"));
    }
    Ok(every_nth_global(layers, pattern, window))
}

/// The rotary settings of a kind of layer.
pub(super) struct Rotation {
    /// With all pairs.
    rope: Rope,
    /// The share of the pairs that rotate, if not all do.
    share: Option<f64>,
}

impl Rotation {
    /// Returns the settings of heads of a size.
    pub(super) fn of(&self, head_dim: usize) -> Rope {
        let pairs = self.share.map(|share| (share * head_dim as f64 / 2.0) as usize);
        let pairs = pairs.filter(|&pairs| pairs < head_dim / 2);
        Rope { pairs, ..self.rope }
    }
}

/// Reads the rotary settings of global and of local layers, from `rope_parameters` or from the
/// older flat keys.
pub(super) fn ropes(text: Fields, default: &Defaults) -> Result<(Rotation, Rotation), ModelError> {
    let kinds = ["full_attention", "sliding_attention"];
    let all = text.object("rope_parameters")?;
    if let Some(Fields(Value::Object(all))) = all
        && let Some(key) = all.keys().find(|key| !kinds.contains(&key.as_str()))
    {
        let expected = "only full_attention and sliding_attention, with an object each";
        return Err(ModelError::bad(
            "rope_parameters",
            format!("an object with {key:?}"),
            expected,
        ));
    }
    // The flat `rope_scaling` belongs only to the global layers.
    let flat = text.object("rope_scaling")?.map(|own| divisor("rope_scaling", own)).transpose()?;
    let thetas = [
        ("rope_theta", default::THETA_GLOBAL, flat.unwrap_or(1.0), default.global_share),
        ("rope_local_base_freq", default::THETA_LOCAL, 1.0, None),
    ];
    let rope = |at: usize| -> Result<Rotation, ModelError> {
        let (kind, (key, theta, flat, share)) = (kinds[at], thetas[at]);
        let own = all.map(|all| all.object(kind)).transpose()?.flatten();
        let (theta, divisor, share) = match own {
            Some(own) => {
                (own.number("rope_theta", theta)?, divisor(kind, own)?, rotating_share(kind, own)?)
            }
            None => (text.number(key, theta)?, flat, share),
        };
        let rope = Rope::full(theta as f32, divisor as f32);
        // Both kinds are checked here, because a model may have layers of only one of them.
        rope.check(kind)?;
        Ok(Rotation { rope, share })
    };
    Ok((rope(0)?, rope(1)?))
}

/// Returns the number by which rotary scaling divides positions. `key` names the object in an
/// error.
fn divisor(key: &str, scaling: Fields) -> Result<f64, ModelError> {
    let kind = scaling.given("rope_type").or_else(|| scaling.given("type"));
    let factor = scaling.optional_number("factor")?;
    match (kind.map(|kind| kind.as_str()), factor) {
        (Some(Some("linear")), Some(factor)) => Ok(factor),
        (Some(Some("proportional")), factor) => Ok(factor.unwrap_or(1.0)),
        (Some(Some("linear")), None) => {
            let expected = "a factor beside rope_type \"linear\"";
            Err(ModelError::bad(key, scaling.0, expected))
        }
        (None | Some(Some("default")), None) => Ok(1.0),
        (None, Some(_)) => {
            Err(ModelError::bad(key, scaling.0, "a rope_type beside the factor: \"linear\""))
        }
        (Some(Some("default")), Some(_)) => {
            Err(ModelError::bad(key, scaling.0, "no factor beside rope_type \"default\""))
        }
        (Some(_), _) => {
            let expected = "rope_type \"default\", \"linear\" or \"proportional\"";
            Err(ModelError::bad(key, scaling.0, expected))
        }
    }
}

/// Returns the share of the pairs that rotate by the settings of a kind of layer, if not all do.
fn rotating_share(kind: &str, own: Fields) -> Result<Option<f64>, ModelError> {
    if own.given("rope_type").and_then(Value::as_str) != Some("proportional") {
        return Ok(None);
    }
    let key = "partial_rotary_factor";
    let share = own.number(key, 1.0)?;
    if !(0.0..=1.0).contains(&share) {
        return Err(ModelError::bad(&format!("{kind}.{key}"), share, "a number from 0 to 1"));
    }
    Ok(Some(share))
}
