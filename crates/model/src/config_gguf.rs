//! Hyper-parameters from GGUF metadata (`gemma3.*` keys).
//!
//! Most published files leave out what llama.cpp implies from the architecture: the local rope
//! base, the pattern of global layers, and the score scale of the 27B model.

use trine_weights::gguf::{ARCHITECTURE_KEY, Array, Metadata, Value};

use crate::config::{
    AttentionKind, Config, Family, GenerationDefaults, LAYERS_MAX, LayerConfig, Rope,
};
use crate::config_hf::every_nth_global;
use crate::error::ModelError;

/// The only architecture with the forward pass of Gemma 3.
const SUPPORTED: &str = "gemma3";
/// The local rope base if the file has none.
const THETA_LOCAL: f64 = 1e4;
/// The global rope base if the file has none.
const THETA_GLOBAL: f64 = 1e6;
/// The distance between global layers if the file has no pattern.
const PATTERN: usize = 6;
/// The number of layers of the 27B model: only it scales scores by its hidden size per head, and no
/// key says so.
const LAYERS_OF_27B: usize = 62;

/// Checks that trine runs models of an architecture, as `general.architecture` names it.
///
/// # Errors
/// Returns [`ModelError::UnknownArchitecture`] if it does not.
pub(crate) fn check_supported(architecture: &str) -> Result<(), ModelError> {
    if architecture == SUPPORTED {
        return Ok(());
    }
    let found = if architecture.is_empty() { "none" } else { architecture };
    Err(ModelError::UnknownArchitecture { found: found.to_owned(), supported: SUPPORTED })
}

/// Reads a configuration from GGUF metadata. `vocabulary` is the number of rows of the embedding
/// tensor.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong.
pub(crate) fn read(metadata: &Metadata, vocabulary: usize) -> Result<Config, ModelError> {
    check_supported(metadata.optional_str(ARCHITECTURE_KEY)?.unwrap_or_default())?;
    let keys = Keys { metadata };
    let hidden = keys.count("embedding_length")?;
    let layer_count = keys.count("block_count")?;
    if !(1..=LAYERS_MAX).contains(&layer_count) {
        let expected = format!("a number from 1 to {LAYERS_MAX}");
        return Err(ModelError::bad("gemma3.block_count", layer_count, expected));
    }
    let heads = keys.per_layer("attention.head_count", layer_count)?;
    let kv_heads = keys.per_layer("attention.head_count_kv", layer_count)?;
    let feed_forward = keys.per_layer("feed_forward_length", layer_count)?;
    let head_dim = keys.count_or("attention.key_length", 256)?;
    let value_dim = keys.count_or("attention.value_length", head_dim)?;
    if value_dim != head_dim {
        return Err(ModelError::bad("gemma3.attention.value_length", value_dim, head_dim));
    }
    let kinds = attention_kinds(&keys, layer_count)?;
    let (rope_global, rope_local) = ropes(&keys)?;
    let layers = (0..layer_count)
        .map(|index| LayerConfig {
            attention: kinds[index],
            heads: heads[index],
            kv_heads: kv_heads[index],
            head_dim,
            score_scale: score_scale(layer_count, hidden, heads[index], head_dim),
            rope: if kinds[index] == AttentionKind::Global { rope_global } else { rope_local },
            feed_forward: feed_forward[index],
            kv_owner: index,
        })
        .collect();
    let config = Config {
        family: Family::Gemma3,
        hidden,
        vocabulary,
        context: keys.count("context_length")?,
        norm_epsilon: keys.number_or("attention.layer_norm_rms_epsilon", 1e-6)? as f32,
        embedding_scale: (hidden as f64).sqrt() as f32,
        final_softcap: keys.number("final_logit_softcapping")?.map(|cap| cap as f32),
        layers,
    };
    config.check()?;
    Ok(config)
}

fn score_scale(layers: usize, hidden: usize, heads: usize, head_dim: usize) -> f32 {
    let scalar = if layers == LAYERS_OF_27B { hidden / heads.max(1) } else { head_dim };
    (1.0 / (scalar as f64).sqrt()) as f32
}

fn attention_kinds(keys: &Keys, layers: usize) -> Result<Vec<AttentionKind>, ModelError> {
    let window = keys.count("attention.sliding_window")?;
    let key = keys.name("attention.sliding_window_pattern");
    let Some(value) = keys.metadata.get(&key) else {
        return Ok(every_nth_global(layers, PATTERN, window));
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
fn ropes(keys: &Keys) -> Result<(Rope, Rope), ModelError> {
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
    let global = Rope {
        theta: keys.number_or("rope.freq_base", THETA_GLOBAL)? as f32,
        divisor: divisor as f32,
    };
    let local =
        Rope { theta: keys.number_or("rope.freq_base_swa", THETA_LOCAL)? as f32, divisor: 1.0 };
    // Both kinds are checked here, because a model may have layers of only one of them.
    global.check("global layers")?;
    local.check("local layers")?;
    Ok((global, local))
}

/// Reads sampling defaults (`general.sampling.*`, in newer files) and stop ids.
///
/// # Errors
/// Returns [`ModelError::Weights`] for values of the wrong type, [`ModelError::BadValue`] for
/// numbers out of range.
pub(crate) fn generation(metadata: &Metadata) -> Result<GenerationDefaults, ModelError> {
    let mut defaults = GenerationDefaults::default();
    if let Some(temperature) = metadata.optional_f64("general.sampling.temp")? {
        defaults.temperature = temperature as f32;
    }
    if let Some(top_k) = metadata.optional_u64("general.sampling.top_k")? {
        defaults.top_k = usize::try_from(top_k).unwrap_or(usize::MAX);
    }
    if let Some(top_p) = metadata.optional_f64("general.sampling.top_p")? {
        defaults.top_p = top_p as f32;
    }
    for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
        if let Some(id) = metadata.optional_u64(key)?.and_then(|id| u32::try_from(id).ok())
            && !defaults.stop_ids.contains(&id)
        {
            defaults.stop_ids.push(id);
        }
    }
    defaults.check()
}

/// Access to the keys of the `gemma3.` group.
struct Keys<'a> {
    metadata: &'a Metadata,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{SUPPORTED}.{key}")
    }

    fn count(&self, key: &str) -> Result<usize, ModelError> {
        let name = self.name(key);
        let found = self
            .metadata
            .optional_u64(&name)?
            .ok_or_else(|| ModelError::MissingKey { key: name.clone() })?;
        usize::try_from(found).map_err(|_| ModelError::bad(&name, found, "a count"))
    }

    fn count_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        if self.metadata.get(&self.name(key)).is_none() { Ok(default) } else { self.count(key) }
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.metadata.optional_f64(&self.name(key))?)
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    /// Reads one number for all layers, or an array with one for each.
    fn per_layer(&self, key: &str, layers: usize) -> Result<Vec<usize>, ModelError> {
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
