//! The rows of a Plan's inputs on their way from the host to the device.

use std::sync::Arc;

use trine_backend::{Batch, gather, share_copy};
use trine_model::{Goal, Input, Plan, Source, Width};
use trine_weights::Tensor;

use super::graph::allocated;
use crate::error::GpuError;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Buffer, MemoryUse};
use crate::weights::Weights;

/// Memory of all inputs of a Plan, in their order.
pub(super) struct Inputs(Vec<InputRows>);

/// Memory of an input.
struct InputRows {
    source: Input,
    /// Written by the host; the device works on the rows there.
    buffer: Buffer,
    /// What the rows are gathered from, and the factor on them; `None` if they come with the batch.
    table: Option<(Tensor, f32)>,
    /// The goals whose steps read it.
    readers: Vec<Goal>,
    /// The rows of the step in flight, if they are gathered or may have to be written again.
    kept: Vec<f32>,
}

impl Inputs {
    /// Memory for the inputs of steps of at most `width`.
    pub(super) fn allocate(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        weights: &Weights,
        width: Width,
    ) -> Result<Self, GpuError> {
        let input = |input: &trine_model::Input| {
            let rows = plan.buffer(input.buffer);
            let values = allocated(width.of(rows.rows)) * rows.columns;
            let (what, table, kept) = match input.source {
                Source::Table { table, scale } => {
                    let table = (weights.table(table).clone(), scale);
                    ("gathered rows", Some(table), Vec::with_capacity(values))
                }
                Source::Part => ("the rows of another device", None, Vec::new()),
                Source::Plan | Source::State => ("the rows of another Plan", None, Vec::new()),
                Source::Picture => ("the patches of a picture", None, Vec::new()),
            };
            let buffer = gpu.allocate(4 * values as u64, MemoryUse::Upload, what)?;
            let mut readers = plan.goals();
            readers.retain(|&goal| plan.reads_for(goal, input.buffer));
            Ok(InputRows { buffer, source: *input, table, readers, kept })
        };
        plan.inputs.iter().map(input).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the memory of each input.
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.0.iter().map(|input| &input.buffer)
    }

    /// Returns the memory of the input with an index.
    pub(super) fn buffer(&self, index: usize) -> &Buffer {
        &self.0[index].buffer
    }

    /// Writes the rows of a checked batch. `keeps` says whether they may have to be written again.
    pub(super) fn write(&mut self, batch: &Batch<'_>, keeps: bool) {
        let mut given = batch.inputs.iter();
        for InputRows { buffer, source, table, readers, kept } in &mut self.0 {
            let is_idle = table.is_some() && !readers.contains(&batch.goal);
            if is_idle || !source.is_for(batch.goal) {
                kept.clear();
                continue;
            }
            if let Some((table, scale)) = table {
                kept.resize(batch.tokens.len() * table.columns(), 0.0);
                write_gathered(buffer, (table, *scale), batch.tokens, kept);
                continue;
            }
            let rows = given.next().expect("the batch was checked");
            write_rows(buffer, rows);
            kept.clear();
            if keeps {
                kept.extend_from_slice(rows);
            }
        }
    }

    /// Writes the rows that were kept.
    pub(super) fn write_again(&self) {
        for InputRows { buffer, kept, .. } in &self.0 {
            buffer.write(0, bytemuck::cast_slice(kept));
        }
    }
}

/// Values that a thread writes at a time: a megabyte.
const PIECE: usize = 1 << 18;

/// Gathers rows of a table into `rows`, and writes them; many rows by several threads, as
/// [`write_rows`] does: one decodes a row of each of 2,048 tokens of Gemma 4 E4B in half the time
/// that an H200 takes for them.
fn write_gathered(
    buffer: &Buffer,
    (table, scale): (&Tensor, f32),
    tokens: &[u32],
    rows: &mut [f32],
) {
    let columns = table.columns();
    let together = (PIECE / columns).max(1);
    let pieces = tokens.chunks(together).zip(rows.chunks_mut(together * columns)).enumerate();
    share_copy(pieces, |(index, (tokens, rows))| {
        gather(table, scale, tokens, rows);
        buffer.write((4 * together * columns * index) as u64, bytemuck::cast_slice(rows));
    });
}

/// Writes rows, those of a picture by several threads: one writes the memory of a GPU across its
/// bus at about 10 GB/s.
fn write_rows(buffer: &Buffer, rows: &[f32]) {
    share_copy(rows.chunks(PIECE).enumerate(), |(index, piece)| {
        buffer.write((4 * PIECE * index) as u64, bytemuck::cast_slice(piece));
    });
}

#[cfg(test)]
mod tests {
    use trine_weights::DType;

    use super::*;
    use crate::testing::gpu;

    /// Rows that are longer than what a thread writes at a time, and short ones of which it writes
    /// many.
    #[test]
    fn threads_gather_all_rows() {
        let gpu = gpu();
        for (columns, tokens) in [(PIECE + 1, 5_usize), (PIECE / 3, 11), (3, 7)] {
            let value = |row: usize, column: usize| (row * 1000 + column % 777) as f32;
            let values = (0..4).flat_map(|row| (0..columns).map(move |column| value(row, column)));
            let bytes = values.flat_map(f32::to_le_bytes).collect();
            let table = Tensor::from_owned("table", DType::F32, &[4, columns], bytes).unwrap();
            let ids: Vec<u32> = (0..tokens).map(|token| (token * 7 % 4) as u32).collect();
            let mut rows = vec![f32::NAN; tokens * columns];
            let bytes = 4 * rows.len() as u64;
            let buffer = gpu.allocate(bytes, MemoryUse::Readback, "rows").unwrap();
            write_gathered(&buffer, (&table, 2.0), &ids, &mut rows);
            let written = buffer.values::<f32>(0, rows.len());
            for (token, &id) in ids.iter().enumerate() {
                for column in [0, 1, columns / 2, columns - 1] {
                    let at = token * columns + column;
                    let expected = 2.0 * value(id as usize, column);
                    assert_eq!((rows[at], written[at]), (expected, expected), "{token} {column}");
                }
            }
        }
    }
}
