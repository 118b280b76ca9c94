//! Memory for the largest logits.

use std::sync::Arc;

use trine_backend::TOP_ROWS_MAX;

use crate::error::GpuError;
use crate::kernels::top::{ROOM, maxima_bytes};
use crate::raw::commands::Copy;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Buffer, Place};

/// Where the largest logits go.
pub(super) struct TopMemory {
    pub(super) maxima: Buffer,
    pub(super) thresholds: Buffer,
    pub(super) found: Buffer,
    /// The thresholds, for the host.
    pub(super) host_thresholds: Buffer,
    pub(super) host_found: Buffer,
}

/// Returns the bytes of the memory for the largest logits of at most `outputs` rows: the maxima of
/// chunks, the thresholds, and the logits found.
pub(super) fn top_bytes(outputs: usize) -> [u64; 3] {
    let rows = outputs.clamp(1, TOP_ROWS_MAX);
    [maxima_bytes(rows), 8 * rows, 8 * rows * ROOM].map(|bytes| bytes as u64)
}

impl TopMemory {
    /// Allocates the memory for a Program with at most `outputs` output rows.
    pub(super) fn new(gpu: &Arc<Gpu>, outputs: usize) -> Result<Self, GpuError> {
        let [maxima, pair, found] = top_bytes(outputs);
        let device = |bytes| gpu.allocate(bytes, Place::Device, "working memory");
        let host = |bytes| gpu.allocate(bytes, Place::Readback, "the logits");
        Ok(Self {
            maxima: device(maxima)?,
            thresholds: device(pair)?,
            found: device(found)?,
            host_thresholds: host(pair)?,
            host_found: host(found)?,
        })
    }

    pub(super) fn buffers(&self) -> [&Buffer; 5] {
        [&self.maxima, &self.thresholds, &self.found, &self.host_thresholds, &self.host_found]
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
}
