//! A tower's numbers from a `config.json`.

use serde_json::Value;

use super::preprocessor::Preprocessor;
use super::{
    COLOURS, TowerConfig, TowerKind, TowerLayers, check_grid, check_patch, check_pool, heads_of,
};
use crate::checkpoint::fields::Fields;
use crate::error::ModelError;
use crate::plan::Heads;

/// The `model_type` of each tower that trine runs.
const SIGLIP: &str = "siglip_vision_model";
const GEMMA4: &str = "gemma4_vision";
const UNIFIED: &str = "gemma4_unified_vision";
/// All of them, for messages.
const KINDS: &str = "siglip_vision_model, gemma4_vision or gemma4_unified_vision";
/// Soft tokens of a picture of Gemma 3, if a `config.json` does not say.
const SOFT_TOKENS: usize = 256;
/// The keys of parts of Gemma 4's towers: limits of products, and the standardisation of means.
pub(crate) const CLIPS: &str = "use_clipped_linears";
pub(crate) const STANDARDIZES: &str = "standardize";
/// The base of frequencies of Gemma 4's towers, if a file does not say. GGUF files never do.
pub(super) const THETA: f64 = 100.0;
/// The id of soft tokens of each family, if the files do not say: those of every published model.
/// Gemma 3's lies beyond the embedding table of some files.
const SOFT_TOKEN: [u32; 2] = [262_144, 258_880];

/// Returns whether a `config.json` describes a tower.
pub(crate) fn is_in_json(root: &Value) -> bool {
    root.get("vision_config").is_some_and(Value::is_object)
}

/// Reads the kind of a tower and the numbers that only this kind has from a `config.json`.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn kind_from_json(root: &Value) -> Result<TowerKind, ModelError> {
    let vision = vision(root)?;
    let kind = vision.given("model_type");
    match kind.and_then(Value::as_str) {
        Some(SIGLIP) => siglip_kind(vision),
        Some(GEMMA4) => gemma4_kind(root, vision),
        Some(UNIFIED) => Ok(TowerKind::Unified),
        _ => {
            let found = kind.map_or("none".to_owned(), Value::to_string);
            Err(ModelError::tower("vision_config.model_type", found, KINDS))
        }
    }
}

/// Reads the numbers of a tower of this kind from a `config.json` and from what another file says
/// of the preparation of pictures. No file says how many columns a soft token has: `output` is
/// that of the projection.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong, and the other file if it is in that.
pub(crate) fn from_json(
    root: &Value,
    kind: TowerKind,
    preprocessor: &Preprocessor,
    output: usize,
) -> Result<TowerConfig, ModelError> {
    let vision = vision(root)?;
    let config = match kind {
        TowerKind::Siglip(_) => siglip(root, vision, kind, preprocessor, output),
        TowerKind::Gemma4 { .. } => gemma4(vision, kind, preprocessor, output),
        TowerKind::Unified => unified(vision, preprocessor, output),
    };
    config?.check()
}

fn vision(root: &Value) -> Result<Fields<'_>, ModelError> {
    Fields(root).object("vision_config")?.ok_or(ModelError::NoTower)
}

/// Reads the layers of SigLIP. The defaults are those of transformers' `SiglipVisionConfig`.
fn siglip_kind(vision: Fields) -> Result<TowerKind, ModelError> {
    check_activation(vision, "hidden_act")?;
    let colours = vision.count("num_channels", COLOURS)?;
    if colours != COLOURS {
        return Err(ModelError::bad("vision_config.num_channels", colours, COLOURS));
    }
    let hidden = vision.count("hidden_size", 768)?;
    Ok(TowerKind::Siglip(TowerLayers {
        count: vision.count("num_hidden_layers", 12)?,
        heads: heads_of(hidden, vision.count("num_attention_heads", 12)?)?,
        feed_forward: vision.count("intermediate_size", 3072)?,
    }))
}

fn siglip(
    root: &Value,
    vision: Fields,
    kind: TowerKind,
    preprocessor: &Preprocessor,
    output: usize,
) -> Result<TowerConfig, ModelError> {
    let (side, patch) = (vision.count("image_size", 224)?, vision.count("patch_size", 16)?);
    check_grid(side, patch)?;
    let places = side / patch;
    let key = "mm_tokens_per_image";
    let soft = Fields(root).count(key, SOFT_TOKENS)?;
    let wide = soft.isqrt();
    if wide == 0 || wide * wide != soft || !places.is_multiple_of(wide) {
        let expected = format!("the square of a divisor of {places}");
        return Err(ModelError::bad(key, soft, expected));
    }
    Ok(TowerConfig {
        kind,
        pixels: preprocessor.square(side)?,
        patch,
        pool: places / wide,
        hidden: vision.count("hidden_size", 768)?,
        epsilon: vision.number("layer_norm_eps", 1e-6)? as f32,
        output,
    })
}

/// Reads what only towers of Gemma 4 have. The defaults are those of transformers'
/// `Gemma4VisionConfig`.
fn gemma4_kind(root: &Value, vision: Fields) -> Result<TowerKind, ModelError> {
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
    Ok(TowerKind::Gemma4 {
        layers,
        theta: theta as f32,
        clips: is_set(vision, CLIPS)?,
        standardizes: is_set(vision, STANDARDIZES)?,
    })
}

fn gemma4(
    vision: Fields,
    kind: TowerKind,
    preprocessor: &Preprocessor,
    output: usize,
) -> Result<TowerConfig, ModelError> {
    let side = vision.count("position_embedding_size", 10_240)?;
    let patch = vision.count("patch_size", 16)?;
    let pool = vision.count("pooling_kernel_size", 3)?;
    // Before the other file is compared with them.
    check_patch(patch)?;
    check_pool(pool)?;
    Ok(TowerConfig {
        kind,
        pixels: preprocessor.budget(side, patch * pool)?,
        patch,
        pool,
        hidden: vision.count("hidden_size", 768)?,
        epsilon: vision.number("rms_norm_eps", 1e-6)? as f32,
        output,
    })
}

/// Reads the numbers of Gemma 4's 12B. The defaults are those of transformers'
/// `Gemma4UnifiedVisionConfig`.
fn unified(
    vision: Fields,
    preprocessor: &Preprocessor,
    output: usize,
) -> Result<TowerConfig, ModelError> {
    let parts = [vision.count("patch_size", 16)?, vision.count("pooling_kernel_size", 3)?];
    let patch = parts[0].saturating_mul(parts[1]);
    let given = vision.count("model_patch_size", patch)?;
    if given != patch {
        let expected = format!("patch_size x pooling_kernel_size = {patch}");
        return Err(ModelError::bad("vision_config.model_patch_size", given, expected));
    }
    check_patch(patch)?;
    let side = vision.count("mm_posemb_size", 1120)?;
    Ok(TowerConfig {
        kind: TowerKind::Unified,
        pixels: preprocessor.budget(side, patch)?,
        patch,
        pool: 1,
        hidden: vision.count("mm_embed_dim", 3840)?,
        epsilon: vision.number("rms_norm_eps", 1e-6)? as f32,
        output,
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
