//! Finds the tensors of a model in a checkpoint, under the names and in the shapes that files have.

use trine_weights::{Checkpoint, DType, Metadata, Tensor};

use crate::checkpoint::config::{Config, EmbeddingConfig, Family, WIDTH_MAX, in_range};
use crate::checkpoint::config_gguf::Tensors;
use crate::error::ModelError;
use crate::names::{self, DRAFT_PREFIX};
use crate::plan::Weight;

/// The most values of a tensor that is read as a part of the configuration.
const FLOATS_MAX: usize = 1 << 16;

impl Tensors for Finder<'_> {
    fn rows(&self, name: &str) -> Result<usize, ModelError> {
        self.find(name).map(Tensor::rows).ok_or_else(|| self.missing(name))
    }

    fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        if tensor.elements() > FLOATS_MAX || tensor.dtype().is_quantized() {
            let found = format!("{} values of {}", tensor.elements(), tensor.dtype().name());
            let expected = format!("at most {FLOATS_MAX} floats");
            return Err(ModelError::bad(&self.file_name(name), found, expected));
        }
        Ok(Some(tensor.to_f32()?))
    }

    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }
}

/// Finds tensors by trine's names in a checkpoint that may use others.
pub(crate) struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    /// The prefix of the text model's tensors in a Hugging Face checkpoint; `None` for GGUF.
    prefix: Option<&'static str>,
    /// What trine's names begin with, and the file's do not.
    model: &'static str,
}

