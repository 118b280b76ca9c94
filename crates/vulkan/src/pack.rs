//! Weights as the device holds them: from the file's blocks to planes that wide aligned loads read.
//!
//! A block is 32 consecutive elements of a row, a group is 128 (4 blocks). Rows are padded to whole
//! groups, matrices to [`ROWS_PADDED`] rows, with zero codes and zero scales: kernels then need no
//! masks over columns. A matrix is up to four planes, each row-major:
//!
//! ```text
//! codes   per row and group; [part][block 0..3][16 bytes]; of floats the elements in order
//! high    bits of codes beyond those, per block
//! scales  8, 16 or 32 bits per block; of codebooks the table of points
//! supers  32 or 64 bits per 256 elements
//! ```
//!
//! What they hold is said by the file of the format.
//!
//! Fragments are the exception: codes of 16 rows lie together, in the order in which subgroups hold
//! left factors of 16 rows x 16 columns (`kernels/matmul/probe.rs`), so that each lane loads its
//! part of one as one vector:
//!
//! ```text
//! codes   16 rows, group of 128, product 2 w + h, lane 4 r + b; 16 bytes: columns 0 and 2 of row r, of row r + 8, columns 1
//!         and 3 of row r, of row r + 8, of the four columns 16 h + 4 w.. of block b
//! ```
//!
//! The formats of the file are those of [`trine_weights::blocks`].

use trine_weights::DType;

use self::magnitudes::Magnitudes;
use self::page::Page;
pub use self::planes::{PackError, PlaneBytes, PlanesMut};
use crate::kernels::operand::GROUP;

mod bits;
mod classic;
mod codebook;
mod floats;
pub(crate) mod fragments;
mod k_low;
mod k_mid;
mod levels;
pub(crate) mod magnitudes;
mod page;
mod planes;
mod q4_0;
mod q6_k;
mod q8_0;
mod ternary;
#[cfg(test)]
pub(crate) mod tests;

/// Rows that a matrix is padded to, so that a tile of that many rows can be read whole.
pub const ROWS_PADDED: usize = 16;

