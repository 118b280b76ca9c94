//! Operands: activations in the form in which a product takes them.
//!
//! ```text
//! Plain    f32, row-major, as the Plan's buffers hold them
//! Fixed16  16-bit fixed point with a scale for 32 values, split into high and low bytes for the integer dot product:
//!          value = scale * (256 * high + low); relative error 2^-16 of the block's largest value
//!          codes:  row, group of 128, [high 0..15, high 16..31, low 0..15, low 16..31][block 0..3][16 bytes]
//!          scales: row, block, (scale, sum of the 32 values) f32
//! Halves   f16 times a power of two for the row, because activations of Gemma exceed the range of f16; relative error 2^-11.
//!          Norms and conversions choose the power so that the row's largest magnitude is in [2^13, 2^14), and no value above
//!          2^-28 of that is lost; attention over an f16 cache takes 1; gated products one that bounds all rows
//!          codes:  row, column, f16
//!          scales: row, f32
//! Fragments
//!          the same values in the order in which subgroups hold left factors of 16 rows x 16 columns, of which a half is a right
//!          factor of 8 rows (`matmul/probe.rs`); rows are padded to tiles of 64 with rows that nobody writes
//!          codes:  tile of 64 rows, group of 128, product 2 w + h, 16 rows 0..3, lane 4 r + b, columns 16 h + 4 w.. of block b:
//!                  [0 and 2, 1 and 3] of [row r, row 8 + r], f16
//!          scales: row, f32
//! Split    f16 as in Fragments, and what each of them leaves of its value, f16 again: relative error 2^-22
//!          codes:  tile of 64 rows, group of 128, product 2 q + h, [halves, what they leave], 16 rows 0..3, lane 4 r + b,
//!                  [row r, row 8 + r], columns 32 q + 8 b + 4 h.. in order, f16
//!          scales: row, f32
//! Interleaved
//!          f32, one row of whole blocks of 32: the first four values of each block, then the next four of each, and so on
//! ```
//!
//! Rows of codes are padded with zeros to whole groups of 128. If a value is not finite, its block
//! (Fixed16) or row (Halves, Fragments, Split) has a scale of NaN; in halves of attention and of
//! gated products the value itself is the code instead.

use crate::dispatch::Span;

/// Elements that rows of operands and weights are padded to.
pub const GROUP: usize = 128;
/// Rows of a tile of an operand in fragment order.
pub const FRAGMENT_ROWS: usize = 64;
/// Elements that share a scale.
pub const SCALE_BLOCK: usize = 32;

/// The form of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperandKind {
    /// f32.
    Plain,
    /// 16-bit fixed point.
    Fixed16,
    /// f16 with a factor for each row.
    Halves,
    /// The same in the order in which matrix units of a known layout take them.
    Fragments,
    /// Two halves for each value, in such an order: of what is multiplied as exactly as in f32.
    Split,
    /// f32, one row: an invocation that takes a whole block reads next to its neighbours.
    Interleaved,
}

impl OperandKind {
    /// Returns whether its codes are halves, in whatever order.
    pub fn is_halves(self) -> bool {
        matches!(self, OperandKind::Halves | OperandKind::Fragments)
    }

    /// Returns whether its rows lie in tiles of [`FRAGMENT_ROWS`].
    pub(crate) fn is_tiled(self) -> bool {
        matches!(self, OperandKind::Fragments | OperandKind::Split)
    }

    /// Returns its name in texts, which is also its part of a key of measurements.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OperandKind::Plain => "f32",
            OperandKind::Fixed16 => "fixed16",
            OperandKind::Halves => "halves",
            OperandKind::Fragments => "fragments",
            OperandKind::Split => "split",
            OperandKind::Interleaved => "interleaved",
        }
    }

    /// Returns the bytes of the codes of a row.
    pub fn code_bytes(self, columns: usize) -> usize {
        let padded = columns.next_multiple_of(GROUP);
        match self {
            OperandKind::Plain | OperandKind::Interleaved => 4 * columns,
            OperandKind::Fixed16 | OperandKind::Halves | OperandKind::Fragments => 2 * padded,
            OperandKind::Split => 4 * padded,
        }
    }

    /// Returns the bytes of the scales of a row.
    pub fn scale_bytes(self, columns: usize) -> usize {
        match self {
            OperandKind::Plain | OperandKind::Interleaved => 0,
            OperandKind::Fixed16 => 8 * columns.next_multiple_of(GROUP) / SCALE_BLOCK,
            OperandKind::Halves | OperandKind::Fragments | OperandKind::Split => 4,
        }
    }
}

/// Where an operand is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// Its form.
    pub kind: OperandKind,
    /// Codes; the values themselves if they stay f32.
    pub codes: Span,
    /// Scales; empty if the values stay f32.
    pub scales: Span,
}

impl Operand {
    /// Rows in f32, as a product takes them.
    pub fn plain(rows: Span) -> Self {
        Self { kind: OperandKind::Plain, codes: rows, scales: Span { address: 0, bytes: 0 } }
    }

    /// Returns the memory that it takes.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        [self.codes, self.scales].into_iter().filter(|span| span.bytes > 0)
    }
}

/// Returns where a value of a row stands in the codes of [`OperandKind::Fragments`], in halves.
#[cfg(test)]
pub(crate) fn fragment_place(row: usize, column: usize, columns: usize) -> usize {
    let groups = columns.div_ceil(GROUP);
    let (group, block, within) = (column / GROUP, column % GROUP / 32, column % 32);
    let product = within % 16 / 4 * 2 + within / 16;
    let tile = ((row / 64 * groups + group) * 8 + product) * 4 + row % 64 / 16;
    let lane = row % 8 * 4 + block;
    ((tile * 32 + lane) * 4 + column % 2 * 2 + row / 8 % 2) * 2 + column % 4 / 2
}

/// Returns where a value of a row stands in the codes of [`OperandKind::Split`], in halves; what
/// its half leaves stands [`SPLIT_REST`] halves further on.
#[cfg(test)]
pub(crate) fn split_place(row: usize, column: usize, columns: usize) -> usize {
    let groups = columns.div_ceil(GROUP);
    let product = column % GROUP / 32 * 2 + column % 8 / 4;
    let tile = ((row / 64 * groups + column / GROUP) * 8 + product) * 8 + row % 64 / 16;
    let lane = row % 8 * 4 + column % 32 / 8;
    ((tile * 32 + lane) * 2 + row / 8 % 2) * 4 + column % 4
}

/// Halves from a value's half to what that leaves.
#[cfg(test)]
pub(crate) const SPLIT_REST: usize = 4 * 32 * 8;
