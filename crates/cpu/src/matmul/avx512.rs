//! AVX-512 with VNNI: panels of 16 rows, one 512-bit register per vector.
//!
//! `vpdpbusd` multiplies 64 bytes and sums quads into 32 bits, exactly, so no format needs care
//! for overflow. Per block and column that is 8 of them, one conversion, one multiplication and one
//! FMA. Signed codes are made unsigned by flipping their top bit, which adds 128 per activation;
//! the start value of the sum subtracts it again.
//!
//! A tile of one panel broadcasts activations from memory in `vpdpbusd` itself, a load for each. A
//! tile of two panels and at most six columns shares a broadcast between two. What bounds them, as
//! `docs/benchmarks/cpu.md` has it:
//!
//! - Zen 5 starts two `vpdpbusd` per cycle, 519 G products/s of a core in registers and 414 with
//!   one other multiplication for four of them. Tiles of one panel reach 365 for many columns, or
//!   88 %. Tiles of two are 1.03 to 1.07 times as fast for 16 and 32 columns, but 0.93 for 128, and
//!   up to eight columns two panels read memory worse than one (0.7 to 1.0).
//! - Emerald Rapids is bound by loads: two panels are 1.2 to 1.5 times as fast from 16 columns on,
//!   and 1.0 to 1.26 times below, where two streams also read memory faster.
//! - Up to four columns, reading the weights is the bound on both.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::isa;

use super::kernel;
use super::simd::{Element, Format, Kind, Simd, each_quad};
use super::tile::{Block, Columns, FloatTile, Tile, Unpack};

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(super) struct Avx512Kernel;

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

/// Keeps the compiler from regrouping the products here: it would otherwise compute one column
/// after the other and broadcast its activations for each panel.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn keep(value: &mut __m512i) {
    // SAFETY: no instruction, only a register that is read and written.
    unsafe {
        std::arch::asm!(
            "/* {0} */",
            inout(zmm_reg) * value,
            options(nomem, nostack, preserves_flags)
        )
    }
}

impl Simd for Avx512Kernel {
    const ROWS: usize = 16;
    const UNSIGNED_COLUMNS: usize = 8;
    const SIGNED_COLUMNS: usize = 8;
    const PAIR_COLUMNS: usize = 6;
    const FLOAT_COLUMNS: usize = 8;

    type Bytes = __m512i;
    type Floats = __m512;

    fn pairs() -> bool {
        isa::is_intel()
    }

    fn pairs_in_place(_: Kind) -> Range<usize> {
        if isa::is_intel() { 1..usize::MAX } else { 9..65 }
    }

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
    unsafe fn widen_u8(pointer: *const u8) -> __m512i {
        simd!(_mm512_cvtepu8_epi32(_mm_loadu_si128(pointer.cast())))
    }

