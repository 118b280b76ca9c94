//! NEON lanes.

use std::arch::aarch64::*;

use half::f16;

use super::lanes::{Lanes, widen};

/// Runs intrinsics under the token's promise.
macro_rules! proven {
    ($operation:expr) => {
        // SAFETY: NEON is part of every 64-bit ARM target this module is compiled for.
        unsafe { $operation }
    };
}

/// Token for NEON, which every 64-bit ARM processor has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon(());

impl Neon {
    /// # Safety
    /// The processor has NEON.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Neon(())
    }
}

impl Lanes for Neon {
    type Vector = float32x4_t;
    const COUNT: usize = 4;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, value: f32) -> float32x4_t {
        proven!(vdupq_n_f32(value))
    }
    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> float32x4_t {
        proven!(vld1q_f32(source))
    }
    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> float32x4_t {
        let halves = proven!(source.cast::<[f16; 4]>().read_unaligned());
        self.read(&halves.map(widen))
    }
    #[inline(always)]
    unsafe fn load_i8(self, source: *const i8) -> float32x4_t {
        let bytes = proven!(source.cast::<[i8; 4]>().read_unaligned());
        self.read(&bytes.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32, value: float32x4_t) {
        proven!(vst1q_f32(target, value))
    }
    #[inline(always)]
    fn add(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        proven!(vaddq_f32(a, b))
    }
    #[inline(always)]
    fn sub(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        proven!(vsubq_f32(a, b))
    }
    #[inline(always)]
    fn mul(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        proven!(vmulq_f32(a, b))
    }
    #[inline(always)]
    fn div(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        proven!(vdivq_f32(a, b))
    }
    #[inline(always)]
    fn fma(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        proven!(vfmaq_f32(c, a, b))
    }
    #[inline(always)]
    fn max(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        proven!(vbslq_f32(vcgtq_f32(b, a), b, a))
    }
    #[inline(always)]
    fn min(self, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        proven!(vbslq_f32(vcltq_f32(b, a), b, a))
    }
    #[inline(always)]
    fn round(self, a: float32x4_t) -> float32x4_t {
        proven!(vrndnq_f32(a))
    }
    #[inline(always)]
    fn scale_by_power(self, a: float32x4_t, n: float32x4_t) -> float32x4_t {
        proven!({
            let n = vcvtq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            let bias = vdupq_n_s32(127);
            let first = vshlq_n_s32::<23>(vaddq_s32(half, bias));
            let second = vshlq_n_s32::<23>(vaddq_s32(vsubq_s32(n, half), bias));
            let scaled = vmulq_f32(a, vreinterpretq_f32_s32(first));
            vmulq_f32(scaled, vreinterpretq_f32_s32(second))
        })
    }
    #[inline(always)]
    fn abs(self, a: float32x4_t) -> float32x4_t {
        proven!(vabsq_f32(a))
    }
    #[inline(always)]
    fn copy_sign(self, a: float32x4_t, sign: float32x4_t) -> float32x4_t {
        proven!(vbslq_f32(vdupq_n_u32(1 << 31), sign, a))
    }
    #[inline(always)]
    fn where_less(
        self,
        a: float32x4_t,
        b: float32x4_t,
        yes: float32x4_t,
        no: float32x4_t,
    ) -> float32x4_t {
        proven!(vbslq_f32(vcltq_f32(a, b), yes, no))
    }
    #[inline(always)]
    fn sum(self, a: float32x4_t) -> f32 {
        proven!(vaddvq_f32(a))
    }
    #[inline(always)]
    fn largest(self, a: float32x4_t) -> f32 {
        proven!(vmaxnmvq_f32(a)).max(f32::NEG_INFINITY)
    }
}
