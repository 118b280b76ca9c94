//! A checkpoint interpreted as a model: hyper-parameters, and tensors under trine's names with the
//! shapes that they must have.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use trine_weights::{Checkpoint, DType, Metadata, Tensor, blocks, fallback, quantize_tensor};

use crate::config::{Config, Family, GenerationDefaults};
use crate::config_gguf::Tensors;
use crate::either::either;
use crate::error::ModelError;
use crate::plan::{Plan, Weight, WeightId, WeightKind, WeightPlace};
use crate::{config_gguf, config_hf, fusion, gemma3, gemma3n, gemma4, names, narrow};

/// The most values of a tensor that is read as a part of the configuration.
const FLOATS_MAX: usize = 1 << 16;

/// A model: configuration and named tensors.
#[derive(Clone)]
pub struct Model {
    checkpoint: Arc<Checkpoint>,
    config: Config,
    defaults: GenerationDefaults,
    /// The tensors by trine's names.
    tensors: HashMap<String, Tensor>,
    /// The format in which float matrices are returned; `None` for the stored one.
    quantize: Option<DType>,
    /// The number added to every norm's weights: Hugging Face files store `w` where Gemma 3 (but
    /// not Gemma 3n) multiplies by `1 + w`.
    norm_offset: f32,
}

impl Model {
    /// Opens a model from a GGUF file, a safetensors file or a Hugging Face folder.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if the files are damaged, of an unknown architecture, or do not fit
    /// together.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::from_checkpoint(Checkpoint::open(path)?)
    }

    /// Interprets an open checkpoint as a model.
    ///
    /// # Errors
    /// Same as [`Model::open`].
    pub fn from_checkpoint(checkpoint: Checkpoint) -> Result<Self, ModelError> {
        let finder = Finder::new(&checkpoint);
        let (mut config, defaults) = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                (config_gguf::read(metadata, &finder)?, config_gguf::generation(metadata)?)
            }
            Metadata::HuggingFace(files) => {
                let config = config_hf::read(&files.config)?;
                let generation = files.generation_config.as_ref();
                (config, config_hf::generation(&files.config, generation)?)
            }
        };
        finder.read_output_scales(&mut config)?;
        let norm_offset = match (config.family, checkpoint.metadata()) {
            (Family::Gemma3, Metadata::HuggingFace(_)) => 1.0,
            _ => 0.0,
        };
        let is_tied = finder.find(names::OUTPUT).is_none();
        let plan = base_plan(&config, is_tied, &|_| DType::F32);
        let mut tensors = HashMap::new();
        for weight in &plan.weights {
            let tensor = finder.require(weight, &config)?;
            tensors.insert(weight.name.clone(), tensor);
        }
        for weight in keys_and_values_of_sharing_layers(&config) {
            if let Ok(tensor) = finder.require(&weight, &config) {
                tensors.insert(weight.name.clone(), tensor);
            }
        }
        finder.refuse_layers_beyond(config.layers.len())?;
        Ok(Self {
            checkpoint: Arc::new(checkpoint),
            config,
            defaults,
            tensors,
            quantize: None,
            norm_offset,
        })
    }

    /// Returns the hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns how the model's makers sample it.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }

    /// Returns the model's files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Returns the forward pass as its family's builder writes it, before any rewriting.
    pub fn base_plan(&self) -> Plan {
        self.stored(base_plan(&self.config, self.is_tied(), &|name| self.dtype(name)))
    }

    /// Returns the forward pass that devices run: narrowed to the wanted rows, then fused.
    pub fn plan(&self) -> Plan {
        fusion::fuse(narrow::narrow(self.base_plan()))
    }

    /// Returns the forward pass that devices run for embeddings of texts: it ends with the hidden
    /// states after the final norm, (tokens, hidden), and has no output matrix.
    pub fn hidden_states_plan(&self) -> Plan {
        let dtype_of = |name: &str| self.dtype(name);
        fusion::fuse(self.stored(match self.config.family {
            Family::Gemma3 => gemma3::hidden_states(&self.config, &dtype_of),
            Family::Gemma3n(own) => gemma3n::hidden_states(&self.config, own, &dtype_of),
            Family::Gemma4(own) => gemma4::hidden_states(&self.config, own, &dtype_of),
        }))
    }

    /// Returns the forward pass of devices that generate and embed: [`Model::plan`] and
    /// [`Model::hidden_states_plan`] as alternatives, in this order.
    pub fn plan_with_states(&self) -> Plan {
        let joined = either(self.plan(), self.hidden_states_plan());
        joined.expect("a family's two Plans are the same up to the last write of a cache")
    }

    /// Returns whether the embedding table is also the output matrix.
    pub fn is_tied(&self) -> bool {
        !self.tensors.contains_key(names::OUTPUT)
    }

    /// Returns the tensor of a Plan's weight, as stored.
    ///
    /// # Panics
    /// Panics if the weight belongs to another model's Plan.
    pub fn tensor(&self, weight: &Weight) -> &Tensor {
        self.tensors
            .get(&weight.name)
            .expect("every weight of the Plan was found when the model was opened")
    }

    /// Returns the values of a norm's weight vector, with the offset that the file's convention
    /// requires.
    ///
    /// # Panics
    /// Panics if the weight belongs to another model's Plan.
    pub fn vector(&self, weight: &Weight) -> Vec<f32> {
        let mut values = vec![0.0; weight.columns];
        blocks::decode(weight.dtype, self.tensor(weight).bytes(), &mut values)
            .expect("shape and format were checked when the model was opened");
        values.iter_mut().for_each(|value| *value += self.norm_offset);
        values
    }

    /// Returns all tensors by trine's names, in the order of the Plan.
    pub fn tensors(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let plan = self.base_plan();
        plan.weights.into_iter().map(|weight| {
            let tensor = self.tensor(&weight);
            (weight.name, tensor)
        })
    }

    /// Returns the keys' and values' tensors of layers that share an earlier layer's cache, where
    /// the files have them. No Plan reads them; other programs want them in a file.
    pub fn unread_keys_and_values(&self) -> Vec<Weight> {
        let found = |mut weight: Weight| {
            weight.dtype = self.tensors.get(&weight.name)?.dtype();
            Some(weight)
        };
        keys_and_values_of_sharing_layers(&self.config).filter_map(found).collect()
    }

    /// Returns the number that must be added to the stored norms to get factors.
    pub fn norm_offset(&self) -> f32 {
        self.norm_offset
    }

    /// Returns the same model with its F32, F16 and BF16 matrices as `dtype`, both in the Plan and
    /// from [`Model::converted`]. Formats that do not fit a row length fall back as
    /// [`trine_weights::fallback`] describes. Norms stay as they are, and so do Gemma 3n's small
    /// matrices through which all streams go.
    pub fn quantized(mut self, dtype: DType) -> Self {
        self.quantize = Some(dtype);
        self
    }

    /// Returns the tensor of a Plan's weight in the Plan's format: the stored tensor, or a
    /// quantised copy that the caller owns. The pages of a file that were read for the copy are
    /// given back.
    ///
    /// # Errors
    /// Returns [`ModelError::Weights`] if the tensor holds values that cannot be quantised.
    ///
    /// # Panics
    /// Panics if the weight belongs to another model's Plan.
    pub fn converted(&self, weight: &Weight) -> Result<Tensor, ModelError> {
        let stored = self.tensor(weight);
        if stored.dtype() == weight.dtype {
            return Ok(stored.clone());
        }
        let copy = quantize_tensor(stored, weight.dtype)?;
        stored.release_pages(0..stored.bytes().len());
        Ok(copy)
    }

    /// Does the same as [`Model::converted`] for any weight of a Plan, slices included.
    ///
    /// # Errors
    /// As [`Model::converted`].
    ///
    /// # Panics
    /// Panics if the Plan is another model's.
    pub fn converted_part(&self, plan: &Plan, id: WeightId) -> Result<Tensor, ModelError> {
        let weight = plan.weight(id);
        match weight.place {
            WeightPlace::Device | WeightPlace::File => self.converted(weight),
            WeightPlace::Slice { of, first } => {
                let whole = self.converted(plan.weight(of))?;
                Ok(whole.slice_rows(&weight.name, first..first + weight.rows)?)
            }
        }
    }

    fn dtype(&self, name: &str) -> DType {
        self.tensors.get(name).map_or(DType::F32, Tensor::dtype)
    }

    /// Returns the Plan with its float matrices in the format in which [`Model::converted`] returns
    /// them.
    fn stored(&self, mut plan: Plan) -> Plan {
        let Some(dtype) = self.quantize else { return plan };
        let family = self.config.family;
        let is_converted = |weight: &&mut Weight| {
            let is_float = weight.is_matrix() && !weight.dtype.is_quantized();
            is_float && !names::keeps_format(family, &weight.name)
        };
        for weight in plan.weights.iter_mut().filter(is_converted) {
            weight.dtype = fallback(dtype, weight.columns);
        }
        plan
    }
}

