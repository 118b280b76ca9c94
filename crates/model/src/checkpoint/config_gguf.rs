//! Hyper-parameters from GGUF metadata (`gemma3.*`, `gemma3n.*`, `gemma4.*` and
//! `gemma-embedding.*` keys).
//!
//! Most published files leave out what llama.cpp implies from the architecture: the local rope
//! base, the pattern of global layers, and the score scale of the 27B model.

mod gemma4;
mod keys;

use trine_weights::gguf::{ARCHITECTURE_KEY, GgufMetadata};

use crate::checkpoint::config::{
    AttentionKind, Config, EmbeddingConfig, Family, Gemma3nConfig, Gemma4Config,
    GenerationDefaults, LayerConfig, PerLayerConfig, Values, both_ways,
};
use crate::error::ModelError;
use crate::{checkpoint::config_3n, names};
pub(crate) use keys::Tensors;
use keys::{Keys, attention_kinds, kv_owners, layer_count, ropes};

/// The architectures that trine runs.
const SUPPORTED: &str = "gemma3, gemma3n, gemma4, gemma-embedding";
/// The architecture of drafts that read the caches of another model.
pub(crate) const ASSISTANT: &str = "gemma4-assistant";
/// The architecture of models that make vectors of texts.
const EMBEDDING: &str = "gemma-embedding";
/// How llama.cpp writes that a model makes no vectors, and that they are the means over all
/// positions (`enum llama_pooling_type`).
const POOLING_NONE: usize = 0;
const POOLING_MEAN: usize = 1;
/// What a file is: `model`, `adapter`, `mmproj`, `imatrix`.
pub(crate) const KIND_KEY: &str = "general.type";
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
    Err(ModelError::unknown(found, SUPPORTED))
}

/// Refuses files that belong to models and are none, by `general.type` and the architecture.
///
/// # Errors
/// Returns [`ModelError::NotAModel`] for them.
pub(crate) fn check_whole(kind: Option<&str>, architecture: &str) -> Result<(), ModelError> {
    let (what, remedy) = match (kind, architecture) {
        (Some("adapter"), _) => (
            "a LoRA adapter",
            "trine runs no adapters: merge it into its model first, and convert that",
        ),
        (Some("imatrix"), _) => (
            "an importance matrix",
            "quantising tools use it: name the model that was made with it",
        ),
        (Some("mmproj"), _) | (_, "clip") => (
            "a vision tower",
            "name the model beside it, which finds it by itself, or give it to a model by --mmproj",
        ),
        _ => return Ok(()),
    };
    Err(ModelError::NotAModel { what, remedy })
}

/// Reads a configuration from GGUF metadata and, for what no key states, the tensors.
///
/// # Errors
/// Returns a [`ModelError`] with the key or tensor that is wrong.
pub(crate) fn read(metadata: &GgufMetadata, tensors: &dyn Tensors) -> Result<Config, ModelError> {
    let architecture = metadata.optional_str(ARCHITECTURE_KEY)?.unwrap_or_default();
    check_whole(metadata.optional_str(KIND_KEY)?, architecture)?;
    check_supported(architecture)?;
    let keys = Keys { metadata, architecture };
    let is_3n = architecture == "gemma3n";
    let is_4 = architecture == "gemma4";
    let embeds = architecture == EMBEDDING;
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
        layers: match is_4 {
            true => gemma4::layers(&keys, tensors, keys.count_or(gemma4::SHARED, 0)?)?,
            false => layers(&keys, hidden, is_3n, embeds)?,
        },
    };
    config.vocabulary = tensors.rows(names::TOKEN_EMBEDDING)?;
    if is_3n {
        config.family = Family::Gemma3n(gemma3n(&keys, tensors)?);
    }
    check_pooling(&keys, embeds)?;
    if embeds {
        config.family = Family::Embedding(EmbeddingConfig::default());
    }
    if is_4 {
        config.family = Family::Gemma4(gemma4::family(&keys, tensors)?);
    }
    config.check()?;
    Ok(config)
}

/// Refuses an EmbeddingGemma whose vectors are no means, and other models that were converted to
/// make vectors. Files without the key are read as llama.cpp reads them.
fn check_pooling(keys: &Keys, embeds: bool) -> Result<(), ModelError> {
    let (own, meaning) = match embeds {
        true => (POOLING_MEAN, "1, the mean"),
        false => (
            POOLING_NONE,
            "0, or no such key: of this architecture trine runs models that write texts; \
             EmbeddingGemma's is gemma-embedding",
        ),
    };
    match keys.count_or("pooling_type", own)? {
        pooling if pooling == own => Ok(()),
        pooling => Err(ModelError::bad(&keys.name("pooling_type"), pooling, meaning)),
    }
}

