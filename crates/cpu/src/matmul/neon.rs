//! NEON of 64-bit ARM: panels of 8 rows, two 128-bit registers per vector.
//!
//! With `sdot` (ARMv8.2 `dotprod`, in most processors since 2018) the products of a quad are summed
//! into 32 bits, exactly, 16 products an instruction. The base instruction set multiplies bytes
//! into 16-bit lanes, one product per lane and quad, and sums lanes in pairs at the end. A code
//! below 64 times an activation of at most 127 is at most 8001: eight quads of codes below 32, four
//! of codes below 64, or two of codes below 128 and of signed ones (32512) fit a lane. Both are
//! bound by the multiplications, and have the same results. Neither has been measured on an ARM
//! processor.

use std::arch::aarch64::*;

use super::kernel;
use super::simd::{Element, Format, Simd, each_quad};
use super::tile::{Block, Columns, FloatTile, Tile, Unpack};

/// 64-bit ARM with NEON, with `sdot` or without.
#[derive(Clone, Copy)]
pub(super) struct NeonKernel<const SDOT: bool>;

/// Eight quads, or eight sums.
type Bytes = [uint8x16_t; 2];
type Floats = [float32x4_t; 2];

/// Wraps expressions made of intrinsics.
macro_rules! simd {
    ($body:expr) => {{
        // SAFETY: every 64-bit ARM processor has NEON, and the trait's contract says that this one
        // has `sdot` where it is used; pointers cover what the method names.
        unsafe { $body }
    }};
}

/// Products of one quad, added lane by lane: `sums[i]` belongs to 8 bytes of the vector.
///
/// # Safety
/// Same as [`Simd`]; the sums fit.
#[inline(always)]
unsafe fn multiply_quad(sums: [int16x8_t; 4], code: Bytes, x: int8x16_t) -> [int16x8_t; 4] {
    simd!({
        let (first, second) = (vreinterpretq_s8_u8(code[0]), vreinterpretq_s8_u8(code[1]));
        [
            vmlal_s8(sums[0], vget_low_s8(first), vget_low_s8(x)),
            vmlal_high_s8(sums[1], first, x),
            vmlal_s8(sums[2], vget_low_s8(second), vget_low_s8(x)),
            vmlal_high_s8(sums[3], second, x),
        ]
    })
}

/// Sums the four lanes of each row.
///
/// # Safety
/// Same as [`Simd`].
#[inline(always)]
unsafe fn rows_of(sums: [int16x8_t; 4]) -> [int32x4_t; 2] {
    simd!([
        vpaddq_s32(vpaddlq_s16(sums[0]), vpaddlq_s16(sums[1])),
        vpaddq_s32(vpaddlq_s16(sums[2]), vpaddlq_s16(sums[3])),
    ])
}

/// Adds the products of four quads to their sums. The intrinsic is not stable in Rust.
///
/// # Safety
/// The processor has `sdot`.
#[inline(always)]
unsafe fn sdot(mut sums: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    simd!({
        std::arch::asm!(
            ".arch_extension dotprod",
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums,
            in(vreg) codes,
            in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
        sums
    })
}

/// Computes dot products of the quads of `range`. Without `sdot` they are flushed to 32 bits after
/// every `flush` quads.
///
/// # Safety
/// Same as [`Simd`]; the column exists and `flush` products fit 16 bits.
#[inline(always)]
unsafe fn dot<const SDOT: bool>(
    codes: &[Bytes; 8],
    columns: Columns,
    column: usize,
    range: (usize, usize),
    flush: usize,
) -> [int32x4_t; 2] {
    simd!({
        let quads = columns.at(column).cast::<i32>();
        let none = [vdupq_n_s16(0); 4];
        let mut total = [vdupq_n_s32(0); 2];
        let mut sums = none;
        for (index, code) in codes.iter().enumerate().take(range.1).skip(range.0) {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(quads.add(index).read()));
            if SDOT {
                total = [sdot(total[0], code[0], x), sdot(total[1], code[1], x)];
                continue;
            }
            sums = multiply_quad(sums, *code, x);
            if (index + 1 - range.0).is_multiple_of(flush) {
                let rows = rows_of(sums);
                total = [vaddq_s32(total[0], rows[0]), vaddq_s32(total[1], rows[1])];
                sums = none;
            }
        }
        total
    })
}

