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
    quantize_weighted(tensor, fallback(dtype, tensor.columns()), &[])
}

/// Returns the tensor as `target`, where an error in a column counts as much as its `importance`:
/// one number for each column, or as many for each of several equal groups of rows (experts). None
/// at all means that nothing is known of them.
///
/// # Errors
///
/// Same as [`quantize_tensor`]; also if the rows are no whole blocks of the format, or no equal
/// groups of them have as many columns as there are importances.
pub fn quantize_weighted(
    tensor: &Tensor,
    target: DType,
    importance: &[f32],
) -> Result<Tensor, WeightsError> {
    if target == tensor.dtype() {
        return Ok(tensor.clone());
    }
    let (rows, columns) = (tensor.rows(), tensor.columns());
    let fail =
        |problem: String| Err(WeightsError::Tensor { name: tensor.name().to_owned(), problem });
    let groups = importance.len().checked_div(columns).unwrap_or(0);
    let is_whole = importance.len() == groups * columns && rows.is_multiple_of(groups.max(1));
    if !is_whole {
        let given = importance.len();
        return fail(format!("has {rows} rows of {columns} columns, not {given} importances"));
    }
    let Some(row_bytes) = target.row_bytes(columns) else {
        return fail(format!("has rows of {columns} columns, which are no blocks of {target}"));
    };
    let Some(total) = rows.checked_mul(row_bytes) else {
        return fail(format!("does not fit memory as {target}"));
    };
    let mut bytes = vec![0; total];
    if row_bytes > 0 {
        let of_row = |row: usize| {
            let group = row / rows.div_ceil(groups.max(1));
            importance.get(group * columns..(group + 1) * columns)
        };
        bytes.par_chunks_mut(row_bytes).enumerate().try_for_each_init(
            || vec![0.0; columns],
            |floats, (row, out)| {
                tensor.decode_row(row, floats)?;
                blocks::encode_into(target, floats, of_row(row), out)
                    .map_err(|error| place(error, row * columns))
            },
        )?;
    }
    Tensor::from_owned(tensor.name(), target, tensor.shape(), bytes)
}

/// Returns what a conversion lost: the sum of squares of the elements' differences, and that of the
/// elements before.
///
/// # Errors
///
/// Returns an error if the tensors have not the same number of rows and columns.
pub fn loss(before: &Tensor, after: &Tensor) -> Result<(f64, f64), WeightsError> {
    let columns = before.columns();
    if (before.rows(), columns) != (after.rows(), after.columns()) {
        return Err(WeightsError::Tensor {
            name: after.name().to_owned(),
            problem: format!("has not the shape of {}", before.name()),
        });
    }
    let of_row = |(old, new): &mut (Vec<f32>, Vec<f32>), row: usize| {
        before.decode_row(row, old)?;
        after.decode_row(row, new)?;
        let squares = old
            .iter()
            .zip(new.iter())
            .map(|(old, new)| (f64::from(old - new).powi(2), f64::from(*old).powi(2)));
        Ok(squares.fold((0.0, 0.0), add))
    };
    (0..before.rows())
        .into_par_iter()
        .map_init(|| (vec![0.0; columns], vec![0.0; columns]), of_row)
        .try_reduce(|| (0.0, 0.0), |left, right| Ok(add(left, right)))
}

fn add(left: (f64, f64), right: (f64, f64)) -> (f64, f64) {
    (left.0 + right.0, left.1 + right.1)
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
