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
//! Interleaved
//!          f32, one row of whole blocks of 32: the first four values of each block, then the next four of each, and so on
//! ```
//!
//! Rows of codes are padded with zeros to whole groups of 128. If a value is not finite, its block
//! (Fixed16) or row (Halves) has a scale of NaN; in halves of attention and of gated products the
//! value itself is the code instead.

use crate::dispatch::Span;

/// Elements that rows of operands and weights are padded to.
pub const GROUP: usize = 128;
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
    /// f32, one row: an invocation that takes a whole block reads next to its neighbours.
    Interleaved,
}

impl OperandKind {
    /// Returns its name in texts, which is also its part of a key of measurements.
    pub(crate) fn name(self) -> &'static str {
        match self {
            OperandKind::Plain => "f32",
            OperandKind::Fixed16 => "fixed16",
            OperandKind::Halves => "halves",
            OperandKind::Interleaved => "interleaved",
        }
    }

    /// Returns the bytes of the codes of a row.
    pub fn code_bytes(self, columns: usize) -> usize {
        let padded = columns.next_multiple_of(GROUP);
        match self {
            OperandKind::Plain | OperandKind::Interleaved => 4 * columns,
            OperandKind::Fixed16 | OperandKind::Halves => 2 * padded,
        }
    }

    /// Returns the bytes of the scales of a row.
    pub fn scale_bytes(self, columns: usize) -> usize {
        match self {
            OperandKind::Plain | OperandKind::Interleaved => 0,
            OperandKind::Fixed16 => 8 * columns.next_multiple_of(GROUP) / SCALE_BLOCK,
            OperandKind::Halves => 4,
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
    /// Returns the memory that it takes.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        [self.codes, self.scales].into_iter().filter(|span| span.bytes > 0)
    }
}
