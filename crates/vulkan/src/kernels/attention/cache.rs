//! The layout of keys and values in device memory.
//!
//! ```text
//! cache: block, kv head, [keys, values], part
//! part:  32 positions x dim elements, row-major: f32, f16 or int8 codes;
//!        int8: then 32 positions x (dim / group) f16 scales; padded to 16 bytes
//! ```
//!
//! Position `p` of a sequence is in block `tables[row.table + p / 32]` of a global layer, and in
//! block `row.slot * ring_blocks + p / 32 % ring_blocks` of a local one.

use trine_model::KvType;

use crate::dispatch::Span;

/// Positions of a block.
pub const KV_BLOCK: usize = 32;

/// Keys and values of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheSpan {
    /// The memory.
    pub span: Span,
    /// How values are stored.
    pub kind: KvType,
    /// Key heads.
    pub heads: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Blocks of a slot's ring in a local layer; 0 if the blocks are in tables.
    pub ring_blocks: u32,
}

impl CacheSpan {
    /// Returns the bytes of one head's keys (or values) in one block.
    pub fn part_bytes(kind: KvType, dim: usize) -> usize {
        (KV_BLOCK * kind.head_bytes(dim)).next_multiple_of(16)
    }

    /// Returns the bytes of a cache of `blocks` blocks.
    pub fn bytes(kind: KvType, heads: usize, dim: usize, blocks: usize) -> u64 {
        (blocks * heads * 2 * Self::part_bytes(kind, dim)) as u64
    }

    /// Returns how many elements 16 bytes of the cache hold, if heads consist of whole such pieces.
    pub(super) fn wide_elements(&self) -> Option<usize> {
        let elements = match self.kind {
            KvType::F32 => 4,
            KvType::F16 => 8,
            KvType::Int8 => 16,
        };
        self.dim.is_multiple_of(elements).then_some(elements)
    }
}

/// Returns the shaders' number of a type.
pub(crate) fn kv_number(kind: KvType) -> u32 {
    match kind {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Int8 => 2,
    }
}
