//! AVX-512 with VNNI: panels of 16 rows, one 512-bit register per vector.
//!
//! `vpdpbusd` multiplies 64 bytes and sums quads into 32 bits, exactly, so no format needs care
//! for overflow; its activation operand is broadcast from memory in the same instruction. Per
//! block and column that is 8 of them, one conversion, one multiplication and one FMA. Zen 4 and
//! Ice Lake start one 512-bit multiplication per cycle, hence at most 512 products in 10 cycles.
//! Signed codes are made unsigned by flipping their top bit, which adds 128 per activation; the
//! start value of the sum subtracts it again.

use std::arch::x86_64::*;

use super::kernel;
use super::simd::{Element, Format, Simd, each_quad};
use super::tile::{Block, Columns, FloatTile, Tile, Unpack};

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

/// Wraps expressions made of intrinsics.
macro_rules! simd {
    ($body:expr) => {{
        // SAFETY: the trait's contract: the processor has AVX-512 F, BW, DQ, VL and VNNI, and
        // pointers cover what the method names.
        unsafe { $body }
    }};
}

/// Returns `start` plus the products of `count` quads from `first` on.
///
/// # Safety
/// Same as [`Simd`]; the column exists.
#[inline(always)]
unsafe fn dot(
    start: __m512i,
    codes: &[__m512i; 8],
    columns: Columns,
    column: usize,
    range: (usize, usize),
) -> __m512i {
    simd!({
        let quads = columns.at(column).cast::<i32>();
        let mut sum = start;
        for (index, code) in codes.iter().enumerate().take(range.1).skip(range.0) {
            sum = _mm512_dpbusd_epi32(sum, *code, _mm512_set1_epi32(quads.add(index).read()));
        }
        sum
    })
}

impl Simd for Avx512 {
    const ROWS: usize = 16;
    const UNSIGNED_COLUMNS: usize = 8;
    const SIGNED_COLUMNS: usize = 8;
    const PAIRS: bool = false;
    const FLOAT_COLUMNS: usize = 8;

    type Bytes = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn load(pointer: *const u8) -> __m512i {
        simd!(_mm512_loadu_si512(pointer.cast()))
    }

    #[inline(always)]
    unsafe fn store(pointer: *mut u8, value: __m512i) {
        simd!(_mm512_storeu_si512(pointer.cast(), value))
    }

