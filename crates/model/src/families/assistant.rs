//! A model that was made to guess for another one: Gemma 4's assistants.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use trine_weights::{Checkpoint, DType, Metadata, Tensor, UnreadableTensor};

use crate::checkpoint::assistant_config::{AssistantConfig, CentroidsConfig};
use crate::checkpoint::fields::Fields;
use crate::checkpoint::finder::Finder;
use crate::error::ModelError;
use crate::plan::Weight;
use crate::{checkpoint::config_gguf, checkpoint::config_hf, drafts, names};

/// The clusters of an output matrix, and how many are searched, if the files do not say.
const CENTROIDS: usize = 2048;
const CENTROIDS_USED: usize = 32;
/// The model types of a `config.json`.
const MODEL_TYPES: [&str; 2] = ["gemma4_assistant", "gemma4_unified_assistant"];

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
            Metadata::HuggingFace(files) => is_type(&files.config),
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
                let is_ordering = |own: &UnreadableTensor| own.name == names::DRAFT_ORDERING;
                // A file without clusters has the whole matrix all the same.
                let clusters = finder.find(names::DRAFT_CENTROIDS);
                if clusters.is_some() && !checkpoint.unreadable().iter().any(is_ordering) {
                    return Err(ModelError::MissingTensor {
                        name: names::DRAFT_ORDERING.to_owned(),
                    });
                }
                let centroids = clusters.map(|centroids| {
                    let defaults = [centroids.rows(), CENTROIDS_USED];
                    let [count, used] = config_gguf::read_clusters(metadata, defaults)?;
                    let own = CentroidsConfig { count, used };
                    own.check(config.vocabulary).map(|()| own)
                });
                AssistantConfig { config, backbone, centroids: centroids.transpose()? }
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

    /// Returns its files.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// Returns the tokens of the clusters, one cluster after the other; empty if there are none.
    pub fn ordering(&self) -> &[u32] {
        &self.ordering
    }

    /// Returns the output matrix with the rows of each cluster together, as Plans have it; `None`
    /// for any other weight, or if there are no clusters.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if `tensor` is not the matrix of the weight.
    pub(crate) fn by_cluster(
        &self,
        weight: &Weight,
        tensor: &Tensor,
    ) -> Result<Option<Tensor>, ModelError> {
        let name = weight.name.strip_prefix(names::DRAFT_PREFIX);
        if name != Some(names::TOKEN_EMBEDDING) || self.ordering.is_empty() {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(tensor.bytes().len());
        for &token in self.ordering.iter() {
            bytes.extend_from_slice(tensor.row(token as usize));
        }
        let copy = Tensor::from_owned(tensor.name(), tensor.dtype(), tensor.shape(), bytes)?;
        // One at most: experts have more, and no output matrix is one of theirs.
        Ok(Some(match tensor.factors() {
            [] => copy,
            factors => copy.with_factors(factors)?,
        }))
    }

    /// Returns its own tensors by trine's names, with the shapes that a guess needs: those of a
    /// file of its own.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if there is none of a name, or it has another shape.
    pub fn tensors(&self) -> Result<Vec<(Weight, Tensor)>, ModelError> {
        let plan = drafts::alone(&self.config)?;
        let own = |mut weight: Weight| {
            let name = weight.name.strip_prefix(names::DRAFT_PREFIX)?.to_owned();
            // A file has it as integers: `Assistant::ordering`.
            if name == names::DRAFT_ORDERING {
                return None;
            }
            Some(self.tensor(&weight).map(|tensor| {
                (weight.name, weight.dtype) = (name, tensor.dtype());
                (weight, tensor)
            }))
        };
        plan.weights.into_iter().filter_map(own).collect()
    }

    /// Returns the tensor of a weight, whose name has the draft's prefix, as stored; the tokens of
    /// the clusters as floats, which have whole numbers of any vocabulary.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if there is none, or it has another shape.
    pub(crate) fn tensor(&self, weight: &Weight) -> Result<Tensor, ModelError> {
        if weight.name.strip_prefix(names::DRAFT_PREFIX) == Some(names::DRAFT_ORDERING) {
            let bytes = self.ordering.iter().flat_map(|&token| (token as f32).to_le_bytes());
            let shape = [self.ordering.len()];
            return Ok(Tensor::from_owned(&weight.name, DType::F32, &shape, bytes.collect())?);
        }
        Finder::of_draft(&self.checkpoint).require(weight, &self.config.config)
    }
}

/// Returns whether a `config.json` is that of such a model.
pub(crate) fn is_type(config: &Value) -> bool {
    let kind = config.get("model_type").and_then(Value::as_str);
    kind.is_some_and(|kind| MODEL_TYPES.contains(&kind))
}

/// Reads the tokens of the clusters: each token once.
fn ordering(checkpoint: &Checkpoint, vocabulary: usize) -> Result<Vec<u32>, ModelError> {
    let name = match checkpoint.metadata() {
        Metadata::Gguf(_) => names::DRAFT_ORDERING,
        Metadata::HuggingFace(_) => names::DRAFT_ORDERING_IN_HF,
    };
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
    // All layers of a draft read caches of the other model, so what its file says of shared caches
    // and of inputs of layers is not read.
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
