//! The operations that an instruction set must offer so that the kernels of [`super::kernel`] run
//! on it.
//!
//! The kernels are written once over this trait. Methods that an implementer marks `inline(always)`
//! are inlined into the three entry points ([`Simd::tile`], [`Simd::unpack`],
//! [`Simd::float_tile`]), the only ones with `#[target_feature]`.
//!
//! Formats are written over [`Simd`], and its methods over [`Format`] and [`Element`], so these
//! traits stand here as well; [`super::format`] implements them.

use std::ops::Range;

use super::tile::{Block, Columns, FloatTile, Tile, Unpack};

/// Evaluates an expression for each quad of a block, with `$quad` as a constant. Quads that share
/// the bytes of nibbles are adjacent, so that a loaded vector is soon used up. Closures would not
/// do: they do not inherit the instruction set, and intrinsics would not be inlined into them.
macro_rules! each_quad {
    ($quad:ident => $body:expr) => {{
        each_quad!(@one $quad 0 $body);
        each_quad!(@one $quad 4 $body);
        each_quad!(@one $quad 1 $body);
        each_quad!(@one $quad 5 $body);
        each_quad!(@one $quad 2 $body);
        each_quad!(@one $quad 6 $body);
        each_quad!(@one $quad 3 $body);
        each_quad!(@one $quad 7 $body);
    }};
    (array $quad:ident => $body:expr) => {
        [
            each_quad!(@value $quad 0 $body),
            each_quad!(@value $quad 1 $body),
            each_quad!(@value $quad 2 $body),
            each_quad!(@value $quad 3 $body),
            each_quad!(@value $quad 4 $body),
            each_quad!(@value $quad 5 $body),
            each_quad!(@value $quad 6 $body),
            each_quad!(@value $quad 7 $body),
        ]
    };
    (@one $quad:ident $value:literal $body:expr) => {{
        const $quad: usize = $value;
        $body;
    }};
    (@value $quad:ident $value:literal $body:expr) => {{
        const $quad: usize = $value;
        $body
    }};
}
pub(super) use each_quad;

