//! KV cache and attention.
//!
//! A layer's keys and values live in a [`LayerCache`]; a [`CacheView`] says where a sequence's
//! positions are. [`AttentionPlan`] cuts a batch into items that threads take in any order, and
//! [`Attention`] runs them: an online softmax over blocks of [`BLOCK`] keys (Milakov and
//! Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135), folded chunk by chunk of
//! [`CHUNK`] positions (flash-decoding).
//!
//! Blocks and chunks start at fixed positions and each number is summed in one fixed order, so
//! the result of a row is the same to the bit whatever the thread count, the other rows of the
//! batch, and the way the prompt was split. (Rings whose length is not a multiple of [`BLOCK`] cut
//! blocks where they wrap; that too depends only on the position.)
//!
//! What bounds it: one row per sequence reads `2 * keys * kv_heads * head_dim` cached elements
//! once and does `4 * query_heads / kv_heads` operations on each: memory. A tile of prompt rows
//! shares each read (and its conversion to f32) among up to [`TILE_VECTORS`] query vectors:
//! arithmetic, `4 * keys * query_heads * head_dim` operations per row.
//!
//! Pictures, whose rows all see one another, have a kernel of their own (`whole`), which comes near
//! the rate of products but is slow for few rows. Where it is used depends on the Plan and on what
//! rows see, not on how many there are.

mod cache;
mod kernel;
mod micro;
mod plan;
mod run;
mod view;
mod whole;

#[cfg(test)]
mod tests;

pub use cache::{KvKind, KvShape, LayerCache};
pub use plan::{AttentionPlan, MostRuns, SequenceRows};
pub use run::{Attention, AttentionScratch, Partials, Strided};
pub use view::{CacheView, Run};

/// Positions per block of a block table, and keys per step of the online softmax.
pub const BLOCK: usize = 32;

/// Positions whose softmax is computed separately before it is folded into the row's: the unit in
/// which a long context is split among threads.
pub const CHUNK: usize = 256;

/// Query vectors (rows times grouped heads) that share one pass over the keys.
pub const TILE_VECTORS: usize = 48;

/// Query vectors of a tile whose rows see the same keys.
pub const WHOLE_VECTORS: usize = 128;

/// The numbers of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `kv_heads`.
    pub query_heads: usize,
    /// Key and value heads; query head `h` uses `h / (query_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Keys a query sees, itself included (`key > query - window`); `None` sees all.
    pub window: Option<usize>,
    /// Factor on every score.
    pub scale: f32,
    /// Whether the rows of a batch are whole sequences, as pictures are. Rows of a sequence that
    /// all see the same keys then have an attention kernel of their own, in another order of sums.
    pub whole: bool,
}

impl AttentionShape {
    /// Query heads per key head.
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// The number of rows of a tile: as many as keep it at [`TILE_VECTORS`] query vectors, at least
    /// one.
    pub fn tile_rows(&self) -> usize {
        (TILE_VECTORS / self.group()).max(1)
    }

    /// The number of rows of a tile whose rows see the same keys.
    pub(crate) fn whole_tile_rows(&self) -> usize {
        (WHOLE_VECTORS / self.group()).max(self.tile_rows())
    }

    /// Elements of a scratch row: the head, padded to whole vectors of any instruction set.
    pub(crate) fn padded(&self) -> usize {
        self.head_dim.next_multiple_of(crate::vector::lanes::MAX_LANES)
    }

    /// The first position that a query at `position` sees.
    pub fn first_key(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    fn check(&self) -> Result<(), AttentionError> {
        let heads = self.kv_heads > 0 && self.query_heads > 0;
        if !heads || !self.query_heads.is_multiple_of(self.kv_heads) || self.head_dim == 0 {
            return Err(AttentionError::Shape {
                query_heads: self.query_heads,
                kv_heads: self.kv_heads,
                head_dim: self.head_dim,
            });
        }
        Ok(())
    }
}

/// Why a cache cannot be made or a batch cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    /// The head counts do not fit each other.
    #[error(
        "{query_heads} query heads, {kv_heads} key heads and head size {head_dim} do not fit: all \
         must be positive and the first a multiple of the second; the model file is damaged"
    )]
    Shape {
        /// Query heads.
        query_heads: usize,
        /// Key heads.
        kv_heads: usize,
        /// Elements per head.
        head_dim: usize,
    },
    /// The cache does not fit in memory.
    #[error(transparent)]
    OutOfMemory(#[from] crate::shared::OutOfMemory),
    /// A block table is too short for its sequence.
    #[error("sequence {sequence} reaches position {position}, but its table has {blocks} blocks")]
    TableTooShort {
        /// Index in the batch.
        sequence: usize,
        /// Last position of the sequence.
        position: usize,
        /// Blocks in its table.
        blocks: usize,
    },
    /// A ring is too short: old keys would be overwritten before they are read.
    #[error("sequence {sequence} needs {needed} positions at once, but its ring holds {length}")]
    RingTooShort {
        /// Index in the batch.
        sequence: usize,
        /// Rows of the batch plus the window before the first, less one.
        needed: usize,
        /// Positions of the ring.
        length: usize,
    },
    /// A block or slot lies outside the cache.
    #[error("position {position} lies at {index} of a cache of {capacity} positions")]
    OutsideCache {
        /// Position in the sequence.
        position: usize,
        /// The index in the cache that the view gives it.
        index: usize,
        /// Positions of the cache.
        capacity: usize,
    },
    /// More work than the plan has room for.
    #[error("the batch needs more than {capacity} work items: split it")]
    TooManyItems {
        /// Items the plan was made for.
        capacity: usize,
    },
}
