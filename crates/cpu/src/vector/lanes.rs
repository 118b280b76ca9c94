//! The few vector operations all kernels are written in.
//!
//! A kernel is one generic, always-inlined function over [`Lanes`]; each instruction set wraps it
//! in a function that enables its features, so the same source becomes AVX2, AVX-512, NEON and
//! portable code. The values of a [`Lanes`] type are tokens: one exists only where the processor
//! has the instructions, which is what makes the arithmetic methods safe.

use half::f16;

/// The most lanes of any instruction set, and the padding of scratch rows in elements.
pub(crate) const MAX_LANES: usize = 16;

/// A token for an instruction set, and its operations on `COUNT` floats at a time.
pub(crate) trait Lanes: Copy {
    /// `COUNT` floats.
    type Vector: Copy;
    /// Floats per vector: 4, 8 or 16.
    const COUNT: usize;
    /// Registers that hold a vector.
    const REGISTERS: usize;

    /// The same value in every lane.
    fn splat(self, value: f32) -> Self::Vector;

    /// Loads `COUNT` floats.
    ///
    /// # Safety
    /// `source` points to at least `COUNT` readable floats.
    unsafe fn load(self, source: *const f32) -> Self::Vector;

    /// Loads `COUNT` half floats and widens them (exact).
    ///
    /// # Safety
    /// `source` points to at least `COUNT` readable halves.
    unsafe fn load_f16(self, source: *const f16) -> Self::Vector;

    /// Loads `COUNT` signed bytes and converts them (exact).
    ///
    /// # Safety
    /// `source` points to at least `COUNT` readable bytes.
    unsafe fn load_i8(self, source: *const i8) -> Self::Vector;

    /// Stores `COUNT` floats.
    ///
    /// # Safety
    /// `target` points to at least `COUNT` writable floats.
    unsafe fn store(self, target: *mut f32, value: Self::Vector);

