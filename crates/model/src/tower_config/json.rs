//! A tower's numbers from a `config.json` and a `preprocessor_config.json`.

use serde_json::Value;

use super::{
    COLOURS, DEVIATION_MIN, NORMAL, Pixels, TowerConfig, TowerKind, TowerLayers, as_colours,
    heads_of,
};
use crate::error::ModelError;
use crate::fields::Fields;
use crate::plan::Heads;

/// The `model_type` of each tower that trine runs.
const SIGLIP: &str = "siglip_vision_model";
const GEMMA4: &str = "gemma4_vision";
const UNIFIED: &str = "gemma4_unified_vision";
/// All of them, for messages.
const KINDS: &str = "siglip_vision_model, gemma4_vision or gemma4_unified_vision";
/// Soft tokens of a picture of Gemma 3, if a `config.json` does not say.
const SOFT_TOKENS: usize = 256;
/// The most soft tokens of a picture of Gemma 4, if a `preprocessor_config.json` does not say.
pub(super) const BUDGET: usize = 280;
/// The base of frequencies of Gemma 4's towers, if a file does not say. GGUF files never do.
pub(super) const THETA: f64 = 100.0;
/// The id of soft tokens of each family, if the files do not say: those of every published model.
/// Gemma 3's lies beyond the embedding table of some files.
const SOFT_TOKEN: [u32; 2] = [262_144, 258_880];

/// Returns whether a `config.json` describes a tower.
pub(crate) fn is_in_json(root: &Value) -> bool {
    root.get("vision_config").is_some_and(Value::is_object)
}

/// Reads the numbers from a `config.json`, which does not say how many columns a soft token has,
/// nor how pictures are prepared: [`TowerConfig::output`] is 1, the others are defaults.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn from_json(root: &Value) -> Result<TowerConfig, ModelError> {
    let vision = Fields(root).object("vision_config")?.ok_or(ModelError::NoTower)?;
    let kind = vision.given("model_type");
    let config = match kind.and_then(Value::as_str) {
        Some(SIGLIP) => siglip(root, vision),
        Some(GEMMA4) => gemma4(root, vision),
        Some(UNIFIED) => unified(vision),
        _ => {
            let found = kind.map_or("none".to_owned(), Value::to_string);
            Err(ModelError::tower("vision_config.model_type", found, KINDS))
        }
    };
    config?.check()
}

/// Reads those of SigLIP. The defaults are those of transformers' `SiglipVisionConfig`.
fn siglip(root: &Value, vision: Fields) -> Result<TowerConfig, ModelError> {
    check_activation(vision, "hidden_act")?;
    let colours = vision.count("num_channels", COLOURS)?;
    if colours != COLOURS {
        return Err(ModelError::bad("vision_config.num_channels", colours, COLOURS));
    }
    let hidden = vision.count("hidden_size", 768)?;
    let layers = TowerLayers {
        count: vision.count("num_hidden_layers", 12)?,
        heads: heads_of(hidden, vision.count("num_attention_heads", 12)?)?,
        feed_forward: vision.count("intermediate_size", 3072)?,
    };
    let side = vision.count("image_size", 224)?;
    let mut config = TowerConfig {
        kind: TowerKind::Siglip(layers),
        pixels: Pixels::Square { side, mean: NORMAL, deviation: NORMAL },
        patch: vision.count("patch_size", 16)?,
        pool: 1,
        hidden,
        epsilon: vision.number("layer_norm_eps", 1e-6)? as f32,
        output: 1,
    }
    .check()?;
    let key = "mm_tokens_per_image";
    let soft = Fields(root).count(key, SOFT_TOKENS)?;
    let side = soft.isqrt();
    if side == 0 || side * side != soft || !config.side().is_multiple_of(side) {
        let expected = format!("the square of a divisor of {}", config.side());
        return Err(ModelError::bad(key, soft, expected));
    }
    config.pool = config.side() / side;
    Ok(config)
}

/// Reads those of Gemma 4. The defaults are those of transformers' `Gemma4VisionConfig`.
fn gemma4(root: &Value, vision: Fields) -> Result<TowerConfig, ModelError> {
    // Inputs of layers at the places of soft tokens are those of padding, which Plans take for 0.
    let text = Fields(root).object("text_config")?;
    let key = "text_config.pad_token_id";
    let padding = text.map_or(Ok(0), |text| text.count("pad_token_id", 0))?;
    if padding != 0 {
        return Err(ModelError::bad(key, padding, 0));
    }
    check_activation(vision, "hidden_activation")?;
    vision.must_be_false("attention_bias", "products of Gemma 4's tower have no bias")?;
    let heads = vision.count("num_attention_heads", 12)?;
    let rope = vision.object("rope_parameters")?;
    let theta = rope.map_or(Ok(THETA), |rope| rope.number("rope_theta", THETA))?;
    if let Some(other) = rope.and_then(|rope| rope.given("rope_type"))
        && !["axial", "default"].map(Value::from).contains(other)
    {
        return Err(ModelError::bad("vision_config.rope_parameters.rope_type", other, "axial"));
    }
    let layers = TowerLayers {
        count: vision.count("num_hidden_layers", 16)?,
        heads: Heads {
            query: heads,
            kv: vision.count("num_key_value_heads", 12)?,
            dim: vision.count("head_dim", 64)?,
        },
        feed_forward: vision.count("intermediate_size", 3072)?,
    };
    let side = vision.count("position_embedding_size", 10_240)?;
    Ok(TowerConfig {
        kind: TowerKind::Gemma4 {
            layers,
            theta: theta as f32,
            clips: is_set(vision, "use_clipped_linears")?,
            standardizes: is_set(vision, "standardize")?,
        },
        pixels: Pixels::Budget { soft_tokens: BUDGET, side },
        patch: vision.count("patch_size", 16)?,
        pool: vision.count("pooling_kernel_size", 3)?,
        hidden: vision.count("hidden_size", 768)?,
        epsilon: vision.number("rms_norm_eps", 1e-6)? as f32,
        output: 1,
    })
}

