//! The tensors of a vision tower in its files, which have other names and orders than Plans.

use std::collections::HashSet;
use std::ops::Range;

use serde_json::Value;
use trine_weights::{Checkpoint, DType, Metadata, Tensor};

use crate::checkpoint::tower_config::{self, COLOURS, TowerConfig, TowerKind, TowerTensors};
use crate::checkpoint::tower_names as names;
use crate::error::ModelError;
use crate::gemma4_vision::{Limits, Numbers};
use crate::plan::Weight;

/// Factors on the residual stream after a layer that are accepted, as of text models.
const SCALES: Range<f32> = -1e4..1e4;

/// The files of a tower, whose tensors have the names of their format.
pub(crate) struct TowerFiles<'a> {
    checkpoint: &'a Checkpoint,
    config: TowerConfig,
}

/// The tensors of a GGUF file, which has trine's own names.
pub(crate) struct Gguf<'a>(pub(crate) &'a Checkpoint);

impl TowerTensors for Gguf<'_> {
    fn any(&self, is_one: &dyn Fn(&str) -> bool) -> bool {
        self.0.tensors().any(|tensor| is_one(tensor.name()))
    }

    fn rows(&self, name: &str) -> Result<usize, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.to_owned() };
        self.0.tensor(name).map(Tensor::rows).ok_or_else(missing)
    }
}

