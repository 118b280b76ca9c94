//! How a matrix becomes tiles of the kernel's shapes.

use std::ops::Range;

use super::sizes::BLOCK;

/// A part of a matrix that one command multiplies with. What it lacks of the kernel's shape are
/// zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MatrixTile {
    /// Rows of the matrix: out-features.
    pub(super) rows: Range<usize>,
    /// Columns of the matrix: at most [`BLOCK`] in-features.
    pub(super) columns: Range<usize>,
    /// Out-features of the kernel.
    pub(super) width: usize,
}

/// Cuts a matrix of `rows` x `columns` for kernels of `widths`, ascending multiples of the first.
/// Tiles of the same rows follow one another.
pub(super) fn tiles(rows: usize, columns: usize, widths: &[usize]) -> Vec<MatrixTile> {
    let mut tiles = Vec::new();
    let Some(&least) = widths.first() else { return tiles };
    let mut start = 0;
    while start < rows {
        let left = (rows - start).next_multiple_of(least);
        let width = widths.iter().rev().find(|width| **width <= left).copied().unwrap_or(least);
        let end = (start + width).min(rows);
        let blocks = (0..columns).step_by(BLOCK);
        tiles.extend(blocks.map(|first| MatrixTile {
            rows: start..end,
            columns: first..(first + BLOCK).min(columns),
            width,
        }));
        start = end;
    }
    tiles
}

/// Returns the bytes of a matrix on the NPU's side: tiles in its memory, and scales beside them.
pub(super) fn bytes(rows: usize, columns: usize, widths: &[usize]) -> u64 {
    let scales = rows * columns.div_ceil(BLOCK) * size_of::<f32>();
    tiles_bytes(rows, columns, widths) + scales as u64
}

/// Returns the bytes of a matrix's tiles.
pub(super) fn tiles_bytes(rows: usize, columns: usize, widths: &[usize]) -> u64 {
    tiles(rows, columns, widths).iter().map(|tile| (BLOCK * tile.width) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_each_weight_once() {
        for (rows, columns) in [(1, 1), (2048, 2048), (2049, 4000), (30_000, 5376), (8192, 2049)] {
            for widths in [&[2048][..], &[2048, 8192], &[8192]] {
                let tiles = tiles(rows, columns, widths);
                let area: usize =
                    tiles.iter().map(|tile| tile.rows.len() * tile.columns.len()).sum();
                assert_eq!(area, rows * columns);
                let mut next = 0;
                for same in tiles.chunk_by(|a, b| a.rows == b.rows) {
                    assert_eq!(same[0].rows.start, next);
                    assert_eq!(same.len(), columns.div_ceil(BLOCK));
                    next = same[0].rows.end;
                    assert!(same.iter().all(|tile| tile.rows.len() <= tile.width));
                }
                assert_eq!(next, rows);
            }
        }
    }

    #[test]
    fn the_widest_kernel_that_is_not_wider_than_what_is_left_is_taken() {
        let widths = |rows| -> Vec<usize> {
            tiles(rows, 7, &[2048, 8192]).into_iter().map(|tile| tile.width).collect()
        };
        assert_eq!(widths(6144), [2048; 3]);
        assert_eq!(widths(6145), [8192]);
        assert_eq!(widths(10_000), [8192, 2048]);
        assert!(tiles(5, 5, &[]).is_empty());
    }
}