fn layers(
    keys: &Keys,
    hidden: usize,
    is_3n: bool,
    embeds: bool,
) -> Result<Vec<LayerConfig>, ModelError> {
    let count = layer_count(keys)?;
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
    let kinds = if embeds { both_ways(kinds) } else { kinds };
    let (rope_global, rope_local) = ropes(keys)?;
    let (owners, cutoffs) = match is_3n {
        true => (
            kv_owners(keys, &kinds, keys.count("attention.shared_kv_layers")?)?,
            cutoffs(keys, count)?,
        ),
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
        values: if is_3n { Values::Normed } else { Values::Plain },
        experts: None,
        output_scale: 1.0,
        cutoff: cutoffs[index],
        kv_owner: owners[index],
    };
    Ok((0..count).map(layer).collect())
}

/// Reads the numbers that only Gemma 3n has.
fn gemma3n(keys: &Keys, tensors: &dyn Tensors) -> Result<Gemma3nConfig, ModelError> {
    let active = keys.count_or("altup.active_idx", 0)?;
    if active != 0 {
        return Err(ModelError::bad(&keys.name("altup.active_idx"), active, 0));
    }
    Ok(Gemma3nConfig {
        streams: keys.count("altup.num_inputs")?,
        laurel_rank: tensors.rows(&names::layer(0, "laurel_l"))?,
        inputs: PerLayerConfig {
            width: keys.count("embedding_length_per_layer_input")?,
            vocabulary: tensors.rows(names::PER_LAYER_EMBEDDING)?,
        },
        scales_correction: true,
    })
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

/// Returns whether a file says that it holds a draft model.
pub(crate) fn is_assistant(metadata: &GgufMetadata) -> bool {
    matches!(metadata.optional_str(ARCHITECTURE_KEY), Ok(Some(ASSISTANT)))
}

/// Reads the configuration of a draft model, and the hidden size of the model that it guesses for.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_assistant(
    metadata: &GgufMetadata,
    tensors: &dyn Tensors,
) -> Result<(Config, usize), ModelError> {
    let architecture = metadata.optional_str(ARCHITECTURE_KEY)?.unwrap_or_default();
    if architecture != ASSISTANT {
        let found = if architecture.is_empty() { "none" } else { architecture };
        return Err(ModelError::unknown(found, ASSISTANT));
    }
    let keys = Keys { metadata, architecture };
    let hidden = keys.count("embedding_length")?;
    let config = Config {
        family: Family::Gemma4(Gemma4Config { inputs: None, sees_ahead: false }),
        hidden,
        vocabulary: tensors.rows(names::TOKEN_EMBEDDING)?,
        context: keys.count("context_length")?,
        norm_epsilon: keys.number_or("attention.layer_norm_rms_epsilon", 1e-6)? as f32,
        embedding_scale: (hidden as f64).sqrt() as f32,
        final_softcap: None,
        // All of its layers read caches of the other model.
        layers: gemma4::layers(&keys, tensors, 0)?,
    };
    config.check()?;
    Ok((config, keys.count("embedding_length_out")?))
}

/// Reads how many clusters the output matrix of a draft model is in, and how many of them are
/// searched; `defaults` where a file does not say. The names are those of ik_llama.cpp's files.
///
/// # Errors
/// Returns [`ModelError::Weights`] for values of the wrong type.
pub(crate) fn read_clusters(
    metadata: &GgufMetadata,
    defaults: [usize; 2],
) -> Result<[usize; 2], ModelError> {
    let keys = Keys { metadata, architecture: ASSISTANT };
    Ok([keys.count_or("n_centroids", defaults[0])?, keys.count_or("centroid_top_k", defaults[1])?])
}

/// Reads sampling defaults (`general.sampling.*`, in newer files) and stop ids.
///
/// # Errors
/// Returns [`ModelError::Weights`] for values of the wrong type, [`ModelError::BadValue`] for
/// numbers out of range.
pub(crate) fn generation(metadata: &GgufMetadata) -> Result<GenerationDefaults, ModelError> {
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
