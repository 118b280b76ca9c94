//! The element formats of tensors.

use std::fmt;

use crate::formats::page::Page;
use crate::formats::{classic, codebook, floats, k_high, k_low, k_mid, tables, ternary};

macro_rules! formats {
    ($($(#[doc = $text:literal])* $name:ident: $page:path,)*) => {
        /// How the elements of a tensor are stored.
        ///
        /// The quantised formats are llama.cpp's (ggml's) blocks: a fixed number of elements share
        /// their scales. The files in `formats` describe the layouts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, reason = "the names everyone knows these formats by")]
        pub enum DType {
            $($(#[doc = $text])* $name,)*
        }

        impl DType {
            /// Every format, in declaration order.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];

            pub(crate) const fn page(self) -> &'static Page {
                match self {
                    $(Self::$name => &$page,)*
                }
            }
        }
    };
}

formats! {
    /// IEEE single precision.
    F32: floats::F32,
    /// IEEE half precision.
    F16: floats::F16,
    /// The upper half of a single-precision number.
    BF16: floats::BF16,
    /// 4 bits, symmetric, one scale per 32.
    Q4_0: classic::Q4_0,
    /// 4 bits with an offset, one scale and one minimum per 32.
    Q4_1: classic::Q4_1,
    /// 5 bits, symmetric, one scale per 32.
    Q5_0: classic::Q5_0,
    /// 5 bits with an offset, one scale and one minimum per 32.
    Q5_1: classic::Q5_1,
    /// 8 bits, symmetric, one scale per 32.
    Q8_0: classic::Q8_0,
    /// 2 bits, 256 elements in 16 runs with 4-bit scales and minima.
    Q2K: k_low::Q2_K,
    /// 3 bits, 256 elements in 16 runs with 6-bit scales.
    Q3K: k_low::Q3_K,
    /// 4 bits, 256 elements in 8 runs with 6-bit scales and minima.
    Q4K: k_mid::Q4_K,
    /// 5 bits, 256 elements in 8 runs with 6-bit scales and minima.
    Q5K: k_mid::Q5_K,
    /// 6 bits, 256 elements in 16 runs with 8-bit scales.
    Q6K: k_high::Q6_K,
    /// 4 bits into a table of unequal steps, one scale per 32.
    Iq4Nl: tables::IQ4_NL,
    /// 4 bits into a table of unequal steps, 256 elements in 8 runs with 6-bit scales.
    Iq4Xs: tables::IQ4_XS,
    /// 4-bit floats (E2M1) with a power-of-two scale per 32 (OCP Microscaling 1.0).
    Mxfp4: tables::MXFP4,
    /// 4-bit floats (E2M1) with an 8-bit float (E4M3) as scale per 16, and a factor for the matrix.
    Nvfp4: tables::NVFP4,
    /// 1.6 bits: one code for 8 elements, 256 elements in 8 runs with 3-bit scales.
    Iq1S: codebook::IQ1_S,
    /// 1.75 bits: one code for 8 elements, 256 elements in 16 runs with 3-bit scales.
    Iq1M: codebook::IQ1_M,
    /// 2.1 bits: one code for 8 elements, 256 elements in 8 runs with 4-bit scales.
    Iq2Xxs: codebook::IQ2_XXS,
    /// 2.3 bits: one code for 8 elements, 256 elements in 16 runs with 4-bit scales.
    Iq2Xs: codebook::IQ2_XS,
    /// 2.6 bits: as `IQ2_XS` with more codes, and all signs stored.
    Iq2S: codebook::IQ2_S,
    /// 3.1 bits: one code for 4 elements, 256 elements in 8 runs with 4-bit scales.
    Iq3Xxs: codebook::IQ3_XXS,
    /// 3.4 bits: as `IQ3_XXS` with more codes, and all signs stored.
    Iq3S: codebook::IQ3_S,
    /// -1, 0 and 1 in 1.6 bits, one scale per 256.
    Tq1_0: ternary::TQ1_0,
    /// -1, 0 and 1 in 2 bits, one scale per 256.
    Tq2_0: ternary::TQ2_0,
}

impl DType {
    /// Returns the name as llama.cpp spells it, for example `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.page().name
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
        self.page().ggml_id
    }

    /// Returns llama.cpp's number for a file that is mostly of this format (`enum llama_ftype`), or
    /// `None` if trine writes no such files.
    pub const fn file_type(self) -> Option<u32> {
        self.page().file_type
    }

    /// Returns where a block has numbers in half precision, in bytes from its beginning.
    pub const fn halves(self) -> &'static [usize] {
        self.page().halves
    }

    /// Returns the format for rows that are not whole blocks, if there is one of smaller blocks
    /// with no fewer bits.
    pub(crate) fn fallback(self) -> Option<Self> {
        let page = self.page().fallback?;
        Self::parse(page.name)
    }

    /// Returns the number of elements that share one block; 1 for the float formats.
    pub const fn block_elements(self) -> usize {
        self.page().elements
    }

    /// Returns the bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.page().bytes
    }

    /// Returns the bytes of a row of `columns` elements, or `None` if the row is not whole blocks
    /// or the size overflows.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        let Page { elements, bytes, .. } = *self.page();
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
        24 => "I8",
        25 => "I16",
        28 => "F64",
        _ => return None,
    })
}
