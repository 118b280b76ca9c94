//! Settings that say another thing than the tensors do: of the output matrix, and of Gemma 4.
//!
//! A part of the model that is turned off leaves its tensors unread, and the model writes other
//! text without a word of it. So each setting is compared with the tensors that go with it.

use trine_weights::{Checkpoint, Metadata, UnreadableTensor};

use crate::checkpoint::config::{AttentionKind, Config, Family, Values};
use crate::checkpoint::fields::Fields;
use crate::checkpoint::finder::Finder;
use crate::error::ModelError;
use crate::names;

/// What only a layer with experts has.
const OF_EXPERTS: [&str; 8] = [
    "ffn_gate_inp",
    "ffn_gate_up_exps",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "post_ffw_norm_1",
    "pre_ffw_norm_2",
    "post_ffw_norm_2",
];
/// What only a layer with an input of its own has.
const OF_INPUTS: [&str; 3] = ["inp_gate", "proj", "post_norm"];
/// What the inputs of all layers are made of.
const OF_ALL_INPUTS: [&str; 3] =
    [names::PER_LAYER_EMBEDDING, names::PER_LAYER_PROJECTION, names::PER_LAYER_NORM];

/// Whether the embedding table is the output matrix too, in a `config.json`.
const TIED: &str = "tie_word_embeddings";

/// A key as a file format spells it, and its value for people.
struct Setting {
    key: String,
    value: String,
}

impl Setting {
    fn missing(&self, tensor: &str, finder: &Finder<'_>) -> ModelError {
        match finder.missing(tensor) {
            ModelError::MissingTensor { name } => {
                ModelError::contradiction(&self.key, &self.value, &name, false)
            }
            other => other,
        }
    }

    fn extra(&self, tensor: &str, finder: &Finder<'_>) -> ModelError {
        ModelError::contradiction(&self.key, &self.value, &finder.file_name(tensor), true)
    }
}

/// Compares settings with tensors.
///
/// # Errors
/// Returns [`ModelError::Contradiction`] with the first setting and tensor that do not go together,
/// and an error for an output matrix that cannot be read.
pub(crate) fn check(
    checkpoint: &Checkpoint,
    finder: &Finder<'_>,
    config: &Config,
) -> Result<(), ModelError> {
    check_output(checkpoint, finder)?;
    let Family::Gemma4(own) = config.family else { return Ok(()) };
    let setting = |hf: &str, gguf: &str| setting(checkpoint, hf, gguf);
    let experts = setting("enable_moe_block", "expert_count");
    let inputs = setting("hidden_size_per_layer_input", "embedding_length_per_layer_input");
    let of_all = OF_ALL_INPUTS.map(str::to_owned);
    same(own.inputs.is_some(), &inputs, &of_all, finder)?;
    let has_experts = match checkpoint.metadata() {
        Metadata::Gguf(metadata) => {
            metadata.optional_u64(&experts.key)?.is_some_and(|count| count > 0)
        }
        Metadata::HuggingFace(_) => config.layers.iter().any(|layer| layer.experts.is_some()),
    };
    for (index, layer) in config.layers.iter().enumerate() {
        let name = |part: &str| names::layer(index, part);
        same(own.inputs.is_some(), &inputs, &OF_INPUTS.map(name), finder)?;
        if has_experts {
            // Gate and up are one tensor or two, which is seen by these two.
            let needed = ["ffn_gate_inp", "ffn_down_exps"].map(name);
            same(true, &experts, &needed, finder)?;
        } else {
            same(false, &experts, &OF_EXPERTS.map(name), finder)?;
        }
        let is_free = layer.kv_owner == index && layer.attention == AttentionKind::Global;
        if is_free && matches!(checkpoint.metadata(), Metadata::HuggingFace(_)) {
            let values = setting("attention_k_eq_v", "");
            same(layer.values != Values::Keys, &values, &[name("attn_v")], finder)?;
        }
    }
    Ok(())
}

/// Checks that the embedding table takes the place of the output matrix only where the files do not
/// mean another one.
fn check_output(checkpoint: &Checkpoint, finder: &Finder<'_>) -> Result<(), ModelError> {
    if finder.find(names::OUTPUT).is_some() {
        return Ok(());
    }
    let (spellings, root) = match checkpoint.metadata() {
        Metadata::Gguf(_) => (&[names::OUTPUT][..], None),
        Metadata::HuggingFace(files) => (&names::HF_OUTPUT[..], Some(&files.config)),
    };
    let is_output = |tensor: &&UnreadableTensor| spellings.contains(&&*tensor.name);
    if let Some(tensor) = checkpoint.unreadable().iter().find(is_output) {
        let (name, format) = (tensor.name.clone(), tensor.format.clone());
        return Err(ModelError::UnreadableTensor { name, format });
    }
    // Of two values that differ, which one counts depends on the version of transformers.
    let text = root.and_then(|root| Fields(root).given("text_config"));
    let places = [root, text].into_iter().flatten();
    let values: Vec<bool> = places.filter_map(|config| config.get(TIED)?.as_bool()).collect();
    match !values.is_empty() && values.iter().all(|is_tied| !is_tied) {
        true => Err(ModelError::contradiction(TIED, "false", spellings[0], false)),
        false => Ok(()),
    }
}

/// Checks that all of the tensors are there, or none.
fn same(
    are_there: bool,
    setting: &Setting,
    tensors: &[String],
    finder: &Finder<'_>,
) -> Result<(), ModelError> {
    match tensors.iter().find(|name| finder.find(name).is_some() != are_there) {
        None => Ok(()),
        Some(name) if are_there => Err(setting.missing(name, finder)),
        Some(name) => Err(setting.extra(name, finder)),
    }
}

/// Reads a setting by its key in a `config.json` or in the architecture's group of a GGUF file.
fn setting(checkpoint: &Checkpoint, hf: &str, gguf: &str) -> Setting {
    let shown = |value: Option<String>| value.unwrap_or_else(|| "not set".to_owned());
    match checkpoint.metadata() {
        Metadata::Gguf(metadata) => {
            let key = format!("gemma4.{gguf}");
            let value = metadata.optional_u64(&key).ok().flatten();
            Setting { value: shown(value.map(|value| value.to_string())), key }
        }
        Metadata::HuggingFace(files) => {
            let root = Fields(&files.config);
            let text = root.given("text_config").unwrap_or(&files.config);
            let value = text.get(hf).map(ToString::to_string);
            Setting { value: shown(value), key: hf.to_owned() }
        }
    }
}