impl<'a> TowerFiles<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, config: TowerConfig) -> Self {
        Self { checkpoint, config }
    }

    fn find(&self, name: &str) -> Option<&'a Tensor> {
        find(self.checkpoint, &self.config.kind, name)
    }

    fn require(&self, name: &str) -> Result<&'a Tensor, ModelError> {
        require(self.checkpoint, &self.config.kind, name)
    }

    /// Refuses settings of Gemma 4's towers that tensors contradict: a part that is turned off
    /// would leave its tensors unread, and the model would see other pictures. GGUF files have no
    /// such settings.
    pub(crate) fn check_settings(&self) -> Result<(), ModelError> {
        let Metadata::HuggingFace(own) = self.checkpoint.metadata() else { return Ok(()) };
        let TowerKind::Gemma4 { layers, clips, standardizes, .. } = self.config.kind else {
            return Ok(());
        };
        let products = (0..layers.count).flat_map(|index| {
            names::PRODUCTS.into_iter().map(move |part| names::layer(index, part))
        });
        let limits = products.flat_map(|product| {
            names::LIMITS.into_iter().flatten().map(move |end| names::limit(&product, end))
        });
        self.all_or_none(&own.config, tower_config::CLIPS, clips, limits)?;
        let vectors = names::STANDARD.into_iter().map(str::to_owned);
        self.all_or_none(&own.config, tower_config::STANDARDIZES, standardizes, vectors)
    }

    /// Checks that all tensors of a part are there if its setting says so, or else none.
    fn all_or_none(
        &self,
        root: &Value,
        key: &str,
        is_set: bool,
        mut tensors: impl Iterator<Item = String>,
    ) -> Result<(), ModelError> {
        // Either list may be long.
        let unreadable: HashSet<&str> =
            self.checkpoint.unreadable().iter().map(|tensor| tensor.name.as_str()).collect();
        tensors.try_for_each(|name| {
            let known = names_in(self.checkpoint, &self.config.kind, &name);
            let found = known.iter().find(|name| self.checkpoint.tensor(name).is_some());
            let is_there = found.is_some();
            if !is_there && known.iter().any(|name| unreadable.contains(name.as_str())) {
                self.require(&name)?;
            }
            if is_there == is_set {
                return Ok(());
            }
            let tensor = found.or(known.first()).cloned().unwrap_or_default();
            let value = root["vision_config"].get(key);
            let value = value.map_or("not set".to_owned(), Value::to_string);
            let key = format!("vision_config.{key}");
            Err(ModelError::contradiction(&key, &value, &tensor, is_there))
        })
    }

    /// Refuses tensors of layers that the configuration does not have: without them the tower would
    /// make nonsense.
    pub(crate) fn refuse_layers_beyond(&self) -> Result<(), ModelError> {
        let kind = &self.config.kind;
        let layers = kind.layers().map_or(0, |layers| layers.count);
        for tensor in self.checkpoint.tensors() {
            let index = match self.checkpoint.metadata() {
                Metadata::Gguf(_) => names::layer_in_gguf(tensor.name()),
                Metadata::HuggingFace(_) => names::layer_in_hf(kind, tensor.name()),
            };
            if index.is_some_and(|index| index >= layers) {
                return Err(ModelError::ExtraLayer { name: tensor.name().to_owned(), layers });
            }
        }
        Ok(())
    }

    /// Reads the numbers that files have as tensors.
    pub(crate) fn numbers(&self) -> Result<Numbers, ModelError> {
        let mut numbers = Numbers::default();
        let TowerKind::Gemma4 { layers, clips, .. } = self.config.kind else { return Ok(numbers) };
        for index in 0..layers.count {
            let name = format!("{}.weight", names::layer(index, "out_scale"));
            let scale = self.find(&name).map_or(Ok(1.0), number)?;
            if !SCALES.contains(&scale) {
                let expected = format!("a number from {} to {}", SCALES.start, SCALES.end);
                return Err(ModelError::bad(&name, scale, expected));
            }
            numbers.scales.push(scale);
            for part in names::PRODUCTS.iter().filter(|_| clips) {
                let name = names::layer(index, part);
                let [input, output] = names::LIMITS.map(|ends| self.limits(&name, ends));
                numbers.limits.insert(name, Limits { input: input?, output: output? });
            }
        }
        Ok(numbers)
    }

    /// Reads the least and the largest value on one side of a product.
    fn limits(&self, product: &str, ends: [&str; 2]) -> Result<[f32; 2], ModelError> {
        let read = |end| {
            let tensor = self.require(&names::limit(product, end))?;
            Ok::<_, ModelError>((tensor.name(), number(tensor)?))
        };
        let [(_, low), (name, high)] = [read(ends[0])?, read(ends[1])?];
        if low <= high {
            return Ok([low, high]);
        }
        Err(ModelError::bad(name, high, format!("a number that is at least {low}")))
    }

    /// Returns the tensor of a weight in the shape and order that the Plan asks for.
    pub(crate) fn tensor(&self, weight: &Weight) -> Result<Tensor, ModelError> {
        let found = self.require(&self.stored_name(&weight.name))?;
        if !weight.is_matrix() {
            return self.vector(weight, found);
        }
        let matrix = [weight.rows, weight.columns];
        let (shape, order) = self.stored_form(weight);
        match found.shape() {
            stored if stored == shape => order.apply(found, &matrix, self.config.patch),
            stored if stored == matrix => Ok(found.reshaped(&matrix)?),
            _ => Err(bad_shape(found, &shape)),
        }
    }

    /// Returns the shape in which the files have a matrix, and in which order. All may also have it
    /// as the Plan does.
    fn stored_form(&self, weight: &Weight) -> (Vec<usize>, Order) {
        let (rows, columns, patch) = (weight.rows, weight.columns, self.config.patch);
        let convolution = || vec![rows, columns / (patch * patch), patch, patch];
        let is_gguf = matches!(self.checkpoint.metadata(), Metadata::Gguf(_));
        match (weight.name.as_str(), self.config.kind) {
            (names::PATCHES, TowerKind::Siglip(_)) => (convolution(), Order::Same),
            (names::PATCHES, TowerKind::Gemma4 { .. }) => (convolution(), Order::ColoursFirst),
            (names::PATCHES, TowerKind::Unified) if is_gguf => {
                (vec![rows, columns], Order::ColoursFirst)
            }
            // Rows are multiplied with it from the right.
            (names::PROJECTION, TowerKind::Siglip(_)) => (vec![columns, rows], Order::Transposed),
            (names::PLACES, TowerKind::Unified) if !is_gguf => {
                (vec![rows / 2, 2, columns], Order::AxesTogether)
            }
            (names::PLACES, TowerKind::Gemma4 { .. } | TowerKind::Unified) => {
                (vec![2, rows / 2, columns], Order::Same)
            }
            _ => (vec![rows, columns], Order::Same),
        }
    }

    fn vector(&self, weight: &Weight, found: &Tensor) -> Result<Tensor, ModelError> {
        if found.shape() != [weight.columns] {
            return Err(bad_shape(found, &[weight.columns]));
        }
        refuse_blocks(found)?;
        let is_of_patches = weight.name.starts_with(names::PATCH_NORMS[0]);
        match self.checkpoint.metadata() {
            _ if weight.name == names::STANDARD_BIAS => {
                let negated = found.to_f32()?.into_iter().map(|value| -value).collect();
                owned(found.name(), &[weight.columns], negated)
            }
            Metadata::Gguf(_) if is_of_patches => {
                Order::ColoursFirst.apply(found, &[weight.columns], self.config.patch)
            }
            _ => Ok(found.clone()),
        }
    }

    /// Returns trine's name of the tensor that a file has under another one: files of an early
    /// converter have the two products of SigLIP's feed-forward parts exchanged.
    fn stored_name(&self, name: &str) -> String {
        let TowerKind::Siglip(layers) = self.config.kind else { return name.to_owned() };
        let Some((block, rest)) = name.split_once(".ffn_") else { return name.to_owned() };
        let columns = |part: &str| {
            let tensor = self.checkpoint.tensor(&format!("{block}.ffn_{part}.weight"));
            tensor.map(Tensor::columns)
        };
        let (hidden, feed_forward) = (self.config.hidden, layers.feed_forward);
        let is_exchanged = hidden != feed_forward
            && columns("down") == Some(hidden)
            && columns("up") == Some(feed_forward);
        match rest.split_once('.') {
            Some(("up", kind)) if is_exchanged => format!("{block}.ffn_down.{kind}"),
            Some(("down", kind)) if is_exchanged => format!("{block}.ffn_up.{kind}"),
            _ => name.to_owned(),
        }
    }
}