/// Replaces every quad by half `half` of its entry in a table of entries of `SIZE` bytes.
///
/// # Safety
/// Same as [`Simd`].
#[inline(always)]
unsafe fn entries<const SIZE: usize>(quads: Bytes, table: &[[u8; SIZE]], half: usize) -> Bytes {
    simd!({
        let mut places = [0_u32; 8];
        NeonKernel::<false>::store(places.as_mut_ptr().cast(), quads);
        let of = |place: u32| table.get_unchecked(place as usize).as_chunks::<4>().0[half];
        let found: [[u8; 4]; 8] = places.map(of);
        NeonKernel::<false>::load(found.as_ptr().cast())
    })
}

/// `sum += factor * (low, high)` in floats.
///
/// # Safety
/// Same as [`Simd`].
#[inline(always)]
unsafe fn add_scaled(sum: &mut Floats, scale: Floats, factor: f32, dots: [int32x4_t; 2]) {
    simd!(for half in 0..2 {
        let scaled = vmulq_n_f32(scale[half], factor);
        sum[half] = vfmaq_f32(sum[half], scaled, vcvtq_f32_s32(dots[half]));
    })
}

impl<const SDOT: bool> Simd for NeonKernel<SDOT> {
    const ROWS: usize = 8;
    const UNSIGNED_COLUMNS: usize = 4;
    const SIGNED_COLUMNS: usize = 4;
    const PAIR_COLUMNS: usize = 1;
    const FLOAT_COLUMNS: usize = 6;

    type Bytes = Bytes;
    type Floats = Floats;

    #[inline(always)]
    unsafe fn load(pointer: *const u8) -> Bytes {
        simd!([vld1q_u8(pointer), vld1q_u8(pointer.add(16))])
    }

    #[inline(always)]
    unsafe fn store(pointer: *mut u8, value: Bytes) {
        simd!({
            vst1q_u8(pointer, value[0]);
            vst1q_u8(pointer.add(16), value[1]);
        })
    }

    #[inline(always)]
    unsafe fn and(value: Bytes, mask: u8) -> Bytes {
        simd!([vandq_u8(value[0], vdupq_n_u8(mask)), vandq_u8(value[1], vdupq_n_u8(mask))])
    }