    #[inline(always)]
    unsafe fn and(value: __m512i, mask: u8) -> __m512i {
        simd!(_mm512_and_si512(value, _mm512_set1_epi8(mask.cast_signed())))
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        simd!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    unsafe fn shift_right(value: __m512i, bits: u32) -> __m512i {
        simd!(_mm512_srlv_epi32(value, _mm512_set1_epi32(bits.cast_signed())))
    }

    #[inline(always)]
    unsafe fn shift_left(value: __m512i, bits: u32) -> __m512i {
        simd!(_mm512_sllv_epi32(value, _mm512_set1_epi32(bits.cast_signed())))
    }

    #[inline(always)]
    unsafe fn lookup(value: __m512i, table: &[i8; 16]) -> __m512i {
        simd!({
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, value)
        })
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        simd!(_mm512_setzero_ps())
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        simd!(_mm512_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load_f32(pointer: *const u8) -> __m512 {
        simd!(_mm512_loadu_ps(pointer.cast()))
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u8) -> __m512 {
        simd!(_mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast())))
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u8) -> __m512 {
        simd!({
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const u8) -> __m512 {
        simd!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(pointer.cast()))))
    }

    #[inline(always)]
    unsafe fn load_u8(pointer: *const u8, shift: u32, mask: u8) -> __m512 {
        simd!({
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(pointer.cast()));
            let moved = _mm512_srlv_epi32(wide, _mm512_set1_epi32(shift.cast_signed()));
            _mm512_cvtepi32_ps(_mm512_and_si512(moved, _mm512_set1_epi32(i32::from(mask))))
        })
    }

    #[inline(always)]
    unsafe fn store_f32(pointer: *mut f32, value: __m512) {
        simd!(_mm512_storeu_ps(pointer, value))
    }

    #[inline(always)]
    unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
        simd!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        simd!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    unsafe fn prefetch(pointer: *const u8) {
        simd!(_mm_prefetch::<_MM_HINT_T0>(pointer.cast()))
    }

    #[inline(always)]
    unsafe fn accumulate_offset<const C: usize>(
        sums: &mut [__m512; C],
        codes: &[__m512i; 8],
        scale: __m512,
        columns: Columns,
    ) {
        simd!(for (index, sum) in sums.iter_mut().enumerate() {
            let x = columns.at(index);
            let start = _mm512_set1_epi32((*x).minus_eight_sums);
            let exact = dot(start, codes, columns, index, (0, 8));
            let factor = _mm512_mul_ps(scale, _mm512_set1_ps((*x).scale));
            *sum = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(exact), *sum);
        })
    }

    #[inline(always)]
    unsafe fn accumulate_minimum<const C: usize>(
        sums: &mut [__m512; C],
        codes: &[__m512i; 8],
        scale: __m512,
        minimum: __m512,
        _: usize,
        columns: Columns,
    ) {
        simd!(for (index, sum) in sums.iter_mut().enumerate() {
            let x = columns.at(index);
            let raw = dot(_mm512_setzero_si512(), codes, columns, index, (0, 8));
            let factor = _mm512_mul_ps(scale, _mm512_set1_ps((*x).scale));
            *sum = _mm512_fmadd_ps(minimum, _mm512_set1_ps((*x).scaled_sum), *sum);
            *sum = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(raw), *sum);
        })
    }

    #[inline(always)]
    unsafe fn accumulate_halves<const C: usize>(
        sums: &mut [__m512; C],
        codes: &[__m512i; 8],
        scale: [__m512; 2],
        minimum: [__m512; 2],
        _: usize,
        columns: Columns,
    ) {
        simd!({
            let zero = _mm512_setzero_si512();
            let difference = _mm512_sub_ps(minimum[0], minimum[1]);
            for (index, sum) in sums.iter_mut().enumerate() {
                let x = columns.at(index);
                let low = _mm512_cvtepi32_ps(dot(zero, codes, columns, index, (0, 4)));
                let high = _mm512_cvtepi32_ps(dot(zero, codes, columns, index, (4, 8)));
                let both = _mm512_fmadd_ps(scale[0], low, _mm512_mul_ps(scale[1], high));
                *sum = _mm512_fmadd_ps(difference, _mm512_set1_ps((*x).scaled_low_sum), *sum);
                *sum = _mm512_fmadd_ps(minimum[1], _mm512_set1_ps((*x).scaled_sum), *sum);
                *sum = _mm512_fmadd_ps(both, _mm512_set1_ps((*x).scale), *sum);
            }
        })
    }

    #[inline(always)]
    unsafe fn accumulate_signed<F: Format, const C: usize>(
        sums: &mut [__m512; C],
        block: Block<'_>,
        scale: __m512,
        columns: Columns,
    ) {
        simd!({
            let top = _mm512_set1_epi8(i8::MIN);
            let codes: [__m512i; 8] =
                each_quad!(array QUAD => _mm512_xor_si512(F::code::<Self>(block, QUAD), top));
            for (index, sum) in sums.iter_mut().enumerate() {
                let x = columns.at(index);
                let start = _mm512_set1_epi32((*x).minus_eight_sums * 16);
                let exact = dot(start, &codes, columns, index, (0, 8));
                let factor = _mm512_mul_ps(scale, _mm512_set1_ps((*x).scale));
                *sum = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(exact), *sum);
            }
        })
    }

    unsafe fn accumulate_pair<F: Format, const C: usize>(
        _: &mut [[__m512; C]; 2],
        _: [Block<'_>; 2],
        _: Columns,
    ) {
        unreachable!("PAIRS is not set");
    }

    unsafe fn pair_tile<F: Format, const C: usize>(_: &Tile) {
        unreachable!("PAIRS is not set");
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn tile<F: Format, const C: usize>(tile: &Tile) {
        simd!(kernel::tile::<Self, F, C>(tile))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn unpack<F: Format>(unpack: &Unpack) {
        simd!(kernel::unpack::<Self, F>(unpack))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn float_tile<E: Element, const C: usize>(tile: &FloatTile) {
        simd!(kernel::float_tile::<Self, E, C>(tile))
    }
}
