//! The Plan: one forward pass as data.
//!
//! A Plan is a list of steps over named buffers. It knows no device, no width and no memory: those are chosen when a
//! device turns it into a Program. A buffer holds one row of `columns` f32 values for each token of the step
//! ([`Rows::Tokens`]) or for each token whose logits are wanted ([`Rows::Outputs`]).

use trine_weights::DType;

use crate::config::Rope;

/// Index of a buffer in [`Plan::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// Index of a weight in [`Plan::weights`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// Index of a KV cache in [`Plan::caches`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub usize);

/// How many rows a buffer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One for each token of the step.
    Tokens,
    /// One for each token whose logits are wanted.
    Outputs,
}

/// Activations: (rows, columns) f32, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// What the values are, for people.
    pub name: String,
    /// What a row stands for.
    pub rows: Rows,
    /// Values per row.
    pub columns: usize,
}

/// What a tensor is to the Plan. Its shape does not tell: a matrix may have one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// The factors of a norm: floats, kept as they are.
    Vector,
    /// A matrix or a table, in any format.
    Matrix,
}

/// A tensor of the model as the Plan uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// trine's name of the tensor, see [`crate::names`].
    pub name: String,
    /// What it is.
    pub kind: WeightKind,
    /// Out-features of a matrix, entries of a table, 1 for a vector.
    pub rows: usize,
    /// In-features of a matrix, elements of a vector or table row.
    pub columns: usize,
    /// How the values are stored.
    pub dtype: DType,
}

impl Weight {
    /// Whether it is a matrix or a table.
    pub fn is_matrix(&self) -> bool {
        self.kind == WeightKind::Matrix
    }

    /// Bytes of the stored tensor.
    pub fn bytes(&self) -> u64 {
        let blocks = self.columns.div_ceil(self.dtype.block_elements()) as u64;
        self.rows as u64 * blocks * self.dtype.block_bytes() as u64
    }
}

/// Keys and values of one layer for every position a sequence may look back to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The layer that writes it.
    pub layer: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Positions a sequence keeps: the window of a local layer, `None` for all of them.
    pub window: Option<usize>,
}

/// One matrix of a [`Op::MatMul`]: `output = input * weight^T`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Matrix (out-features, in-features).
    pub weight: WeightId,
    /// (rows, out-features).
    pub output: BufferId,
}

/// What the heads of a step look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query`.
    pub kv: usize,
    /// Elements per head.
    pub dim: usize,
}

/// One operation. The scalar reference of each is in `trine_backend::reference`, formulas in its documentation.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `output[r] = table[token[r]] * scale`.
    Embed {
        /// (vocabulary, columns).
        table: WeightId,
        /// Factor on the row.
        scale: f32,
        /// (tokens, columns).
        output: BufferId,
    },
    /// `output = input / rms(input) * weight`, by rows, the root mean square over the columns.
    Norm {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns.
        weight: WeightId,
        /// Added to the mean square.
        epsilon: f32,
        /// (rows, columns).
        output: BufferId,
    },
    /// [`Op::Norm`] over each head of a row separately, in place, with one weight vector for all heads.
    HeadNorm {
        /// (rows, heads x head dimension).
        buffer: BufferId,
        /// Vector of the head dimension.
        weight: WeightId,
        /// Heads per row.
        heads: usize,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// Half-split rotary embedding of each head by the row's position, in place.
    Rotate {
        /// (rows, heads x head dimension).
        buffer: BufferId,
        /// Heads per row.
        heads: usize,
        /// Frequencies.
        rope: Rope,
    },
    /// Matrix products that share their input.
    MatMul {
        /// (rows, in-features).
        input: BufferId,
        /// The matrices; at least one.
        products: Vec<Product>,
    },
    /// Writes each row's key and value to its sequence's cache at the row's position.
    StoreKv {
        /// (tokens, kv heads x head dimension).
        key: BufferId,
        /// (tokens, kv heads x head dimension).
        value: BufferId,
        /// Where to.
        cache: CacheId,
    },
    /// `softmax(scale * q . k) v` over the positions that the row may see: those up to its own, and of these the last
    /// `window`.
    Attend {
        /// (tokens, query heads x head dimension).
        query: BufferId,
        /// Keys and values.
        cache: CacheId,
        /// Head counts and size.
        heads: Heads,
        /// Factor on the scores.
        scale: f32,
        /// Positions seen, the row's own included; `None` for all.
        window: Option<usize>,
        /// (tokens, query heads x head dimension).
        output: BufferId,
    },
    /// `output = gelu(gate) * up`, gelu in its tanh form.
    Geglu {
        /// (rows, feed-forward).
        gate: BufferId,
        /// (rows, feed-forward).
        up: BufferId,
        /// (rows, feed-forward).
        output: BufferId,
    },
    /// `target += source`.
    Add {
        /// (rows, columns).
        source: BufferId,
        /// (rows, columns).
        target: BufferId,
    },
    /// Copies the rows whose logits are wanted.
    Select {
        /// (tokens, columns).
        input: BufferId,
        /// (outputs, columns).
        output: BufferId,
    },
    /// `x = cap * tanh(x / cap)`, in place.
    Softcap {
        /// (rows, columns).
        buffer: BufferId,
        /// Largest magnitude.
        cap: f32,
    },
    /// Fused: `output = gelu(input * gate^T) * (input * up^T)`.
    GatedMatMul {
        /// (rows, in-features).
        input: BufferId,
        /// (feed-forward, in-features).
        gate: WeightId,
        /// (feed-forward, in-features).
        up: WeightId,
        /// (rows, feed-forward).
        output: BufferId,
    },
    /// Fused: `target += norm(input)`.
    NormAdd {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns.
        weight: WeightId,
        /// Added to the mean square.
        epsilon: f32,
        /// (rows, columns).
        target: BufferId,
    },
    /// Fused: `target += norm(input)`, then `output = norm(target)` with the second weight.
    NormAddNorm {
        /// (rows, columns).
        input: BufferId,
        /// Vector of the columns, for the first norm.
        weight: WeightId,
        /// Added to the mean square, in both norms.
        epsilon: f32,
        /// (rows, columns).
        target: BufferId,
        /// Vector of the columns, for the second norm.
        next_weight: WeightId,
        /// (rows, columns).
        output: BufferId,
    },
    /// Fused: head norm and rotation of queries and keys, then the write of keys and values to the cache. The key
    /// buffer holds no defined values afterwards.
    PrepareQkv {
        /// (tokens, query heads x head dimension), in place.
        query: BufferId,
        /// (tokens, kv heads x head dimension).
        key: BufferId,
        /// (tokens, kv heads x head dimension).
        value: BufferId,
        /// Vector of the head dimension.
        query_norm: WeightId,
        /// Vector of the head dimension.
        key_norm: WeightId,
        /// Head counts and size.
        heads: Heads,
        /// Added to the mean square.
        epsilon: f32,
        /// Frequencies.
        rope: Rope,
        /// Where keys and values go.
        cache: CacheId,
    },
}

