//! The element formats of tensors.

use std::fmt;

/// How the elements of a tensor are stored.
///
/// The quantised formats are llama.cpp's (ggml's) blocks: a fixed number of elements share their
/// scales. [`crate::blocks`] describes the layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the names everyone knows these formats by")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single-precision number.
    BF16,
    /// 4 bits, symmetric, one scale per 32.
    Q4_0,
    /// 4 bits with an offset, one scale and one minimum per 32.
    Q4_1,
    /// 5 bits, symmetric, one scale per 32.
    Q5_0,
    /// 5 bits with an offset, one scale and one minimum per 32.
    Q5_1,
    /// 8 bits, symmetric, one scale per 32.
    Q8_0,
    /// 2 bits, 256 elements in 16 runs with 4-bit scales and minima.
    Q2K,
    /// 3 bits, 256 elements in 16 runs with 6-bit scales.
    Q3K,
    /// 4 bits, 256 elements in 8 runs with 6-bit scales and minima.
    Q4K,
    /// 5 bits, 256 elements in 8 runs with 6-bit scales and minima.
    Q5K,
    /// 6 bits, 256 elements in 16 runs with 8-bit scales.
    Q6K,
    /// 4 bits into a table of unequal steps, one scale per 32.
    Iq4Nl,
    /// 4 bits into a table of unequal steps, 256 elements in 8 runs with 6-bit scales.
    Iq4Xs,
    /// 4-bit floats (E2M1) with a power-of-two scale per 32 (OCP Microscaling 1.0).
    Mxfp4,
}

impl DType {
    /// Every format, in declaration order.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// Returns the name, the ggml type id, the elements per block and the bytes per block.
    const fn facts(self) -> (&'static str, u32, usize, usize) {
        match self {
            Self::F32 => ("F32", 0, 1, 4),
            Self::F16 => ("F16", 1, 1, 2),
            Self::BF16 => ("BF16", 30, 1, 2),
            Self::Q4_0 => ("Q4_0", 2, 32, 18),
            Self::Q4_1 => ("Q4_1", 3, 32, 20),
            Self::Q5_0 => ("Q5_0", 6, 32, 22),
            Self::Q5_1 => ("Q5_1", 7, 32, 24),
            Self::Q8_0 => ("Q8_0", 8, 32, 34),
            Self::Q2K => ("Q2_K", 10, 256, 84),
            Self::Q3K => ("Q3_K", 11, 256, 110),
            Self::Q4K => ("Q4_K", 12, 256, 144),
            Self::Q5K => ("Q5_K", 13, 256, 176),
            Self::Q6K => ("Q6_K", 14, 256, 210),
            Self::Iq4Nl => ("IQ4_NL", 20, 32, 18),
            Self::Iq4Xs => ("IQ4_XS", 23, 256, 136),
            Self::Mxfp4 => ("MXFP4", 39, 32, 17),
        }
    }

    /// Returns the name as llama.cpp spells it, for example `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// Returns the format of a name such as `Q4_K` or `q4_k`; case does not matter.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name().eq_ignore_ascii_case(name))
    }

    /// Returns the format of a ggml type id as found in GGUF tensor tables.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.ggml_id() == id)
    }

    /// Returns the ggml type id.
    pub const fn ggml_id(self) -> u32 {
        self.facts().1
    }

    /// Returns the number of elements that share one block; 1 for the float formats.
    pub const fn block_elements(self) -> usize {
        self.facts().2
    }

    /// Returns the bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.facts().3
    }

    /// Returns the bytes of a row of `columns` elements, or `None` if the row is not whole blocks
    /// or the size overflows.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        let (_, _, elements, bytes) = self.facts();
        if columns.is_multiple_of(elements) {
            (columns / elements).checked_mul(bytes)
        } else {
            None
        }
    }

    /// Returns whether elements share block scales, as in all formats but F32, F16 and BF16.
    pub const fn is_quantized(self) -> bool {
        self.block_elements() > 1
    }
}

impl fmt::Display for DType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Returns the name of a ggml type that trine does not decode, for messages.
pub(crate) fn foreign_ggml_name(id: u32) -> Option<&'static str> {
    Some(match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        _ => return None,
    })
}
