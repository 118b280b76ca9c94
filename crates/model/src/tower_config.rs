//! The numbers of a vision tower, from a `config.json` or GGUF metadata.

use serde_json::Value;
use trine_weights::gguf::Metadata;

use crate::config::LAYERS_MAX;
use crate::error::ModelError;
use crate::fields::Fields;

/// The architecture of GGUF files with towers.
const ARCHITECTURE: &str = "clip";
/// The kinds of projector that trine runs, as GGUF files name them.
const PROJECTORS: &str = "gemma3";
/// The `model_type` of the towers that trine runs.
const MODEL_TYPE: &str = "siglip_vision_model";
/// Patches on a side of the square that becomes a soft token, if a GGUF file does not say.
const POOL: usize = 4;
/// Soft tokens of a picture, if a `config.json` does not say.
const SOFT_TOKENS: usize = 256;
/// The colours of a pixel.
const COLOURS: usize = 3;
/// The mean and the deviation of each colour, if the files do not say.
const NORMAL: [f32; COLOURS] = [0.5; COLOURS];
/// The smallest deviation that is accepted: colours are divided by it.
const DEVIATION_MIN: f32 = 0.001;
/// Largest sizes that are accepted. Published ones are 64 patches on a side, of 14 pixels.
const GRID_MAX: usize = 128;
const PATCH_MAX: usize = 64;
/// The largest number of columns, before shapes of tensors are computed from it.
const COLUMNS_MAX: usize = 1 << 20;

/// The numbers of a vision tower with a fixed size of pictures: SigLIP, as Gemma 3 has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TowerConfig {
    /// Side of a picture, in pixels.
    pub picture: usize,
    /// Side of a patch, in pixels; divides `picture`.
    pub patch: usize,
    /// Columns of the residual stream.
    pub hidden: usize,
    /// Columns between the two products of a feed-forward part.
    pub feed_forward: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of queries, keys and values; divides `hidden`.
    pub heads: usize,
    /// Added to variances and mean squares.
    pub epsilon: f32,
    /// Patches on a side of the square whose mean becomes a soft token; divides the grid.
    pub pool: usize,
    /// Columns of a soft token: the hidden size of the text model.
    pub output: usize,
    /// The mean of each colour of a pixel, red, green and blue, where colours are from 0 to 1. The
    /// tower reads (colour - mean) / deviation.
    pub mean: [f32; COLOURS],
    /// The deviation of each colour of a pixel, from 0.001 to 1.
    pub deviation: [f32; COLOURS],
}

impl TowerConfig {
    /// Returns the number of patches on a side of a picture.
    pub fn grid(&self) -> usize {
        self.picture / self.patch
    }

    /// Returns the number of a picture's patches.
    pub fn patches(&self) -> usize {
        self.grid() * self.grid()
    }

    /// Returns the values of a patch: colours, rows and columns.
    pub fn patch_values(&self) -> usize {
        COLOURS * self.patch * self.patch
    }

    /// Returns the number of patches whose mean becomes a soft token.
    pub fn pooled(&self) -> usize {
        self.pool * self.pool
    }

    /// Returns the number of a picture's soft tokens.
    pub fn soft_tokens(&self) -> usize {
        self.patches() / self.pooled()
    }

    /// Returns the patches in the order of the tower's rows, by their numbers in the grid, row by
    /// row: those of a soft token are neighbours.
    pub fn order(&self) -> Vec<usize> {
        let (grid, pool) = (self.grid(), self.pool);
        let of_soft = |soft: usize| {
            let (row, column) = (soft / (grid / pool) * pool, soft % (grid / pool) * pool);
            (0..pool * pool).map(move |at| (row + at / pool) * grid + column + at % pool)
        };
        (0..self.soft_tokens()).flat_map(of_soft).collect()
    }