/// Returns the names that a tensor may have in the files.
fn names_in(checkpoint: &Checkpoint, kind: &TowerKind, name: &str) -> Vec<String> {
    match checkpoint.metadata() {
        Metadata::Gguf(_) => vec![name.to_owned()],
        Metadata::HuggingFace(_) => names::in_hf(kind, name),
    }
}

fn find<'a>(checkpoint: &'a Checkpoint, kind: &TowerKind, name: &str) -> Option<&'a Tensor> {
    names_in(checkpoint, kind, name).iter().find_map(|name| checkpoint.tensor(name))
}

fn require<'a>(
    checkpoint: &'a Checkpoint,
    kind: &TowerKind,
    name: &str,
) -> Result<&'a Tensor, ModelError> {
    if let Some(tensor) = find(checkpoint, kind, name) {
        return Ok(tensor);
    }
    let known = names_in(checkpoint, kind, name);
    let unreadable = checkpoint.unreadable();
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

/// Returns the columns of a soft token, by the projection.
///
/// # Errors
/// Returns a [`ModelError`] if the projection is missing.
pub(crate) fn output(checkpoint: &Checkpoint, kind: &TowerKind) -> Result<usize, ModelError> {
    let projection = require(checkpoint, kind, names::PROJECTION)?;
    Ok(match kind {
        TowerKind::Siglip(_) => projection.columns(),
        TowerKind::Gemma4 { .. } | TowerKind::Unified => projection.rows(),
    })
}

fn bad_shape(tensor: &Tensor, expected: &[usize]) -> ModelError {
    let (name, found) = (tensor.name().to_owned(), tensor.shape().to_vec());
    ModelError::BadShape { name, found, expected: expected.to_vec() }
}

/// Refuses formats that are for matrices only.
fn refuse_blocks(tensor: &Tensor) -> Result<(), ModelError> {
    if !tensor.dtype().is_quantized() {
        return Ok(());
    }
    let (name, found) = (tensor.name().to_owned(), tensor.dtype().name());
    Err(ModelError::BadDType { name, found })
}

/// Returns the only value of a tensor.
fn number(tensor: &Tensor) -> Result<f32, ModelError> {
    refuse_blocks(tensor)?;
    if tensor.elements() != 1 {
        return Err(bad_shape(tensor, &[1]));
    }
    Ok(tensor.to_f32()?[0])
}

/// How the values of a tensor lie in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// The order of the Plan.
    Same,
    /// The values of a patch in each row, the ones of a colour together.
    ColoursFirst,
    /// The entries of a place's column and row side by side.
    AxesTogether,
    /// Rows as columns.
    Transposed,
}

impl Order {
    /// Returns the tensor in the Plan's order and shape. A copy of a quantised one is in f32.
    fn apply(self, tensor: &Tensor, shape: &[usize], patch: usize) -> Result<Tensor, ModelError> {
        let rows = tensor.elements() / shape.last().copied().unwrap_or(1).max(1);
        let columns = tensor.elements() / rows.max(1);
        match self {
            Order::Same => Ok(tensor.reshaped(shape)?),
            Order::ColoursFirst => copied(tensor, shape, |row, value| {
                row * columns + value % COLOURS * patch * patch + value / COLOURS
            }),
            Order::AxesTogether => copied(tensor, shape, |row, column| {
                let side = rows / 2;
                (row % side * 2 + row / side) * columns + column
            }),
            Order::Transposed => copied(tensor, shape, |row, column| column * rows + row),
        }
    }
}

/// Returns a copy of this shape, whose value in a row and a column is that of the place `from(row,
/// column)` of the tensor.
fn copied(
    tensor: &Tensor,
    shape: &[usize],
    from: impl Fn(usize, usize) -> usize,
) -> Result<Tensor, ModelError> {
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let is_quantized = tensor.dtype().is_quantized();
    let dtype = if is_quantized { DType::F32 } else { tensor.dtype() };
    let values = if is_quantized { tensor.to_f32()? } else { Vec::new() };
    let (size, stored) = (dtype.block_bytes(), tensor.bytes());
    let mut bytes = Vec::with_capacity(tensor.elements() * size);
    for row in 0..tensor.elements() / columns {
        for column in 0..columns {
            let at = from(row, column);
            match is_quantized {
                true => bytes.extend_from_slice(&values[at].to_le_bytes()),
                false => bytes.extend_from_slice(&stored[at * size..][..size]),
            }
        }
    }
    Ok(Tensor::from_owned(tensor.name(), dtype, shape, bytes)?)
}

fn owned(name: &str, shape: &[usize], values: Vec<f32>) -> Result<Tensor, ModelError> {
    let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
    Ok(Tensor::from_owned(name, DType::F32, shape, bytes)?)
}
