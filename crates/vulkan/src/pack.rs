//! Weights as the device holds them: from the file's blocks to planes that wide aligned loads read.
//!
//! A block is 32 consecutive elements of a row, a group is 128 (4 blocks). Rows are padded to whole
//! groups, matrices to [`ROWS_PADDED`] rows, with zero codes and zero scales: kernels then need no
//! masks over columns. A matrix is up to four planes, each row-major:
//!
//! ```text
//! codes   per row and group; [part][block 0..3][16 bytes]
//!         Q4_0, Q4_K  1 part; byte i of a block: element i in the low nibble, element i + 16 in the high one.
//!                     Q4_0 holds q - 8 in two's complement, Q4_K the unsigned q
//!         Q8_0        2 parts: elements 0..15, elements 16..31
//!         Q6_K        1 part of the low nibbles of q - 32 in two's complement
//!         F32, F16, BF16  elements in order
//! high    Q6_K: per block 8 bytes, two words: bits (x >> 2k) & 0x03030303 of the first are the high bit pairs of elements
//!         4k..4k+3, those of the second of elements 16 + 4k...
//! scales  16 bits per block: Q4_0, Q8_0 the f16 scale; Q4_K scale | minimum << 8; Q6_K the two signed scales of its halves
//! supers  32 bits per 256 elements: Q4_K f16 d | f16 dmin << 16; Q6_K f16 d
//! ```
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

use thiserror::Error;
use trine_weights::DType;

use crate::kernels::operand::GROUP;

pub(crate) mod fragments;
#[cfg(test)]
pub(crate) mod tests;

/// Rows that a matrix is padded to, so that a tile of that many rows can be read whole.
pub const ROWS_PADDED: usize = 16;
/// Bytes that each plane is aligned to.
const PLANE_ALIGNMENT: u64 = 256;

/// A format that the kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// f32.
    F32,
    /// f16.
    F16,
    /// f16, 16 rows together in the order of left factors. Weights of pictures that matrix units of
    /// a known layout multiply; matrices have whole tiles of 16 rows.
    F16Fragments,
    /// The upper half of an f32.
    Bf16,
    /// Signed bytes, a scale for 32.
    Q8_0,
    /// Signed nibbles, a scale for 32.
    Q4_0,
    /// Nibbles, 6-bit scales and minima for 32, factors for 256.
    Q4K,
    /// Six bits, 8-bit scales for 16, a factor for 256.
    Q6K,
}

/// Returns the device's format for a file's format, or `None` for formats that are converted to
/// Q8_0 first.
pub fn device_format(dtype: DType) -> Option<Format> {
    Some(match dtype {
        DType::F32 => Format::F32,
        DType::F16 => Format::F16,
        DType::BF16 => Format::Bf16,
        DType::Q8_0 => Format::Q8_0,
        DType::Q4_0 => Format::Q4_0,
        DType::Q4K => Format::Q4K,
        DType::Q6K => Format::Q6K,
        _ => return None,
    })
}

/// Returns the format in which the device holds a file's format.
pub(crate) fn format_of(dtype: DType) -> Format {
    device_format(dtype).unwrap_or(Format::Q8_0)
}

/// One number for each plane: its bytes in a row, in several rows or in a matrix, or its place.
/// Absent planes have 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlaneBytes {
    /// Codes.
    pub codes: u64,
    /// High bit pairs.
    pub high: u64,
    /// Scales of blocks.
    pub scales: u64,
    /// Factors of 256 elements.
    pub supers: u64,
}

impl PlaneBytes {
    /// Returns the planes of `rows` rows, if `self` is the planes of one row.
    pub fn times(self, rows: u64) -> Option<Self> {
        Some(Self {
            codes: self.codes.checked_mul(rows)?,
            high: self.high.checked_mul(rows)?,
            scales: self.scales.checked_mul(rows)?,
            supers: self.supers.checked_mul(rows)?,
        })
    }

    /// Returns the bytes of all planes.
    pub(crate) fn total(self) -> u64 {
        self.codes + self.high + self.scales + self.supers
    }

    /// Returns where each plane begins in one allocation (codes first, each aligned to 256 bytes)
    /// and the bytes of all planes. Returns `None` if that overflows.
    pub fn layout(self) -> Option<(PlaneBytes, u64)> {
        let after = |start: u64, bytes: u64| {
            start.checked_add(bytes)?.checked_next_multiple_of(PLANE_ALIGNMENT)
        };
        let high = after(0, self.codes)?;
        let scales = after(high, self.high)?;
        let supers = after(scales, self.scales)?;
        let end = after(supers, self.supers)?;
        Some((Self { codes: 0, high, scales, supers }, end))
    }
}