    /// Checks that a tower can have these numbers.
    pub(crate) fn check(self) -> Result<Self, ModelError> {
        let at_most = |what, found: usize, most: usize| match found {
            found if (1..=most).contains(&found) => Ok(()),
            found => Err(ModelError::bad(what, found, format!("a number from 1 to {most}"))),
        };
        at_most("the side of a patch of the vision tower", self.patch, PATCH_MAX)?;
        at_most("the side of a picture of the vision tower", self.picture, GRID_MAX * self.patch)?;
        at_most("the layer count of the vision tower", self.layers, LAYERS_MAX)?;
        at_most("the hidden size of the vision tower", self.hidden, COLUMNS_MAX)?;
        at_most("the feed-forward size of the vision tower", self.feed_forward, COLUMNS_MAX)?;
        at_most("the projection of the vision tower", self.output, COLUMNS_MAX)?;
        at_most("the head count of the vision tower", self.heads, self.hidden)?;
        at_most("the pooling of the vision tower", self.pool, GRID_MAX)?;
        for (what, whole, part) in [
            ("the side of a picture of the vision tower", self.picture, self.patch),
            ("the hidden size of the vision tower", self.hidden, self.heads),
            ("the number of patches on a side of a picture", self.grid(), self.pool),
        ] {
            if whole == 0 || !whole.is_multiple_of(part) {
                return Err(ModelError::bad(what, whole, format!("a multiple of {part}")));
            }
        }
        if !(self.epsilon > 0.0 && self.epsilon < 1.0) {
            let what = "the norm epsilon of the vision tower";
            return Err(ModelError::bad(what, self.epsilon, "a number above 0 and below 1"));
        }
        Ok(self)
    }
}

/// Returns whether a `config.json` describes a tower.
pub(crate) fn is_in_json(root: &Value) -> bool {
    root.get("vision_config").is_some_and(Value::is_object)
}

/// Returns whether the metadata is that of a file with a tower.
pub(crate) fn is_in_gguf(metadata: &Metadata) -> bool {
    metadata.optional_str("general.architecture").ok().flatten() == Some(ARCHITECTURE)
}

/// Reads the numbers from a `config.json`, which does not say how many columns a soft token has,
/// nor what colours are normalised by: [`TowerConfig::output`] is 1, the others are defaults.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn from_json(root: &Value) -> Result<TowerConfig, ModelError> {
    let vision = Fields(root).object("vision_config")?.ok_or(ModelError::NoTower)?;
    match vision.given("model_type") {
        Some(Value::String(kind)) if kind == MODEL_TYPE => {}
        other => {
            let found = other.map_or("none".to_owned(), Value::to_string);
            return Err(ModelError::tower("vision_config.model_type", found, MODEL_TYPE));
        }
    }
    // As for the text model, mirrors that say "gelu" also mean the tanh form.
    match vision.given("hidden_act") {
        None => {}
        Some(Value::String(name)) if name == "gelu_pytorch_tanh" || name == "gelu" => {}
        Some(other) => {
            return Err(ModelError::bad("vision_config.hidden_act", other, "gelu_pytorch_tanh"));
        }
    }
    let colours = vision.count("num_channels", COLOURS)?;
    if colours != COLOURS {
        return Err(ModelError::bad("vision_config.num_channels", colours, COLOURS));
    }
    // The defaults are those of transformers' `SiglipVisionConfig`.
    let mut config = TowerConfig {
        picture: vision.count("image_size", 224)?,
        patch: vision.count("patch_size", 16)?,
        hidden: vision.count("hidden_size", 768)?,
        feed_forward: vision.count("intermediate_size", 3072)?,
        layers: vision.count("num_hidden_layers", 12)?,
        heads: vision.count("num_attention_heads", 12)?,
        epsilon: vision.number("layer_norm_eps", 1e-6)? as f32,
        pool: 1,
        output: 1,
        mean: NORMAL,
        deviation: NORMAL,
    };
    config = config.check()?;
    let key = "mm_tokens_per_image";
    let soft = Fields(root).count(key, SOFT_TOKENS)?;
    let side = soft.isqrt();
    if side == 0 || side * side != soft || !config.grid().is_multiple_of(side) {
        let expected = format!("the square of a divisor of {}", config.grid());
        return Err(ModelError::bad(key, soft, expected));
    }
    config.pool = config.grid() / side;
    config.check()
}

