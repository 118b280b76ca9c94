//! A checkpoint interpreted as a model: hyper-parameters, and tensors under trine's names with the
//! shapes that they must have.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use trine_weights::{Checkpoint, DType, Metadata, Tensor, blocks, fallback, quantize_tensor};

use crate::checkpoint::config::{Config, Family, GenerationDefaults};
use crate::checkpoint::finder::Finder;
use crate::error::ModelError;
use crate::families::assistant::Assistant;
use crate::families::tower::Tower;
use crate::passes::either::either;
use crate::plan::{Plan, Weight, WeightId, WeightKind, WeightPlace};
use crate::{
    checkpoint::config_gguf, checkpoint::config_hf, checkpoint::contradictions, drafts,
    families::embedding, families::soft, fusion, gemma3, gemma3n, gemma4, names, narrow,
};

/// A model: configuration and named tensors.
#[derive(Clone)]
pub struct Model {
    checkpoint: Arc<Checkpoint>,
    config: Config,
    defaults: GenerationDefaults,
    /// The tensors by trine's names.
    tensors: HashMap<String, Tensor>,
    /// The model that guesses for it, if any.
    assistant: Option<Assistant>,
    /// What makes rows of pictures for it, if anything.
    tower: Option<Tower>,
    /// The format in which float matrices of the assistant are returned; `None` for that of the
    /// model's.
    quantize_draft: Option<DType>,
    /// The format in which float matrices are returned; `None` for the stored one.
    quantize: Option<DType>,
    /// The number added to every norm's weights: Hugging Face files store `w` where Gemma 3 (but
    /// not Gemma 3n) multiplies by `1 + w`.
    norm_offset: f32,
}

/// What a Plan of a model ends with: a goal for each, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The logits of the wanted rows, for generating.
    pub logits: bool,
    /// The hidden states after the final norm, (tokens, hidden), for embeddings. They need no
    /// output matrix.
    pub states: bool,
    /// One guess of the model that guesses for it ([`drafts`](mod@crate::drafts)). Without logits
    /// it is what a guess costs: a Plan of its own, over the caches of the others.
    pub drafts: bool,
}

