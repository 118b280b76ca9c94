//! Rows of a table by token ids, for operations and inputs that look rows up on the host.

use trine_weights::Tensor;

/// Returns the row of a table of `rows` rows that a token id looks up. Ids beyond the table, such
/// as those of pictures in a table of texts, look up row 0.
pub fn table_row(rows: usize, token: u32) -> usize {
    let row = token as usize;
    if row < rows { row } else { 0 }
}

/// Writes `table[token] * scale` for each token: (tokens, columns) f32, row-major. [`table_row`]
/// says what a token id beyond the table looks up.
///
/// The table has one of the formats of [`trine_weights::blocks`], and is read where the file is
/// mapped. The caller has to check afterwards whether the file was intact.
///
/// # Panics
/// If the table has no rows, or the length of `rows` is wrong.
pub fn gather(table: &Tensor, scale: f32, tokens: &[u32], rows: &mut [f32]) {
    let columns = table.columns();
    assert_eq!(rows.len(), tokens.len() * columns, "a row for each token");
    if tokens.len() > 1 {
        // Otherwise each row that is not in memory yet would be waited for before the next.
        tokens.iter().for_each(|&token| table.prefetch_row(table_row(table.rows(), token)));
    }
    for (row, &token) in rows.chunks_exact_mut(columns).zip(tokens) {
        let decoded = table.decode_row(table_row(table.rows(), token), row);
        decoded.expect("row lengths were checked when the model was opened");
        row.iter_mut().for_each(|x| *x *= scale);
    }
}

#[cfg(test)]
mod tests {
    use trine_weights::DType;

    use super::*;

    #[test]
    fn ids_beyond_the_table_look_up_its_first_row() {
        let bytes = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let table = Tensor::from_owned("table", DType::F32, &[2, 2], bytes).unwrap();
        let mut rows = [f32::NAN; 8];
        gather(&table, 0.5, &[1, 2, u32::MAX, 0], &mut rows);
        assert_eq!(rows, [1.5, 2.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0]);
    }
}