/// Reads the mean and the deviation of each colour from a `preprocessor_config.json`.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn colours_from_json(root: &Value) -> Result<[[f32; COLOURS]; 2], ModelError> {
    let fields = Fields(root);
    for key in ["do_rescale", "do_normalize"] {
        if let Some(other) = fields.given(key).filter(|value| **value != Value::Bool(true)) {
            return Err(ModelError::bad(key, other, true));
        }
    }
    let read = |(key, least)| {
        let Some(value) = fields.given(key) else { return Ok(NORMAL) };
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let values = value.as_array().and_then(|values| values.iter().map(number).collect());
        let colours = values.and_then(|values: Vec<f32>| as_colours(&values, least));
        let expected = || format!("{COLOURS} numbers from {least} to 1");
        colours.ok_or_else(|| ModelError::bad(key, value, expected()))
    };
    Ok([read(("image_mean", 0.0))?, read(("image_std", DEVIATION_MIN))?])
}

/// Reads the mean and the deviation of each colour from GGUF metadata.
fn colours_from_gguf(metadata: &Metadata) -> Result<[[f32; COLOURS]; 2], ModelError> {
    let read = |(key, least)| {
        let Some(values) = metadata.optional_f32s(key)? else { return Ok(NORMAL) };
        as_colours(&values, least).ok_or_else(|| {
            let found = format!("{:?}", &values[..values.len().min(2 * COLOURS)]);
            ModelError::bad(key, found, format!("{COLOURS} numbers from {least} to 1"))
        })
    };
    Ok([read(("clip.vision.image_mean", 0.0))?, read(("clip.vision.image_std", DEVIATION_MIN))?])
}

/// Returns a number for each colour; `None` if there are more or fewer, or one is not from `least`
/// to 1.
fn as_colours(values: &[f32], least: f32) -> Option<[f32; COLOURS]> {
    let values = <[f32; COLOURS]>::try_from(values).ok()?;
    values.iter().all(|value| (least..=1.0).contains(value)).then_some(values)
}

/// Reads the id of soft tokens from a `config.json`.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn soft_token(root: &Value, default: u32) -> Result<u32, ModelError> {
    let key = "image_token_index";
    let id = Fields(root).count(key, default as usize)?;
    // The largest number stands for soft tokens in batches.
    let id = u32::try_from(id).ok().filter(|id| *id < u32::MAX);
    id.ok_or_else(|| ModelError::bad(key, Fields(root).0[key].clone(), "a token id"))
}

/// Reads the numbers from GGUF metadata.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn from_gguf(metadata: &Metadata) -> Result<TowerConfig, ModelError> {
    if !is_in_gguf(metadata) || metadata.optional_bool("clip.has_vision_encoder")? == Some(false) {
        return Err(ModelError::NoTower);
    }
    let kind = match metadata.optional_str("clip.vision.projector_type")? {
        Some(kind) => Some(kind),
        None => metadata.optional_str("clip.projector_type")?,
    };
    if kind != Some(PROJECTORS) {
        return Err(ModelError::tower("clip.projector_type", kind.unwrap_or("none"), PROJECTORS));
    }
    if metadata.optional_bool("clip.use_gelu")? == Some(false) {
        return Err(ModelError::bad("clip.use_gelu", false, true));
    }
    let [mean, deviation] = colours_from_gguf(metadata)?;
    let optional = |key: &str| -> Result<Option<usize>, ModelError> {
        let Some(found) = metadata.optional_u64(key)? else { return Ok(None) };
        let count = usize::try_from(found);
        count.map(Some).map_err(|_| ModelError::bad(key, found, "a count"))
    };
    let count = |part: &str| {
        let key = format!("clip.vision.{part}");
        optional(&key)?.ok_or(ModelError::MissingKey { key })
    };
    let key = "clip.vision.attention.layer_norm_epsilon";
    let epsilon = metadata.optional_f64(key)?;
    TowerConfig {
        picture: count("image_size")?,
        patch: count("patch_size")?,
        hidden: count("embedding_length")?,
        feed_forward: count("feed_forward_length")?,
        layers: count("block_count")?,
        heads: count("attention.head_count")?,
        epsilon: epsilon.ok_or(ModelError::MissingKey { key: key.to_owned() })? as f32,
        pool: optional("clip.vision.projector.scale_factor")?.unwrap_or(POOL),
        output: count("projection_dim")?,
        mean,
        deviation,
    }
    .check()
}