impl Format {
    /// Returns the format's part of the names of shaders.
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::F16 => "f16",
            Format::F16Fragments => "f16_fragments",
            Format::Bf16 => "bf16",
            Format::Q8_0 => "q8_0",
            Format::Q4_0 => "q4_0",
            Format::Q4K => "q4_k",
            Format::Q6K => "q6_k",
        }
    }

    /// All but [`Format::F16Fragments`], which only weights of pictures have.
    pub const ALL: [Format; 7] = [
        Format::F32,
        Format::F16,
        Format::Bf16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4K,
        Format::Q6K,
    ];

    /// Returns the file's format.
    pub fn dtype(self) -> DType {
        match self {
            Format::F32 => DType::F32,
            Format::F16 | Format::F16Fragments => DType::F16,
            Format::Bf16 => DType::BF16,
            Format::Q8_0 => DType::Q8_0,
            Format::Q4_0 => DType::Q4_0,
            Format::Q4K => DType::Q4K,
            Format::Q6K => DType::Q6K,
        }
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
        let blocks = 4 * groups;
        let supers = 4 * groups.div_ceil(2);
        match self {
            Format::F32 => PlaneBytes { codes: 512 * groups, ..Default::default() },
            Format::F16 | Format::F16Fragments | Format::Bf16 => {
                PlaneBytes { codes: 256 * groups, ..Default::default() }
            }
            Format::Q8_0 => {
                PlaneBytes { codes: 128 * groups, scales: 2 * blocks, ..Default::default() }
            }
            Format::Q4_0 => {
                PlaneBytes { codes: 64 * groups, scales: 2 * blocks, ..Default::default() }
            }
            Format::Q4K => PlaneBytes { codes: 64 * groups, high: 0, scales: 2 * blocks, supers },
            Format::Q6K => {
                PlaneBytes { codes: 64 * groups, high: 32 * groups, scales: 2 * blocks, supers }
            }
        }
    }

    /// Returns the bytes of each plane of a matrix, its padding rows included, or `None` if that
    /// overflows.
    pub fn plane_bytes(self, rows: usize, columns: usize) -> Option<PlaneBytes> {
        let rows = rows.checked_next_multiple_of(ROWS_PADDED)?;
        self.row_bytes(columns).times(rows as u64)
    }
}

/// A matrix in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Its format.
    pub format: Format,
    /// Rows without padding.
    pub rows: usize,
    /// Elements of a row without padding.
    pub columns: usize,
    /// Device addresses of the planes; 0 for absent ones.
    pub planes: PlaneBytes,
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
        Some((Matrix { format, rows, columns, planes }, total))
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

/// Why rows were not packed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackError {
    /// The source is not whole rows.
    #[error(
        "{bytes} bytes are not whole rows of {columns} {format} elements; the file is damaged, download it again"
    )]
    Source {
        /// Name of the format.
        format: &'static str,
        /// Elements of a row.
        columns: usize,
        /// Bytes of the source.
        bytes: usize,
    },
    /// A plane does not have as many bytes as the rows take.
    #[error("the {plane} plane of {rows} rows takes {expected} bytes, not {found}")]
    Plane {
        /// Name of the plane.
        plane: &'static str,
        /// Rows of the source.
        rows: usize,
        /// Bytes that they take.
        expected: u64,
        /// Bytes found.
        found: usize,
    },
}

/// The bytes of some rows in each plane. They are written from front to back and never read, so
/// they may be device memory.
#[derive(Debug, Default)]
pub struct PlanesMut<'a> {
    /// Codes.
    pub codes: &'a mut [u8],
    /// High bit pairs.
    pub high: &'a mut [u8],
    /// Scales of blocks.
    pub scales: &'a mut [u8],
    /// Factors of 256 elements.
    pub supers: &'a mut [u8],
}

impl<'a> PlanesMut<'a> {
    /// Returns the planes of a matrix in one allocation laid out by [`PlaneBytes::layout`], or
    /// `None` if the allocation is too short.
    pub fn of_allocation(bytes: &'a mut [u8], planes: PlaneBytes) -> Option<Self> {
        let (starts, total) = planes.layout()?;
        let rest = bytes.get_mut(..usize::try_from(total).ok()?)?;
        let (codes, rest) = rest.split_at_mut(starts.high as usize);
        let (high, rest) = rest.split_at_mut((starts.scales - starts.high) as usize);
        let (scales, supers) = rest.split_at_mut((starts.supers - starts.scales) as usize);
        Some(Self {
            codes: &mut codes[..planes.codes as usize],
            high: &mut high[..planes.high as usize],
            scales: &mut scales[..planes.scales as usize],
            supers: &mut supers[..planes.supers as usize],
        })
    }

