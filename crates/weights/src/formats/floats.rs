//! F32, F16 and BF16: little-endian numbers, one after the other.
//!
//! Encoding rounds to the nearest, ties to even.

use super::page::{Encoder, HALF_MAX, Page};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

pub(crate) const F32: Page = Page {
    file_type: Some(0),
    encoder: Some(Encoder { magnitude_max: f32::MAX, encode: encode_f32 }),
    ..Page::new("F32", 0, (1, 4), &[], decode_f32)
};

pub(crate) const F16: Page = Page {
    file_type: Some(1),
    encoder: Some(Encoder { magnitude_max: HALF_MAX, encode: encode_f16 }),
    ..Page::new("F16", 1, (1, 2), &[], decode_f16)
};

pub(crate) const BF16: Page = Page {
    file_type: Some(32),
    encoder: Some(Encoder { magnitude_max: 3.389_531_4e38, encode: encode_bf16 }),
    ..Page::new("BF16", 30, (1, 2), &[], decode_bf16)
};

/// The number of elements converted at a time: enough to use the processor's vector conversion.
const BATCH: usize = 64;

fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
        *out = f32::from_le_bytes(*bytes);
    }
}

fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    // The bytes may be unaligned, so they pass through an aligned buffer.
    let mut batch = [f16::ZERO; BATCH];
    for (bytes, out) in bytes.chunks(BATCH * 2).zip(out.chunks_mut(BATCH)) {
        for (half, bytes) in batch.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        batch[..out.len()].convert_to_f32_slice(out);
    }
}

fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

fn encode_f32(input: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    for (value, out) in input.iter().zip(out.as_chunks_mut::<4>().0) {
        *out = value.to_le_bytes();
    }
}

fn encode_f16(input: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    let mut batch = [f16::ZERO; BATCH];
    for (input, out) in input.chunks(BATCH).zip(out.chunks_mut(BATCH * 2)) {
        batch[..input.len()].convert_from_f32_slice(input);
        for (half, out) in batch.iter().zip(out.as_chunks_mut::<2>().0) {
            *out = half.to_le_bytes();
        }
    }
}

fn encode_bf16(input: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    for (value, out) in input.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = bf16::from_f32(*value).to_le_bytes();
    }
}
