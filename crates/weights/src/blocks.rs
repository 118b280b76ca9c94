//! The block formats: what their bytes mean, and how floats become bytes.
//!
//! One file per family: [`floats`](self) F32 F16 BF16, `classic` Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 (32
//! elements), `k_low` Q2_K Q3_K, `k_mid` Q4_K Q5_K, `k_high` Q6_K (256 elements), `tables` IQ4_NL
//! IQ4_XS MXFP4. The layouts are ggml's
//! (<https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h>), stated at the top
//! of each file. Nibble order: unless a file says otherwise, the low nibbles of a group of bytes
//! are the first half of its elements and the high nibbles the second half.
//!
//! Decoding is exact: each product of a half-precision scale with its integers fits a float's 24
//! bits, so at most the one addition of formats with a minimum rounds.
//!
//! Encoding: for Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 the bytes equal those of llama.cpp's reference;
//! Q4_K and Q6_K search their scales by weighted least squares (see `fit`).

mod classic;
mod fit;
mod floats;
mod halves;
mod k_high;
mod k_low;
mod k_mid;
mod tables;

use crate::{DType, WeightsError};

/// Decodes whole blocks into floats.
///
/// `bytes` are any number of whole blocks (rows, or a whole tensor); `out` has one element for each
/// element in them.
///
/// # Errors
///
/// Returns an error if the lengths do not fit each other.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), WeightsError> {
    if dtype.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(WeightsError::Blocks {
            format: dtype.name(),
            problem: format!(
                "{} bytes do not hold {} elements (blocks of {} elements in {} bytes)",
                bytes.len(),
                out.len(),
                dtype.block_elements(),
                dtype.block_bytes()
            ),
        });
    }
    match dtype {
        DType::F32 => floats::decode_f32(bytes, out),
        DType::F16 => floats::decode_f16(bytes, out),
        DType::BF16 => floats::decode_bf16(bytes, out),
        DType::Q4_0 => each_block(bytes, out, classic::decode_q4_0),
        DType::Q4_1 => each_block(bytes, out, classic::decode_q4_1),
        DType::Q5_0 => each_block(bytes, out, classic::decode_q5_0),
        DType::Q5_1 => each_block(bytes, out, classic::decode_q5_1),
        DType::Q8_0 => each_block(bytes, out, classic::decode_q8_0),
        DType::Q2K => each_block(bytes, out, k_low::decode_q2_k),
        DType::Q3K => each_block(bytes, out, k_low::decode_q3_k),
        DType::Q4K => each_block(bytes, out, k_mid::decode_q4_k),
        DType::Q5K => each_block(bytes, out, k_mid::decode_q5_k),
        DType::Q6K => each_block(bytes, out, k_high::decode_q6_k),
        DType::Iq4Nl => each_block(bytes, out, tables::decode_iq4_nl),
        DType::Iq4Xs => each_block(bytes, out, tables::decode_iq4_xs),
        DType::Mxfp4 => each_block(bytes, out, tables::decode_mxfp4),
    }
    Ok(())
}

fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<ELEMENTS>();
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

/// Returns whether [`encode`] writes this format.
pub const fn can_encode(dtype: DType) -> bool {
    magnitude_max(dtype).is_some()
}

/// Returns the largest magnitude that a format stores, or `None` if there is no encoder. For block
/// formats that is the largest that a half-precision scale reaches.
const fn magnitude_max(dtype: DType) -> Option<f32> {
    const HALF_MAX: f32 = 65_504.0;
    match dtype {
        DType::F32 => Some(f32::MAX),
        DType::F16 | DType::Q4_1 | DType::Q5_1 => Some(HALF_MAX),
        DType::BF16 => Some(3.389_531_4e38),
        DType::Q4_0 => Some(HALF_MAX * 8.0),
        DType::Q5_0 => Some(HALF_MAX * 16.0),
        DType::Q8_0 => Some(HALF_MAX * 127.0),
        // The fitted minimum may exceed the smallest element a little: half of what 63 steps reach.
        DType::Q4K | DType::Q6K => Some(HALF_MAX * 32.0),
        _ => None,
    }
}

/// Appends the encoding of `input` to `out`.
///
/// Written formats: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q6_K.
///
/// # Errors
///
/// Returns an error if there is no encoder for the format, `input` is not whole blocks, or it holds
/// NaN, an infinity or a number beyond the format's range. `out` is then unchanged.
pub fn encode(dtype: DType, input: &[f32], out: &mut Vec<u8>) -> Result<(), WeightsError> {
    let bytes = dtype.row_bytes(input.len()).unwrap_or(0);
    let start = out.len();
    out.resize(start + bytes, 0);
    let result = encode_into(dtype, input, &mut out[start..]);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Does the same as [`encode`] into a buffer of exactly the encoding's length.
///
/// # Errors
///
/// Same as [`encode`]; also if `out` has another length.
pub fn encode_into(dtype: DType, input: &[f32], out: &mut [u8]) -> Result<(), WeightsError> {
    let fail = |problem: String| Err(WeightsError::Blocks { format: dtype.name(), problem });
    let Some(magnitude_max) = magnitude_max(dtype) else {
        return fail("trine has no encoder for this format".to_owned());
    };
    if dtype.row_bytes(input.len()) != Some(out.len()) {
        let (elements, bytes) = (input.len(), out.len());
        return fail(format!("{elements} elements do not encode to {bytes} bytes"));
    }
    if let Some(position) =
        input.iter().position(|value| value.is_nan() || value.abs() > magnitude_max)
    {
        let value = input[position];
        let is_finite = value.is_finite();
        let problem = if is_finite { "beyond its range" } else { "not a finite number" };
        return Err(WeightsError::NotEncodable { position, value, format: dtype.name(), problem });
    }
    match dtype {
        DType::F32 => floats::encode_f32(input, out),
        DType::F16 => floats::encode_f16(input, out),
        DType::BF16 => floats::encode_bf16(input, out),
        DType::Q4_0 => encode_each(input, out, classic::encode_q4_0),
        DType::Q4_1 => encode_each(input, out, classic::encode_q4_1),
        DType::Q5_0 => encode_each(input, out, classic::encode_q5_0),
        DType::Q5_1 => encode_each(input, out, classic::encode_q5_1),
        DType::Q8_0 => encode_each(input, out, classic::encode_q8_0),
        DType::Q4K => encode_each(input, out, k_mid::encode_q4_k),
        DType::Q6K => encode_each(input, out, k_high::encode_q6_k),
        _ => unreachable!("formats without a magnitude limit have returned above"),
    }
    Ok(())
}

fn encode_each<const BYTES: usize, const ELEMENTS: usize>(
    input: &[f32],
    out: &mut [u8],
    encode: fn(&[f32; ELEMENTS], &mut [u8; BYTES]),
) {
    let (inputs, _) = input.as_chunks::<ELEMENTS>();
    let (blocks, _) = out.as_chunks_mut::<BYTES>();
    for (input, block) in inputs.iter().zip(blocks) {
        encode(input, block);
    }
}