impl<'a> Finder<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint) -> Self {
        let prefix = match checkpoint.metadata() {
            Metadata::Gguf(_) => None,
            Metadata::HuggingFace(_) => {
                let has_embedding = |prefix: &&str| {
                    checkpoint.tensor(&format!("{prefix}embed_tokens.weight")).is_some()
                };
                Some(
                    names::HF_PREFIXES
                        .into_iter()
                        .find(has_embedding)
                        .unwrap_or(names::HF_PREFIXES[0]),
                )
            }
        };
        Self { checkpoint, prefix, model: "" }
    }

    /// Finds the tensors of a draft, whose names have a prefix in Plans.
    pub(crate) fn of_draft(checkpoint: &'a Checkpoint) -> Self {
        Self { model: DRAFT_PREFIX, ..Self::new(checkpoint) }
    }

    /// Returns the name of a tensor in the file.
    pub(crate) fn file_name(&self, name: &str) -> String {
        let name = name.strip_prefix(self.model).unwrap_or(name);
        match self.prefix {
            None => name.to_owned(),
            Some(prefix) => match names::of_draft_in_hf(name) {
                Some(hf) => hf.to_owned(),
                None => names::to_hf(name).map_or(name.to_owned(), |hf| format!("{prefix}{hf}")),
            },
        }
    }

    pub(crate) fn find(&self, name: &str) -> Option<&'a Tensor> {
        if self.prefix.is_some() && name == names::OUTPUT {
            return names::HF_OUTPUT.iter().find_map(|name| self.checkpoint.tensor(name));
        }
        self.checkpoint.tensor(&self.file_name(name))
    }

    /// Reads the factor on the residual stream after each layer, which files of Gemma 4 have as
    /// tensors.
    pub(crate) fn read_output_scales(&self, config: &mut Config) -> Result<(), ModelError> {
        if !matches!(config.family, Family::Gemma4(_)) {
            return Ok(());
        }
        for (index, layer) in config.layers.iter_mut().enumerate() {
            let name = names::layer(index, "layer_output_scale");
            let Some(values) = self.floats(&name)? else { continue };
            let [scale] = values[..] else {
                let (name, found) = (self.file_name(&name), vec![values.len()]);
                return Err(ModelError::BadShape { name, found, expected: vec![1] });
            };
            layer.output_scale = scale;
        }
        config.check()
    }

    /// Reads the widths of the products after the last norm of an EmbeddingGemma, and refuses them
    /// in other models: without them these would make other vectors than their makers'.
    pub(crate) fn read_dense(&self, config: &mut Config) -> Result<(), ModelError> {
        let Family::Embedding(own) = &mut config.family else {
            return match names::DENSE.into_iter().find(|name| self.find(name).is_some()) {
                None => Ok(()),
                Some(name) => Err(ModelError::OtherDense { name: name.to_owned() }),
            };
        };
        let width = |name: &str| {
            let rows = self.rows(name).map_err(|error| self.missing_dense(name, error))?;
            in_range(&self.file_name(name), rows, 1, WIDTH_MAX)?;
            Ok::<_, ModelError>(rows)
        };
        let [inner, dimensions] = names::DENSE;
        *own = EmbeddingConfig { inner: width(inner)?, dimensions: width(dimensions)? };
        Ok(())
    }

    /// Returns the error for a product after the last norm that cannot be read.
    fn missing_dense(&self, name: &str, error: ModelError) -> ModelError {
        let ModelError::MissingTensor { .. } = error else { return error };
        let is_folder = self.prefix.is_some();
        // `dense_2.weight` is in `2_Dense`.
        let number = name.strip_prefix("dense_").and_then(|rest| rest.strip_suffix(".weight"));
        let name = match number.filter(|_| is_folder) {
            Some(number) => format!("{number}_Dense/model.safetensors"),
            None => name.to_owned(),
        };
        ModelError::MissingDense { name, is_folder }
    }

    /// Refuses tensors of layers that the configuration does not have: without them the model would
    /// write nonsense.
    pub(crate) fn refuse_layers_beyond(&self, layers: usize) -> Result<(), ModelError> {
        let prefix = self.prefix.map_or("blk.".to_owned(), |prefix| format!("{prefix}layers."));
        for tensor in self.checkpoint.tensors() {
            let rest = tensor.name().strip_prefix(&prefix).and_then(|rest| rest.split_once('.'));
            let index = rest.and_then(|(index, _)| index.parse::<usize>().ok());
            if index.is_some_and(|index| index >= layers) {
                return Err(ModelError::ExtraLayer { name: tensor.name().to_owned(), layers });
            }
        }
        Ok(())
    }

    /// Returns why there is no tensor of a name: it is missing, or stored in a format that cannot
    /// be read.
    pub(crate) fn missing(&self, name: &str) -> ModelError {
        let name = self.file_name(name);
        match self.checkpoint.unreadable().iter().find(|tensor| tensor.name == name) {
            Some(tensor) => ModelError::UnreadableTensor { name, format: tensor.format.clone() },
            None => ModelError::MissingTensor { name },
        }
    }

    /// Returns the tensor of a weight, or the rows of a fused one, checked against the shape that
    /// the Plan requires.
    pub(crate) fn require(&self, weight: &Weight, config: &Config) -> Result<Tensor, ModelError> {
        let tensor = match self.find(&weight.name) {
            Some(tensor) => self.with_factors(&weight.name, tensor, config)?,
            None => {
                let fused = match self.slice_of_streams(weight, config)? {
                    None => self.slice_of_fused(weight, config)?,
                    found => found,
                };
                fused.ok_or_else(|| self.missing(&weight.name))?
            }
        };
        let flat = vec![weight.columns];
        let expected =
            if weight.is_matrix() { vec![weight.rows, weight.columns] } else { flat.clone() };
        // GGUF writers leave out a matrix's outermost dimension if it is 1.
        let is_flat_row = weight.rows == 1 && tensor.shape() == flat;
        if tensor.shape() != expected
            && !is_flat_row
            && !is_of_experts(weight, tensor.shape(), config)
        {
            return Err(ModelError::BadShape {
                name: self.file_name(&weight.name),
                found: tensor.shape().to_vec(),
                expected,
            });
        }
        if !weight.is_matrix() && tensor.dtype().is_quantized() {
            let found = tensor.dtype().name();
            return Err(ModelError::BadDType { name: self.file_name(&weight.name), found });
        }
        Ok(tensor)
    }

    /// Returns a tensor of a GGUF file with its factors, which a file has beside matrices of NVFP4:
    /// one as `PART.scale` beside `PART.weight`, or one for each expert. Those of `ffn_down_exps`
    /// are a weight of the Plan, which contains the router's.
    fn with_factors(
        &self,
        name: &str,
        tensor: &Tensor,
        config: &Config,
    ) -> Result<Tensor, ModelError> {
        let part = name.strip_suffix(".weight").filter(|_| self.prefix.is_none());
        let scale = part.map(|part| format!("{part}.scale"));
        let Some(scale) = scale.filter(|name| !names::is_of_plan(name)) else {
            return Ok(tensor.clone());
        };
        let Some(factors) = self.floats(&scale)? else { return Ok(tensor.clone()) };
        let name = self.file_name(&scale);
        if tensor.dtype() != DType::Nvfp4 {
            let found = format!("factors of a matrix of {}", tensor.dtype());
            return Err(ModelError::bad(&name, found, "factors of matrices of NVFP4 only"));
        }
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
        let layer = layer.and_then(|index| config.layers.get(index.parse::<usize>().ok()?));
        let experts = layer.and_then(|layer| layer.experts).map_or(1, |own| own.count);
        let expected = if scale.ends_with("_exps.scale") { experts } else { 1 };
        if factors.len() != expected || !tensor.rows().is_multiple_of(expected) {
            let (found, expected) = (vec![factors.len()], vec![expected]);
            return Err(ModelError::BadShape { name, found, expected });
        }
        if let Some(broken) = factors.iter().find(|factor| !factor.is_finite()) {
            return Err(ModelError::bad(&name, broken, "a finite number"));
        }
        Ok(tensor.with_factors(&factors)?)
    }

    /// Returns the matrix of one stream from a tensor that has all of them: (streams - 1, rows,
    /// columns).
    fn slice_of_streams(
        &self,
        weight: &Weight,
        config: &Config,
    ) -> Result<Option<Tensor>, ModelError> {
        let (Family::Gemma3n(own), Some((part, index))) =
            (config.family, names::stream_of(&weight.name))
        else {
            return Ok(None);
        };
        let name = format!("{part}.weight");
        let Some(all) = self.checkpoint.tensor(&name) else { return Ok(None) };
        let (found, expected) =
            (all.shape().to_vec(), vec![own.streams - 1, weight.rows, weight.columns]);
        // GGUF writers leave out an outermost dimension of 1.
        let is_only_one = own.streams == 2 && found == expected[1..];
        if found != expected && !is_only_one {
            return Err(ModelError::BadShape { name, found, expected });
        }
        let all = self.with_factors(&name, all, config)?;
        let rows = index * weight.rows..(index + 1) * weight.rows;
        Ok(Some(all.slice_rows(&weight.name, rows)?))
    }

    /// Returns the query, key or value rows of a fused `attn_qkv` matrix (rows q, then k, then v).
    fn slice_of_fused(
        &self,
        weight: &Weight,
        config: &Config,
    ) -> Result<Option<Tensor>, ModelError> {
        let Some((block, part)) =
            weight.name.strip_suffix(".weight").and_then(|name| name.rsplit_once('.'))
        else {
            return Ok(None);
        };
        let Some(index) = block.strip_prefix("blk.").and_then(|index| index.parse::<usize>().ok())
        else {
            return Ok(None);
        };
        let layer = &config.layers[index];
        let (query, kv) = (layer.query_width(), layer.kv_width());
        let start = match part {
            "attn_q" => 0,
            "attn_k" => query,
            "attn_v" => query + kv,
            _ => return Ok(None),
        };
        let name = names::layer(index, "attn_qkv");
        let Some(fused) = self.checkpoint.tensor(&name) else { return Ok(None) };
        let expected = vec![query + 2 * kv, config.hidden];
        if fused.shape() != expected {
            return Err(ModelError::BadShape { name, found: fused.shape().to_vec(), expected });
        }
        let fused = self.with_factors(&name, fused, config)?;
        Ok(Some(fused.slice_rows(&weight.name, start..start + weight.rows)?))
    }
}

/// Returns whether a tensor has the matrices of all experts of a weight: (experts, rows of one,
/// columns).
fn is_of_experts(weight: &Weight, shape: &[usize], config: &Config) -> bool {
    let layer = weight.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((index, part)) = layer else { return false };
    let experts = index.parse().ok().and_then(|index: usize| config.layers.get(index)?.experts);
    let is_matrix = part.strip_suffix(".weight").is_some_and(|part| part.ends_with("_exps"));
    let Some(own) = experts.filter(|_| is_matrix) else { return false };
    shape == [own.count, weight.rows / own.count, weight.columns]
}
