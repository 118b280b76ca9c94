//! From bytes to floats and back.
//!
//! Decoding is exact: each product of a half-precision scale with its integers fits a float's 24
//! bits, so at most the one addition of formats with a minimum rounds.
//!
//! Encoding: for Q8_0, and without importances for Q4_0, Q4_1, Q5_0 and Q5_1, the bytes equal those
//! of llama.cpp's reference; all others search their scales by weighted least squares.

use crate::formats::page::Encoder;
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
    (dtype.page().decode)(bytes, out);
    Ok(())
}

/// Returns whether [`encode`] writes this format.
pub const fn can_encode(dtype: DType) -> bool {
    dtype.page().encoder.is_some()
}

/// Appends the encoding of `input` to `out`.
///
/// # Errors
///
/// Returns an error if there is no encoder for the format, `input` is not whole blocks, or it holds
/// NaN, an infinity or a number beyond the format's range. `out` is then unchanged.
pub fn encode(dtype: DType, input: &[f32], out: &mut Vec<u8>) -> Result<(), WeightsError> {
    let bytes = dtype.row_bytes(input.len()).unwrap_or(0);
    let start = out.len();
    out.resize(start + bytes, 0);
    let result = encode_into(dtype, input, None, &mut out[start..]);
    if result.is_err() {
        out.truncate(start);
    }
    result
}

/// Returns whether importances change what a format's encoder writes.
pub fn takes_importances(dtype: DType) -> bool {
    can_encode(dtype) && dtype.is_quantized() && dtype != DType::Q8_0
}

/// Does the same as [`encode`] into a buffer of exactly the encoding's length. An error in an
/// element counts as much as its `importance`: the mean square of what it is multiplied with, as an
/// importance matrix has it.
///
/// # Errors
///
/// Same as [`encode`]; also if `out` has another length, or there are not as many importances as
/// elements, or one of them is negative or not finite.
pub fn encode_into(
    dtype: DType,
    input: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), WeightsError> {
    let fail = |problem: String| Err(WeightsError::Blocks { format: dtype.name(), problem });
    let Some(Encoder { magnitude_max, encode }) = dtype.page().encoder else {
        return fail("trine has no encoder for this format".to_owned());
    };
    if dtype.row_bytes(input.len()) != Some(out.len()) {
        let (elements, bytes) = (input.len(), out.len());
        return fail(format!("{elements} elements do not encode to {bytes} bytes"));
    }
    let is_importance = |value: &f32| value.is_finite() && *value >= 0.0;
    if let Some(importance) = importance
        && (importance.len() != input.len() || !importance.iter().all(is_importance))
    {
        let (elements, given) = (input.len(), importance.len());
        return fail(format!(
            "{given} importances do not suit {elements} elements, or one is negative or not finite"
        ));
    }
    if let Some(position) =
        input.iter().position(|value| value.is_nan() || value.abs() > magnitude_max)
    {
        let value = input[position];
        let is_finite = value.is_finite();
        let problem = if is_finite { "beyond its range" } else { "not a finite number" };
        return Err(WeightsError::NotEncodable { position, value, format: dtype.name(), problem });
    }
    // Only their ratios count; sums of their products with squares have to stay finite.
    let most = importance.unwrap_or_default().iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    let shares = importance.map(|all| all.iter().map(|own| own / most).collect::<Vec<f32>>());
    encode(input, shares.as_deref(), out);
    Ok(())
}