/// One step of a Plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Where in the model it stands, such as `blk.3.attn`.
    pub label: String,
    /// What it does.
    pub op: Op,
}

/// A forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Activations.
    pub buffers: Vec<Buffer>,
    /// Tensors of the model.
    pub weights: Vec<Weight>,
    /// KV caches.
    pub caches: Vec<Cache>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// What the pass begins with besides token ids: the residual stream that the part before it gave.
    pub input: Option<BufferId>,
    /// What the pass is for: (outputs, vocabulary) the logits, or (tokens, hidden) the residual stream for the part after it
    /// or the hidden states.
    pub output: BufferId,
}

impl Plan {
    /// The buffer of an id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0]
    }

    /// The weight of an id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0]
    }

    /// The cache of an id.
    pub fn cache(&self, id: CacheId) -> &Cache {
        &self.caches[id.0]
    }

    /// Values of a row of the input; 0 for a Plan that begins with token ids.
    pub fn input_columns(&self) -> usize {
        self.input.map_or(0, |id| self.buffer(id).columns)
    }

    /// Layers in it: each attends once.
    pub fn layers(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step.op, Op::Attend { .. })).count()
    }

    /// What a row of the step stands for.
    pub fn rows(&self, op: &Op) -> Rows {
        match op {
            Op::Select { output, .. } => self.buffer(*output).rows,
            _ => op.writes().first().map_or(Rows::Tokens, |id| self.buffer(*id).rows),
        }
    }
}