/// An instruction set.
///
/// `codes` are eight vectors of [`ROWS`](Simd::ROWS) quads, quad q of a block in vector q.
/// `adds` says how many products of pairs (code times activation, two neighbours summed) fit a
/// signed 16-bit number together: 8 for codes below 16, 4 below 32, 2 below 64, 1 below 128.
///
/// # Safety
///
/// All methods: the processor has the instructions of the implementer, and every pointer is valid
/// for the bytes that the method names.
pub(super) trait Simd: Copy + 'static {
    /// Rows of an integer panel, and lanes of [`Floats`](Simd::Floats).
    const ROWS: usize;
    /// Most columns of a tile of unsigned codes.
    const UNSIGNED_COLUMNS: usize;
    /// Most columns of a tile of signed codes.
    const SIGNED_COLUMNS: usize;
    /// Most columns of a tile of two panels.
    const PAIR_COLUMNS: usize;
    /// Most columns of a tile of floats.
    const FLOAT_COLUMNS: usize;

    /// Returns whether many columns are multiplied through scratch with tiles of two panels, which
    /// halves the broadcasts of activations.
    fn pairs() -> bool {
        false
    }

    /// Returns with how many columns tiles of two panels pay whose codes of `kind` (Q4_0 or Q8_0)
    /// are used in place.
    fn pairs_in_place(_kind: Kind) -> Range<usize> {
        0..0
    }

    /// `ROWS` quads of bytes.
    type Bytes: Copy;
    /// `ROWS` floats.
    type Floats: Copy;

    /// Reads 4 `ROWS` bytes.
    unsafe fn load(pointer: *const u8) -> Self::Bytes;
    /// Writes 4 `ROWS` bytes.
    unsafe fn store(pointer: *mut u8, value: Self::Bytes);
    /// Returns the bitwise and of every byte and `mask`.
    unsafe fn and(value: Self::Bytes, mask: u8) -> Self::Bytes;
    /// Bitwise or.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts right; the caller masks bits that cross bytes.
    unsafe fn shift_right(value: Self::Bytes, bits: u32) -> Self::Bytes;
    /// Shifts left; the caller masks bits that cross bytes.
    unsafe fn shift_left(value: Self::Bytes, bits: u32) -> Self::Bytes;
    /// Replaces every byte (0..=15) by its entry.
    unsafe fn lookup(value: Self::Bytes, table: &[i8; 16]) -> Self::Bytes;

    /// Reads `ROWS` bytes, each into a quad as a whole number.
    unsafe fn widen_u8(pointer: *const u8) -> Self::Bytes;
    /// Reads `ROWS` numbers of 16 bits, each into a quad as a whole number.
    unsafe fn widen_u16(pointer: *const u8) -> Self::Bytes;
    /// Moves `bits` bits of every quad, which begin at bit `from`, to bit `to`, and clears the
    /// rest.
    unsafe fn field(quads: Self::Bytes, from: u32, bits: u32, to: u32) -> Self::Bytes;
    /// Replaces every quad, a number below the length of the table, by its entry.
    unsafe fn gather(quads: Self::Bytes, table: &[[u8; 4]]) -> Self::Bytes;
    /// Returns the first and the second halves of such entries.
    unsafe fn gather_pairs(quads: Self::Bytes, table: &[[u8; 8]]) -> [Self::Bytes; 2];
    /// Returns `offset + code` for every byte of `codes`, and `offset - code` where bit `bit` of
    /// the same byte of `plane` is set.
    unsafe fn signed(codes: Self::Bytes, plane: Self::Bytes, bit: usize, offset: u8)
    -> Self::Bytes;
    /// Returns the whole part of `3 (power byte mod 256) / 256` for every byte.
    unsafe fn digit(value: Self::Bytes, power: u8) -> Self::Bytes;
    /// Copies the lowest byte of every quad to its other three.
    unsafe fn spread(quads: Self::Bytes) -> Self::Bytes;
    /// Converts every quad, a whole number below 2^24.
    unsafe fn numbers(quads: Self::Bytes) -> Self::Floats;
    /// Returns the floats whose bits the quads are.
    unsafe fn from_bits(quads: Self::Bytes) -> Self::Floats;

    /// Zeros.
    unsafe fn zero() -> Self::Floats;
    /// One value in every lane.
    unsafe fn splat(value: f32) -> Self::Floats;
    /// Reads `ROWS` floats.
    unsafe fn load_f32(pointer: *const u8) -> Self::Floats;
    /// Reads `ROWS` half-precision floats.
    unsafe fn load_f16(pointer: *const u8) -> Self::Floats;
    /// Reads `ROWS` bfloat16.
    unsafe fn load_bf16(pointer: *const u8) -> Self::Floats;
    /// Reads `ROWS` signed bytes.
    unsafe fn load_i8(pointer: *const u8) -> Self::Floats;
    /// Reads `ROWS` bytes, shifted right, masked.
    unsafe fn load_u8(pointer: *const u8, shift: u32, mask: u8) -> Self::Floats;
    /// Writes `ROWS` floats.
    unsafe fn store_f32(pointer: *mut f32, value: Self::Floats);
    /// Product.
    unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once where the processor can.
    unsafe fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Prefetches the cache line at any address.
    unsafe fn prefetch(pointer: *const u8);

    /// `sums[c] += scale * (codes - 8) . column c`, codes below 16.
    unsafe fn accumulate_offset<const C: usize>(
        sums: &mut [Self::Floats; C],
        codes: &[Self::Bytes; 8],
        scale: Self::Floats,
        columns: Columns,
    );

    /// `sums[c] += (scale * codes + minimum) . column c`, unsigned codes.
    unsafe fn accumulate_minimum<const C: usize>(
        sums: &mut [Self::Floats; C],
        codes: &[Self::Bytes; 8],
        scale: Self::Floats,
        minimum: Self::Floats,
        adds: usize,
        columns: Columns,
    );

    /// Does the same as `accumulate_minimum` with a scale and a minimum for each half of the block;
    /// `adds` is 4, 2 or 1.
    unsafe fn accumulate_halves<const C: usize>(
        sums: &mut [Self::Floats; C],
        codes: &[Self::Bytes; 8],
        scale: [Self::Floats; 2],
        minimum: [Self::Floats; 2],
        adds: usize,
        columns: Columns,
    );

    /// `sums[c] += scale * codes . column c`, signed codes of `block`.
    unsafe fn accumulate_signed<F: Format, const C: usize>(
        sums: &mut [Self::Floats; C],
        block: Block<'_>,
        scale: Self::Floats,
        columns: Columns,
    );

    /// `sums[p][c] += block p . column c` for one block each of two panels unpacked into scratch,
    /// of kind `Minimum` or `Signed`, or in place of kind `Offset` or `Signed`. Called only if
    /// [`pairs`](Simd::pairs) or [`pairs_in_place`](Simd::pairs_in_place) say so.
    unsafe fn accumulate_pair<F: Format, const C: usize>(
        sums: &mut [[Self::Floats; C]; 2],
        blocks: [Block<'_>; 2],
        columns: Columns,
    );

    /// [`super::kernel::tile`] compiled for this instruction set.
    unsafe fn tile<F: Format, const C: usize>(tile: &Tile);
    /// [`super::kernel::pair_tile`] compiled for this instruction set.
    unsafe fn pair_tile<F: Format, const C: usize>(tile: &Tile);
    /// [`super::kernel::unpack`] compiled for this instruction set.
    unsafe fn unpack<F: Format>(unpack: &Unpack);
    /// [`super::kernel::float_tile`] compiled for this instruction set. `PAIR` only where a
    /// register holds all rows of a panel of floats.
    unsafe fn float_tile<E: Element, const C: usize, const PAIR: bool>(tile: &FloatTile);
}

