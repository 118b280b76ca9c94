//! Rows of a table by token ids, for operations and inputs that look rows up on the host.

use trine_weights::{Tensor, blocks};

/// Writes `table[token] * scale` for each token: (tokens, columns) f32, row-major.
///
/// The table has one of the formats of [`blocks`], and is read where the file is mapped. The caller
/// has to check afterwards whether the file was intact.
///
/// # Panics
/// If the table has no row for a token, or the length of `rows` is wrong.
/// [`Batch::check`](crate::Batch::check) refuses such tokens.
pub fn gather(table: &Tensor, scale: f32, tokens: &[u32], rows: &mut [f32]) {
    let columns = table.columns();
    assert_eq!(rows.len(), tokens.len() * columns, "a row for each token");
    for (row, &token) in rows.chunks_exact_mut(columns).zip(tokens) {
        blocks::decode(table.dtype(), table.row(token as usize), row)
            .expect("row lengths were checked when the model was opened");
        row.iter_mut().for_each(|x| *x *= scale);
    }
}