/// Returns the Plan of a configuration, before any rewriting. `dtype_of` returns how each tensor is
/// stored.
pub fn base_plan(config: &Config, tied: bool, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    match config.family {
        Family::Gemma3 => gemma3::plan(config, tied, dtype_of),
        Family::Gemma3n(own) => gemma3n::plan(config, own, tied, dtype_of),
        Family::Gemma4(own) => gemma4::plan(config, own, tied, dtype_of),
    }
}

/// Returns what layers that share an earlier layer's cache do not need, with the shapes that it
/// would have.
fn keys_and_values_of_sharing_layers(config: &Config) -> impl Iterator<Item = Weight> {
    let sharing =
        config.layers.iter().enumerate().filter(|(index, layer)| layer.kv_owner != *index);
    sharing.flat_map(|(index, layer)| {
        let weight = |part: &str, kind, rows, columns| Weight {
            name: names::layer(index, part),
            kind,
            rows,
            columns,
            dtype: DType::F32,
            place: WeightPlace::File,
        };
        [
            weight("attn_k", WeightKind::Matrix, layer.kv_width(), config.hidden),
            weight("attn_v", WeightKind::Matrix, layer.kv_width(), config.hidden),
            weight("attn_k_norm", WeightKind::Vector, 1, layer.head_dim),
        ]
    })
}

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
struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    /// The prefix of the text model's tensors in a Hugging Face checkpoint; `None` for GGUF.
    prefix: Option<&'static str>,
}