macro_rules! formats {
    ($($(#[doc = $text:literal])* $name:ident: $page:path,)*) => {
        /// A format that the kernels read.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Format {
            $($(#[doc = $text])* $name,)*
            /// f16, 16 rows together in the order of left factors. Weights of pictures that matrix
            /// units of a known layout multiply; matrices have whole tiles of 16 rows.
            F16Fragments,
        }

        impl Format {
            /// All but [`Format::F16Fragments`], which only weights of pictures have.
            pub const ALL: [Format; [$(Format::$name),*].len()] = [$(Format::$name),*];

            fn page(self) -> &'static Page {
                match self {
                    $(Format::$name => &$page,)*
                    Format::F16Fragments => &floats::F16_FRAGMENTS,
                }
            }
        }
    };
}

formats! {
    /// f32.
    F32: floats::F32,
    /// f16.
    F16: floats::F16,
    /// The upper half of an f32.
    Bf16: floats::BF16,
    /// Signed bytes, a scale for 32.
    Q8_0: q8_0::PAGE,
    /// Signed nibbles, a scale for 32.
    Q4_0: q4_0::PAGE,
    /// Nibbles, a scale and a minimum for 32.
    Q4_1: classic::Q4_1,
    /// Five signed bits, a scale for 32.
    Q5_0: classic::Q5_0,
    /// Five bits, a scale and a minimum for 32.
    Q5_1: classic::Q5_1,
    /// Two bits, 4-bit scales and minima for 16, factors for 256.
    Q2K: k_low::Q2_K,
    /// Three signed bits, 8-bit scales for 16, a factor for 256.
    Q3K: k_low::Q3_K,
    /// Nibbles, 6-bit scales and minima for 32, factors for 256.
    Q4K: k_mid::Q4_K,
    /// Five bits, 6-bit scales and minima for 32, factors for 256.
    Q5K: k_mid::Q5_K,
    /// Six bits, 8-bit scales for 16, a factor for 256.
    Q6K: q6_k::PAGE,
    /// Numbers of sixteen levels, a scale for 32.
    Iq4Nl: levels::IQ4_NL,
    /// Numbers of sixteen levels, 8-bit scales for 32, a factor for 256.
    Iq4Xs: levels::IQ4_XS,
    /// Numbers of sixteen levels, an exponent for 32.
    Mxfp4: levels::MXFP4,
    /// Numbers of sixteen levels, an E4M3 scale for 16, a factor for the row.
    Nvfp4: levels::NVFP4,
    /// -1, 0, 1 in two bits, a factor for 256.
    Tq2_0: ternary::TQ2_0,
    /// -1, 0, 1 as digits to base 3, a factor for 256.
    Tq1_0: ternary::TQ1_0,
    /// Points of eight of 256, even signs, 4-bit scales for 32, a factor for 256.
    Iq2Xxs: codebook::IQ2_XXS,
    /// Points of eight of 512, even signs, 4-bit scales for 16, a factor for 256.
    Iq2Xs: codebook::IQ2_XS,
    /// Points of eight of 1024, signs, 4-bit scales for 16, a factor for 256.
    Iq2S: codebook::IQ2_S,
    /// Points of four of 256, even signs, 4-bit scales for 32, a factor for 256.
    Iq3Xxs: codebook::IQ3_XXS,
    /// Points of four of 512, signs, 4-bit scales for 32, a factor for 256.
    Iq3S: codebook::IQ3_S,
    /// Points of eight of 2048, a shift and 3-bit scales for 32, a factor for 256.
    Iq1S: codebook::IQ1_S,
    /// Points of eight of 2048, shifts for 8, 3-bit scales for 16, a factor for 256.
    Iq1M: codebook::IQ1_M,
}

/// Returns the device's format for a file's format, or `None` for one without kernels, which is
/// converted to Q8_0 first.
pub fn device_format(dtype: DType) -> Option<Format> {
    Format::ALL.into_iter().find(|format| format.dtype() == dtype)
}

/// Returns the format in which the device holds a file's format.
pub(crate) fn format_of(dtype: DType) -> Format {
    device_format(dtype).unwrap_or(Format::Q8_0)
}

impl Format {
    /// Returns the format's part of the names of shaders.
    pub fn name(self) -> &'static str {
        self.page().name
    }

    /// Returns the file's format.
    pub fn dtype(self) -> DType {
        self.page().dtype
    }

    /// Returns the elements of a unit: what one load of codes of an invocation holds.
    pub(crate) fn unit(self) -> u32 {
        self.page().unit
    }

    /// Returns whether a product takes the sums of activations.
    pub(crate) fn has_minimum(self) -> bool {
        self.page().has_minimum
    }

    /// Returns whether unpacking takes many registers.
    pub(crate) fn is_wide(self) -> bool {
        self.page().is_wide
    }

    /// Finds the largest magnitude that each block of a row in the file's format may have.
    pub(crate) fn magnitudes<'a>(self, found: &'a mut Magnitudes, row: &[u8]) -> &'a [f32] {
        (self.page().magnitudes)(found, row);
        &found.blocks
    }

    /// Returns whether matrices in a file's format are packed in this one, those in bf16 as f16
    /// where halves are wanted.
    pub(crate) fn holds(self, dtype: DType) -> bool {
        match self {
            Format::F16Fragments => matches!(dtype, DType::F16 | DType::BF16),
            format => device_format(dtype) == Some(format),
        }
    }

    /// Returns how many rows are packed together.
    pub(crate) fn rows_together(self) -> usize {
        if self == Format::F16Fragments { fragments::ROWS } else { 1 }
    }

    /// Returns whether the elements are floats. Products of floats take plain operands, those of
    /// other formats fixed-point operands.
    pub fn is_float(self) -> bool {
        !self.dtype().is_quantized()
    }

    /// Returns the bytes of each plane in one row of `columns` elements.
    pub fn row_bytes(self, columns: usize) -> PlaneBytes {
        let groups = columns.div_ceil(GROUP) as u64;
        let PlaneBytes { codes, high, scales, supers } = self.page().group;
        PlaneBytes {
            codes: codes * groups,
            high: high * groups,
            scales: scales * groups,
            supers: supers * groups.div_ceil(2),
        }
    }

    /// Returns the bytes of each plane of a matrix, its padding rows included, or `None` if that
    /// overflows.
    pub fn plane_bytes(self, rows: usize, columns: usize) -> Option<PlaneBytes> {
        let rows = rows.checked_next_multiple_of(ROWS_PADDED)?;
        let mut planes = self.row_bytes(columns).times(rows as u64)?;
        planes.scales =
            planes.scales.checked_add(4 * codebook::table_of(self.dtype()).len() as u64)?;
        Some(planes)
    }

    /// Returns what a matrix has in the place of scales once for all rows, if anything.
    pub fn table(self) -> Vec<u8> {
        codebook::table_of(self.dtype()).iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Multiplies packed rows by factors of their own. Only NVFP4 has any.
pub(crate) fn put_factors(planes: &mut PlanesMut<'_>, row: PlaneBytes, of: impl Fn(usize) -> f32) {
    let rows = planes.supers.chunks_exact_mut(row.supers as usize);
    for (index, supers) in rows.enumerate() {
        supers.as_chunks_mut::<4>().0.fill(of(index).to_le_bytes());
    }
}

/// A matrix in device memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Matrix {
    /// Its format.
    pub format: Format,
    /// Rows without padding.
    pub rows: usize,
    /// Elements of a row without padding.
    pub columns: usize,
    /// Device addresses of the planes; 0 for absent ones.
    pub planes: PlaneBytes,
    /// Power of two of which no weight in bf16 or f32 is more than 2^15 times as large, in which
    /// kernels count them as halves; NaN if one is not finite. 1 for other formats.
    pub unit: f32,
}

