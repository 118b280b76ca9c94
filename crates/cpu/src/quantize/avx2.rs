//! Quantisation with AVX2: 32 floats in four registers. Bound by reading the floats.

use std::arch::x86_64::*;

use super::block::{BLOCK, QuantizedBlock, scale_of};
use super::portable;
use crate::isa::Isa;

/// Quantises whole blocks.
pub(super) fn quantize_blocks(input: &[[f32; BLOCK]], output: &mut [QuantizedBlock]) {
    assert!(Isa::Avx2.is_available(), "AVX2 was chosen on a processor without it");
    for (values, block) in input.iter().zip(output) {
        // SAFETY: the processor has AVX2, as just checked.
        unsafe { quantize_block(values, block) }
    }
}

/// The portable loop, compiled for AVX2.
pub(super) fn subtract_blocks(row: &[f32], blocks: &[QuantizedBlock], output: &mut [f32]) {
    assert!(Isa::Avx2.is_available(), "AVX2 was chosen on a processor without it");
    // SAFETY: the processor has AVX2, as just checked.
    unsafe { subtract(row, blocks, output) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn subtract(row: &[f32], blocks: &[QuantizedBlock], output: &mut [f32]) {
    portable::subtract_blocks(row, blocks, output);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_block(values: &[f32; BLOCK], block: &mut QuantizedBlock) {
    let pointer = values.as_ptr();
    // SAFETY: the four loads cover exactly the 32 floats.
    let parts = unsafe {
        [
            _mm256_loadu_ps(pointer),
            _mm256_loadu_ps(pointer.add(8)),
            _mm256_loadu_ps(pointer.add(16)),
            _mm256_loadu_ps(pointer.add(24)),
        ]
    };
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let [a, b, c, d] = parts.map(|part| _mm256_and_si256(_mm256_castps_si256(part), magnitude));
    // As integers, magnitudes order NaN above infinity above every number.
    let largest = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    let half =
        _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
    let pair = _mm_max_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
    let one = _mm_max_epi32(pair, _mm_shuffle_epi32::<0b10_11_00_01>(pair));
    let (scale, inverse) = scale_of(f32::from_bits(_mm_cvtsi128_si32(one).cast_unsigned()));

    let factor = _mm256_set1_ps(inverse);
    // NaN * 0 and infinity * 0 convert to the smallest integer, which the packing saturates; the
    // NaN scale makes the codes of such a block irrelevant.
    let [a, b, c, d] = parts.map(|part| _mm256_cvtps_epi32(_mm256_mul_ps(part, factor)));
    let mixed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let codes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    // SAFETY: the store covers exactly the 32 codes.
    unsafe { _mm256_storeu_si256(block.codes.as_mut_ptr().cast(), codes) };

    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let low = horizontal_sum(_mm256_castsi256_si128(quads));
    let all = low + horizontal_sum(_mm256_extracti128_si256::<1>(quads));
    block.scale = scale;
    block.scaled_sum = scale * all as f32;
    block.scaled_low_sum = scale * low as f32;
    block.minus_eight_sums = -8 * all;
}

#[target_feature(enable = "avx2,fma,f16c")]
fn horizontal_sum(quads: __m128i) -> i32 {
    let pairs = _mm_add_epi32(quads, _mm_shuffle_epi32::<0b01_00_11_10>(quads));
    _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32::<0b10_11_00_01>(pairs)))
}