impl<'a> Finder<'a> {
    fn new(checkpoint: &'a Checkpoint) -> Self {
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
        Self { checkpoint, prefix }
    }

    /// Returns the name of a tensor in the file.
    fn file_name(&self, name: &str) -> String {
        match self.prefix {
            None => name.to_owned(),
            Some(prefix) => {
                names::to_hf(name).map_or(name.to_owned(), |hf| format!("{prefix}{hf}"))
            }
        }
    }

    fn find(&self, name: &str) -> Option<&'a Tensor> {
        if self.prefix.is_some() && name == names::OUTPUT {
            return names::HF_OUTPUT.iter().find_map(|name| self.checkpoint.tensor(name));
        }
        self.checkpoint.tensor(&self.file_name(name))
    }

    /// Reads the factor on the residual stream after each layer, which files of Gemma 4 have as
    /// tensors.
    fn read_output_scales(&self, config: &mut Config) -> Result<(), ModelError> {
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

    /// Refuses tensors of layers that the configuration does not have: without them the model would
    /// write nonsense.
    fn refuse_layers_beyond(&self, layers: usize) -> Result<(), ModelError> {
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
    fn missing(&self, name: &str) -> ModelError {
        let name = self.file_name(name);
        match self.checkpoint.unreadable().iter().find(|tensor| tensor.name == name) {
            Some(tensor) => ModelError::UnreadableTensor { name, format: tensor.format.clone() },
            None => ModelError::MissingTensor { name },
        }
    }

    /// Returns the tensor of a weight, or the rows of a fused one, checked against the shape that
    /// the Plan requires.
    fn require(&self, weight: &Weight, config: &Config) -> Result<Tensor, ModelError> {
        let tensor = match self.find(&weight.name) {
            Some(tensor) => tensor.clone(),
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

    /// Returns the matrix of one stream from a tensor of those of all: (streams - 1, rows,
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