    #[inline(always)]
    unsafe fn or(a: Bytes, b: Bytes) -> Bytes {
        simd!([vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])])
    }

    #[inline(always)]
    unsafe fn shift_right(value: Bytes, bits: u32) -> Bytes {
        simd!({
            let bits = vdupq_n_s8(-(bits as i8));
            [vshlq_u8(value[0], bits), vshlq_u8(value[1], bits)]
        })
    }

    #[inline(always)]
    unsafe fn shift_left(value: Bytes, bits: u32) -> Bytes {
        simd!({
            let bits = vdupq_n_s8(bits as i8);
            [vshlq_u8(value[0], bits), vshlq_u8(value[1], bits)]
        })
    }

    #[inline(always)]
    unsafe fn lookup(value: Bytes, table: &[i8; 16]) -> Bytes {
        simd!({
            let table = vld1q_u8(table.as_ptr().cast());
            [vqtbl1q_u8(table, value[0]), vqtbl1q_u8(table, value[1])]
        })
    }

    #[inline(always)]
    unsafe fn widen_u8(pointer: *const u8) -> Bytes {
        simd!({
            let wide = vmovl_u8(vld1_u8(pointer));
            let [low, high] = [vmovl_u16(vget_low_u16(wide)), vmovl_high_u16(wide)];
            [vreinterpretq_u8_u32(low), vreinterpretq_u8_u32(high)]
        })
    }

    #[inline(always)]
    unsafe fn widen_u16(pointer: *const u8) -> Bytes {
        simd!({
            let wide = vld1q_u16(pointer.cast());
            let [low, high] = [vmovl_u16(vget_low_u16(wide)), vmovl_high_u16(wide)];
            [vreinterpretq_u8_u32(low), vreinterpretq_u8_u32(high)]
        })
    }

    #[inline(always)]
    unsafe fn field(quads: Bytes, from: u32, bits: u32, to: u32) -> Bytes {
        simd!(quads.map(|quads| {
            let moved = vshlq_u32(vreinterpretq_u32_u8(quads), vdupq_n_s32(-(from as i32)));
            let field = vandq_u32(moved, vdupq_n_u32((1 << bits) - 1));
            vreinterpretq_u8_u32(vshlq_u32(field, vdupq_n_s32(to as i32)))
        }))
    }

    #[inline(always)]
    unsafe fn gather(quads: Bytes, table: &[[u8; 4]]) -> Bytes {
        simd!(entries(quads, table, 0))
    }

    #[inline(always)]
    unsafe fn gather_pairs(quads: Bytes, table: &[[u8; 8]]) -> [Bytes; 2] {
        simd!([entries(quads, table, 0), entries(quads, table, 1)])
    }

    #[inline(always)]
    unsafe fn signed(codes: Bytes, plane: Bytes, bit: usize, offset: u8) -> Bytes {
        simd!({
            let (bit, offset) = (vdupq_n_u8(1 << bit), vdupq_n_u8(offset));
            [0, 1].map(|half| {
                let (positive, code) = (vaddq_u8(offset, codes[half]), codes[half]);
                vbslq_u8(vtstq_u8(plane[half], bit), vsubq_u8(offset, code), positive)
            })
        })
    }

    #[inline(always)]
    unsafe fn digit(value: Bytes, power: u8) -> Bytes {
        simd!(value.map(|value| {
            // Three times a byte reaches 256 from 86 on, and 512 from 171 on.
            let rest = vmulq_u8(value, vdupq_n_u8(power));
            let one = vcgeq_u8(rest, vdupq_n_u8(86));
            let two = vcgeq_u8(rest, vdupq_n_u8(171));
            vsubq_u8(vdupq_n_u8(0), vaddq_u8(one, two))
        }))
    }

    #[inline(always)]
    unsafe fn spread(quads: Bytes) -> Bytes {
        simd!({
            let lowest = [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12];
            let lowest = vld1q_u8(lowest.as_ptr());
            quads.map(|quads| vqtbl1q_u8(quads, lowest))
        })
    }

    #[inline(always)]
    unsafe fn numbers(quads: Bytes) -> Floats {
        simd!(quads.map(|quads| vcvtq_f32_u32(vreinterpretq_u32_u8(quads))))
    }

    #[inline(always)]
    unsafe fn from_bits(quads: Bytes) -> Floats {
        simd!(quads.map(|quads| vreinterpretq_f32_u8(quads)))
    }

    #[inline(always)]
    unsafe fn zero() -> Floats {
        simd!([vdupq_n_f32(0.0); 2])
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Floats {
        simd!([vdupq_n_f32(value); 2])
    }

    #[inline(always)]
    unsafe fn load_f32(pointer: *const u8) -> Floats {
        simd!([vld1q_f32(pointer.cast()), vld1q_f32(pointer.add(16).cast())])
    }

    #[inline(always)]
    unsafe fn load_f16(pointer: *const u8) -> Floats {
        simd!({
            let halves = vld1q_u16(pointer.cast());
            [single(vmovl_u16(vget_low_u16(halves))), single(vmovl_high_u16(halves))]
        })
    }

    #[inline(always)]
    unsafe fn load_bf16(pointer: *const u8) -> Floats {
        simd!({
            let halves = vld1q_u16(pointer.cast());
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(halves))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(halves)),
            ]
        })
    }

    #[inline(always)]
    unsafe fn load_i8(pointer: *const u8) -> Floats {
        simd!({
            let wide = vmovl_s8(vld1_s8(pointer.cast()));
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))]
        })
    }

    #[inline(always)]
    unsafe fn load_u8(pointer: *const u8, shift: u32, mask: u8) -> Floats {
        simd!({
            let moved = vshl_u8(vld1_u8(pointer), vdup_n_s8(-(shift as i8)));
            let wide = vmovl_u8(vand_u8(moved, vdup_n_u8(mask)));
            [vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))]
        })
    }

    #[inline(always)]
    unsafe fn store_f32(pointer: *mut f32, value: Floats) {
        simd!({
            vst1q_f32(pointer, value[0]);
            vst1q_f32(pointer.add(4), value[1]);
        })
    }

    #[inline(always)]
    unsafe fn multiply(a: Floats, b: Floats) -> Floats {
        simd!([vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])])
    }

    #[inline(always)]
    unsafe fn multiply_add(a: Floats, b: Floats, c: Floats) -> Floats {
        simd!([vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])])
    }

    #[inline(always)]
    unsafe fn prefetch(pointer: *const u8) {
        simd!(std::arch::asm!(
            "prfm pldl1keep, [{0}]",
            in(reg) pointer,
            options(nostack, preserves_flags, readonly)
        ))
    }

    #[inline(always)]
    unsafe fn accumulate_offset<const C: usize>(
        sums: &mut [Floats; C],
        codes: &[Bytes; 8],
        scale: Floats,
        columns: Columns,
    ) {
        simd!(for (index, sum) in sums.iter_mut().enumerate() {
            let x = columns.at(index);
            let raw = dot::<SDOT>(codes, columns, index, (0, 8), 8);
            let start = vdupq_n_s32((*x).minus_eight_sums);
            let exact = [vaddq_s32(raw[0], start), vaddq_s32(raw[1], start)];
            add_scaled(sum, scale, (*x).scale, exact);
        })
    }

    #[inline(always)]
    unsafe fn accumulate_minimum<const C: usize>(
        sums: &mut [Floats; C],
        codes: &[Bytes; 8],
        scale: Floats,
        minimum: Floats,
        _: usize,
        columns: Columns,
    ) {
        simd!(for (index, sum) in sums.iter_mut().enumerate() {
            let x = columns.at(index);
            *sum = Self::multiply_add(minimum, Self::splat((*x).scaled_sum), *sum);
            add_scaled(sum, scale, (*x).scale, dot::<SDOT>(codes, columns, index, (0, 8), 8));
        })
    }

    #[inline(always)]
    unsafe fn accumulate_halves<const C: usize>(
        sums: &mut [Floats; C],
        codes: &[Bytes; 8],
        scale: [Floats; 2],
        minimum: [Floats; 2],
        adds: usize,
        columns: Columns,
    ) {
        let flush = (2 * adds).min(4);
        simd!(for (index, sum) in sums.iter_mut().enumerate() {
            let x = columns.at(index);
            let (low, all) = ((*x).scaled_low_sum, (*x).scaled_sum);
            *sum = Self::multiply_add(minimum[0], Self::splat(low), *sum);
            *sum = Self::multiply_add(minimum[1], Self::splat(all - low), *sum);
            let dots =
                [(0, 4), (4, 8)].map(|quads| dot::<SDOT>(codes, columns, index, quads, flush));
            add_scaled(sum, scale[0], (*x).scale, dots[0]);
            add_scaled(sum, scale[1], (*x).scale, dots[1]);
        })
    }

    #[inline(always)]
    unsafe fn accumulate_signed<F: Format, const C: usize>(
        sums: &mut [Floats; C],
        block: Block<'_>,
        scale: Floats,
        columns: Columns,
    ) {
        simd!({
            let codes = each_quad!(array QUAD => F::code::<Self>(block, QUAD));
            for (index, sum) in sums.iter_mut().enumerate() {
                let raw = dot::<SDOT>(&codes, columns, index, (0, 8), 2);
                add_scaled(sum, scale, (*columns.at(index)).scale, raw);
            }
        })
    }

    unsafe fn accumulate_pair<F: Format, const C: usize>(
        _: &mut [[Floats; C]; 2],
        _: [Block<'_>; 2],
        _: Columns,
    ) {
        unreachable!("there are no pairs");
    }

    unsafe fn pair_tile<F: Format, const C: usize>(_: &Tile) {
        unreachable!("there are no pairs");
    }

    unsafe fn tile<F: Format, const C: usize>(tile: &Tile) {
        simd!(kernel::tile::<Self, F, C>(tile))
    }

    unsafe fn unpack<F: Format>(unpack: &Unpack) {
        simd!(kernel::unpack::<Self, F>(unpack))
    }

    unsafe fn float_tile<E: Element, const C: usize, const PAIR: bool>(tile: &FloatTile) {
        simd!(kernel::float_tile::<Self, E, C, PAIR>(tile))
    }
}

/// Converts half-precision bits, widened to 32, to floats. Shifted into place they read as the
/// value times 2^-112, subnormals included; only infinities and NaN need their exponent set.
///
/// # Safety
/// Same as [`Simd`].
#[inline(always)]
unsafe fn single(bits: uint32x4_t) -> float32x4_t {
    simd!({
        let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff)));
        let scaled = vmulq_n_f32(vreinterpretq_f32_u32(magnitude), f32::from_bits(0x7780_0000));
        let special = vcgeq_u32(magnitude, vdupq_n_u32(0x0f80_0000));
        let exponent = vandq_u32(special, vdupq_n_u32(0x7f80_0000));
        let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
        let value = vorrq_u32(vreinterpretq_u32_f32(scaled), exponent);
        vreinterpretq_f32_u32(vorrq_u32(value, sign))
    })
}
