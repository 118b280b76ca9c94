//! Portable kernels: plain arrays that the compiler vectorises as it can. Their integer products
//! are exact sums of 32-bit products, so they cannot overflow where the other instruction sets
//! would. Bound by arithmetic, far from any limit of the machine.

use half::{bf16, f16};

use super::kernel;
use super::simd::{Element, Format, Simd};
use super::tile::{Block, Columns, FloatTile, Tile, Unpack};

/// The portable instruction set.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

const ROWS: usize = 8;

/// Returns `codes . column` over the quads of `range`, for every row.
#[inline(always)]
fn dot(
    codes: &[[u8; 32]; 8],
    signed: bool,
    x: &[i8; 32],
    quads: std::ops::Range<usize>,
) -> [f32; ROWS] {
    let mut sums = [0_i32; ROWS];
    for quad in quads {
        for (row, sum) in sums.iter_mut().enumerate() {
            for lane in 0..4 {
                let code = codes[quad][row * 4 + lane];
                let code = if signed { i32::from(code.cast_signed()) } else { i32::from(code) };
                *sum += code * i32::from(x[quad * 4 + lane]);
            }
        }
    }
    sums.map(|sum| sum as f32)
}

#[inline(always)]
fn add_scaled(sums: &mut [f32; ROWS], scale: &[f32; ROWS], factor: f32, dots: &[f32; ROWS]) {
    for row in 0..ROWS {
        sums[row] += scale[row] * factor * dots[row];
    }
}

/// Applies a function to every quad.
#[inline(always)]
fn each_quad(quads: [u8; 32], change: impl Fn([u8; 4]) -> [u8; 4]) -> [u8; 32] {
    let mut result = [0; 32];
    for (target, quad) in result.as_chunks_mut().0.iter_mut().zip(quads.as_chunks().0) {
        *target = change(*quad);
    }
    result
}

/// Returns every quad as a number.
#[inline(always)]
fn words(quads: [u8; 32]) -> [u32; ROWS] {
    std::array::from_fn(|row| u32::from_le_bytes(quads.as_chunks().0[row]))
}

/// Reads an array of unaligned elements.
///
/// # Safety
/// `pointer` covers the array.
#[inline(always)]
unsafe fn read<T: Copy, const N: usize>(pointer: *const u8) -> [T; N] {
    // SAFETY: the caller's promise; T is a plain number.
    unsafe { pointer.cast::<[T; N]>().read_unaligned() }
}

impl Simd for Scalar {
    const ROWS: usize = ROWS;
    const UNSIGNED_COLUMNS: usize = 4;
    const SIGNED_COLUMNS: usize = 4;
    const PAIR_COLUMNS: usize = 1;
    const FLOAT_COLUMNS: usize = 4;

    type Bytes = [u8; 32];
    type Floats = [f32; ROWS];

    #[inline(always)]
    unsafe fn load(pointer: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { read(pointer) }
    }

