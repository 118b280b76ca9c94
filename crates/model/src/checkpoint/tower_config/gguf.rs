//! A tower's numbers from the metadata of an `mmproj` file.

use trine_weights::gguf::GgufMetadata;

use super::json::THETA;
use super::preprocessor::BUDGET;
use super::{
    COLOURS, DEVIATION_MIN, NORMAL, Pixels, TowerConfig, TowerKind, TowerLayers, as_colours,
    heads_of,
};
use crate::checkpoint::tower_names as names;
use crate::error::ModelError;

/// The architecture of GGUF files with towers.
const ARCHITECTURE: &str = "clip";
/// Where a file has its kind: the second key is that of older ones.
pub(crate) const KIND_KEYS: [&str; 2] = ["clip.vision.projector_type", "clip.projector_type"];

/// Reads the numbers of towers of one kind.
type Reader = fn(Keys<'_>, &dyn TowerTensors) -> Result<TowerConfig, ModelError>;

/// The kinds of projector that trine runs, as GGUF files name them.
const KINDS: [(&str, Reader); 3] = [("gemma3", siglip), ("gemma4v", gemma4), ("gemma4uv", unified)];

/// What the tensors of a file say of a tower.
pub(crate) trait TowerTensors {
    /// Returns whether the name of any tensor is such a one.
    fn any(&self, is_one: &dyn Fn(&str) -> bool) -> bool;

    /// Returns the rows of a tensor, its last dimension being the columns.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if it is missing.
    fn rows(&self, name: &str) -> Result<usize, ModelError>;
}

/// Returns whether the metadata is that of a file with a tower.
pub(crate) fn is_in_gguf(metadata: &GgufMetadata) -> bool {
    metadata.optional_str("general.architecture").ok().flatten() == Some(ARCHITECTURE)
}

/// Reads the numbers from GGUF metadata, and from tensors what only these say.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn from_gguf(
    metadata: &GgufMetadata,
    tensors: &dyn TowerTensors,
) -> Result<TowerConfig, ModelError> {
    if !is_in_gguf(metadata) || metadata.optional_bool("clip.has_vision_encoder")? == Some(false) {
        return Err(ModelError::NoTower);
    }
    let [first, second] = KIND_KEYS.map(|key| metadata.optional_str(key));
    let kind = first?.or(second?);
    reader(kind.unwrap_or("none"))?(Keys(metadata), tensors)?.check()
}

/// Returns what reads the numbers of a kind of tower.
///
/// # Errors
/// [`ModelError::UnsupportedTower`] if the kind is not run.
fn reader(kind: &str) -> Result<Reader, ModelError> {
    let known = KINDS.iter().find(|(name, _)| *name == kind);
    known.map(|(_, reader)| *reader).ok_or_else(|| {
        let [first, second, third] = KINDS.map(|(name, _)| name);
        let expected = format!("{first}, {second} or {third}");
        ModelError::tower("clip.projector_type", kind, expected)
    })
}

/// Refuses a kind of tower that is not run.
///
/// # Errors
/// [`ModelError::UnsupportedTower`].
pub(crate) fn check_kind(kind: &str) -> Result<(), ModelError> {
    reader(kind).map(|_| ())
}

fn siglip(keys: Keys, _: &dyn TowerTensors) -> Result<TowerConfig, ModelError> {
    if keys.0.optional_bool("clip.use_gelu")? == Some(false) {
        return Err(ModelError::bad("clip.use_gelu", false, true));
    }
    let pixels = Pixels::Square {
        side: keys.count("image_size")?,
        mean: keys.colours("image_mean", 0.0)?,
        deviation: keys.colours("image_std", DEVIATION_MIN)?,
    };
    let hidden = keys.count("embedding_length")?;
    Ok(TowerConfig {
        kind: TowerKind::Siglip(layers(keys, hidden)?),
        pixels,
        patch: keys.count("patch_size")?,
        pool: keys.optional("projector.scale_factor")?.unwrap_or(4),
        hidden,
        epsilon: keys.epsilon()?,
        output: keys.count("projection_dim")?,
    })
}