impl Ends {
    /// Logits only.
    pub const LOGITS: Self = Self { logits: true, states: false, drafts: false };
    /// Hidden states only.
    pub const STATES: Self = Self { logits: false, states: true, drafts: false };
    /// Guesses only.
    pub const DRAFTS: Self = Self { logits: false, states: false, drafts: true };
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
        let source = checkpoint.source().to_owned();
        Self::read(checkpoint).map_err(|error| error.in_file(&source))
    }

    fn read(checkpoint: Checkpoint) -> Result<Self, ModelError> {
        let finder = Finder::new(&checkpoint);
        let (mut config, defaults) = match checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                let config = config_gguf::read(metadata, &finder)?;
                contradictions::check(&checkpoint, &finder, &config)?;
                (config, config_gguf::generation(metadata)?)
            }
            Metadata::HuggingFace(files) => {
                let in_file =
                    |name| move |error: ModelError| error.in_file(&files.directory.join(name));
                let config = config_hf::read(&files.config)
                    .and_then(|config| {
                        contradictions::check(&checkpoint, &finder, &config).map(|()| config)
                    })
                    .map_err(in_file(names::CONFIG))?;
                let generation = files.generation_config.as_ref();
                let mut defaults =
                    config_hf::generation(generation).map_err(in_file(names::GENERATION))?;
                config_hf::add_stop_ids(&files.config, &mut defaults)
                    .map_err(in_file(names::CONFIG))?;
                (config, defaults)
            }
        };
        finder.read_output_scales(&mut config)?;
        finder.read_dense(&mut config)?;
        let norm_offset = match (config.family, checkpoint.metadata()) {
            (Family::Gemma3 | Family::Embedding(_), Metadata::HuggingFace(_)) => 1.0,
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
            assistant: None,
            tower: None,
            quantize_draft: None,
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

    /// Checks that no file was cut while it was open.
    ///
    /// # Errors
    /// Returns [`ModelError::Weights`] with the file that was.
    pub fn check_intact(&self) -> Result<(), ModelError> {
        self.checkpoint.check_intact()?;
        Ok(self.tower.as_ref().map_or(Ok(()), |tower| tower.checkpoint().check_intact())?)
    }

    /// Returns the model's files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Returns the forward pass as its family's builder writes it, before any rewriting.
    pub fn base_plan(&self) -> Plan {
        let plan = base_plan(&self.config, self.is_tied(), &|name| self.dtype(name));
        self.stored(self.with_soft_rows(plan))
    }

    /// Returns the forward pass that devices run for texts: that of [`Ends::LOGITS`].
    pub fn plan(&self) -> Plan {
        self.plan_for(Ends::LOGITS)
    }

    /// Returns the forward pass that devices run for some ends: narrowed to the rows whose logits
    /// are wanted, and fused. A model that [only embeds](Family::only_embeds) has one, whose goal
    /// is [`Goal::States`](crate::Goal::States), whatever is asked for.
    ///
    /// # Panics
    /// Panics if there is no end, if hidden states and drafts have no logits between them, or if no
    /// model guesses for it and drafts are asked for.
    pub fn plan_for(&self, Ends { logits, states, drafts }: Ends) -> Plan {
        assert!(logits || states != drafts, "a Plan ends with logits, or in one other way");
        if self.config.family.only_embeds() {
            return self.states_plan();
        }
        let of_text = || fusion::fuse(narrow::narrow(self.base_plan()));
        let plan = match (logits, states) {
            (true, true) => either(of_text(), self.states_plan())
                .expect("a family's two Plans are the same up to the last write of a cache"),
            (false, true) => self.states_plan(),
            (_, false) => of_text(),
        };
        if !drafts {
            return plan;
        }
        let assistant = self.assistant.as_ref().expect("the model was given a draft").config();
        let dtype_of = |name: &str| self.dtype(name);
        let plan = match logits {
            true => drafts::with_drafts(plan, &self.config, assistant, &dtype_of),
            false => drafts::draft(&plan, &self.config, assistant, &dtype_of),
        };
        self.stored(plan.expect("both were compared when the draft was given"))
    }

    fn states_plan(&self) -> Plan {
        let dtype_of = |name: &str| self.dtype(name);
        let plan = match self.config.family {
            Family::Gemma3 => gemma3::hidden_states(&self.config, &dtype_of),
            Family::Embedding(own) => embedding::plan(&self.config, own, &dtype_of),
            Family::Gemma3n(own) => gemma3n::hidden_states(&self.config, own, &dtype_of),
            Family::Gemma4(own) => gemma4::hidden_states(&self.config, own, &dtype_of),
        };
        fusion::fuse(self.stored(self.with_soft_rows(plan)))
    }

    /// Returns the same model with another one that guesses for it, from its caches and hidden
    /// states.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if the two do not belong together.
    pub fn with_assistant(mut self, assistant: Assistant) -> Result<Self, ModelError> {
        let float = |_: &str| DType::F32;
        let plan = drafts::with_drafts(self.plan(), &self.config, assistant.config(), &float)?;
        for weight in plan.weights.iter().filter(|own| own.name.starts_with(names::DRAFT_PREFIX)) {
            self.tensors.insert(weight.name.clone(), assistant.tensor(weight)?);
        }
        self.assistant = Some(assistant);
        Ok(self)
    }

    /// Returns the same model with the float matrices of the model that guesses for it as `dtype`.
    /// That changes which guesses are right, and no token.
    pub fn quantized_draft(mut self, dtype: DType) -> Self {
        self.quantize_draft = Some(dtype);
        self
    }

    /// Returns the model that guesses for it.
    pub fn assistant(&self) -> Option<&Assistant> {
        self.assistant.as_ref()
    }

    /// Returns the same model with a tower that makes rows of pictures for it.
    ///
    /// # Errors
    /// Returns a [`ModelError`] if the two do not belong together.
    pub fn with_tower(mut self, tower: Tower) -> Result<Self, ModelError> {
        let (found, expected) = (self.config.family.name(), tower.config().kind.family());
        if found != expected {
            return Err(ModelError::tower("the model's family", found, expected));
        }
        let (found, expected) = (tower.config().output, self.config.hidden);
        if found != expected {
            let name = |checkpoint: &Checkpoint| checkpoint.source().display().to_string();
            let (tower, model) = (name(tower.checkpoint()), name(&self.checkpoint));
            return Err(ModelError::OtherTower { tower, found, model, expected });
        }
        let of_tower = tower.tensors().iter();
        self.tensors.extend(of_tower.map(|(name, tensor)| (name.clone(), tensor.clone())));
        self.tower = Some(tower);
        Ok(self)
    }

    /// Returns the tower that makes rows of pictures for it.
    pub fn tower(&self) -> Option<&Tower> {
        self.tower.as_ref()
    }

    /// Returns the forward pass of its tower: from (patches, values of a patch) to soft tokens,
    /// (soft tokens, hidden), and with `states` also the rows before the projector, (patches,
    /// hidden of the tower).
    ///
    /// # Panics
    /// Panics if it has no tower.
    pub fn tower_plan(&self, states: bool) -> Plan {
        let tower = self.tower.as_ref().expect("the model was given a tower");
        fusion::fuse(tower.plan(states))
    }

    /// Returns the number of token ids that a Plan of this model takes: its vocabulary, or the
    /// places of patches in a tower's Plan.
    pub fn ids(&self, plan: &Plan) -> usize {
        let tower = self.tower.as_ref().filter(|_| plan.is_of_picture());
        tower.map_or(self.config.vocabulary, |tower| tower.config().places())
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
        let offset = match &self.tower {
            Some(tower) if tower.tensors().contains_key(&weight.name) => tower.offset(&weight.name),
            _ => self.norm_offset,
        };
        values.iter_mut().for_each(|value| *value += offset);
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

    /// Returns the tensor of a Plan's weight in the Plan's format and order: the stored tensor, or
    /// a copy that the caller owns, which is quantised or has the rows of each cluster of a draft's
    /// output matrix together. The pages of a file that were read for the copy are given back.
    ///
    /// # Errors
    /// Returns [`ModelError::Weights`] if the tensor holds values that cannot be quantised.
    ///
    /// # Panics
    /// Panics if the weight belongs to another model's Plan.
    pub fn converted(&self, weight: &Weight) -> Result<Tensor, ModelError> {
        let stored = self.tensor(weight);
        let is_stored = stored.dtype() == weight.dtype;
        let tensor = match is_stored {
            true => stored.clone(),
            false => quantize_tensor(stored, weight.dtype)?,
        };
        let ordered = self.assistant.as_ref().map(|own| own.by_cluster(weight, &tensor));
        let ordered = ordered.transpose()?.flatten();
        if !is_stored || ordered.is_some() {
            stored.release_pages(0..stored.bytes().len());
        }
        Ok(ordered.unwrap_or(tensor))
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
            WeightPlace::Device | WeightPlace::Held | WeightPlace::File | WeightPlace::Aside => {
                self.converted(weight)
            }
            WeightPlace::Slice { of, first } => {
                let whole = self.converted(plan.weight(of))?;
                Ok(whole.slice_rows(&weight.name, first..first + weight.rows)?)
            }
        }
    }

    /// Returns a Plan with an input for the rows of pictures if the model has a tower.
    fn with_soft_rows(&self, plan: Plan) -> Plan {
        if self.tower.is_some() { soft::with_soft_rows(plan) } else { plan }
    }

    fn dtype(&self, name: &str) -> DType {
        self.tensors.get(name).map_or(DType::F32, Tensor::dtype)
    }

    /// Returns the Plan with its float matrices in the format in which [`Model::converted`] returns
    /// them.
    fn stored(&self, mut plan: Plan) -> Plan {
        let family = self.config.family;
        for weight in &mut plan.weights {
            let is_float = weight.is_matrix() && !weight.dtype.is_quantized();
            let dtype = match weight.name.strip_prefix(names::DRAFT_PREFIX) {
                Some(_) => self.quantize_draft.or(self.quantize),
                None => self.quantize.filter(|_| !names::keeps_format(family, &weight.name)),
            };
            if let Some(dtype) = dtype.filter(|_| is_float) {
                weight.dtype = fallback(dtype, weight.columns);
            }
        }
        plan
    }
}

/// Returns the Plan of a configuration, before any rewriting. `dtype_of` returns how each tensor is
/// stored.
pub fn base_plan(config: &Config, tied: bool, dtype_of: &dyn Fn(&str) -> DType) -> Plan {
    match config.family {
        Family::Gemma3 => gemma3::plan(config, tied, dtype_of),
        Family::Embedding(own) => embedding::plan(config, own, dtype_of),
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
