//! Hyper-parameters from GGUF metadata (`gemma3.*` and `gemma3n.*` keys).
//!
//! Most published files leave out what llama.cpp implies from the architecture: the local rope
//! base, the pattern of global layers, and the score scale of the 27B model.

use trine_weights::gguf::{ARCHITECTURE_KEY, Array, Metadata, Value};

use crate::config::{
    AttentionKind, Config, Family, Gemma3nConfig, GenerationDefaults, LAYERS_MAX, LayerConfig, Rope,
};
use crate::config_hf::every_nth_global;
use crate::error::ModelError;
use crate::{config_3n, names};

/// The architectures that trine runs.
const SUPPORTED: &str = "gemma3, gemma3n";
/// The local rope base if the file has none.
const THETA_LOCAL: f64 = 1e4;
/// The global rope base if the file has none.
const THETA_GLOBAL: f64 = 1e6;
/// The distance between global layers of Gemma 3 if the file has no pattern.
const PATTERN: usize = 6;
/// The number of layers of the 27B model: only it scales scores by its hidden size per head, and no
/// key says so.
const LAYERS_OF_27B: usize = 62;

/// Checks that trine runs models of an architecture, as `general.architecture` names it.
///
/// # Errors
/// Returns [`ModelError::UnknownArchitecture`] if it does not.
pub(crate) fn check_supported(architecture: &str) -> Result<(), ModelError> {
    if SUPPORTED.split(", ").any(|supported| supported == architecture) {
        return Ok(());
    }
    let found = if architecture.is_empty() { "none" } else { architecture };
    Err(ModelError::UnknownArchitecture { found: found.to_owned(), supported: SUPPORTED })
}

/// Reads a configuration from GGUF metadata. `rows` returns the number of rows of a tensor, for
/// sizes that no key states.
///
/// # Errors
/// Returns a [`ModelError`] with the key that is wrong, or that of `rows`.
pub(crate) fn read(
    metadata: &Metadata,
    rows: &dyn Fn(&str) -> Result<usize, ModelError>,
) -> Result<Config, ModelError> {
    let architecture = metadata.optional_str(ARCHITECTURE_KEY)?.unwrap_or_default();
    check_supported(architecture)?;
    let keys = Keys { metadata, architecture };
    let is_3n = architecture == "gemma3n";
    let hidden = keys.count("embedding_length")?;
    let implied_cap = is_3n.then_some(config_3n::SOFTCAP);
    let softcap = keys.number("final_logit_softcapping")?.or(implied_cap);
    let mut config = Config {
        family: Family::Gemma3,
        hidden,
        vocabulary: 0,
        context: keys.count("context_length")?,
        norm_epsilon: keys.number_or("attention.layer_norm_rms_epsilon", 1e-6)? as f32,
        embedding_scale: (hidden as f64).sqrt() as f32,
        final_softcap: softcap.map(|cap| cap as f32),
        layers: layers(&keys, hidden, is_3n)?,
    };
    config.vocabulary = rows(names::TOKEN_EMBEDDING)?;
    if is_3n {
        config.family = Family::Gemma3n(gemma3n(&keys, rows)?);
    }
    config.check()?;
    Ok(config)
}

fn layers(keys: &Keys, hidden: usize, is_3n: bool) -> Result<Vec<LayerConfig>, ModelError> {
    let count = keys.count("block_count")?;
    if !(1..=LAYERS_MAX).contains(&count) {
        let expected = format!("a number from 1 to {LAYERS_MAX}");
        return Err(ModelError::bad(&keys.name("block_count"), count, expected));
    }
    let heads = keys.per_layer("attention.head_count", count)?;
    let kv_heads = keys.per_layer("attention.head_count_kv", count)?;
    let feed_forward = keys.per_layer("feed_forward_length", count)?;
    let head_dim = keys.count_or("attention.key_length", 256)?;
    let value_dim = keys.count_or("attention.value_length", head_dim)?;
    if value_dim != head_dim {
        let key = keys.name("attention.value_length");
        return Err(ModelError::bad(&key, value_dim, head_dim));
    }
    let pattern = if is_3n { config_3n::PATTERN } else { PATTERN };
    let kinds = attention_kinds(keys, count, pattern)?;
    let (rope_global, rope_local) = ropes(keys)?;
    let (owners, cutoffs) = match is_3n {
        true => (kv_owners(keys, &kinds)?, cutoffs(keys, count)?),
        false => ((0..count).collect(), vec![None; count]),
    };
    let layer = |index: usize| LayerConfig {
        attention: kinds[index],
        heads: heads[index],
        kv_heads: kv_heads[index],
        head_dim,
        score_scale: if is_3n { 1.0 } else { score_scale(count, hidden, heads[index], head_dim) },
        rope: if kinds[index] == AttentionKind::Global { rope_global } else { rope_local },
        feed_forward: feed_forward[index],
        cutoff: cutoffs[index],
        kv_owner: owners[index],
    };
    Ok((0..count).map(layer).collect())
}

/// Reads the numbers that only Gemma 3n has.
fn gemma3n(
    keys: &Keys,
    rows: &dyn Fn(&str) -> Result<usize, ModelError>,
) -> Result<Gemma3nConfig, ModelError> {
    let active = keys.count_or("altup.active_idx", 0)?;
    if active != 0 {
        return Err(ModelError::bad(&keys.name("altup.active_idx"), active, 0));
    }
    Ok(Gemma3nConfig {
        streams: keys.count("altup.num_inputs")?,
        laurel_rank: rows(&names::layer(0, "laurel_l"))?,
        per_layer_width: keys.count("embedding_length_per_layer_input")?,
        per_layer_vocabulary: rows(names::PER_LAYER_EMBEDDING)?,
        scales_correction: true,
    })
}

/// Reads whose KV cache each layer of a Gemma 3n uses.
fn kv_owners(keys: &Keys, kinds: &[AttentionKind]) -> Result<Vec<usize>, ModelError> {
    let key = "attention.shared_kv_layers";
    let shared = keys.count(key)?;
    let expected = "few enough to leave a layer of each kind that has keys and values";
    let owners = config_3n::kv_owners(kinds, shared);
    owners.ok_or_else(|| ModelError::bad(&keys.name(key), shared, expected))
}

/// Reads the cutoff of each layer of a Gemma 3n. Files have minus infinity for layers without one.
fn cutoffs(keys: &Keys, layers: usize) -> Result<Vec<Option<f32>>, ModelError> {
    let key = keys.name("activation_sparsity_scale");
    let Some(scales) = keys.metadata.optional_f32s(&key)? else {
        return Ok(config_3n::default_cutoffs(layers));
    };
    if scales.len() != layers {
        let found = format!("{} entries", scales.len());
        return Err(ModelError::bad(&key, found, format!("one for each of {layers} layers")));
    }
    let cutoff = |&scale: &f32| match scale {
        f32::NEG_INFINITY..=0.0 => Ok(None),
        _ if scale.is_finite() => Ok(Some(scale)),
        _ => Err(ModelError::bad(&key, scale, "a finite number, or minus infinity for none")),
    };
    scales.iter().map(cutoff).collect()
}

fn score_scale(layers: usize, hidden: usize, heads: usize, head_dim: usize) -> f32 {
    let scalar = if layers == LAYERS_OF_27B { hidden / heads.max(1) } else { head_dim };
    (1.0 / (scalar as f64).sqrt()) as f32
}

fn attention_kinds(
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

/// Access to the keys of the architecture's group.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
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