    #[inline(always)]
    unsafe fn store(pointer: *mut u8, value: Self::Bytes) {
        // SAFETY: the caller's promise.
        unsafe { pointer.cast::<[u8; 32]>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn and(value: Self::Bytes, mask: u8) -> Self::Bytes {
        value.map(|byte| byte & mask)
    }

    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        std::array::from_fn(|index| a[index] | b[index])
    }

    #[inline(always)]
    unsafe fn shift_right(value: Self::Bytes, bits: u32) -> Self::Bytes {
        value.map(|byte| byte >> bits)
    }

    #[inline(always)]
    unsafe fn shift_left(value: Self::Bytes, bits: u32) -> Self::Bytes {
        value.map(|byte| byte << bits)
    }

    #[inline(always)]
    unsafe fn lookup(value: Self::Bytes, table: &[i8; 16]) -> Self::Bytes {
        value.map(|byte| table[usize::from(byte & 15)].cast_unsigned())
    }

    #[inline(always)]
    unsafe fn widen_u8(pointer: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        let numbers = unsafe { read::<u8, ROWS>(pointer) };
        let mut quads = [0; 32];
        for (quad, number) in quads.as_chunks_mut().0.iter_mut().zip(numbers) {
            *quad = u32::from(number).to_le_bytes();
        }
        quads
    }

    #[inline(always)]
    unsafe fn widen_u16(pointer: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        let numbers = unsafe { read::<[u8; 2], ROWS>(pointer) };
        let mut quads = [0; 32];
        for (quad, [low, high]) in quads.as_chunks_mut().0.iter_mut().zip(numbers) {
            *quad = [low, high, 0, 0];
        }
        quads
    }

    #[inline(always)]
    unsafe fn field(quads: Self::Bytes, from: u32, bits: u32, to: u32) -> Self::Bytes {
        each_quad(quads, |quad| {
            let field = u32::from_le_bytes(quad) >> from & ((1 << bits) - 1);
            (field << to).to_le_bytes()
        })
    }

    #[inline(always)]
    unsafe fn gather(quads: Self::Bytes, table: &[[u8; 4]]) -> Self::Bytes {
        each_quad(quads, |quad| table[u32::from_le_bytes(quad) as usize])
    }

    #[inline(always)]
    unsafe fn gather_pairs(quads: Self::Bytes, table: &[[u8; 8]]) -> [Self::Bytes; 2] {
        [0, 1].map(|half| {
            each_quad(quads, |quad| table[u32::from_le_bytes(quad) as usize].as_chunks().0[half])
        })
    }

    #[inline(always)]
    unsafe fn signed(
        codes: Self::Bytes,
        plane: Self::Bytes,
        bit: usize,
        offset: u8,
    ) -> Self::Bytes {
        std::array::from_fn(|index| match plane[index] >> bit & 1 {
            0 => offset.wrapping_add(codes[index]),
            _ => offset.wrapping_sub(codes[index]),
        })
    }

    #[inline(always)]
    unsafe fn digit(value: Self::Bytes, power: u8) -> Self::Bytes {
        value.map(|byte| ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8)
    }

    #[inline(always)]
    unsafe fn spread(quads: Self::Bytes) -> Self::Bytes {
        each_quad(quads, |quad| [quad[0]; 4])
    }

    #[inline(always)]
    unsafe fn numbers(quads: Self::Bytes) -> Self::Floats {
        words(quads).map(|word| word as f32)
    }

    #[inline(always)]
    unsafe fn from_bits(quads: Self::Bytes) -> Self::Floats {
        words(quads).map(f32::from_bits)
    }

    #[inline(always)]
    unsafe fn zero() -> Self::Floats {
        [0.0; ROWS]
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::Floats {
        [value; ROWS]
    }

    #[inline(always)]
    unsafe fn load_f32(pointer: *const u8) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe { read(pointer) }
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u8) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe { read::<u16, ROWS>(pointer) }.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u8) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe { read::<u16, ROWS>(pointer) }.map(|bits| bf16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const u8) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe { read::<i8, ROWS>(pointer) }.map(f32::from)
    }

    #[inline(always)]
    unsafe fn load_u8(pointer: *const u8, shift: u32, mask: u8) -> Self::Floats {
        // SAFETY: the caller's promise.
        unsafe { read::<u8, ROWS>(pointer) }.map(|byte| f32::from(byte >> shift & mask))
    }

    #[inline(always)]
    unsafe fn store_f32(pointer: *mut f32, value: Self::Floats) {
        // SAFETY: the caller's promise.
        unsafe { pointer.cast::<[f32; ROWS]>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|row| a[row] * b[row])
    }

    #[inline(always)]
    unsafe fn multiply_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|row| a[row] * b[row] + c[row])
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn accumulate_offset<const C: usize>(
        sums: &mut [Self::Floats; C],
        codes: &[Self::Bytes; 8],
        scale: Self::Floats,
        columns: Columns,
    ) {
        for (index, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let x = unsafe { &*columns.at(index) };
            let dots = dot(codes, false, &x.codes, 0..8).map(|dot| dot + x.minus_eight_sums as f32);
            add_scaled(sums, &scale, x.scale, &dots);
        }
    }

    #[inline(always)]
    unsafe fn accumulate_minimum<const C: usize>(
        sums: &mut [Self::Floats; C],
        codes: &[Self::Bytes; 8],
        scale: Self::Floats,
        minimum: Self::Floats,
        _: usize,
        columns: Columns,
    ) {
        for (index, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let x = unsafe { &*columns.at(index) };
            add_scaled(sums, &scale, x.scale, &dot(codes, false, &x.codes, 0..8));
            add_scaled(sums, &minimum, x.scaled_sum, &[1.0; ROWS]);
        }
    }

    #[inline(always)]
    unsafe fn accumulate_halves<const C: usize>(
        sums: &mut [Self::Floats; C],
        codes: &[Self::Bytes; 8],
        scale: [Self::Floats; 2],
        minimum: [Self::Floats; 2],
        _: usize,
        columns: Columns,
    ) {
        for (index, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let x = unsafe { &*columns.at(index) };
            add_scaled(sums, &scale[0], x.scale, &dot(codes, false, &x.codes, 0..4));
            add_scaled(sums, &scale[1], x.scale, &dot(codes, false, &x.codes, 4..8));
            add_scaled(sums, &minimum[0], x.scaled_low_sum, &[1.0; ROWS]);
            add_scaled(sums, &minimum[1], x.scaled_sum - x.scaled_low_sum, &[1.0; ROWS]);
        }
    }

    #[inline(always)]
    unsafe fn accumulate_signed<F: Format, const C: usize>(
        sums: &mut [Self::Floats; C],
        block: Block<'_>,
        scale: Self::Floats,
        columns: Columns,
    ) {
        // SAFETY: the caller's promise.
        let codes = unsafe { F::codes::<Self>(block) };
        for (index, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let x = unsafe { &*columns.at(index) };
            add_scaled(sums, &scale, x.scale, &dot(&codes, true, &x.codes, 0..8));
        }
    }

    unsafe fn accumulate_pair<F: Format, const C: usize>(
        _: &mut [[Self::Floats; C]; 2],
        _: [Block<'_>; 2],
        _: Columns,
    ) {
        unreachable!("there are no pairs");
    }

    unsafe fn pair_tile<F: Format, const C: usize>(_: &Tile) {
        unreachable!("there are no pairs");
    }

    unsafe fn tile<F: Format, const C: usize>(tile: &Tile) {
        // Wide tiles gain nothing here, and one instance per format compiles faster.
        for column in 0..C {
            // SAFETY: the caller's promise.
            unsafe { kernel::tile::<Self, F, 1>(&tile.column(column)) }
        }
    }

    unsafe fn unpack<F: Format>(unpack: &Unpack) {
        // SAFETY: the caller's promise.
        unsafe { kernel::unpack::<Self, F>(unpack) }
    }

    unsafe fn float_tile<E: Element, const C: usize, const PAIR: bool>(tile: &FloatTile) {
        // SAFETY: the caller's promise.
        unsafe { kernel::float_tile::<Self, E, C, PAIR>(tile) }
    }
}