impl Matrix {
    /// Returns a matrix whose planes lie in one allocation as [`PlaneBytes::layout`] says, and the
    /// bytes that it takes. Returns `None` if the sizes overflow.
    pub fn at(address: u64, format: Format, rows: usize, columns: usize) -> Option<(Matrix, u64)> {
        let sizes = format.plane_bytes(rows, columns)?;
        let (starts, total) = sizes.layout()?;
        address.checked_add(total)?;
        let plane = |start: u64, bytes: u64| if bytes > 0 { address + start } else { 0 };
        let planes = PlaneBytes {
            codes: plane(starts.codes, sizes.codes),
            high: plane(starts.high, sizes.high),
            scales: plane(starts.scales, sizes.scales),
            supers: plane(starts.supers, sizes.supers),
        };
        Some((Matrix { format, rows, columns, planes, unit: 1.0 }, total))
    }

    /// Returns `rows` rows of the matrix from `first` on as a matrix.
    pub(crate) fn part(&self, first: usize, rows: usize) -> Self {
        let row = self.format.row_bytes(self.columns);
        let after = |plane: u64, bytes: u64| plane + first as u64 * bytes;
        let planes = PlaneBytes {
            codes: after(self.planes.codes, row.codes),
            high: after(self.planes.high, row.high),
            scales: after(self.planes.scales, row.scales),
            supers: after(self.planes.supers, row.supers),
        };
        Self { rows, planes, ..*self }
    }

    /// Returns the bytes of the weights, and the additions and multiplications of a product with
    /// `width` rows of activations.
    pub(crate) fn cost(&self, width: usize) -> (u64, u64) {
        let row = self.format.row_bytes(self.columns);
        let elements = self.rows as u64 * self.columns as u64;
        (row.total() * self.rows as u64, 2 * elements * width as u64)
    }
}

/// Packs whole rows. `source` holds them in the file's format, and `planes` is exactly as long as
/// the rows are in each plane.
///
/// # Errors
/// [`PackError`] if the lengths do not fit.
pub fn pack_rows(
    format: Format,
    columns: usize,
    source: &[u8],
    planes: &mut PlanesMut<'_>,
) -> Result<(), PackError> {
    let fail = || PackError::Source { format: format.dtype().name(), columns, bytes: source.len() };
    let bytes = format.dtype().row_bytes(columns).filter(|&bytes| bytes > 0).ok_or_else(fail)?;
    let rows = source.len() / bytes;
    if !source.len().is_multiple_of(bytes) || !rows.is_multiple_of(format.rows_together()) {
        return Err(fail());
    }
    let row = format.row_bytes(columns);
    planes.check(row.times(rows as u64).ok_or_else(fail)?, rows)?;
    if format == Format::F16Fragments {
        fragments::pack(columns, source, planes.codes);
        return Ok(());
    }
    let mut rest = planes.reborrow();
    for source in source.chunks_exact(bytes) {
        let (own, others) = rest.split_at_row(row, 1);
        (format.page().pack)(source, own);
        rest = others;
    }
    Ok(())
}
