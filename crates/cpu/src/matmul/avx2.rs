//! AVX2, FMA and F16C: panels of 8 rows, one 256-bit register per vector.
//!
//! What bounds the kernels, measured on Zen 3, which sustains 3.2 vector operations per cycle on
//! such mixtures (four pipes, but multiplications fit only two of them):
//!
//! - *Unsigned codes*: `vpmaddubsw` multiplies 32 bytes and sums neighbours into 16 bits. A code
//!   below 16 times an activation of at most 127, summed in pairs, is at most 3810, so eight of
//!   them fit 16 bits and one `vpmaddwd` per block finishes the sum: 20 operations per 256
//!   products, and 32 products per cycle in all.
//! - *Signed codes*: |code| * sign(activation) keeps `vpmaddubsw` usable (its pair sums are at most
//!   32512), but each result must be widened at once: 36 operations per 256 products, 19 per cycle.
//!   Widening both sides to 16 bits beforehand needs as many operations (two per 16 products) and
//!   twice the loads: it was measured, and is slower.
//! - *Tiles of two panels* share the broadcasts of activations: a fifth faster than tiles of one.
//!   Codes unpacked into scratch make no difference up to some fifty columns.
//! - *Floats*: two FMA per cycle, 16 products.
//! - Up to four columns, reading the weights from memory is the bound.

use std::arch::x86_64::*;
use std::ops::Range;

use super::kernel;
use super::simd::{Element, Format, Kind, Simd, each_quad};
use super::tile::{Block, Columns, FloatTile, Tile, Unpack};

/// With how many columns Q4_0 is multiplied in place by tiles of two panels: with fewer, one panel
/// reads memory as fast; with more, unpacking into scratch pays.
const NIBBLES_IN_PLACE: Range<usize> = 3..49;

/// AVX2 with FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2Kernel;

/// Wraps expressions made of intrinsics.
macro_rules! simd {
    ($body:expr) => {{
        // SAFETY: the trait's contract: the processor has AVX2, FMA and F16C, and pointers cover
        // what the method names.
        unsafe { $body }
    }};
}

/// Returns the four codes of quad `quad` in every lane.
///
/// # Safety
/// Same as [`Simd`]; the column exists.
#[inline(always)]
unsafe fn quad(columns: Columns, column: usize, quad: usize) -> __m256i {
    simd!(_mm256_set1_epi32(columns.at(column).cast::<i32>().add(quad).read()))
}

/// Sums in 16 bits the products of the quads from `first` to before `end`.
///
/// # Safety
/// Same as [`Simd`]; the sums fit.
#[inline(always)]
unsafe fn pair_sums(
    codes: &[__m256i; 8],
    columns: Columns,
    column: usize,
    first: usize,
    end: usize,
) -> __m256i {
    simd!({
        let mut sum = _mm256_maddubs_epi16(codes[first], quad(columns, column, first));
        for (index, code) in codes.iter().enumerate().take(end).skip(first + 1) {
            let product = _mm256_maddubs_epi16(*code, quad(columns, column, index));
            sum = _mm256_add_epi16(sum, product);
        }
        sum
    })
}

/// Computes the dot product of the quads from `first` to before `end`, `adds` at a time in 16 bits.
///
/// # Safety
/// Same as [`Simd`].
#[inline(always)]
unsafe fn dot(
    codes: &[__m256i; 8],
    columns: Columns,
    column: usize,
    range: (usize, usize),
    adds: usize,
) -> __m256i {
    simd!({
        let ones = _mm256_set1_epi16(1);
        let (first, end) = range;
        let mut sum = _mm256_setzero_si256();
        let mut start = first;
        while start < end {
            let part = pair_sums(codes, columns, column, start, start + adds);
            let wide = _mm256_madd_epi16(part, ones);
            sum = if start == first { wide } else { _mm256_add_epi32(sum, wide) };
            start += adds;
        }
        sum
    })
}

