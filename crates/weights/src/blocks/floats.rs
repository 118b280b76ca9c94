//! F32, F16 and BF16: little-endian numbers, one after the other.
//!
//! Encoding rounds to the nearest, ties to even.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The number of elements converted at a time: enough to use the processor's vector conversion.
const BATCH: usize = 64;

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
        *out = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    // The bytes may be unaligned, so they pass through an aligned buffer.
    let mut batch = [f16::ZERO; BATCH];
    for (bytes, out) in bytes.chunks(BATCH * 2).zip(out.chunks_mut(BATCH)) {
        for (half, bytes) in batch.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        batch[..out.len()].convert_to_f32_slice(out);
    }
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

pub(super) fn encode_f32(input: &[f32], out: &mut [u8]) {
    for (value, out) in input.iter().zip(out.as_chunks_mut::<4>().0) {
        *out = value.to_le_bytes();
    }
}

pub(super) fn encode_f16(input: &[f32], out: &mut [u8]) {
    let mut batch = [f16::ZERO; BATCH];
    for (input, out) in input.chunks(BATCH).zip(out.chunks_mut(BATCH * 2)) {
        batch[..input.len()].convert_from_f32_slice(input);
        for (half, out) in batch.iter().zip(out.as_chunks_mut::<2>().0) {
            *out = half.to_le_bytes();
        }
    }
}

pub(super) fn encode_bf16(input: &[f32], out: &mut [u8]) {
    for (value, out) in input.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = bf16::from_f32(*value).to_le_bytes();
    }
}