    /// `a + b`.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b`.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / b`.
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once where the processor can.
    fn fma(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// The larger of both; `a` if either is NaN.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The smaller of both; `a` if either is NaN.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The nearest integer, ties to even.
    fn round(self, a: Self::Vector) -> Self::Vector;
    /// `a * 2^n` for integer-valued `n` in -160..=160, correct into overflow and underflow.
    fn scale_by_power(self, a: Self::Vector, n: Self::Vector) -> Self::Vector;
    /// The magnitude of `a`.
    fn abs(self, a: Self::Vector) -> Self::Vector;
    /// The magnitude of `a` with the sign of `sign`.
    fn copy_sign(self, a: Self::Vector, sign: Self::Vector) -> Self::Vector;
    /// Per lane: `yes` where `a < b`, else `no` (also if either is NaN).
    fn where_less(
        self,
        a: Self::Vector,
        b: Self::Vector,
        yes: Self::Vector,
        no: Self::Vector,
    ) -> Self::Vector;
    /// The sum of all lanes, in a fixed order.
    fn sum(self, a: Self::Vector) -> f32;
    /// The largest lane that is not NaN; negative infinity if there is none.
    fn largest(self, a: Self::Vector) -> f32;

    /// Loads the first `COUNT` floats of a slice.
    #[inline(always)]
    fn read(self, source: &[f32]) -> Self::Vector {
        assert!(source.len() >= Self::COUNT);
        // SAFETY: the slice holds at least COUNT floats.
        unsafe { self.load(source.as_ptr()) }
    }

    /// Stores to the first `COUNT` floats of a slice.
    #[inline(always)]
    fn write(self, target: &mut [f32], value: Self::Vector) {
        assert!(target.len() >= Self::COUNT);
        // SAFETY: the slice holds at least COUNT floats.
        unsafe { self.store(target.as_mut_ptr(), value) }
    }

    /// Loads a slice shorter than `COUNT`; missing lanes hold `fill`.
    #[inline(always)]
    fn read_tail(self, source: &[f32], fill: f32) -> Self::Vector {
        let mut padded = [fill; MAX_LANES];
        padded[..source.len()].copy_from_slice(source);
        self.read(&padded)
    }

    /// Stores the first lanes to a slice shorter than `COUNT`.
    #[inline(always)]
    fn write_tail(self, target: &mut [f32], value: Self::Vector) {
        let mut padded = [0.0; MAX_LANES];
        self.write(&mut padded, value);
        let length = target.len();
        target.copy_from_slice(&padded[..length]);
    }
}

/// Portable lanes: plain loops over eight floats, which compilers turn into the vector instructions
/// that the target guarantees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

const WIDTH: usize = 8;

#[inline(always)]
fn each(mut operation: impl FnMut(usize) -> f32) -> [f32; WIDTH] {
    let mut result = [0.0; WIDTH];
    for (lane, value) in result.iter_mut().enumerate() {
        *value = operation(lane);
    }
    result
}

impl Lanes for Portable {
    type Vector = [f32; WIDTH];
    const COUNT: usize = WIDTH;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; WIDTH]
    }
    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> Self::Vector {
        // SAFETY: the caller guarantees COUNT readable floats; arrays of floats need no more.
        unsafe { source.cast::<[f32; WIDTH]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> Self::Vector {
        // SAFETY: the caller guarantees COUNT readable halves.
        let halves = unsafe { source.cast::<[f16; WIDTH]>().read_unaligned() };
        each(|lane| widen(halves[lane]))
    }
    #[inline(always)]
    unsafe fn load_i8(self, source: *const i8) -> Self::Vector {
        // SAFETY: the caller guarantees COUNT readable bytes.
        let bytes = unsafe { source.cast::<[i8; WIDTH]>().read_unaligned() };
        each(|lane| f32::from(bytes[lane]))
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32, value: Self::Vector) {
        // SAFETY: the caller guarantees COUNT writable floats.
        unsafe { target.cast::<[f32; WIDTH]>().write_unaligned(value) }
    }
    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(|lane| a[lane] / b[lane])
    }
    #[inline(always)]
    fn fma(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        // Not `mul_add`: without the instruction that is a slow library call.
        each(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(|lane| if b[lane] > a[lane] { b[lane] } else { a[lane] })
    }
    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        each(|lane| if b[lane] < a[lane] { b[lane] } else { a[lane] })
    }
    #[inline(always)]
    fn round(self, a: Self::Vector) -> Self::Vector {
        // Adding and subtracting 1.5 * 2^23 leaves the nearest integer for |a| < 2^22.
        const MAGIC: f32 = 12_582_912.0;
        each(|lane| (a[lane] + MAGIC) - MAGIC)
    }
    #[inline(always)]
    fn scale_by_power(self, a: Self::Vector, n: Self::Vector) -> Self::Vector {
        each(|lane| {
            let n = n[lane] as i32;
            let half = n >> 1;
            a[lane] * power_of_two(half) * power_of_two(n - half)
        })
    }
    #[inline(always)]
    fn abs(self, a: Self::Vector) -> Self::Vector {
        each(|lane| a[lane].abs())
    }
    #[inline(always)]
    fn copy_sign(self, a: Self::Vector, sign: Self::Vector) -> Self::Vector {
        each(|lane| a[lane].copysign(sign[lane]))
    }
    #[inline(always)]
    fn where_less(
        self,
        a: Self::Vector,
        b: Self::Vector,
        yes: Self::Vector,
        no: Self::Vector,
    ) -> Self::Vector {
        each(|lane| if a[lane] < b[lane] { yes[lane] } else { no[lane] })
    }
    #[inline(always)]
    fn sum(self, a: Self::Vector) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn largest(self, a: Self::Vector) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// `2^n` for n in -126..=127 (the halves of -160..=160 are well inside).
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// Widens a half float (IEEE 754 binary16) with integer operations and one multiplication, so
/// that loops over it vectorise: the half's exponent and mantissa bits, moved into place, are the
/// value times 2^-112, subnormals included.
#[inline(always)]
pub(crate) fn widen(half: f16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(half.to_bits());
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * REBIAS;
    // All exponent bits set: infinity or NaN, whose exponent stays full.
    let full = if bits & 0x7c00 == 0x7c00 { 0xff << 23 } else { 0 };
    f32::from_bits(magnitude.to_bits() | full | ((bits & 0x8000) << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact_for_every_half() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let (ours, expected) = (widen(half), half.to_f32());
            assert!(
                ours.to_bits() == expected.to_bits() || (ours.is_nan() && expected.is_nan()),
                "{bits:#06x}: {ours} instead of {expected}"
            );
        }
    }
}