impl Op {
    /// Name of the operation, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "norm",
            Op::HeadNorm { .. } => "head_norm",
            Op::Rotate { .. } => "rotate",
            Op::MatMul { .. } => "matmul",
            Op::StoreKv { .. } => "store_kv",
            Op::Attend { .. } => "attend",
            Op::Geglu { .. } => "geglu",
            Op::Add { .. } => "add",
            Op::Select { .. } => "select",
            Op::Softcap { .. } => "softcap",
            Op::GatedMatMul { .. } => "gated_matmul",
            Op::NormAdd { .. } => "norm_add",
            Op::NormAddNorm { .. } => "norm_add_norm",
            Op::PrepareQkv { .. } => "prepare_qkv",
        }
    }

    /// Buffers whose values the operation uses.
    pub fn reads(&self) -> Vec<BufferId> {
        match self {
            Op::Embed { .. } => vec![],
            Op::Norm { input, .. } | Op::Select { input, .. } => vec![*input],
            Op::MatMul { input, .. } | Op::GatedMatMul { input, .. } => vec![*input],
            Op::HeadNorm { buffer, .. }
            | Op::Rotate { buffer, .. }
            | Op::Softcap { buffer, .. } => {
                vec![*buffer]
            }
            Op::StoreKv { key, value, .. } => vec![*key, *value],
            Op::Attend { query, .. } => vec![*query],
            Op::Geglu { gate, up, .. } => vec![*gate, *up],
            Op::Add { source, target } => vec![*source, *target],
            Op::NormAdd { input, target, .. } | Op::NormAddNorm { input, target, .. } => {
                vec![*input, *target]
            }
            Op::PrepareQkv { query, key, value, .. } => vec![*query, *key, *value],
        }
    }

    /// Buffers whose values the operation sets.
    pub fn writes(&self) -> Vec<BufferId> {
        match self {
            Op::Embed { output, .. } | Op::Norm { output, .. } | Op::Select { output, .. } => {
                vec![*output]
            }
            Op::Attend { output, .. }
            | Op::Geglu { output, .. }
            | Op::GatedMatMul { output, .. } => {
                vec![*output]
            }
            Op::HeadNorm { buffer, .. }
            | Op::Rotate { buffer, .. }
            | Op::Softcap { buffer, .. } => {
                vec![*buffer]
            }
            Op::MatMul { products, .. } => products.iter().map(|product| product.output).collect(),
            Op::StoreKv { .. } => vec![],
            Op::Add { target, .. } | Op::NormAdd { target, .. } => vec![*target],
            Op::NormAddNorm { target, output, .. } => vec![*target, *output],
            Op::PrepareQkv { query, key, .. } => vec![*query, *key],
        }
    }

    /// Weights the operation reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embed { table, .. } => vec![*table],
            Op::Norm { weight, .. } | Op::HeadNorm { weight, .. } | Op::NormAdd { weight, .. } => {
                vec![*weight]
            }
            Op::NormAddNorm { weight, next_weight, .. } => vec![*weight, *next_weight],
            Op::MatMul { products, .. } => products.iter().map(|product| product.weight).collect(),
            Op::GatedMatMul { gate, up, .. } => vec![*gate, *up],
            Op::PrepareQkv { query_norm, key_norm, .. } => vec![*query_norm, *key_norm],
            _ => vec![],
        }
    }

    /// Replaces every buffer id that the map knows.
    pub(crate) fn rename(&mut self, map: &dyn Fn(BufferId) -> BufferId) {
        let rename = |ids: &mut [&mut BufferId]| ids.iter_mut().for_each(|id| **id = map(**id));
        match self {
            Op::Embed { output, .. } => rename(&mut [output]),
            Op::Norm { input, output, .. } | Op::Select { input, output } => {
                rename(&mut [input, output])
            }
            Op::HeadNorm { buffer, .. }
            | Op::Rotate { buffer, .. }
            | Op::Softcap { buffer, .. } => {
                rename(&mut [buffer]);
            }
            Op::MatMul { input, products } => {
                rename(&mut [input]);
                products.iter_mut().for_each(|product| product.output = map(product.output));
            }
            Op::StoreKv { key, value, .. } => rename(&mut [key, value]),
            Op::Attend { query, output, .. } => rename(&mut [query, output]),
            Op::Geglu { gate, up, output } => rename(&mut [gate, up, output]),
            Op::Add { source, target } => rename(&mut [source, target]),
            Op::GatedMatMul { input, output, .. } => rename(&mut [input, output]),
            Op::NormAdd { input, target, .. } => rename(&mut [input, target]),
            Op::NormAddNorm { input, target, output, .. } => rename(&mut [input, target, output]),
            Op::PrepareQkv { query, key, value, .. } => rename(&mut [query, key, value]),
        }
    }

    /// The KV cache that the operation reads or writes.
    pub fn cache(&self) -> Option<CacheId> {
        match self {
            Op::StoreKv { cache, .. } | Op::Attend { cache, .. } | Op::PrepareQkv { cache, .. } => {
                Some(*cache)
            }
            _ => None,
        }
    }

    /// Replaces every weight and cache id by what the maps say.
    pub(crate) fn rebind(
        &mut self,
        weight_of: &dyn Fn(WeightId) -> WeightId,
        cache_of: &dyn Fn(CacheId) -> CacheId,
    ) {
        let rebind = |ids: &mut [&mut WeightId]| {
            ids.iter_mut().for_each(|id| **id = weight_of(**id));
        };
        match self {
            Op::Embed { table, .. } => rebind(&mut [table]),
            Op::Norm { weight, .. } | Op::HeadNorm { weight, .. } | Op::NormAdd { weight, .. } => {
                rebind(&mut [weight]);
            }
            Op::NormAddNorm { weight, next_weight, .. } => rebind(&mut [weight, next_weight]),
            Op::MatMul { products, .. } => {
                products.iter_mut().for_each(|product| product.weight = weight_of(product.weight));
            }
            Op::GatedMatMul { gate, up, .. } => rebind(&mut [gate, up]),
            Op::PrepareQkv { query_norm, key_norm, cache, .. } => {
                rebind(&mut [query_norm, key_norm]);
                *cache = cache_of(*cache);
            }
            Op::StoreKv { cache, .. } | Op::Attend { cache, .. } => *cache = cache_of(*cache),
            Op::Rotate { .. }
            | Op::Geglu { .. }
            | Op::Add { .. }
            | Op::Select { .. }
            | Op::Softcap { .. } => {}
        }
    }
}