    /// Splits the planes into the first `rows` rows and the rest, for different threads.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn split_at_row(self, row: PlaneBytes, rows: usize) -> (Self, Self) {
        let at = |bytes: u64| bytes as usize * rows;
        let (codes, codes_rest) = self.codes.split_at_mut(at(row.codes));
        let (high, high_rest) = self.high.split_at_mut(at(row.high));
        let (scales, scales_rest) = self.scales.split_at_mut(at(row.scales));
        let (supers, supers_rest) = self.supers.split_at_mut(at(row.supers));
        (
            Self { codes, high, scales, supers },
            Self { codes: codes_rest, high: high_rest, scales: scales_rest, supers: supers_rest },
        )
    }

    /// Writes zeros: rows of padding.
    pub fn clear(&mut self) {
        self.codes.fill(0);
        self.high.fill(0);
        self.scales.fill(0);
        self.supers.fill(0);
    }

    fn check(&self, expected: PlaneBytes, rows: usize) -> Result<(), PackError> {
        let planes = [
            ("codes", expected.codes, self.codes.len()),
            ("high", expected.high, self.high.len()),
            ("scales", expected.scales, self.scales.len()),
            ("supers", expected.supers, self.supers.len()),
        ];
        match planes.into_iter().find(|&(_, expected, found)| expected != found as u64) {
            None => Ok(()),
            Some((plane, expected, found)) => {
                Err(PackError::Plane { plane, rows, expected, found })
            }
        }
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
    let at = |index: usize, bytes: u64| index * bytes as usize..(index + 1) * bytes as usize;
    for (index, source) in source.chunks_exact(bytes).enumerate() {
        let codes = &mut planes.codes[at(index, row.codes)];
        let scales = &mut planes.scales[at(index, row.scales)];
        let supers = &mut planes.supers[at(index, row.supers)];
        match format {
            Format::F32 | Format::F16 | Format::F16Fragments | Format::Bf16 => {
                let (values, padding) = codes.split_at_mut(bytes);
                values.copy_from_slice(source);
                padding.fill(0);
            }
            Format::Q8_0 => pack_classic(source, codes, scales, [0; 34], q8_0_group),
            Format::Q4_0 => pack_classic(source, codes, scales, Q4_0_ZEROS, q4_0_group),
            Format::Q4K => pack_q4_k(source, codes, scales, supers),
            Format::Q6K => {
                let high = &mut planes.high[at(index, row.high)];
                pack_q6_k(source, codes, high, scales, supers);
            }
        }
    }
    Ok(())
}

/// Packs Q4_0 and Q8_0: a block is a scale and `BYTES` - 2 bytes of codes, a group is four blocks.
/// `group` orders the codes of a group.
fn pack_classic<const BYTES: usize, const CODES: usize>(
    source: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
    padding: [u8; BYTES],
    group: fn(&[[u8; BYTES]; 4], &mut [u8; CODES]),
) {
    let (blocks, _) = source.as_chunks::<BYTES>();
    let (codes, _) = codes.as_chunks_mut::<CODES>();
    let (scales, _) = scales.as_chunks_mut::<8>();
    let (whole, rest) = blocks.as_chunks::<4>();
    let mut padded = [padding; 4];
    padded[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&padded);
    for ((blocks, codes), scales) in whole.iter().chain(last).zip(codes).zip(scales) {
        let mut out = [0; CODES];
        group(blocks, &mut out);
        *codes = out;
        let mut out = [0; 8];
        for (out, block) in out.as_chunks_mut::<2>().0.iter_mut().zip(blocks) {
            *out = [block[0], block[1]];
        }
        *scales = out;
    }
}

/// A block of zeros: a scale of 0, and codes that pack to 0.
const Q4_0_ZEROS: [u8; 18] = {
    let mut block = [0x88; 18];
    block[0] = 0;
    block[1] = 0;
    block
};

fn q4_0_group(blocks: &[[u8; 18]; 4], out: &mut [u8; 64]) {
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<16>().0) {
        *out = std::array::from_fn(|at| block[2 + at] ^ 0x88);
    }
}

fn q8_0_group(blocks: &[[u8; 34]; 4], out: &mut [u8; 128]) {
    let (first, second) = out.split_at_mut(64);
    for (index, block) in blocks.iter().enumerate() {
        first[16 * index..][..16].copy_from_slice(&block[2..18]);
        second[16 * index..][..16].copy_from_slice(&block[18..34]);
    }
}

