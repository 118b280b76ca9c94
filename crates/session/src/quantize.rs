//! What a quantised copy is made of: a model, or a draft that reads the caches of one.

mod budget;
mod importance;
mod metadata;
mod observed;
mod recipe;

use std::path::Path;

use anyhow::{Context, Result, bail};
use trine_model::{
    Assistant, AssistantConfig, Config, Family, Model, PerLayerConfig, Values, Weight,
};
use trine_weights::gguf::GgufMetadata as Entries;
use trine_weights::{Checkpoint, Tensor};

use crate::finding::model_source::Source;
use crate::library::ModelLibrary;

pub use budget::fit;
pub use importance::Importance;
pub use metadata::{FileType, numbers};
pub use observed::Observed;
pub use recipe::{Mixture, Recipe};

/// The files that a copy is made of.
pub enum Subject {
    /// A model.
    Model(Box<Model>),
    /// A draft, and its tensors under trine's names.
    Draft(Box<Assistant>, Vec<(Weight, Tensor)>),
}

impl Subject {
    /// Opens it, as it is stored.
    ///
    /// # Errors
    /// Returns an error if the files are damaged or hold neither.
    pub fn open(source: &Source) -> Result<Self> {
        Ok(match source.open_assistant()? {
            None => Self::Model(Box::new(source.open(None)?)),
            Some(draft) => {
                let tensors = draft.tensors()?;
                Self::Draft(Box::new(draft), tensors)
            }
        })
    }

    /// Returns its numbers; of a draft those that it has in common with models.
    pub fn config(&self) -> &Config {
        match self {
            Self::Model(model) => model.config(),
            Self::Draft(draft, _) => &draft.config().config,
        }
    }

    /// Returns its files.
    pub fn checkpoint(&self) -> &Checkpoint {
        match self {
            Self::Model(model) => model.checkpoint(),
            Self::Draft(draft, _) => draft.checkpoint(),
        }
    }

    /// Returns all weights, in the format that they are stored in.
    pub fn weights(&self) -> Vec<Weight> {
        match self {
            Self::Model(model) => {
                let plan = model.base_plan();
                plan.weights.into_iter().chain(model.unread_keys_and_values()).collect()
            }
            Self::Draft(_, tensors) => tensors.iter().map(|(weight, _)| weight.clone()).collect(),
        }
    }

    /// Returns the tensor of a weight, as stored.
    pub fn tensor(&self, weight: &Weight) -> &Tensor {
        match self {
            Self::Model(model) => model.tensor(weight),
            Self::Draft(_, tensors) => {
                let found = tensors.iter().find(|(own, _)| own.name == weight.name);
                &found.expect("the weight is one of its own").1
            }
        }
    }

    /// Returns the number of experts whose matrices a weight's tensor has; 1 for others.
    pub fn experts(&self, weight: &Weight) -> usize {
        match self.tensor(weight).shape() {
            [experts, _, _] => (*experts).max(1),
            _ => 1,
        }
    }

    /// Returns a norm's factors.
    ///
    /// # Errors
    /// Returns an error if the tensor cannot be decoded.
    pub fn vector(&self, weight: &Weight) -> Result<Vec<f32>> {
        Ok(match self {
            Self::Model(model) => {
                let factor = metadata::norm_factor(model, &weight.name);
                model.vector(weight).into_iter().map(|value| value * factor).collect()
            }
            Self::Draft(..) => self.tensor(weight).to_f32()?,
        })
    }

    /// Returns the tokens of a draft's clusters; empty if there are none.
    pub fn ordering(&self) -> &[u32] {
        match self {
            Self::Model(_) => &[],
            Self::Draft(draft, _) => draft.ordering(),
        }
    }

    /// Returns the metadata for a copy that says this of its format.
    ///
    /// # Errors
    /// Returns an error if the tokenizer cannot be read, or a GGUF file cannot say what the model
    /// is.
    pub fn metadata(&self, library: &ModelLibrary, file_type: FileType) -> Result<Entries> {
        match self {
            Self::Model(model) => metadata::for_file(library, model, file_type),
            Self::Draft(draft, _) => metadata::for_draft(draft, file_type),
        }
    }

    /// Reads the file that was written again and checks that it holds the same.
    ///
    /// # Errors
    /// Returns an error if it does not.
    pub fn check_written(&self, path: &Path) -> Result<()> {
        let unread = "the file that was written cannot be read again, and was removed";
        let agree = match self {
            Self::Model(model) => {
                are_same(Model::open(path).context(unread)?.config(), model.config())
            }
            Self::Draft(draft, _) => {
                let (new, old) = (Assistant::open(path).context(unread)?, draft.config());
                let AssistantConfig { config, backbone, centroids } = new.config();
                are_same(&without_values(config), &without_values(&old.config))
                    && (backbone, centroids) == (&old.backbone, &old.centroids)
                    && new.ordering() == draft.ordering()
            }
        };
        if !agree {
            bail!(
                "this model has settings that a GGUF file cannot express; use --quantize while \
                 loading instead"
            );
        }
        Ok(())
    }
}

/// Returns the numbers of a draft without where its layers have values from: from another model.
fn without_values(config: &Config) -> Config {
    let mut config = config.clone();
    config.layers.iter_mut().for_each(|layer| layer.values = Values::Normed);
    config
}

fn are_same(new: &Config, old: &Config) -> bool {
    let layers_agree = new.layers.iter().zip(&old.layers).all(|(new, old)| {
        (
            new.attention,
            new.heads,
            new.kv_heads,
            new.head_dim,
            new.rope,
            new.feed_forward,
            new.cutoff,
            new.kv_owner,
            (new.values, new.experts, new.output_scale),
        ) == (
            old.attention,
            old.heads,
            old.kv_heads,
            old.head_dim,
            old.rope,
            old.feed_forward,
            old.cutoff,
            old.kv_owner,
            (old.values, old.experts, old.output_scale),
        )
    });
    layers_agree
        && new.layers.len() == old.layers.len()
        && (new.hidden, new.vocabulary, new.context) == (old.hidden, old.vocabulary, old.context)
        && new.embedding_scale == old.embedding_scale
        && new.final_softcap == old.final_softcap
        && own_numbers(new) == own_numbers(old)
}

/// Returns what is no number of a layer, except the rows of a table of per-layer inputs, and what
/// rows of pictures see, which no GGUF file says.
fn own_numbers(config: &Config) -> Family {
    let mut family = config.family;
    let inputs = match &mut family {
        Family::Gemma3 | Family::Embedding(_) => None,
        Family::Gemma3n(own) => Some(&mut own.inputs),
        Family::Gemma4(own) => {
            own.sees_ahead = false;
            own.inputs.as_mut()
        }
    };
    if let Some(PerLayerConfig { vocabulary, .. }) = inputs {
        *vocabulary = 0;
    }
    family
}