/// The integer product that a format needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Codes 0..=15 minus 8, one scale.
    Offset,
    /// Unsigned codes, one scale and one minimum; the number is `adds` of [`Simd`].
    Minimum(usize),
    /// As `Minimum`, with a scale and a minimum per run of 16.
    Halves(usize),
    /// Signed codes, one scale.
    Signed,
}

/// Scale and minimum of the two halves of a block; formats with one pair fill the first only.
pub(super) struct Scales<S: Simd> {
    pub(super) scale: [S::Floats; 2],
    pub(super) minimum: [S::Floats; 2],
}

/// A quantised format in panels.
///
/// # Safety
///
/// All methods: as [`Simd`]; the block exists.
pub(super) trait Format: 'static {
    /// The product it needs.
    const KIND: Kind;

    /// Returns quad `quad` of the block.
    unsafe fn code<S: Simd>(block: Block<'_>, quad: usize) -> S::Bytes;

    /// Returns the scales of the block.
    unsafe fn scales<S: Simd>(block: Block<'_>) -> Scales<S>;

    /// Returns the eight quads of the block.
    #[inline(always)]
    unsafe fn codes<S: Simd>(block: Block<'_>) -> [S::Bytes; 8] {
        // SAFETY: the caller's promise.
        unsafe { each_quad!(array QUAD => Self::code::<S>(block, QUAD)) }
    }
}

/// A float type in panels.
pub(super) trait Element: 'static {
    /// Bytes per element.
    const BYTES: usize;

    /// Reads `ROWS` adjacent elements.
    ///
    /// # Safety
    /// Same as [`Simd`].
    unsafe fn load<S: Simd>(pointer: *const u8) -> S::Floats;
}
