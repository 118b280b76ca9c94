//! A product with many rows of activations, and how its results are divided into tiles.

use crate::dispatch::Span;
use crate::kernels::operand::GROUP;
use crate::kernels::product::Product;
use crate::pack::Matrix;

/// Counters at the beginning of the scratch memory: one for each tile that several workgroups
/// share.
pub(super) const COUNTERS: usize = 4096;

/// If a product is too large for one dispatch, its pieces have a multiple of this many rows. No
/// tile has more rows of activations, so none reads beyond the memory of its piece.
pub(super) const PIECE_ROWS: usize = 128;

/// A product with many rows of activations. These are an operand, of the kind that
/// [`MatmulShape::operand`](super::MatmulShape::operand) names.
#[derive(Debug, Clone, Copy)]
pub struct MatmulLaunch {
    /// What is multiplied.
    pub product: Product,
    /// Memory for the parts of tiles that several workgroups share, at least
    /// [`MatmulLaunch::scratch_bytes`]. Its counters (the first [`MatmulLaunch::COUNTER_BYTES`])
    /// must be 0 before the first launch that uses it; each launch leaves them at 0.
    pub scratch: Option<Span>,
}

impl MatmulLaunch {
    /// Bytes at the beginning of the scratch memory that must be 0 before its first use.
    pub const COUNTER_BYTES: usize = 4 * COUNTERS;

    /// Returns the tiles of the output, if a tile has `features` rows of weights and `tokens` rows
    /// of activations.
    pub(super) fn tiles(&self, (features, tokens): (u32, u32)) -> u32 {
        let features = if self.product.is_gated() { features / 2 } else { features };
        let (outputs, width) = (self.product.outputs() as u32, self.product.width as u32);
        outputs.div_ceil(features) * width.div_ceil(tokens)
    }

    /// Returns whether kernels can count its parts: pieces of 8 bytes of weights, of 16 bytes of
    /// activations, and outputs. They count in 32 bits, one of which the driver takes as a sign.
    pub(super) fn is_countable(&self) -> bool {
        let Product { matrix, width, .. } = self.product;
        let Matrix { format, rows, columns, .. } = matrix;
        let padded = columns.next_multiple_of(GROUP);
        let least = if format.is_float() { 2 } else { 8 };
        (rows * padded / least).max(width * padded).max(width * rows) < 1 << 31
    }
}