/// Returns 16 bytes whose nibbles are the low (shift 0) or high (shift 4) nibbles of 16 bytes and
/// of 16 other bytes.
fn nibbles(low: &[u8; 16], high: &[u8; 16], shift: u32) -> [u8; 16] {
    // Byte by byte: compilers make vectors of this, but not of shifts of 128 bits.
    std::array::from_fn(|at| (low[at] >> shift) & 15 | (high[at] >> shift) << 4)
}

fn pack_q4_k(source: &[u8], codes: &mut [u8], scales: &mut [u8], supers: &mut [u8]) {
    let (blocks, _) = source.as_chunks::<144>();
    let codes = codes.as_chunks_mut::<128>().0;
    let scales = scales.as_chunks_mut::<16>().0;
    let supers = supers.as_chunks_mut::<4>().0;
    for (((block, codes), scales), supers) in blocks.iter().zip(codes).zip(scales).zip(supers) {
        // The first has the scales.
        let sources = block.as_chunks::<16>().0;
        for (pair, out) in codes.as_chunks_mut::<16>().0.chunks_exact_mut(2).enumerate() {
            let (low, high) = (&sources[1 + 2 * pair], &sources[2 + 2 * pair]);
            out[0] = nibbles(low, high, 0);
            out[1] = nibbles(low, high, 4);
        }
        *scales = q4_k_scales(block);
        *supers = [block[0], block[1], block[2], block[3]];
    }
}

/// Returns the 6-bit scale and minimum of each of the eight runs of a block of Q4_K, from the
/// twelve bytes that `trine_weights::blocks` describes.
pub(crate) fn q4_k_scales(block: &[u8; 144]) -> [u8; 16] {
    let packed = &block[4..16];
    let mut out = [0; 16];
    for run in 0..4 {
        let (a, b, c) = (packed[run], packed[run + 4], packed[run + 8]);
        out[2 * run] = a & 63;
        out[2 * run + 1] = b & 63;
        out[2 * run + 8] = c & 15 | a >> 6 << 4;
        out[2 * run + 9] = c >> 4 | b >> 6 << 4;
    }
    out
}

fn pack_q6_k(
    source: &[u8],
    codes: &mut [u8],
    high: &mut [u8],
    scales: &mut [u8],
    supers: &mut [u8],
) {
    let (blocks, _) = source.as_chunks::<210>();
    let codes = codes.as_chunks_mut::<128>().0;
    let highs = high.as_chunks_mut::<64>().0;
    let scales = scales.as_chunks_mut::<16>().0;
    let supers = supers.as_chunks_mut::<4>().0;
    let planes = codes.iter_mut().zip(highs).zip(scales).zip(supers);
    for (block, (((codes, high), scales), supers)) in blocks.iter().zip(planes) {
        // 128 bytes of low nibbles, 64 of high pairs, 16 scales; then the factor.
        let sources = block.as_chunks::<16>().0;
        for (run, out) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (half, quarter) = (run / 4, run % 4);
            let low = 4 * half + 2 * (quarter % 2);
            *out = nibbles(&sources[low], &sources[low + 1], 4 * (quarter as u32 / 2));
        }
        let mut out = [0; 64];
        let words = out.as_chunks_mut::<4>().0;
        for (index, source) in sources[8..12].iter().enumerate() {
            let (half, part) = (index / 2, index % 2);
            for (quarter, word) in q6_k_pairs(source).into_iter().enumerate() {
                words[2 * (4 * half + quarter) + part] = word.to_le_bytes();
            }
        }
        *high = out;
        *scales = sources[12];
        *supers = [block[208], block[209], 0, 0];
    }
}

/// Returns the high pairs of 16 elements of each of four runs, in one word each. Byte b of word k
/// of the source has the pairs of elements 4k + b, that of run r at bit 2r; byte b of word r of the
/// result has pair k at bit 2k. So the pairs at the same place of four words are transposed: first
/// two by two, then within these. Inverting the upper bit turns q into q - 32 in two's complement.
fn q6_k_pairs(source: &[u8; 16]) -> [u32; 4] {
    let bytes = source.as_chunks::<4>().0;
    let mut words: [u32; 4] = std::array::from_fn(|k| u32::from_le_bytes(bytes[k]));
    for (first, second, bits, mask) in [
        (0, 2, 4, 0x0F0F_0F0F),
        (1, 3, 4, 0x0F0F_0F0F),
        (0, 1, 2, 0x3333_3333),
        (2, 3, 2, 0x3333_3333),
    ] {
        // Exchanges the upper of the first with the lower of the second.
        let differ = (words[first] >> bits ^ words[second]) & mask;
        words[first] ^= differ << bits;
        words[second] ^= differ;
    }
    words.map(|word| word ^ 0xAAAA_AAAA)
}
