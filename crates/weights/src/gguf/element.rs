//! How the elements of a tensor in a GGUF file are stored.

use crate::DType;

/// The format of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// Weights.
    Values(DType),
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits.
    I64,
}

impl Element {
    /// Returns the format of a ggml type id as found in tensor tables, if trine reads it.
    pub(crate) fn from_ggml(id: u32) -> Option<Self> {
        let integers = [Self::I32, Self::I64].into_iter().find(|kind| kind.ggml_id() == id);
        integers.or_else(|| DType::from_ggml(id).map(Self::Values))
    }

    /// Returns the ggml type id.
    pub(crate) fn ggml_id(self) -> u32 {
        match self {
            Self::Values(dtype) => dtype.ggml_id(),
            Self::I32 => 26,
            Self::I64 => 27,
        }
    }

    /// Returns the name as llama.cpp spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Values(dtype) => dtype.name(),
            Self::I32 => "I32",
            Self::I64 => "I64",
        }
    }

    /// Returns the number of elements that share one block.
    pub(crate) fn block_elements(self) -> usize {
        match self {
            Self::Values(dtype) => dtype.block_elements(),
            Self::I32 | Self::I64 => 1,
        }
    }

    /// Returns the bytes of one block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Self::Values(dtype) => dtype.block_bytes(),
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Returns the bytes of a row of elements. `None` if they are not whole blocks or the
    /// size overflows.
    pub(crate) fn row_bytes(self, columns: usize) -> Option<usize> {
        let elements = self.block_elements();
        let blocks = columns.is_multiple_of(elements).then_some(columns / elements)?;
        blocks.checked_mul(self.block_bytes())
    }
}