    #[inline(always)]
    unsafe fn widen_u16(pointer: *const u8) -> __m512i {
        simd!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast())))
    }

    #[inline(always)]
    unsafe fn field(quads: __m512i, from: u32, bits: u32, to: u32) -> __m512i {
        simd!({
            let mask = _mm512_set1_epi32((1 << bits) - 1);
            Self::shift_left(_mm512_and_si512(Self::shift_right(quads, from), mask), to)
        })
    }

    #[inline(always)]
    unsafe fn gather(quads: __m512i, table: &[[u8; 4]]) -> __m512i {
        simd!(_mm512_i32gather_epi32::<4>(quads, table.as_ptr().cast()))
    }

    #[inline(always)]
    unsafe fn gather_pairs(quads: __m512i, table: &[[u8; 8]]) -> [__m512i; 2] {
        simd!({
            let table = table.as_ptr().cast();
            let low = _mm512_i32gather_epi64::<8>(_mm512_castsi512_si256(quads), table);
            let high = _mm512_i32gather_epi64::<8>(_mm512_extracti64x4_epi64::<1>(quads), table);
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
            [_mm512_permutex2var_epi32(low, even, high), _mm512_permutex2var_epi32(low, odd, high)]
        })
    }

    #[inline(always)]
    unsafe fn signed(codes: __m512i, plane: __m512i, bit: usize, offset: u8) -> __m512i {
        simd!({
            let bit = _mm512_set1_epi8((1_u8 << bit).cast_signed());
            let negative = _mm512_test_epi8_mask(plane, bit);
            let offset = _mm512_set1_epi8(offset.cast_signed());
            _mm512_mask_sub_epi8(_mm512_add_epi8(offset, codes), negative, offset, codes)
        })
    }

    #[inline(always)]
    unsafe fn digit(value: __m512i, power: u8) -> __m512i {
        simd!({
            // Bytes as the upper halves of numbers of 16 bits, where products lose their carry.
            let (power, three) = (_mm512_set1_epi16(i16::from(power)), _mm512_set1_epi16(3));
            let even = _mm512_mullo_epi16(_mm512_slli_epi16::<8>(value), power);
            let upper = _mm512_and_si512(value, _mm512_set1_epi16(!255));
            let odd = _mm512_mulhi_epu16(_mm512_mullo_epi16(upper, power), three);
            _mm512_or_si512(_mm512_mulhi_epu16(even, three), _mm512_slli_epi16::<8>(odd))
        })
    }

    #[inline(always)]
    unsafe fn spread(quads: __m512i) -> __m512i {
        simd!({
            let lowest = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
            _mm512_shuffle_epi8(quads, _mm512_broadcast_i32x4(lowest))
        })
    }

    #[inline(always)]
    unsafe fn numbers(quads: __m512i) -> __m512 {
        simd!(_mm512_cvtepi32_ps(quads))
    }

    #[inline(always)]
    unsafe fn from_bits(quads: __m512i) -> __m512 {
        simd!(_mm512_castsi512_ps(quads))
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

    #[inline(always)]
    unsafe fn accumulate_pair<F: Format, const C: usize>(
        sums: &mut [[__m512; C]; 2],
        blocks: [Block<'_>; 2],
        columns: Columns,
    ) {
        simd!({
            let mut raw = [[_mm512_setzero_si512(); C]; 2];
            let [first, second] = &mut raw;
            for (column, (first, second)) in first.iter_mut().zip(second).enumerate() {
                let offset = _mm512_set1_epi32((*columns.at(column)).minus_eight_sums);
                let start = match F::KIND {
                    Kind::Offset => offset,
                    Kind::Signed => _mm512_slli_epi32::<4>(offset),
                    Kind::Minimum(_) => _mm512_setzero_si512(),
                    Kind::Halves(_) => unreachable!("not a kind of pair tiles"),
                };
                (*first, *second) = (start, start);
            }
            each_quad!(QUAD => {
                let mut codes =
                    [F::code::<Self>(blocks[0], QUAD), F::code::<Self>(blocks[1], QUAD)];
                if F::KIND == Kind::Signed {
                    let top = _mm512_set1_epi8(i8::MIN);
                    codes = [_mm512_xor_si512(codes[0], top), _mm512_xor_si512(codes[1], top)];
                }
                let [first, second] = &mut raw;
                for (column, (first, second)) in first.iter_mut().zip(second).enumerate() {
                    let quad = columns.at(column).cast::<i32>().add(QUAD).read();
                    let x = _mm512_set1_epi32(quad);
                    *first = _mm512_dpbusd_epi32(*first, codes[0], x);
                    keep(first);
                    *second = _mm512_dpbusd_epi32(*second, codes[1], x);
                    keep(second);
                }
            });
            let scales = [F::scales::<Self>(blocks[0]), F::scales::<Self>(blocks[1])];
            for column in 0..C {
                let x = columns.at(column);
                let factor = _mm512_set1_ps((*x).scale);
                for panel in 0..2 {
                    let sum = &mut sums[panel][column];
                    if let Kind::Minimum(_) = F::KIND {
                        let scaled = _mm512_set1_ps((*x).scaled_sum);
                        *sum = _mm512_fmadd_ps(scales[panel].minimum[0], scaled, *sum);
                    }
                    let factor = _mm512_mul_ps(scales[panel].scale[0], factor);
                    *sum = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(raw[panel][column]), *sum);
                }
            }
        })
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn pair_tile<F: Format, const C: usize>(tile: &Tile) {
        simd!(kernel::pair_tile::<Self, F, C>(tile))
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
    unsafe fn float_tile<E: Element, const C: usize, const PAIR: bool>(tile: &FloatTile) {
        simd!(kernel::float_tile::<Self, E, C, PAIR>(tile))
    }
}
