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
use crate::raw::gpu::{FailurePoint, Gpu};
use crate::raw::memory::{Arena, Buffer, MemoryUse};
use crate::raw::transfer::Transfer;

/// What a rehearsal is called in memory's messages.
const WHAT: &str = "the measurement of kernels";

/// Steps of a pass of one row, or their beginnings, in different shapes of kernels: one for each
/// trial.
pub(super) struct Rehearsals {
    gpu: Arc<Gpu>,
    frame: Frame,
    /// A block of each cache. Caches that shared one would end chains.
    caches: Vec<Buffer>,
    /// Counters of the Program's, which are 0 between launches unless a chain breaks.
    counters: Vec<Buffer>,
    links: ChainMemory,
    /// How many nodes of the pass each consists of.
    pub(super) nodes: usize,
    /// Those that were recorded.
    steps: Vec<Step>,
}

/// What is run for a trial.
struct Step {
    recording: Recording,
    chains: Chains,
    predicted_seconds: f64,
}

impl Rehearsals {
    /// Makes the memory for about `trials` steps of the first `nodes` nodes of a pass of one row,
    /// which also use these `counters`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        options: &ProgramOptions,
        key: PassKey,
        counters: Vec<Buffer>,
        (nodes, trials): (usize, usize),
    ) -> Result<Self, GpuError> {
        let width = Width { tokens: 1, ..key.width };
        let (sequences, blocks, context) = (1, 1, BLOCK);
        let options = ProgramOptions { width, sequences, blocks, context, ..*options };
        let layout = FrameLayout::new(&options);
        let frame = gpu.allocate(layout.bytes as u64, MemoryUse::Upload, WHAT)?;
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
        let mut arena = Arena::new(gpu, MemoryUse::Device, bytes.iter().sum());
        let caches = bytes.into_iter().map(|bytes| arena.allocate(bytes, WHAT));
        let caches = caches.collect::<Result<_, _>>()?;
        let links = ChainMemory::new(gpu, trials as u64 * ChainMemory::most_bytes(nodes))?;
        let (gpu, steps) = (gpu.clone(), Vec::new());
        Ok(Self { gpu, frame, caches, counters, links, nodes, steps })
    }

    /// Returns the addresses of the frame.
    pub(super) fn frame(&self) -> StepAddresses {
        self.frame.addresses()
    }

    /// Returns the memory of the caches.
    pub(super) fn caches(&self) -> Vec<Span> {
        self.caches.iter().map(Buffer::span).collect()
    }

    /// Returns how many were recorded.
    pub(super) fn count(&self) -> usize {
        self.steps.len()
    }

    /// Returns what one of them is predicted to take, cautiously.
    pub(super) fn predicted_seconds(&self) -> f64 {
        self.steps.first().map_or(0.0, |step| step.predicted_seconds)
    }

    /// Records one more, whose submissions begin at `cuts` and are predicted to take these seconds.
    /// Returns `false` if none of its dispatches can be chained. For `fresh` see [`Chains::link`].
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    pub(super) fn record(
        &mut self,
        mut dispatches: Vec<Dispatch>,
        fresh: Option<Buffer>,
        (cuts, seconds): (Vec<usize>, Vec<f64>),
    ) -> Result<bool, GpuError> {
        let Self { gpu, links, steps, .. } = self;
        let transfer = Transfer::new(gpu);
        let chains = Chains::link(gpu, links, &transfer, &mut dispatches, fresh)?;
        let Some(chains) = chains else { return Ok(false) };
        transfer.finish()?;
        let recording = Recording::clocked(gpu, &chains.before(), &dispatches, &cuts)?;
        steps.push(Step { recording, chains, predicted_seconds: seconds.iter().sum() });
        Ok(true)
    }

    /// Runs that of a trial and returns the seconds that it took by the device's clock; `None` if a
    /// chain broke, in this run or in an earlier one.
    ///
    /// # Errors
    /// If the device fails; `during` is named in the error.
    pub(super) fn run(&mut self, trial: usize, during: &str) -> Result<Option<f64>, GpuError> {
        let Step { recording, chains, .. } = &mut self.steps[trial];
        if self.gpu.injected_at(FailurePoint::Chain).is_some() {
            chains.stall(&self.gpu)?;
        }
        recording.run(during)?;
        if chains.has_failed() {
            Recording::zeros(&self.gpu, &self.counters)?.run(during)?;
            return Ok(None);
        }
        Ok(recording.times()?.first().copied())
    }
}
