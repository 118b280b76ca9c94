//! What the steps of a Plan work on: buffers, weights and KV caches.

use trine_weights::DType;

/// Index of a buffer in [`Plan::buffers`](crate::Plan::buffers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// Index of a weight in [`Plan::weights`](crate::Plan::weights).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// Index of a KV cache in [`Plan::caches`](crate::Plan::caches).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub usize);

/// The number of rows of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One for each token of the step.
    Tokens,
    /// One for each token whose logits are wanted.
    Outputs,
    /// One for each soft token of the step: a row that another Plan made, in the place of a
    /// token's. Only [`Op::Insert`](crate::Op::Insert) reads such rows, and no operation writes
    /// them.
    Soft,
}

/// Activations: (rows, columns) f32, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Name of the values, for people.
    pub name: String,
    /// The meaning of a row.
    pub rows: Rows,
    /// Values per row.
    pub columns: usize,
}

/// The role of a tensor in the Plan. Its shape does not determine it: a matrix may have one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// The factors of a norm: floats, kept as they are.
    Vector,
    /// A matrix or a table, in any format.
    Matrix,
}

/// Where a weight lives while the Plan runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightPlace {
    /// In the device's memory, in a form of its own. A table of which steps only look rows up may
    /// stay in the file ([`gather`](mod@crate::gather)).
    Device,
    /// A table of which steps only look rows up: in the device's memory all the same.
    Held,
    /// In the mapped file only, or where the model keeps a converted copy: the host reads single
    /// rows of it ([`Source::Table`](crate::Source::Table)). No device packs or uploads it, and no
    /// operation reads it.
    File,
    /// Where another weight of the Plan is: the rows of that one from `first` on
    /// ([`lend`](mod@crate::lend)).
    Slice {
        /// The weight, which is no slice itself.
        of: WeightId,
        /// The first row.
        first: usize,
    },
    /// With another device, which computes the experts that it is of
    /// ([`aside`](mod@crate::aside)).
    Aside,
}

/// A tensor of the model as the Plan uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// trine's name of the tensor, see [`crate::names`].
    pub name: String,
    /// Its role.
    pub kind: WeightKind,
    /// Out-features of a matrix, entries of a table, 1 for a vector.
    pub rows: usize,
    /// In-features of a matrix, elements of a vector or table row.
    pub columns: usize,
    /// How the values are stored.
    pub dtype: DType,
    /// Where it lives while the Plan runs.
    pub place: WeightPlace,
}

impl Weight {
    /// Returns whether it is a matrix or a table.
    pub fn is_matrix(&self) -> bool {
        self.kind == WeightKind::Matrix
    }

    /// Returns the bytes of the stored tensor.
    pub fn bytes(&self) -> u64 {
        let blocks = self.columns.div_ceil(self.dtype.block_elements()) as u64;
        self.rows as u64 * blocks * self.dtype.block_bytes() as u64
    }
}

/// Keys and values of one layer for every position to which a sequence may look back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// The layer that writes it.
    pub layer: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Number of positions that a sequence keeps: the window of a local layer, `None` for all of
    /// them.
    pub window: Option<usize>,
}
