//! Steps, or their beginnings, that are run for their time only. They compute a token at position 0
//! with the Program's weights and working memory. What a step leaves behind, keys and values, goes
//! to memory of their own, and nothing goes to the host.

use std::sync::Arc;

use trine_backend::{BLOCK, Batch, ProgramOptions, SequenceView};
use trine_model::{Plan, Width};

use super::caches::block_bytes;
use super::frame::{Frame, FrameLayout, StepAddresses};
use super::passes::PassKey;
use crate::chain::{ChainMemory, Chains};
use crate::dispatch::{Dispatch, Span};
use crate::error::GpuError;
use crate::raw::commands::Recording;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Arena, Buffer, Place};
use crate::raw::transfer::Transfer;

/// What a rehearsal is called in memory's messages.
const WHAT: &str = "the measurement of kernels";

/// Memory of steps of one row that are rehearsed.
pub(super) struct Stage {
    frame: Frame,
    /// A block of each cache. Caches that shared one would end chains.
    caches: Vec<Buffer>,
    /// Counters of the Program's, which are 0 between launches unless a chain breaks.
    counters: Vec<Buffer>,
}

impl Stage {
    /// Makes the memory for steps of a pass of one row, which also use these `counters`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        options: &ProgramOptions,
        key: PassKey,
        counters: Vec<Buffer>,
    ) -> Result<Self, GpuError> {
        let width = Width { tokens: 1, ..key.width };
        let (sequences, blocks, context) = (1, 1, BLOCK);
        let options = ProgramOptions { width, sequences, blocks, context, ..*options };
        let layout = FrameLayout::new(&options);
        let frame = gpu.allocate(layout.bytes as u64, Place::Upload, WHAT)?;
        let mut frame = Frame::new(layout, frame, 1);
        let batch = Batch {
            tokens: &[0],
            positions: &[0],
            sequence_of: &[0],
            ahead: &[],
            sequences: &[SequenceView { slot: 0, blocks: &[0] }],
            outputs: &[0][..width.outputs.min(1)],
            bulk_from: 1,
            inputs: &[],
            goal: key.goal,
        };
        frame.write(&batch, (0, 0));
        let bytes: Vec<u64> =
            plan.caches.iter().map(|cache| block_bytes(&options, cache)).collect();
        let mut arena = Arena::new(gpu, Place::Device, bytes.iter().sum());
        let caches = bytes.into_iter().map(|bytes| arena.allocate(bytes, WHAT));
        Ok(Self { frame, caches: caches.collect::<Result<_, _>>()?, counters })
    }

    /// Returns the addresses of the frame.
    pub(super) fn frame(&self) -> StepAddresses {
        self.frame.addresses()
    }

    /// Returns the memory of the caches.
    pub(super) fn caches(&self) -> Vec<Span> {
        self.caches.iter().map(Buffer::span).collect()
    }
}

/// A step that is run for its time.
pub(super) struct Rehearsal {
    recording: Recording,
    chains: Chains,
    gpu: Arc<Gpu>,
    /// The memory that it uses.
    stage: Arc<Stage>,
    /// What it is predicted to take, cautiously.
    pub(super) predicted_seconds: f64,
}

impl Rehearsal {
    /// Records a step whose submissions begin at `cuts` and are predicted to take these seconds.
    /// Returns `None` if none of its dispatches can be chained. For `transfer` and `fresh` see
    /// [`Chains::link`].
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    pub(super) fn record(
        gpu: &Arc<Gpu>,
        stage: &Arc<Stage>,
        transfer: &Transfer,
        mut dispatches: Vec<Dispatch>,
        fresh: Option<Buffer>,
        (cuts, seconds): (Vec<usize>, Vec<f64>),
    ) -> Result<Option<Self>, GpuError> {
        let mut memory = ChainMemory::new(gpu, ChainMemory::most_bytes(dispatches.len()))?;
        let chains = Chains::link(gpu, &mut memory, transfer, &mut dispatches, fresh)?;
        let Some(chains) = chains else { return Ok(None) };
        let recording = Recording::clocked(gpu, &chains.before(), &dispatches, &cuts)?;
        let (gpu, stage) = (gpu.clone(), stage.clone());
        let predicted_seconds = seconds.iter().sum();
        Ok(Some(Self { recording, chains, gpu, stage, predicted_seconds }))
    }

    /// Runs it and returns the seconds that it took by the device's clock; `None` if its chains
    /// broke.
    ///
    /// # Errors
    /// If the device fails; `during` is named in the error.
    pub(super) fn run(&mut self, during: &str) -> Result<Option<f64>, GpuError> {
        self.recording.run(during)?;
        if self.chains.has_failed() {
            Recording::zeros(&self.gpu, &self.stage.counters)?.run(during)?;
            return Ok(None);
        }
        Ok(self.recording.times()?.first().copied())
    }
}
