//! Converting whole tensors to other element formats.

use rayon::prelude::*;

use crate::{DType, Tensor, WeightsError, blocks};

/// Returns the format in which rows of `columns` elements are stored if `dtype` is requested.
///
/// Rows that are not whole blocks fall back to a format of 32-element blocks with no fewer bits, as
/// in llama-quantize (Q4_K to Q5_0, Q5_K to Q5_1, Q6_K to Q8_0, Q2_K and Q3_K to Q4_0, IQ4_XS to
/// IQ4_NL), and to F16 if the rows are not multiples of 32 either.
pub fn fallback(dtype: DType, columns: usize) -> DType {
    let fits = |dtype: DType| columns.is_multiple_of(dtype.block_elements());
    if fits(dtype) {
        return dtype;
    }
    dtype.fallback().filter(|smaller| fits(*smaller)).unwrap_or(DType::F16)
}

/// Returns the tensor in `fallback(dtype, columns)`, with its rows converted in parallel. The
/// result is in memory; a tensor that has the format already is shared, not copied.
///
/// # Errors
///
/// Returns an error if the format has no encoder, or an element is NaN, infinite or beyond the
/// format's range. The error's position counts elements of the whole tensor.
pub fn quantize_tensor(tensor: &Tensor, dtype: DType) -> Result<Tensor, WeightsError> {
    let target = fallback(dtype, tensor.columns());
    if target == tensor.dtype() {
        return Ok(tensor.clone());
    }
    let name = || tensor.name().to_owned();
    let row_bytes = target.row_bytes(tensor.columns()).expect("the fallback format fits the rows");
    let total = tensor.rows().checked_mul(row_bytes).ok_or_else(|| WeightsError::Tensor {
        name: name(),
        problem: format!("does not fit memory as {target}"),
    })?;
    let mut bytes = vec![0; total];
    if row_bytes > 0 {
        let columns = tensor.columns();
        bytes.par_chunks_mut(row_bytes).enumerate().try_for_each_init(
            || vec![0.0; columns],
            |floats, (row, out)| {
                blocks::decode(tensor.dtype(), tensor.row(row), floats)?;
                blocks::encode_into(target, floats, out)
                    .map_err(|error| place(error, row * columns))
            },
        )?;
    }
    Tensor::from_owned(tensor.name(), target, tensor.shape(), bytes)
}

/// Shifts the position of a row's error to the whole tensor.
fn place(error: WeightsError, elements_before: usize) -> WeightsError {
    match error {
        WeightsError::NotEncodable { position, value, format, problem } => {
            WeightsError::NotEncodable {
                position: position + elements_before,
                value,
                format,
                problem,
            }
        }
        other => other,
    }
}
