//! From weights in a model's format to tiles in the kernel's.

use std::panic::resume_unwind;
use std::thread;

use trine_weights::Tensor;

use super::cutting::MatrixTile;
use super::int8;
use super::sizes::BLOCK;
use crate::layout;

/// Rows of a matrix in the kernel's layout.
pub(super) struct Band {
    /// (rows, blocks): what a whole number of a row and block counts.
    pub(super) scales: Vec<f32>,
    /// The bytes of each tile.
    pub(super) tiles: Vec<Vec<u8>>,
}

impl Band {
    /// Converts the rows of tiles, which are the same rows of a matrix.
    ///
    /// # Errors
    /// Says that a row cannot be decoded.
    pub(super) fn convert(tensor: &Tensor, tiles: &[MatrixTile]) -> Result<Self, String> {
        let Some(MatrixTile { rows, width, .. }) = tiles.first().cloned() else {
            return Ok(Self { scales: Vec::new(), tiles: Vec::new() });
        };
        let columns = tensor.columns();
        let mut scales = Vec::with_capacity(rows.len() * tiles.len());
        let (mut values, mut numbers) = (vec![0.0; columns], vec![0; columns]);
        let mut whole: Vec<Vec<u8>> = tiles.iter().map(|_| vec![0; BLOCK * width]).collect();
        for (column, row) in rows.clone().enumerate() {
            tensor
                .decode_row(row, &mut values)
                .map_err(|error| format!("{}: {error}", tensor.name()))?;
            for (tile, bytes) in tiles.iter().zip(&mut whole) {
                let own = tile.columns.clone();
                let scale = int8::quantize(&values[own.clone()], &mut numbers[own.clone()], None);
                scales.push(scale);
                for (at, number) in numbers[own].iter().enumerate() {
                    bytes[layout::weight_index(BLOCK, width, at, column)] = *number as u8;
                }
            }
        }
        tensor.release_pages(rows.start * tensor.row_bytes()..rows.end * tensor.row_bytes());
        Ok(Self { scales, tiles: whole })
    }
}

/// Returns what `work` makes of each item, in order; each but the first has a thread if the system
/// grants one.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let Some((first, rest)) = items.split_first() else { return Vec::new() };
    thread::scope(|scope| {
        let work = &work;
        let begin = |item| {
            let thread = thread::Builder::new().spawn_scoped(scope, move || work(item));
            thread.map_err(|_| work(item))
        };
        let others: Vec<_> = rest.iter().map(begin).collect();
        let first = work(first);
        let end = |begun: Result<thread::ScopedJoinHandle<'_, R>, R>| match begun {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(done) => done,
        };
        std::iter::once(first).chain(others.into_iter().map(end)).collect()
    })
}
