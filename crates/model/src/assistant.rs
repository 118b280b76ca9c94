//! A model that was made to guess for another one: Gemma 4's assistants.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use trine_weights::{Checkpoint, Metadata, Tensor};

use crate::config::Config;
use crate::error::ModelError;
use crate::fields::Fields;
use crate::finder::Finder;
use crate::plan::Weight;
use crate::{config_gguf, config_hf, names};

/// The clusters of an output matrix, and how many are searched, if the files do not say.
const CENTROIDS: usize = 2048;
const CENTROIDS_USED: usize = 32;
/// The model types of a `config.json`.
const MODEL_TYPES: [&str; 2] = ["gemma4_assistant", "gemma4_unified_assistant"];

/// The numbers of a draft model.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantConfig {
    /// Those that it has in common with other models. Its KV head counts are those of the model
    /// that it guesses for.
    pub config: Config,
    /// The hidden size of the model that it guesses for.
    pub backbone: usize,
    /// How its output matrix is searched, if only a part of it need be.
    pub centroids: Option<CentroidsConfig>,
}

/// An output matrix in clusters of tokens, each with a centroid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CentroidsConfig {
    /// The number of clusters.
    pub count: usize,
    /// How many of them are searched, those whose centroids have the largest products.
    pub used: usize,
}

/// A draft model: its files and numbers.
#[derive(Clone)]
pub struct Assistant {
    checkpoint: Arc<Checkpoint>,
    config: AssistantConfig,
    /// The tokens of the clusters, one cluster after the other; empty if there are none.
    ordering: Arc<[u32]>,
}

impl Assistant {
    /// Opens a draft model from a GGUF file, a safetensors file or a Hugging Face folder.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if the files are damaged, hold no such model, or do not fit
    /// together.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::from_checkpoint(Checkpoint::open(path)?)
    }

    /// Returns whether a checkpoint says that it holds such a model.
    pub fn is_in(checkpoint: &Checkpoint) -> bool {
        match checkpoint.metadata() {
            Metadata::Gguf(metadata) => config_gguf::is_assistant(metadata),
            Metadata::HuggingFace(files) => {
                let kind = files.config.get("model_type").and_then(Value::as_str);
                kind.is_some_and(|kind| MODEL_TYPES.contains(&kind))
            }
        }
    }

    /// Interprets an open checkpoint as a draft model.
    ///
    /// # Errors
    /// As [`Assistant::open`].
    pub fn from_checkpoint(checkpoint: Checkpoint) -> Result<Self, ModelError> {
        let source = checkpoint.source().to_owned();
        Self::read(checkpoint).map_err(|error| error.in_file(&source))
    }

    fn read(checkpoint: Checkpoint) -> Result<Self, ModelError> {
        let finder = Finder::of_draft(&checkpoint);
        let mut config = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                let (config, backbone) = config_gguf::read_assistant(metadata, &finder)?;
                AssistantConfig { config, backbone, centroids: None }
            }
            Metadata::HuggingFace(files) => from_json(&files.config)
                .map_err(|error| error.in_file(&files.directory.join(names::CONFIG)))?,
        };
        finder.read_output_scales(&mut config.config)?;
        let ordering = match config.centroids {
            Some(_) => ordering(&checkpoint, config.config.vocabulary)?,
            None => Vec::new(),
        };
        Ok(Self { checkpoint: Arc::new(checkpoint), config, ordering: ordering.into() })
    }

    /// Returns its numbers.
    pub fn config(&self) -> &AssistantConfig {
        &self.config
    }

    /// Sets the logits of tokens that are in none of the clusters with the largest scores to the
    /// smallest logit in these less 1, as the model was made to do. Of equal scores the cluster
    /// with the smaller number counts as the larger.
    pub fn search(&self, scores: &[f32], logits: &mut [f32]) {
        let Some(CentroidsConfig { count, used }) = self.config.centroids else { return };
        let mut clusters: Vec<usize> = (0..count).collect();
        clusters.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let tokens = |cluster: &usize| {
            let size = self.ordering.len() / count;
            &self.ordering[cluster * size..(cluster + 1) * size]
        };
        let mut is_searched = vec![false; logits.len()];
        for &token in clusters[..used].iter().flat_map(tokens) {
            is_searched[token as usize] = true;
        }
        let found = logits.iter().zip(&is_searched).filter(|(_, searched)| **searched);
        let smallest = found.map(|(logit, _)| *logit).fold(f32::INFINITY, f32::min);
        for (logit, searched) in logits.iter_mut().zip(is_searched) {
            if !searched {
                *logit = smallest - 1.0;
            }
        }
    }

    /// Returns its files.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// Returns the tensor of a weight, whose name has the draft's prefix.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if there is none, or it has another shape.
    pub(crate) fn tensor(&self, weight: &Weight) -> Result<Tensor, ModelError> {
        Finder::of_draft(&self.checkpoint).require(weight, &self.config.config)
    }
}

