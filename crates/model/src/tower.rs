//! A vision tower: what makes rows of the text model of a picture.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use trine_weights::{Checkpoint, DType, Metadata, PREPROCESSOR_CONFIG, Tensor};

use crate::error::ModelError;
use crate::names::CONFIG;
use crate::plan::{Plan, Weight};
use crate::tower_config::{self, TowerConfig};
use crate::{siglip, tower_names as names};

/// A vision tower and its projector: their files and numbers.
#[derive(Clone)]
pub struct Tower {
    checkpoint: Arc<Checkpoint>,
    config: TowerConfig,
    /// The tensors by trine's names, in the shapes of the Plan.
    tensors: HashMap<String, Tensor>,
    /// Added to the weights of the norm of soft tokens: Hugging Face files store `w` where the
    /// factor is `1 + w`.
    norm_offset: f32,
    /// The id of soft tokens in prompts.
    soft_token: u32,
}

/// The id of soft tokens if the files do not say: that of every published Gemma 3. It lies beyond
/// the embedding table of some files.
const SOFT_TOKEN: u32 = 262_144;

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
        let files = Files(&checkpoint);
        let (config, norm_offset, soft_token) = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => (tower_config::from_gguf(metadata)?, 0.0, SOFT_TOKEN),
            Metadata::HuggingFace(own) => {
                if !tower_config::is_in_json(&own.config) {
                    return Err(ModelError::NoTower);
                }
                let in_file = |error: ModelError| error.in_file(&own.directory.join(CONFIG));
                let config = tower_config::from_json(&own.config).map_err(in_file)?;
                // A tower of another kind has other tensors, so it comes after the numbers.
                let output = files.require(names::PROJECTION)?.columns();
                let preprocessor = own.preprocessor_config()?.unwrap_or_default();
                let [mean, deviation] = tower_config::colours_from_json(&preprocessor)
                    .map_err(|error| error.in_file(&own.directory.join(PREPROCESSOR_CONFIG)))?;
                let config = TowerConfig { output, mean, deviation, ..config }.check()?;
                let soft = tower_config::soft_token(&own.config, SOFT_TOKEN).map_err(in_file)?;
                (config, 1.0, soft)
            }
        };
        let plan = siglip::plan(&config, false, &|_| DType::F32);
        let mut tensors = HashMap::new();
        for weight in &plan.weights {
            tensors.insert(weight.name.clone(), files.tensor(weight, &config)?);
        }
        Ok(Self { checkpoint: Arc::new(checkpoint), config, tensors, norm_offset, soft_token })
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
    /// the text model), and with `states` also the rows before the projector, (patches, hidden).
    pub(crate) fn plan(&self, states: bool) -> Plan {
        siglip::plan(&self.config, states, &|name| self.tensors[name].dtype())
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

/// The files of a tower, whose tensors have the names of their format.
struct Files<'a>(&'a Checkpoint);

impl Files<'_> {
    /// Returns the names that a tensor may have in the files; at least one.
    fn names(&self, name: &str) -> Vec<String> {
        match self.0.metadata() {
            Metadata::Gguf(_) => vec![name.to_owned()],
            Metadata::HuggingFace(_) => names::in_hf(name),
        }
    }

    fn require(&self, name: &str) -> Result<&Tensor, ModelError> {
        let known = self.names(name);
        if let Some(tensor) = known.iter().find_map(|name| self.0.tensor(name)) {
            return Ok(tensor);
        }
        let unreadable = self.0.unreadable();
        match unreadable.iter().find(|tensor| known.contains(&tensor.name)) {
            Some(tensor) => Err(ModelError::UnreadableTensor {
                name: tensor.name.clone(),
                format: tensor.format.clone(),
            }),
            None => {
                let name = known.into_iter().next().unwrap_or_default();
                Err(ModelError::MissingTensor { name })
            }
        }
    }

    /// Returns the tensor of a weight in the shape that the Plan asks for.
    fn tensor(&self, weight: &Weight, config: &TowerConfig) -> Result<Tensor, ModelError> {
        let found = self.require(&self.stored_name(&weight.name, config))?;
        let matrix = [weight.rows, weight.columns];
        let side = config.patch;
        let convolution = [weight.rows, config.patch_values() / (side * side), side, side];
        let flipped = [weight.columns, weight.rows];
        let fits = match weight.name.as_str() {
            _ if !weight.is_matrix() => found.shape() == [weight.columns],
            names::PATCHES => [&matrix[..], &convolution].contains(&found.shape()),
            // Files have the matrix that rows are multiplied with from the right.
            names::PROJECTION if found.shape() == flipped => return transposed(found),
            _ => found.shape() == matrix,
        };
        if !fits {
            let expected = match weight.name.as_str() {
                _ if !weight.is_matrix() => vec![weight.columns],
                names::PATCHES => convolution.to_vec(),
                names::PROJECTION => flipped.to_vec(),
                _ => matrix.to_vec(),
            };
            let (name, found) = (found.name().to_owned(), found.shape().to_vec());
            return Err(ModelError::BadShape { name, found, expected });
        }
        if !weight.is_matrix() && found.dtype().is_quantized() {
            let (name, found) = (found.name().to_owned(), found.dtype().name());
            return Err(ModelError::BadDType { name, found });
        }
        Ok(if weight.is_matrix() { found.reshaped(&matrix)? } else { found.clone() })
    }

    /// Returns trine's name of the tensor that a file has under another one: files of an early
    /// converter have the two products of feed-forward parts exchanged.
    fn stored_name(&self, name: &str, config: &TowerConfig) -> String {
        let Some((block, rest)) = name.split_once(".ffn_") else { return name.to_owned() };
        let columns = |part: &str| {
            let tensor = self.0.tensor(&format!("{block}.ffn_{part}.weight"));
            tensor.map(Tensor::columns)
        };
        let is_exchanged = config.hidden != config.feed_forward
            && columns("down") == Some(config.hidden)
            && columns("up") == Some(config.feed_forward);
        match rest.split_once('.') {
            Some(("up", kind)) if is_exchanged => format!("{block}.ffn_down.{kind}"),
            Some(("down", kind)) if is_exchanged => format!("{block}.ffn_up.{kind}"),
            _ => name.to_owned(),
        }
    }
}

/// Returns a matrix with its rows as columns, in f32.
fn transposed(matrix: &Tensor) -> Result<Tensor, ModelError> {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    let values = matrix.to_f32()?;
    let mut bytes = Vec::with_capacity(4 * values.len());
    for column in 0..columns {
        let of_column = (0..rows).map(|row| values[row * columns + column]);
        bytes.extend(of_column.flat_map(f32::to_le_bytes));
    }
    Ok(Tensor::from_owned(matrix.name(), DType::F32, &[columns, rows], bytes)?)
}
