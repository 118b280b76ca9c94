//! AVX2 and AVX-512 lanes.

use std::arch::x86_64::*;

use half::f16;

use super::lanes::Lanes;

/// Runs intrinsics under the token's promise.
macro_rules! proven {
    ($operation:expr) => {
        // SAFETY: a token exists only where the processor has the features (see `new`).
        unsafe { $operation }
    };
}

/// Token for AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The processor has AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx2(())
    }
}

impl Lanes for Avx2 {
    type Vector = __m256;
    const COUNT: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, value: f32) -> __m256 {
        proven!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> __m256 {
        proven!(_mm256_loadu_ps(source))
    }
    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> __m256 {
        proven!(_mm256_cvtph_ps(_mm_loadu_si128(source.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, source: *const i8) -> __m256 {
        proven!(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(source.cast()))))
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32, value: __m256) {
        proven!(_mm256_storeu_ps(target, value))
    }
    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        proven!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m256, b: __m256) -> __m256 {
        // The instruction returns its second operand when either is NaN.
        proven!(_mm256_max_ps(b, a))
    }
    #[inline(always)]
    fn min(self, a: __m256, b: __m256) -> __m256 {
        proven!(_mm256_min_ps(b, a))
    }
    #[inline(always)]
    fn round(self, a: __m256) -> __m256 {
        proven!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn scale_by_power(self, a: __m256, n: __m256) -> __m256 {
        // In two halves, since 2^n itself may leave the range that the result does not.
        proven!({
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let bias = _mm256_set1_epi32(127);
            let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
            let rest = _mm256_sub_epi32(n, half);
            let second = _mm256_slli_epi32::<23>(_mm256_add_epi32(rest, bias));
            let scaled = _mm256_mul_ps(a, _mm256_castsi256_ps(first));
            _mm256_mul_ps(scaled, _mm256_castsi256_ps(second))
        })
    }
    #[inline(always)]
    fn abs(self, a: __m256) -> __m256 {
        proven!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn copy_sign(self, a: __m256, sign: __m256) -> __m256 {
        proven!({
            let mask = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(mask, a), _mm256_and_ps(mask, sign))
        })
    }
    #[inline(always)]
    fn where_less(self, a: __m256, b: __m256, yes: __m256, no: __m256) -> __m256 {
        proven!(_mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }
    #[inline(always)]
    fn sum(self, a: __m256) -> f32 {
        proven!({
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn largest(self, a: __m256) -> f32 {
        let mut lanes = [0.0; 8];
        self.write(&mut lanes, a);
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

/// Token for AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ and VL.
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        Avx512(())
    }
}

impl Lanes for Avx512 {
    type Vector = __m512;
    const COUNT: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        proven!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    unsafe fn load(self, source: *const f32) -> __m512 {
        proven!(_mm512_loadu_ps(source))
    }
    #[inline(always)]
    unsafe fn load_f16(self, source: *const f16) -> __m512 {
        proven!(_mm512_cvtph_ps(_mm256_loadu_si256(source.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(self, source: *const i8) -> __m512 {
        proven!(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(source.cast()))))
    }
    #[inline(always)]
    unsafe fn store(self, target: *mut f32, value: __m512) {
        proven!(_mm512_storeu_ps(target, value))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        proven!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_max_ps(b, a))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_min_ps(b, a))
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        proven!(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a))
    }
    #[inline(always)]
    fn scale_by_power(self, a: __m512, n: __m512) -> __m512 {
        proven!(_mm512_scalef_ps(a, n))
    }
    #[inline(always)]
    fn abs(self, a: __m512) -> __m512 {
        proven!(_mm512_andnot_ps(_mm512_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn copy_sign(self, a: __m512, sign: __m512) -> __m512 {
        proven!({
            let mask = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(mask, a), _mm512_and_ps(mask, sign))
        })
    }
    #[inline(always)]
    fn where_less(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        proven!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        proven!({
            let high = _mm512_extractf32x8_ps::<1>(a);
            let eight = _mm256_add_ps(_mm512_castps512_ps256(a), high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        let mut lanes = [0.0; 16];
        self.write(&mut lanes, a);
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}