/// Reads the tokens of the clusters: each token once.
fn ordering(checkpoint: &Checkpoint, vocabulary: usize) -> Result<Vec<u32>, ModelError> {
    let name = names::DRAFT_ORDERING;
    let missing = || ModelError::MissingTensor { name: name.to_owned() };
    let all = checkpoint.integers(name, vocabulary).ok_or_else(missing)?;
    let mut is_there = vec![false; vocabulary];
    let mut tokens = Vec::with_capacity(vocabulary);
    for id in all {
        let place = usize::try_from(id).ok().and_then(|id| is_there.get_mut(id));
        match place {
            Some(place) if !*place => *place = true,
            _ => return Err(ModelError::bad(name, id, "each token id once")),
        }
        tokens.push(id as u32);
    }
    if tokens.len() != vocabulary {
        return Err(ModelError::bad(name, tokens.len(), format!("{vocabulary} token ids")));
    }
    Ok(tokens)
}

/// Reads a `config.json`.
fn from_json(root: &Value) -> Result<AssistantConfig, ModelError> {
    let kind = root.get("model_type").and_then(Value::as_str).unwrap_or_default();
    if !MODEL_TYPES.contains(&kind) {
        let found = if kind.is_empty() { "no model_type" } else { kind };
        let supported = "gemma4_assistant, gemma4_unified_assistant";
        return Err(ModelError::unknown(found, supported));
    }
    let fields = Fields(root);
    let Some(Fields(text)) = fields.object("text_config")? else {
        return Err(ModelError::bad("text_config", "nothing", "an object"));
    };
    // All of its layers read caches of the other model, which is no number of theirs.
    let mut text = text.clone();
    for key in ["num_kv_shared_layers", "hidden_size_per_layer_input"] {
        text[key] = Value::from(0);
    }
    let config = config_hf::read(&json!({ "model_type": "gemma4", "text_config": text }))?;
    let key = "use_ordered_embeddings";
    let centroids = match fields.given(key) {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(CentroidsConfig {
            count: fields.count("num_centroids", CENTROIDS)?,
            used: fields.count("centroid_intermediate_top_k", CENTROIDS_USED)?,
        }),
        Some(other) => return Err(ModelError::bad(key, other, "true or false")),
    };
    if let Some(own) = centroids {
        own.check(config.vocabulary)?;
    }
    let key = "backbone_hidden_size";
    let backbone = fields.count(key, 0)?;
    if backbone == 0 {
        return Err(ModelError::bad(key, "nothing", "the hidden size of the model"));
    }
    Ok(AssistantConfig { config, backbone, centroids })
}

impl CentroidsConfig {
    fn check(self, vocabulary: usize) -> Result<(), ModelError> {
        let Self { count, used } = self;
        if count == 0 || !vocabulary.is_multiple_of(count) {
            let expected = format!("a divisor of the {vocabulary} tokens");
            return Err(ModelError::bad("num_centroids", count, expected));
        }
        if !(1..=count).contains(&used) {
            let expected = format!("a number from 1 to {count}");
            return Err(ModelError::bad("centroid_intermediate_top_k", used, expected));
        }
        Ok(())
    }
}
