//! Matrices of halves in the order of left factors.

use crate::kernels::operand::GROUP;

/// Rows of a left factor.
pub(crate) const ROWS: usize = 16;
/// Products of 16 columns in a group.
const PRODUCTS: usize = 8;
/// Bytes of what a lane holds of a left factor.
const LANE: usize = 16;

/// Packs rows of halves, a whole number of left factors. `source` has `columns` halves a row,
/// `codes` whole groups.
pub(super) fn pack(columns: usize, source: &[u8], codes: &mut [u8]) {
    let row = 2 * columns;
    let factors = ROWS * 2 * columns.next_multiple_of(GROUP);
    let tiles = source.chunks_exact(ROWS * row).zip(codes.chunks_exact_mut(factors));
    for (rows, codes) in tiles {
        let (products, _) = codes.as_chunks_mut::<{ 32 * LANE }>();
        for (index, product) in products.iter_mut().enumerate() {
            let first = index / PRODUCTS * GROUP + index % 2 * 16 + index % PRODUCTS / 2 * 4;
            for (lane, out) in product.as_chunks_mut::<LANE>().0.iter_mut().enumerate() {
                let column = first + lane % 4 * 32;
                let at = |row_of_factor: usize, column: usize| -> [u8; 2] {
                    let at = row_of_factor * row + 2 * column;
                    if column < columns { [rows[at], rows[at + 1]] } else { [0; 2] }
                };
                let (upper, lower) = (lane / 4, lane / 4 + 8);
                for (pair, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let row = if pair % 2 == 0 { upper } else { lower };
                    let [a, b] = [0, 2].map(|step| at(row, column + pair / 2 + step));
                    *out = [a[0], a[1], b[0], b[1]];
                }
            }
        }
    }
}

/// Returns where an element stands in the codes, in halves.
#[cfg(test)]
pub(crate) fn place(row: usize, column: usize, columns: usize) -> usize {
    let (groups, within) = (columns.div_ceil(GROUP), column % 32);
    let product = column / GROUP * PRODUCTS + within % 16 / 4 * 2 + within / 16;
    let lane = row % 8 * 4 + column % GROUP / 32;
    let tile = row / 16 * groups * PRODUCTS + product;
    let [half, pair] = [column % 4 / 2, column % 2];
    (tile * 32 + lane) * 8 + pair * 4 + row / 8 % 2 * 2 + half
}
