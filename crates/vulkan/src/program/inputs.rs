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
                gather(table, *scale, batch.tokens, kept);
                buffer.write(0, bytemuck::cast_slice(kept));
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

/// Writes rows, those of a picture by several threads: one writes the memory of a GPU across its
/// bus at about 10 GB/s.
fn write_rows(buffer: &Buffer, rows: &[f32]) {
    /// Values that a thread writes at a time: a megabyte.
    const PIECE: usize = 1 << 18;
    share_copy(rows.chunks(PIECE).enumerate(), |(index, piece)| {
        buffer.write((4 * PIECE * index) as u64, bytemuck::cast_slice(piece));
    });
}