/// Adds the products of one quad of signed codes.
///
/// # Safety
/// Same as [`Simd`]; the columns exist.
#[inline(always)]
unsafe fn signed_quad<const C: usize>(
    sums: &mut [__m256i; C],
    code: __m256i,
    index: usize,
    columns: Columns,
) {
    simd!({
        let ones = _mm256_set1_epi16(1);
        let magnitude = _mm256_abs_epi8(code);
        for (column, sum) in sums.iter_mut().enumerate() {
            let signed = _mm256_sign_epi8(quad(columns, column, index), code);
            let pairs = _mm256_maddubs_epi16(magnitude, signed);
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            keep(sum);
        }
    })
}

/// Computes dot products of unsigned codes of two panels, `adds` at a time in 16 bits.
///
/// # Safety
/// Same as [`Simd`]; scratch holds the blocks and the columns exist.
#[inline(always)]
unsafe fn unsigned_pair<F: Format, const C: usize>(
    raw: &mut [[__m256i; C]; 2],
    blocks: [Block<'_>; 2],
    columns: Columns,
    adds: usize,
) {
    simd!({
        let ones = _mm256_set1_epi16(1);
        let mut pairs = [[_mm256_setzero_si256(); C]; 2];
        each_quad!(QUAD => {
            let codes = [
                F::code::<Avx2Kernel>(blocks[0], QUAD),
                F::code::<Avx2Kernel>(blocks[1], QUAD),
            ];
            for column in 0..C {
                let x = quad(columns, column, QUAD);
                for panel in 0..2 {
                    let product = _mm256_maddubs_epi16(codes[panel], x);
                    let sum = &mut pairs[panel][column];
                    // Quads come in the order 0, 4, 1, 5, 2, 6, 3, 7.
                    let order = QUAD % 4 * 2 + QUAD / 4;
                    *sum = if order.is_multiple_of(adds) {
                        product
                    } else {
                        _mm256_add_epi16(*sum, product)
                    };
                    keep(sum);
                    if order % adds == adds - 1 {
                        let raw = &mut raw[panel][column];
                        *raw = _mm256_add_epi32(*raw, _mm256_madd_epi16(*sum, ones));
                    }
                }
            }
        });
    })
}

/// Adds the products of one quad of signed codes of two panels.
///
/// # Safety
/// Same as [`Simd`]; the columns exist.
#[inline(always)]
unsafe fn signed_pair<const C: usize>(
    sums: &mut [[__m256i; C]; 2],
    codes: [__m256i; 2],
    index: usize,
    columns: Columns,
) {
    simd!({
        let ones = _mm256_set1_epi16(1);
        let magnitudes = [_mm256_abs_epi8(codes[0]), _mm256_abs_epi8(codes[1])];
        let [first, second] = sums;
        for (column, (first, second)) in first.iter_mut().zip(second).enumerate() {
            let x = quad(columns, column, index);
            let pairs = _mm256_maddubs_epi16(magnitudes[0], _mm256_sign_epi8(x, codes[0]));
            *first = _mm256_add_epi32(*first, _mm256_madd_epi16(pairs, ones));
            keep(first);
            let pairs = _mm256_maddubs_epi16(magnitudes[1], _mm256_sign_epi8(x, codes[1]));
            *second = _mm256_add_epi32(*second, _mm256_madd_epi16(pairs, ones));
            keep(second);
        }
    })
}

/// Keeps the compiler from regrouping a chain of additions here: otherwise it would compute one
/// column after the other, for which the codes of two panels do not fit the registers.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn keep(value: &mut __m256i) {
    // SAFETY: no instruction, only a register that is read and written.
    unsafe {
        std::arch::asm!(
            "/* {0} */",
            inout(ymm_reg) * value,
            options(nomem, nostack, preserves_flags)
        )
    }
}

impl Simd for Avx2Kernel {
    const ROWS: usize = 8;
    const UNSIGNED_COLUMNS: usize = 4;
    const SIGNED_COLUMNS: usize = 4;
    const PAIR_COLUMNS: usize = 4;
    const FLOAT_COLUMNS: usize = 6;

    type Bytes = __m256i;
    type Floats = __m256;

