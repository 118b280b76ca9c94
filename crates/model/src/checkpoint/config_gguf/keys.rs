//! What the readers of all families' keys share.

use trine_weights::gguf::{Array, GgufMetadata, Value};

use crate::checkpoint::config::{self, AttentionKind, LAYERS_MAX, Rope, every_nth_global};
use crate::error::ModelError;

/// The local rope base if the file has none.
const THETA_LOCAL: f64 = 1e4;
/// The global rope base if the file has none.
const THETA_GLOBAL: f64 = 1e6;

/// What a file's tensors say beyond the keys.
pub(crate) trait Tensors {
    /// Returns the number of rows of a tensor.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if there is no such tensor.
    fn rows(&self, name: &str) -> Result<usize, ModelError>;

    /// Returns the values of a tensor of floats, if it is there.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if its values cannot be read.
    fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, ModelError>;

    /// Returns whether a tensor is there.
    fn has(&self, name: &str) -> bool;
}

pub(super) fn layer_count(keys: &Keys) -> Result<usize, ModelError> {
    let count = keys.count("block_count")?;
    if !(1..=LAYERS_MAX).contains(&count) {
        let expected = format!("a number from 1 to {LAYERS_MAX}");
        return Err(ModelError::bad(&keys.name("block_count"), count, expected));
    }
    Ok(count)
}

/// Returns whose KV cache each layer uses if the last `shared` layers have none of their own.
pub(super) fn kv_owners(
    keys: &Keys,
    kinds: &[AttentionKind],
    shared: usize,
) -> Result<Vec<usize>, ModelError> {
    let key = keys.name("attention.shared_kv_layers");
    let expected = "few enough to leave a layer of each kind that has keys and values";
    config::kv_owners(kinds, shared).ok_or_else(|| ModelError::bad(&key, shared, expected))
}

pub(super) fn attention_kinds(
    keys: &Keys,
    layers: usize,
    pattern: usize,
) -> Result<Vec<AttentionKind>, ModelError> {
    let window = keys.count("attention.sliding_window")?;
    let key = keys.name("attention.sliding_window_pattern");
    let Some(value) = keys.metadata.get(&key) else {
        return Ok(every_nth_global(layers, pattern, window));
    };
    let Value::Array(Array::Bool(is_local)) = value else {
        let pattern = keys.count("attention.sliding_window_pattern")?;
        if pattern == 0 {
            return Err(ModelError::bad(&key, pattern, "at least 1"));
        }
        return Ok(every_nth_global(layers, pattern, window));
    };
    if is_local.len() < layers {
        let found = format!("{} entries", is_local.len());
        return Err(ModelError::bad(&key, found, format!("one for each of {layers} layers")));
    }
    let kind = |local: &bool| match local {
        true => AttentionKind::Local { window },
        false => AttentionKind::Global,
    };
    Ok(is_local[..layers].iter().map(kind).collect())
}

/// Reads the rotary settings of global and of local layers; linear scaling belongs only to the
/// global ones.
pub(super) fn ropes(keys: &Keys) -> Result<(Rope, Rope), ModelError> {
    let kind = keys.metadata.optional_str(&keys.name("rope.scaling.type"))?;
    let factor = keys.number("rope.scaling.factor")?;
    let divisor = match kind {
        Some("linear") => {
            let key = keys.name("rope.scaling.factor");
            factor.ok_or(ModelError::MissingKey { key })?
        }
        // llama.cpp reads it in the same way.
        None => factor.unwrap_or(1.0),
        Some("none") => 1.0,
        Some(other) => {
            return Err(ModelError::bad(&keys.name("rope.scaling.type"), other, "linear or none"));
        }
    };
    let global = Rope::full(keys.number_or("rope.freq_base", THETA_GLOBAL)? as f32, divisor as f32);
    let local = Rope::full(keys.number_or("rope.freq_base_swa", THETA_LOCAL)? as f32, 1.0);
    // Both kinds are checked here, because a model may have layers of only one of them.
    global.check("global layers")?;
    local.check("local layers")?;
    Ok((global, local))
}

/// Access to the keys of the architecture's group.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a GgufMetadata,
    pub(super) architecture: &'a str,
}

impl Keys<'_> {
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    pub(super) fn count(&self, key: &str) -> Result<usize, ModelError> {
        let name = self.name(key);
        let found = self
            .metadata
            .optional_u64(&name)?
            .ok_or_else(|| ModelError::MissingKey { key: name.clone() })?;
        usize::try_from(found).map_err(|_| ModelError::bad(&name, found, "a count"))
    }

    pub(super) fn count_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        if self.metadata.get(&self.name(key)).is_none() { Ok(default) } else { self.count(key) }
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.metadata.optional_f64(&self.name(key))?)
    }

    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    /// Reads one number for all layers, or an array with one for each.
    pub(super) fn per_layer(&self, key: &str, layers: usize) -> Result<Vec<usize>, ModelError> {
        let name = self.name(key);
        let found = self.metadata.optional_u64_per_layer(&name, layers)?;
        let counts = found.ok_or_else(|| ModelError::MissingKey { key: name.clone() })?;
        counts
            .into_iter()
            .map(|count| {
                usize::try_from(count).map_err(|_| ModelError::bad(&name, count, "a count"))
            })
            .collect()
    }
}