/// Reads those of Gemma 4's 12B. The defaults are those of transformers'
/// `Gemma4UnifiedVisionConfig`.
fn unified(vision: Fields) -> Result<TowerConfig, ModelError> {
    let parts = [vision.count("patch_size", 16)?, vision.count("pooling_kernel_size", 3)?];
    let patch = parts[0].saturating_mul(parts[1]);
    let given = vision.count("model_patch_size", patch)?;
    if given != patch {
        let expected = format!("patch_size x pooling_kernel_size = {patch}");
        return Err(ModelError::bad("vision_config.model_patch_size", given, expected));
    }
    let side = vision.count("mm_posemb_size", 1120)?;
    Ok(TowerConfig {
        kind: TowerKind::Unified,
        pixels: Pixels::Budget { soft_tokens: BUDGET, side },
        patch,
        pool: 1,
        hidden: vision.count("mm_embed_dim", 3840)?,
        epsilon: vision.number("rms_norm_eps", 1e-6)? as f32,
        output: 1,
    })
}

/// As for the text model, mirrors that say "gelu" also mean the tanh form.
fn check_activation(vision: Fields, key: &str) -> Result<(), ModelError> {
    match vision.given(key) {
        None => Ok(()),
        Some(Value::String(name)) if name == "gelu_pytorch_tanh" || name == "gelu" => Ok(()),
        Some(other) => {
            Err(ModelError::bad(&format!("vision_config.{key}"), other, "gelu_pytorch_tanh"))
        }
    }
}

fn is_set(vision: Fields, key: &str) -> Result<bool, ModelError> {
    match vision.given(key) {
        None => Ok(false),
        Some(Value::Bool(is_set)) => Ok(*is_set),
        Some(other) => {
            Err(ModelError::bad(&format!("vision_config.{key}"), other, "true or false"))
        }
    }
}

/// Returns the numbers with what a `preprocessor_config.json` says of the preparation of pictures.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn with_preprocessor(
    config: TowerConfig,
    root: &Value,
) -> Result<TowerConfig, ModelError> {
    let fields = Fields(root);
    let must_be = |key: &str, expected: bool| match fields.given(key) {
        Some(other) if *other != Value::Bool(expected) => {
            Err(ModelError::bad(key, other, expected))
        }
        _ => Ok(()),
    };
    must_be("do_rescale", true)?;
    let pixels = match config.pixels {
        Pixels::Square { side, .. } => {
            must_be("do_normalize", true)?;
            let [mean, deviation] = [("image_mean", 0.0), ("image_std", DEVIATION_MIN)]
                .map(|(key, least)| colours(fields, key, least));
            Pixels::Square { side, mean: mean?, deviation: deviation? }
        }
        Pixels::Budget { side, .. } => {
            must_be("do_normalize", false)?;
            must_be("do_resize", true)?;
            // Of 12B a patch is what the tower reads, and 3 x 3 of the preprocessor's.
            let whole = config.patch * config.pool;
            let [patch, pool] = [("patch_size", 16), ("pooling_kernel_size", 3)]
                .map(|(key, default)| fields.count(key, default));
            let found = patch?.saturating_mul(pool?);
            if fields.given("patch_size").is_some() && found != whole {
                let key = "patch_size x pooling_kernel_size";
                return Err(ModelError::bad(key, found, whole));
            }
            Pixels::Budget { soft_tokens: fields.count("max_soft_tokens", BUDGET)?, side }
        }
    };
    TowerConfig { pixels, ..config }.check()
}

/// Reads a number for each colour.
fn colours(fields: Fields, key: &str, least: f32) -> Result<[f32; COLOURS], ModelError> {
    let Some(value) = fields.given(key) else { return Ok(NORMAL) };
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    let values = value.as_array().and_then(|values| values.iter().map(number).collect());
    let colours = values.and_then(|values: Vec<f32>| as_colours(&values, least));
    let expected = || format!("{COLOURS} numbers from {least} to 1");
    colours.ok_or_else(|| ModelError::bad(key, value, expected()))
}

/// Returns the id of soft tokens if the files do not say.
pub(crate) fn usual_soft_token(kind: &TowerKind) -> u32 {
    let [gemma3, gemma4] = SOFT_TOKEN;
    match kind {
        TowerKind::Siglip(_) => gemma3,
        TowerKind::Gemma4 { .. } | TowerKind::Unified => gemma4,
    }
}

/// Reads the id of soft tokens from a `config.json`.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn soft_token(root: &Value, kind: &TowerKind) -> Result<u32, ModelError> {
    // Gemma 3 has the first name, Gemma 4 the second.
    let keys = ["image_token_index", "image_token_id"];
    let fields = Fields(root);
    let key = keys.into_iter().find(|key| fields.given(key).is_some()).unwrap_or(keys[0]);
    let id = fields.count(key, usual_soft_token(kind) as usize)?;
    // The largest number stands for soft tokens in batches.
    let id = u32::try_from(id).ok().filter(|id| *id < u32::MAX);
    id.ok_or_else(|| ModelError::bad(key, fields.0[key].clone(), "a token id"))
}