fn gemma4(keys: Keys, tensors: &dyn TowerTensors) -> Result<TowerConfig, ModelError> {
    let hidden = keys.count("embedding_length")?;
    Ok(TowerConfig {
        kind: TowerKind::Gemma4 {
            layers: layers(keys, hidden)?,
            theta: THETA as f32,
            // A tensor that is missing then is named.
            clips: tensors.any(&names::is_limit),
            standardizes: tensors.any(&|name| names::STANDARD.contains(&name)),
        },
        pixels: budget(keys, tensors)?,
        patch: keys.count("patch_size")?,
        pool: keys.optional("projector.scale_factor")?.unwrap_or(3),
        hidden,
        epsilon: keys.epsilon()?,
        output: keys.count("projection_dim")?,
    })
}

fn unified(keys: Keys, tensors: &dyn TowerTensors) -> Result<TowerConfig, ModelError> {
    let pool = keys.optional("projector.scale_factor")?.unwrap_or(3);
    Ok(TowerConfig {
        kind: TowerKind::Unified,
        pixels: budget(keys, tensors)?,
        patch: keys.count("patch_size")?.saturating_mul(pool),
        pool: 1,
        hidden: keys.count("embedding_length")?,
        epsilon: keys.epsilon()?,
        output: keys.count("projection_dim")?,
    })
}

/// Returns pictures of any shape. The table of places has the columns' before the rows'. These
/// towers scale colours themselves; files of theirs have a mean of 0 and a deviation of 1.
fn budget(keys: Keys, tensors: &dyn TowerTensors) -> Result<Pixels, ModelError> {
    keys.expect_colours("image_mean", 0.0)?;
    keys.expect_colours("image_std", 1.0)?;
    let side = tensors.rows(names::PLACES)? / 2;
    Ok(Pixels::Budget { soft_tokens: BUDGET, side })
}

fn layers(keys: Keys, hidden: usize) -> Result<TowerLayers, ModelError> {
    Ok(TowerLayers {
        count: keys.count("block_count")?,
        heads: heads_of(hidden, keys.count("attention.head_count")?)?,
        feed_forward: keys.count("feed_forward_length")?,
    })
}

/// The keys of a tower, without `clip.vision.`.
#[derive(Clone, Copy)]
struct Keys<'a>(&'a GgufMetadata);

impl Keys<'_> {
    fn optional(self, part: &str) -> Result<Option<usize>, ModelError> {
        let key = format!("clip.vision.{part}");
        let Some(found) = self.0.optional_u64(&key)? else { return Ok(None) };
        let count = usize::try_from(found);
        count.map(Some).map_err(|_| ModelError::bad(&key, found, "a count"))
    }

    fn count(self, part: &str) -> Result<usize, ModelError> {
        let missing = || ModelError::MissingKey { key: format!("clip.vision.{part}") };
        self.optional(part)?.ok_or_else(missing)
    }

    fn epsilon(self) -> Result<f32, ModelError> {
        let key = "clip.vision.attention.layer_norm_epsilon";
        let epsilon = self.0.optional_f64(key)?;
        Ok(epsilon.ok_or(ModelError::MissingKey { key: key.to_owned() })? as f32)
    }

    /// Refuses other numbers of colours than this one for each.
    fn expect_colours(self, part: &str, expected: f32) -> Result<(), ModelError> {
        let key = format!("clip.vision.{part}");
        match self.0.optional_f32s(&key)? {
            Some(values) if *values != [expected; COLOURS] => {
                let found = format!("{:?}", &values[..values.len().min(2 * COLOURS)]);
                Err(ModelError::bad(&key, found, format!("{:?}", [expected; COLOURS])))
            }
            _ => Ok(()),
        }
    }

    /// Reads a number for each colour.
    fn colours(self, part: &str, least: f32) -> Result<[f32; COLOURS], ModelError> {
        let key = format!("clip.vision.{part}");
        let Some(values) = self.0.optional_f32s(&key)? else { return Ok(NORMAL) };
        as_colours(&values, least).ok_or_else(|| {
            let found = format!("{:?}", &values[..values.len().min(2 * COLOURS)]);
            ModelError::bad(&key, found, format!("{COLOURS} numbers from {least} to 1"))
        })
    }
}
