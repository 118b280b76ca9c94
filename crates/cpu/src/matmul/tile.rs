//! What the kernels of [`super::kernel`] work on: pointers into weights, activations and outputs,
//! with the sizes that they rely on.

use crate::quantize::QuantizedBlock;

use super::layout::Layout;

/// Block `index` of a panel of `layout`.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) layout: &'a Layout,
    pub(super) panel: *const u8,
    pub(super) index: usize,
}

/// The columns of a tile: quantised rows `stride` blocks apart, at one block index.
#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) first: *const QuantizedBlock,
    pub(super) stride: usize,
}

impl Columns {
    /// Returns the block of column `index`.
    ///
    /// # Safety
    /// The column exists.
    #[inline(always)]
    pub(super) unsafe fn at(self, index: usize) -> *const QuantizedBlock {
        // SAFETY: the caller's promise.
        unsafe { self.first.add(index * self.stride) }
    }
}

/// Weights that are prefetched during a tile: from `pointer` on, which advances by `step` bytes per
/// block. Each block prefetches the cache line at the pointer, or as many as the step covers.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    pub(super) pointer: *const u8,
    pub(super) step: usize,
    /// The block from which on the pointer of a pair tile is a panel further: in the next pair.
    pub(super) turn: usize,
}

/// One tile of integer work.
pub(super) struct Tile<'a> {
    pub(super) layout: &'a Layout,
    pub(super) panel: *const u8,
    /// The second panel of a pair tile.
    pub(super) second: *const u8,
    /// The first block of the panels that is used; `columns` begin with its activations.
    pub(super) first: usize,
    pub(super) blocks: usize,
    pub(super) columns: Columns,
    pub(super) output: *mut f32,
    pub(super) output_stride: usize,
    pub(super) rows: usize,
    /// Whether to continue the sums in the output. Sums are then added in the same order as in one
    /// run over all blocks, so that results do not depend on how the work was cut.
    pub(super) accumulate: bool,
    pub(super) prefetch: Prefetch,
}

impl Tile<'_> {
    /// Returns the tile of only the column `index`.
    pub(super) fn column(&self, index: usize) -> Self {
        Tile {
            columns: Columns {
                first: self.columns.first.wrapping_add(index * self.columns.stride),
                ..self.columns
            },
            output: self.output.wrapping_add(index * self.output_stride),
            ..*self
        }
    }
}

/// A run of blocks to unpack into scratch.
pub(super) struct Unpack<'a> {
    pub(super) layout: &'a Layout,
    pub(super) panel: *const u8,
    pub(super) first: usize,
    pub(super) blocks: usize,
    pub(super) scratch: *mut u8,
    /// Weights that are prefetched meanwhile, from here on, `step` bytes per block.
    pub(super) prefetch: *const u8,
    pub(super) step: usize,
}

/// One tile of float work.
pub(super) struct FloatTile {
    pub(super) panel: *const u8,
    /// The second panel of a pair.
    pub(super) second: *const u8,
    /// Columns of weights, from those that the panels point to on.
    pub(super) length: usize,
    pub(super) input: *const f32,
    pub(super) input_stride: usize,
    pub(super) output: *mut f32,
    pub(super) output_stride: usize,
    pub(super) rows: usize,
    /// Whether to continue the sums in the output, as in [`Tile`].
    pub(super) accumulate: bool,
    /// Weights that a tile of one panel prefetches meanwhile.
    pub(super) prefetch: *const u8,
}
