//! A vision tower: what makes rows of the text model of a picture.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use trine_weights::{Checkpoint, DType, Metadata, Tensor};

use crate::checkpoint::tower_config::{self, Preprocessor, TowerConfig, TowerKind};
use crate::checkpoint::tower_files::{self, Gguf, TowerFiles};
use crate::error::ModelError;
use crate::gemma4_vision::{Gemma4Vision, Numbers};
use crate::names::CONFIG;
use crate::plan::Plan;
use crate::{
    checkpoint::tower_names as names, families::gemma4_unified, families::siglip, gemma4_vision,
};

/// A vision tower and its projector: their files and numbers.
#[derive(Clone)]
pub struct Tower {
    checkpoint: Arc<Checkpoint>,
    config: TowerConfig,
    /// The numbers that files have as tensors.
    numbers: Numbers,
    /// The tensors by trine's names, in the shapes of the Plan.
    tensors: HashMap<String, Tensor>,
    /// Added to the weights of the norm of soft tokens: Hugging Face files store `w` where the
    /// factor is `1 + w`.
    norm_offset: f32,
    /// The id of soft tokens in prompts.
    soft_token: u32,
}

impl Tower {
    /// Opens the tower of a Hugging Face folder or an `mmproj` GGUF file.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if the files are damaged, have no tower, one that trine does not
    /// run, or do not fit together.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::from_checkpoint(Checkpoint::open(path)?)
    }

    /// Interprets an open checkpoint as a tower.
    ///
    /// # Errors
    /// Same as [`Tower::open`].
    pub fn from_checkpoint(checkpoint: Checkpoint) -> Result<Self, ModelError> {
        let source = checkpoint.source().to_owned();
        Self::read(checkpoint).map_err(|error| error.in_file(&source))
    }

    /// Returns whether a checkpoint says that it has a tower, of whatever kind.
    pub fn is_in(checkpoint: &Checkpoint) -> bool {
        match checkpoint.metadata() {
            Metadata::Gguf(metadata) => tower_config::is_in_gguf(metadata),
            Metadata::HuggingFace(files) => tower_config::is_in_json(&files.config),
        }
    }

    fn read(checkpoint: Checkpoint) -> Result<Self, ModelError> {
        let (config, norm_offset, soft_token) = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                let config = tower_config::from_gguf(metadata, &Gguf(&checkpoint))?;
                (config, 0.0, tower_config::usual_soft_token(&config.kind))
            }
            Metadata::HuggingFace(own) => {
                if !tower_config::is_in_json(&own.config) {
                    return Err(ModelError::NoTower);
                }
                let in_file = |error: ModelError| error.in_file(&own.directory.join(CONFIG));
                let kind = tower_config::kind_from_json(&own.config).map_err(in_file)?;
                let output = tower_files::output(&checkpoint, &kind)?;
                let preprocessor = own.preprocessor_config()?;
                let preprocessor =
                    preprocessor.map(|(file, settings)| Preprocessor { file, settings });
                let preprocessor = preprocessor.unwrap_or_default();
                let config = tower_config::from_json(&own.config, kind, &preprocessor, output);
                let config = config.map_err(in_file)?;
                let soft = tower_config::soft_token(&own.config, &config.kind).map_err(in_file)?;
                (config, 1.0, soft)
            }
        };
        let files = TowerFiles::new(&checkpoint, config);
        files.check_settings()?;
        let numbers = files.numbers()?;
        let mut tensors = HashMap::new();
        for weight in &plan(&config, &numbers, false, &|_| DType::F32).weights {
            tensors.insert(weight.name.clone(), files.tensor(weight)?);
        }
        files.refuse_layers_beyond()?;
        let checkpoint = Arc::new(checkpoint);
        Ok(Self { checkpoint, config, numbers, tensors, norm_offset, soft_token })
    }

    /// Returns its numbers.
    pub fn config(&self) -> &TowerConfig {
        &self.config
    }

    /// Returns the id that stands in prompts for each soft token of a picture. It is looked up
    /// nowhere.
    pub fn soft_token(&self) -> u32 {
        self.soft_token
    }

    /// Returns its files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Returns its forward pass: from (patches, values of a patch) to (soft tokens, hidden size of
    /// the text model), and with `states` also the rows before the projector: (patches, hidden) of
    /// SigLIP, (soft tokens, hidden) of Gemma 4.
    pub(crate) fn plan(&self, states: bool) -> Plan {
        plan(&self.config, &self.numbers, states, &|name| self.tensors[name].dtype())
    }

    /// Returns the tensors by trine's names.
    pub(crate) fn tensors(&self) -> &HashMap<String, Tensor> {
        &self.tensors
    }

    /// Returns the number that must be added to the stored values of a vector.
    pub(crate) fn offset(&self, name: &str) -> f32 {
        if name == names::SOFT_NORM { self.norm_offset } else { 0.0 }
    }
}

/// Returns the forward pass of a tower. `dtype_of` returns how the tensor of a name is stored.
fn plan(
    config: &TowerConfig,
    numbers: &Numbers,
    states: bool,
    dtype_of: &dyn Fn(&str) -> DType,
) -> Plan {
    match config.kind {
        TowerKind::Siglip(layers) => siglip::plan(config, layers, states, dtype_of),
        TowerKind::Gemma4 { layers, theta, standardizes, .. } => {
            let own = Gemma4Vision { layers, theta, standardizes, numbers };
            gemma4_vision::plan(config, own, states, dtype_of)
        }
        TowerKind::Unified => gemma4_unified::plan(config, states, dtype_of),
    }
}
