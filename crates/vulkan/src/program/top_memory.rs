//! Memory for the largest logits, and the tokens that a series chooses by them.

use std::sync::Arc;

use trine_backend::SERIES_MAX;
use trine_model::{Goal, Plan, Rows};

use super::emit::Emitter;
use crate::dispatch::Span;
use crate::error::GpuError;
use crate::kernels::top::{ROOM, TopLaunch, maxima_bytes};
use crate::raw::copies::Copy;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Buffer, MemoryUse};

/// Where the largest logits go.
pub(super) struct TopMemory {
    pub(super) maxima: Buffer,
    pub(super) thresholds: Buffer,
    pub(super) found: Buffer,
    /// The thresholds, for the host.
    pub(super) host_thresholds: Buffer,
    pub(super) host_found: Buffer,
    /// (1 + [`SERIES_MAX`], rows) u32, for the host: the tokens that a series has chosen.
    pub(super) chosen: Buffer,
    /// Most rows whose largest logits are found.
    pub(super) rows: usize,
}

/// Returns the most rows whose largest logits are found.
pub(super) fn top_rows(outputs: usize) -> usize {
    outputs.max(1)
}

/// Returns the bytes of the memory for the largest logits of at most `outputs` rows: the maxima of
/// chunks, the thresholds, the logits found, and the tokens of a series.
pub(super) fn top_bytes(outputs: usize) -> [u64; 4] {
    let rows = top_rows(outputs);
    let chosen = 4 * (1 + SERIES_MAX) * rows;
    [maxima_bytes(rows), 8 * rows, 8 * rows * ROOM, chosen].map(|bytes| bytes as u64)
}

impl TopMemory {
    /// Allocates the memory for a Program with at most `outputs` output rows.
    pub(super) fn new(gpu: &Arc<Gpu>, outputs: usize) -> Result<Self, GpuError> {
        let [maxima, pair, found, chosen] = top_bytes(outputs);
        let device = |bytes| gpu.allocate(bytes, MemoryUse::Device, "working memory");
        let host = |bytes| gpu.allocate(bytes, MemoryUse::Readback, "the logits");
        Ok(Self {
            maxima: device(maxima)?,
            thresholds: device(pair)?,
            found: device(found)?,
            host_thresholds: host(pair)?,
            host_found: host(found)?,
            chosen: host(chosen)?,
            rows: top_rows(outputs),
        })
    }

    /// Returns where maxima, thresholds and the logits found go.
    pub(super) fn spans(&self) -> [Span; 3] {
        [&self.maxima, &self.thresholds, &self.found].map(Buffer::span)
    }

    pub(super) fn buffers(&self) -> [&Buffer; 6] {
        let Self { maxima, thresholds, found, host_thresholds, host_found, chosen, .. } = self;
        [maxima, thresholds, found, host_thresholds, host_found, chosen]
    }

    pub(super) fn copies(&self, rows: usize) -> Vec<Copy> {
        let copy = |from: &Buffer, to: &Buffer, bytes: usize| {
            let bytes = bytes as u64;
            Copy { from: from.part(0, bytes), to: to.part(0, bytes), bytes }
        };
        vec![
            copy(&self.thresholds, &self.host_thresholds, 8 * rows),
            copy(&self.found, &self.host_found, 8 * rows * ROOM),
        ]
    }

    /// Returns the number of the largest logits of an output row, and those of them that there was
    /// room for: bits and token.
    pub(super) fn found(&self, row: usize) -> (usize, &[[u32; 2]]) {
        let count = self.host_thresholds.values::<u32>(2 * row + 1, 1)[0];
        (count as usize, self.host_found.values(row * ROOM, ROOM))
    }
}

/// Returns the launch that finds the largest logits of a pass, if its Program does so in every step
/// and the pass has logits. `spans` is where maxima, thresholds and the logits found go.
pub(super) fn top_launch(emitter: &Emitter<'_>, spans: [Span; 3]) -> Option<TopLaunch> {
    let Emitter { plan, graph, .. } = *emitter;
    let goals = [Goal::Main, Goal::Draft].into_iter().filter(|goal| plan.has_goal(*goal));
    let mut logits = goals.map(|goal| plan.outputs_for(goal).start);
    let (index, logits) = logits.find_map(|index| Some((index, graph.outputs[index]?)))?;
    if !finds_top(plan) {
        return None;
    }
    let (vocabulary, rows) = (plan.output(index).columns, graph.width.outputs);
    let [maxima, thresholds, found] = spans;
    let bytes = 4 * (rows * vocabulary) as u64;
    Some(TopLaunch {
        logits: Span { bytes, ..emitter.span(logits) },
        vocabulary,
        rows,
        row_count: emitter.frame.output_count,
        maxima,
        thresholds,
        found,
    })
}

/// Returns whether every step of a Program finds the largest logits of its output rows. Those of a
/// Plan for pictures are none.
pub(super) fn finds_top(plan: &Plan) -> bool {
    plan.output(0).rows == Rows::Outputs && !plan.is_of_picture()
}