    #[inline(always)]
    fn pairs() -> bool {
        true
    }

    #[inline(always)]
    fn pairs_in_place(kind: Kind) -> Range<usize> {
        if kind == Kind::Offset { NIBBLES_IN_PLACE } else { 3..usize::MAX }
    }

    #[inline(always)]
    unsafe fn load(pointer: *const u8) -> __m256i {
        simd!(_mm256_loadu_si256(pointer.cast()))
    }

    #[inline(always)]
    unsafe fn store(pointer: *mut u8, value: __m256i) {
        simd!(_mm256_storeu_si256(pointer.cast(), value))
    }

    #[inline(always)]
    unsafe fn and(value: __m256i, mask: u8) -> __m256i {
        simd!(_mm256_and_si256(value, _mm256_set1_epi8(mask.cast_signed())))
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        simd!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    unsafe fn shift_right(value: __m256i, bits: u32) -> __m256i {
        simd!(_mm256_srlv_epi32(value, _mm256_set1_epi32(bits.cast_signed())))
    }

    #[inline(always)]
    unsafe fn shift_left(value: __m256i, bits: u32) -> __m256i {
        simd!(_mm256_sllv_epi32(value, _mm256_set1_epi32(bits.cast_signed())))
    }

    #[inline(always)]
    unsafe fn lookup(value: __m256i, table: &[i8; 16]) -> __m256i {
        simd!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, value)
        })
    }

    #[inline(always)]
    unsafe fn widen_u8(pointer: *const u8) -> __m256i {
        simd!(_mm256_cvtepu8_epi32(_mm_loadl_epi64(pointer.cast())))
    }

    #[inline(always)]
    unsafe fn widen_u16(pointer: *const u8) -> __m256i {
        simd!(_mm256_cvtepu16_epi32(_mm_loadu_si128(pointer.cast())))
    }

    #[inline(always)]
    unsafe fn field(quads: __m256i, from: u32, bits: u32, to: u32) -> __m256i {
        simd!({
            let mask = _mm256_set1_epi32((1 << bits) - 1);
            Self::shift_left(_mm256_and_si256(Self::shift_right(quads, from), mask), to)
        })
    }

    #[inline(always)]
    unsafe fn gather(quads: __m256i, table: &[[u8; 4]]) -> __m256i {
        simd!(_mm256_i32gather_epi32::<4>(table.as_ptr().cast(), quads))
    }

    #[inline(always)]
    unsafe fn gather_pairs(quads: __m256i, table: &[[u8; 8]]) -> [__m256i; 2] {
        simd!({
            let table = table.as_ptr().cast();
            let (low, high) = (_mm256_castsi256_si128(quads), _mm256_extracti128_si256::<1>(quads));
            // Rows 0 1 4 5 and rows 2 3 6 7, so that a shuffle within lanes puts them in order.
            let first = _mm256_i32gather_epi64::<8>(table, _mm_unpacklo_epi64(low, high));
            let second = _mm256_i32gather_epi64::<8>(table, _mm_unpackhi_epi64(low, high));
            let (first, second) = (_mm256_castsi256_ps(first), _mm256_castsi256_ps(second));
            [
                _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(first, second)),
                _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(first, second)),
            ]
        })
    }

    #[inline(always)]
    unsafe fn signed(codes: __m256i, plane: __m256i, bit: usize, offset: u8) -> __m256i {
        simd!({
            let bit = _mm256_set1_epi8((1_u8 << bit).cast_signed());
            let negative = _mm256_cmpeq_epi8(_mm256_and_si256(plane, bit), bit);
            let start = _mm256_sub_epi8(_mm256_set1_epi8(offset.cast_signed()), negative);
            _mm256_add_epi8(_mm256_xor_si256(codes, negative), start)
        })
    }

    #[inline(always)]
    unsafe fn digit(value: __m256i, power: u8) -> __m256i {
        simd!({
            // Bytes as the upper halves of numbers of 16 bits, where products lose their carry.
            let (power, three) = (_mm256_set1_epi16(i16::from(power)), _mm256_set1_epi16(3));
            let even = _mm256_mullo_epi16(_mm256_slli_epi16::<8>(value), power);
            let upper = _mm256_and_si256(value, _mm256_set1_epi16(!255));
            let odd = _mm256_mulhi_epu16(_mm256_mullo_epi16(upper, power), three);
            _mm256_or_si256(_mm256_mulhi_epu16(even, three), _mm256_slli_epi16::<8>(odd))
        })
    }

    #[inline(always)]
    unsafe fn spread(quads: __m256i) -> __m256i {
        simd!({
            let lowest = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
            _mm256_shuffle_epi8(quads, _mm256_broadcastsi128_si256(lowest))
        })
    }

    #[inline(always)]
    unsafe fn numbers(quads: __m256i) -> __m256 {
        simd!(_mm256_cvtepi32_ps(quads))
    }

    #[inline(always)]
    unsafe fn from_bits(quads: __m256i) -> __m256 {
        simd!(_mm256_castsi256_ps(quads))
    }

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        simd!(_mm256_setzero_ps())
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        simd!(_mm256_set1_ps(value))
    }

    #[inline(always)]
    unsafe fn load_f32(pointer: *const u8) -> __m256 {
        simd!(_mm256_loadu_ps(pointer.cast()))
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u8) -> __m256 {
        simd!(_mm256_cvtph_ps(_mm_loadu_si128(pointer.cast())))
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u8) -> __m256 {
        simd!({
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(pointer.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        })
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const u8) -> __m256 {
        simd!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(pointer.cast()))))
    }

    #[inline(always)]
    unsafe fn load_u8(pointer: *const u8, shift: u32, mask: u8) -> __m256 {
        simd!({
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(pointer.cast()));
            let moved = _mm256_srlv_epi32(wide, _mm256_set1_epi32(shift.cast_signed()));
            _mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(i32::from(mask))))
        })
    }

    #[inline(always)]
    unsafe fn store_f32(pointer: *mut f32, value: __m256) {
        simd!(_mm256_storeu_ps(pointer, value))
    }

    #[inline(always)]
    unsafe fn multiply(a: __m256, b: __m256) -> __m256 {
        simd!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    unsafe fn multiply_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        simd!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    unsafe fn prefetch(pointer: *const u8) {
        simd!(_mm_prefetch::<_MM_HINT_T0>(pointer.cast()))
    }

    #[inline(always)]
    unsafe fn accumulate_offset<const C: usize>(
        sums: &mut [__m256; C],
        codes: &[__m256i; 8],
        scale: __m256,
        columns: Columns,
    ) {
        simd!(for (index, sum) in sums.iter_mut().enumerate() {
            let x = columns.at(index);
            let raw = dot(codes, columns, index, (0, 8), 8);
            let exact = _mm256_add_epi32(raw, _mm256_set1_epi32((*x).minus_eight_sums));
            let factor = _mm256_mul_ps(scale, _mm256_set1_ps((*x).scale));
            *sum = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(exact), *sum);
        })
    }

    #[inline(always)]
    unsafe fn accumulate_minimum<const C: usize>(
        sums: &mut [__m256; C],
        codes: &[__m256i; 8],
        scale: __m256,
        minimum: __m256,
        adds: usize,
        columns: Columns,
    ) {
        simd!(for (index, sum) in sums.iter_mut().enumerate() {
            let x = columns.at(index);
            let raw = dot(codes, columns, index, (0, 8), adds);
            let factor = _mm256_mul_ps(scale, _mm256_set1_ps((*x).scale));
            *sum = _mm256_fmadd_ps(minimum, _mm256_set1_ps((*x).scaled_sum), *sum);
            *sum = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(raw), *sum);
        })
    }

    #[inline(always)]
    unsafe fn accumulate_halves<const C: usize>(
        sums: &mut [__m256; C],
        codes: &[__m256i; 8],
        scale: [__m256; 2],
        minimum: [__m256; 2],
        adds: usize,
        columns: Columns,
    ) {
        simd!({
            let difference = _mm256_sub_ps(minimum[0], minimum[1]);
            for (index, sum) in sums.iter_mut().enumerate() {
                let x = columns.at(index);
                let low = _mm256_cvtepi32_ps(dot(codes, columns, index, (0, 4), adds));
                let high = _mm256_cvtepi32_ps(dot(codes, columns, index, (4, 8), adds));
                let both = _mm256_fmadd_ps(scale[0], low, _mm256_mul_ps(scale[1], high));
                *sum = _mm256_fmadd_ps(difference, _mm256_set1_ps((*x).scaled_low_sum), *sum);
                *sum = _mm256_fmadd_ps(minimum[1], _mm256_set1_ps((*x).scaled_sum), *sum);
                *sum = _mm256_fmadd_ps(both, _mm256_set1_ps((*x).scale), *sum);
            }
        })
    }

    #[inline(always)]
    unsafe fn accumulate_signed<F: Format, const C: usize>(
        sums: &mut [__m256; C],
        block: Block<'_>,
        scale: __m256,
        columns: Columns,
    ) {
        simd!({
            let mut raw = [_mm256_setzero_si256(); C];
            each_quad!(QUAD => signed_quad::<C>(
                &mut raw,
                F::code::<Self>(block, QUAD),
                QUAD,
                columns,
            ));
            for (index, sum) in sums.iter_mut().enumerate() {
                let factor = _mm256_mul_ps(scale, _mm256_set1_ps((*columns.at(index)).scale));
                *sum = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(raw[index]), *sum);
            }
        })
    }

    #[inline(always)]
    unsafe fn accumulate_pair<F: Format, const C: usize>(
        sums: &mut [[__m256; C]; 2],
        blocks: [Block<'_>; 2],
        columns: Columns,
    ) {
        simd!({
            let mut raw = [[_mm256_setzero_si256(); C]; 2];
            match F::KIND {
                Kind::Signed => each_quad!(QUAD => {
                    let codes =
                        [F::code::<Self>(blocks[0], QUAD), F::code::<Self>(blocks[1], QUAD)];
                    signed_pair::<C>(&mut raw, codes, QUAD, columns)
                }),
                Kind::Offset | Kind::Minimum(8) => {
                    unsigned_pair::<F, C>(&mut raw, blocks, columns, 8);
                }
                Kind::Minimum(adds) => unsigned_pair::<F, C>(&mut raw, blocks, columns, adds),
                Kind::Halves(_) => unreachable!("not a kind of pair tiles"),
            }
            let scales = [F::scales::<Self>(blocks[0]), F::scales::<Self>(blocks[1])];
            for column in 0..C {
                let x = columns.at(column);
                let factor = _mm256_set1_ps((*x).scale);
                for panel in 0..2 {
                    let sum = &mut sums[panel][column];
                    let mut raw = raw[panel][column];
                    if F::KIND == Kind::Offset {
                        raw = _mm256_add_epi32(raw, _mm256_set1_epi32((*x).minus_eight_sums));
                    }
                    if let Kind::Minimum(_) = F::KIND {
                        let scaled = _mm256_set1_ps((*x).scaled_sum);
                        *sum = _mm256_fmadd_ps(scales[panel].minimum[0], scaled, *sum);
                    }
                    let factor = _mm256_mul_ps(scales[panel].scale[0], factor);
                    *sum = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(raw), *sum);
                }
            }
        })
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn pair_tile<F: Format, const C: usize>(tile: &Tile) {
        simd!(kernel::pair_tile::<Self, F, C>(tile))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn tile<F: Format, const C: usize>(tile: &Tile) {
        assert!(C <= 6, "wider tiles would spill");
        simd!(kernel::tile::<Self, F, C>(tile))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack<F: Format>(unpack: &Unpack) {
        simd!(kernel::unpack::<Self, F>(unpack))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn float_tile<E: Element, const C: usize, const PAIR: bool>(tile: &FloatTile) {
        simd!(kernel::float_tile::<Self, E, C, PAIR>(tile))
    }
}
