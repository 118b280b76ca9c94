//! What a Program holds on the device.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use trine_backend::{BLOCK, BackendError, Memory, ProgramOptions};
use trine_model::{BufferId, Goal, Input, Model, Plan, Rows, Source};

use super::ahead;
use super::caches::{cache_bytes, counter_bytes};
use super::emit::{Emitted, Emitter};
use super::frame::{Frame, FrameLayout, tile_rows};
use super::graph::{Home, ValueId};
use super::inputs::Inputs;
use super::loans::{Loan, Loans, loan_bytes, loans, meetings};
use super::lowered::{Lowered, Plans};
use super::passes::{PassKey, is_two_sided};
use super::refusals;
use super::ropes::Ropes;
use super::sampler::Sampler;
use super::selection::Selection;
use super::series::{SeriesRuns, runs_series};
use super::top_memory::{TopMemory, top_launch};
use super::tuning::{Background, Tuner};
use crate::chain::{self, ChainMemory, Chains, Order};
use crate::dispatch::{Dispatch, Span};
use crate::error::GpuError;
use crate::kernels::matmul::MatmulLaunch;
use crate::raw::commands::Recording;
use crate::raw::copies::Copy;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Arena, Buffer, MemoryUse};
use crate::raw::transfer::Transfer;
use crate::weights::{Progress, Weights};

mod runs;
mod shown;

/// What is bound to a device.
pub(super) struct Binding<'a> {
    pub(super) model: &'a Model,
    pub(super) plan: &'a Plan,
    /// The Plan as it is lent to a partner, if it is.
    pub(super) lent: Option<&'a Plan>,
    pub(super) options: &'a ProgramOptions,
}

impl<'a> Binding<'a> {
    fn plans(&self) -> Plans<'a> {
        let Self { plan, lent, options, .. } = *self;
        Plans { plan, lent, options }
    }
}

/// A Plan's weights, caches, memory and recordings on a device.
pub(super) struct Bound {
    pub(super) gpu: Arc<Gpu>,
    pub(super) weights: Weights,
    /// One for each cache of the Plan.
    pub(super) caches: Vec<Buffer>,
    ropes: Ropes,
    selection: Selection,
    scratch: Buffer,
    /// How the dispatches of chains are ordered, or were before one of them failed.
    order: Order,
    /// Memory of products that several workgroups share. Its counters are 0 between launches,
    /// unless a chain breaks.
    split_scratch: Buffer,
    /// Counters of attention's parts, also 0 between launches.
    counters: Buffer,
    /// What the host writes for a step. The second one is there if any pass is two-sided.
    pub(super) sides: Vec<Side>,
    /// The rows of each of the Plan's outputs, for the host.
    pub(super) outputs: Vec<Buffer>,
    pub(super) top: TopMemory,
    /// `None` if the host chooses tokens.
    pub(super) sampler: Option<Sampler>,
    /// `None` if the Program runs no series.
    pub(super) series: Option<SeriesRuns>,
    /// What is between device, host and guest, if there is a guest.
    loans: Option<Loans>,
    /// Those beside a partner come last.
    pub(super) passes: Vec<Pass>,
    pub(super) memory: Memory,
    /// What is measured while no step is wanted.
    pub(super) background: Background,
}

/// Memory that the host writes for a step, while a step with another side may run.
pub(super) struct Side {
    pub(super) frame: Frame,
    pub(super) inputs: Inputs,
}

/// Where a step runs: the index of its pass, and of its side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Track {
    pub(super) pass: usize,
    pub(super) side: usize,
}

/// The recordings for a width.
pub(super) struct Pass {
    pub(super) key: PassKey,
    /// How many rows that are no bulk rows a pass beside a partner has room for; `None` for a pass
    /// of the device alone.
    pub(super) exact: Option<usize>,
    /// What a guest computes in it.
    loans: Vec<Loan>,
    /// For each side.
    pub(super) sides: Vec<Recorded>,
    /// What each of a recording's submissions is predicted to take; empty beside a guest.
    seconds: Vec<f64>,
    /// The recording with timestamps, made when profiling needs it, and the Plan's step of each
    /// dispatch.
    timed: Option<(Recording, Vec<usize>)>,
}

/// A pass as it is recorded with the memory of a side.
pub(super) struct Recorded {
    recording: Recording,
    /// State of its chains, if it has any.
    chains: Option<Chains>,
    /// Fetches each of the Plan's outputs that is not copied by every step: the logits.
    pub(super) fetch: Vec<Option<Copy>>,
}

/// What a step can end with.
pub(super) enum Failure {
    /// The GPU failed.
    Gpu(GpuError),
    /// A guest has not computed its part, or was stopped. The GPU has ended what it had.
    Guest(BackendError),
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

/// A pass before it is recorded.
struct Draft {
    dispatches: Vec<Dispatch>,
    copies: Vec<Copy>,
    /// One for each of the Plan's outputs.
    fetch: Vec<Option<Copy>>,
    /// As that of [`Emitted`].
    own: Vec<Range<usize>>,
}

impl Binding<'_> {
    /// Puts everything on a device and records passes for these keys.
    pub(super) fn bind(
        &self,
        gpu: &Arc<Gpu>,
        keys: Vec<PassKey>,
        progress: Option<&Progress>,
        tuner: &Tuner,
    ) -> Result<Bound, BackendError> {
        let name = gpu.capabilities().name.clone();
        refusals::check(gpu.capabilities(), self.plan, self.options)?;
        let fail = |error: GpuError| error.on(&name);
        let selection = Selection::new(gpu.capabilities(), self.plan, self.options);
        let graphs = self.plans().lower_all(keys, &selection).map_err(fail)?;
        let weights = ahead::load(gpu, self.model, self.plans(), &graphs, &selection, progress)?;
        let bound = self.record_all(gpu, &graphs, weights, selection, tuner).map_err(fail)?;
        gpu.save_pipelines();
        Ok(bound)
    }

    fn record_all(
        &self,
        gpu: &Arc<Gpu>,
        graphs: &[Lowered],
        weights: Weights,
        selection: Selection,
        tuner: &Tuner,
    ) -> Result<Bound, GpuError> {
        let scratch_bytes =
            graphs.iter().map(|lowered| lowered.placement.scratch.bytes).max().unwrap_or(0);
        let sides = graphs.iter().map(|lowered| self.count_sides(lowered.key)).max().unwrap_or(1);
        let sizes = (scratch_bytes as u64, sides);
        let mut bound = self.allocate(gpu, weights, selection, sizes)?;
        bound.order = chain::probe(gpu)?;
        let shown = ShownPasses { binding: self, bound: &bound, graphs: Some(graphs) };
        let shapes = tuner.settle(gpu, &shown)?;
        bound.selection = bound.selection.tuned(shapes);
        let alone = graphs.iter().filter(|lowered| lowered.exact.is_none());
        let of_pass = |lowered: &Lowered| {
            self.count_sides(lowered.key) as u64
                * ChainMemory::most_bytes(lowered.graph.nodes.len())
        };
        let expected = alone.map(of_pass);
        let has_chains = bound.order != Order::Barriers;
        let memory = has_chains.then(|| ChainMemory::new(gpu, expected.sum())).transpose()?;
        let transfer = Transfer::new(gpu);
        let record = |lowered| {
            let memory = memory.as_ref();
            self.record(&bound, lowered, memory.map(|memory| (memory, &transfer)))
        };
        // The first error in their order counts.
        let passes: Vec<Result<Pass, GpuError>> = graphs.par_iter().map(record).collect();
        bound.passes = passes.into_iter().collect::<Result<_, _>>()?;
        transfer.finish()?;
        bound.memory.scratch += memory.iter().map(ChainMemory::bytes).sum::<u64>();
        bound.background = tuner.background(gpu);
        Ok(bound)
    }

    /// Returns whether a pass has chains where a device has them. Where the host takes part, little
    /// follows without a barrier. A picture's patches would be kept for a second run, which takes
    /// longer than its barriers. A step that another one follows could not be run again if its
    /// chain broke: the other one has overwritten what it reads of rings.
    fn suits_chains(&self, lowered: &Lowered) -> bool {
        let meets = !loans(self.plans().of(lowered.exact), &lowered.graph).is_empty();
        let is_followed = self.count_sides(lowered.key) > 1 && lowered.key.width.outputs == 0;
        !meets && !is_followed && !self.plan.is_of_picture()
    }

    /// Returns for how many sides a pass is recorded.
    fn count_sides(&self, key: PassKey) -> usize {
        1 + usize::from(self.lent.is_none() && is_two_sided(self.plan, &key))
    }

    /// Records a pass for each of its sides, with chains if there is memory for them and they suit
    /// it.
    fn record(
        &self,
        bound: &Bound,
        lowered: &Lowered,
        chains: Option<(&ChainMemory, &Transfer)>,
    ) -> Result<Pass, GpuError> {
        let chains = chains.filter(|_| self.suits_chains(lowered));
        let sides = (0..self.count_sides(lowered.key))
            .map(|side| self.record_side(bound, (lowered, side), chains));
        let (recorded, mut seconds): (Vec<_>, Vec<_>) =
            sides.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let Lowered { key, exact, .. } = *lowered;
        let loans = loans(self.plans().of(exact), &lowered.graph);
        let seconds = seconds.pop().unwrap_or_default();
        Ok(Pass { key, exact, loans, sides: recorded, seconds, timed: None })
    }

    /// Records a pass with the memory of a side, and returns what each submission is predicted to
    /// take.
    fn record_side(
        &self,
        bound: &Bound,
        (lowered, side): (&Lowered, usize),
        chains: Option<(&ChainMemory, &Transfer)>,
    ) -> Result<(Recorded, Vec<f64>), GpuError> {
        let gpu = &bound.gpu;
        let mut draft = self.draft(bound, lowered, side)?;
        let chains = match chains {
            Some((memory, transfer)) => {
                let fresh = bound.fresh(lowered);
                Chains::link(gpu, memory, transfer, &mut draft.dispatches, fresh)?
            }
            None => {
                bound.mark(lowered, &mut draft);
                None
            }
        };
        let before = chains.as_ref().map(Chains::before).unwrap_or_default();
        let Lowered { key, exact, .. } = *lowered;
        let (cuts, mut seconds) = self.cuts(self.plans().of(exact), key, &draft.dispatches, gpu);
        let (cuts, meetings) = meetings(&draft.own, &cuts);
        if !meetings.is_empty() {
            seconds.clear();
        }
        let Draft { dispatches, copies, .. } = &draft;
        let recording = Recording::prepared(gpu, &before, dispatches, copies, &cuts)?;
        let recording = recording.with_meetings(meetings);
        Ok((Recorded { recording, chains, fetch: draft.fetch }, seconds))
    }

    fn allocate(
        &self,
        gpu: &Arc<Gpu>,
        weights: Weights,
        selection: Selection,
        (scratch_bytes, sides): (u64, usize),
    ) -> Result<Bound, GpuError> {
        let width = self.options.width;
        let caches = self.caches(gpu)?;
        let side = |_| self.side(gpu, &weights);
        let sides = (0..sides).map(side).collect::<Result<Vec<_>, _>>()?;
        let output = |id: &BufferId| {
            let buffer = self.plan.buffer(*id);
            let bytes = 4 * width.of(buffer.rows).max(1) * buffer.columns;
            gpu.allocate(bytes as u64, MemoryUse::Readback, "the logits")
        };
        let outputs = self.plan.outputs.iter().map(output).collect::<Result<Vec<_>, _>>()?;
        let top = TopMemory::new(gpu, width.outputs)?;
        let sampler = Sampler::new(gpu, self.plan, width.outputs)?;
        let loans = loan_bytes(self.lent.unwrap_or(self.plan), width);
        let loans = loans.map(|bytes| Loans::new(gpu, bytes)).transpose()?;
        let scratch = gpu.allocate(scratch_bytes, MemoryUse::Device, "working memory")?;
        let split_scratch =
            gpu.allocate(selection.split_bytes(), MemoryUse::Device, "working memory")?;
        let counters = gpu.allocate(
            counter_bytes(self.plan, self.options),
            MemoryUse::Device,
            "working memory",
        )?;
        let memory = Memory {
            weights: weights.bytes,
            mapped: weights.mapped,
            caches: caches.iter().map(Buffer::bytes).sum(),
            scratch: [&scratch, &split_scratch, &counters]
                .into_iter()
                .chain(sides.iter().flat_map(Side::buffers))
                .chain(&outputs)
                .chain(top.buffers())
                .chain(sampler.iter().flat_map(Sampler::buffers))
                .map(Buffer::bytes)
                .chain(loans.iter().map(Loans::bytes))
                .sum(),
        };
        let bound = Bound {
            gpu: gpu.clone(),
            ropes: Ropes::load(gpu, self.plan)?,
            series: SeriesRuns::new(gpu, self.plan, self.options, &sides[0].frame, &top)?,
            sides,
            weights,
            caches,
            selection,
            scratch,
            order: Order::Barriers,
            split_scratch,
            counters,
            outputs,
            top,
            sampler,
            loans,
            passes: Vec::new(),
            memory,
            background: Background::default(),
        };
        bound.clear_counters()?;
        Ok(bound)
    }

    fn side(&self, gpu: &Arc<Gpu>, weights: &Weights) -> Result<Side, GpuError> {
        let layout = FrameLayout::new(self.options);
        let frame = gpu.allocate(layout.bytes as u64, MemoryUse::Upload, "the step's frame")?;
        let frame = Frame::new(layout, frame, tile_rows(self.plan));
        let inputs = Inputs::allocate(gpu, self.plan, weights, self.options.width)?;
        Ok(Side { frame, inputs })
    }

    fn caches(&self, gpu: &Arc<Gpu>) -> Result<Vec<Buffer>, GpuError> {
        let bytes = |cache| cache_bytes(self.options, cache);
        let total = self.plan.caches.iter().map(bytes).sum();
        let mut arena = Arena::new(gpu, MemoryUse::Device, total);
        // The largest first: rings fill what the caches of global layers leave of a block.
        let mut order: Vec<usize> = (0..self.plan.caches.len()).collect();
        order.sort_by_key(|&at| Reverse(bytes(&self.plan.caches[at])));
        let mut caches = BTreeMap::new();
        for at in order {
            caches.insert(at, arena.allocate(bytes(&self.plan.caches[at]), "the KV cache")?);
        }
        Ok(caches.into_values().collect())
    }

    fn emitter<'b>(&'b self, bound: &'b Bound, lowered: &'b Lowered, side: usize) -> Emitter<'b> {
        let Side { frame, inputs } = &bound.sides[side];
        let Lowered { exact, graph, placement, .. } = lowered;
        Emitter {
            compiler: &bound.gpu,
            plan: self.plans().of(*exact),
            options: self.options,
            weights: &bound.weights,
            caches: bound.caches.iter().map(Buffer::span).collect(),
            ropes: &bound.ropes,
            selection: &bound.selection,
            frame: frame.addresses(),
            graph,
            scratch: &placement.scratch,
            base: bound.scratch.address(),
            inputs: inputs.buffers().map(Buffer::address).collect(),
            split_scratch: bound.split_scratch.span(),
            counters: bound.counters.span(),
            loans: bound.loans.as_ref().map(Loans::addresses),
            survey: None,
        }
    }

    fn draft(&self, bound: &Bound, lowered: &Lowered, side: usize) -> Result<Draft, GpuError> {
        let inputs = &bound.sides[side].inputs;
        let emitter = self.emitter(bound, lowered, side);
        let Emitted { dispatches, own } = emitter.emit()?;
        let mut draft = Draft { dispatches, copies: Vec::new(), fetch: Vec::new(), own };
        for (index, value) in lowered.graph.outputs.iter().enumerate() {
            let output_copy = |value| self.output_copy((bound, inputs), &emitter, index, value);
            let mut copy = value.map(output_copy);
            let is_state = self
                .plan
                .goals()
                .into_iter()
                .all(|goal| self.plan.outputs_for(goal).start != index);
            let is_picture = self.plan.is_of_picture();
            if is_state || is_picture || self.plan.output(index).rows == Rows::Tokens {
                // The next device, a draft or a model needs them in every step.
                draft.copies.extend(copy.take());
            }
            if let Some((value, input)) = value.zip(self.next_input(index)) {
                // The next guess of a series takes them where the host writes those of the first.
                let copy = output_copy(value);
                let to = inputs.buffer(input).part(0, copy.bytes);
                draft.copies.push(Copy { to, ..copy });
            }
            draft.fetch.push(copy);
        }
        if let Some(launch) = top_launch(&emitter, bound.top.spans()) {
            let step = emitter.plan.steps.len().saturating_sub(1);
            draft.dispatches.extend(launch.dispatches(&bound.gpu, step)?);
            draft.copies.extend(bound.top.copies(launch.rows));
        }
        Ok(draft)
    }

    /// Returns which of the Plan's inputs takes the rows of an output in the next step of a series.
    fn next_input(&self, index: usize) -> Option<usize> {
        let draft = self.plan.outputs_for(Goal::Draft);
        let is_next = draft.start + 1 == index && draft.contains(&index);
        let mut inputs = self.plan.inputs.iter();
        let is_taken = is_next && runs_series(self.plan, self.options, Goal::Draft);
        let is_state = |input: &Input| input.source == Source::State;
        inputs.position(is_state).filter(|_| is_taken)
    }

    /// Returns the copy of the rows of an output of the Plan, held by this value, to the host.
    fn output_copy(
        &self,
        (bound, inputs): (&Bound, &Inputs),
        emitter: &Emitter<'_>,
        index: usize,
        value: ValueId,
    ) -> Copy {
        let Span { address, .. } = emitter.span(value);
        let buffer = self.plan.output(index);
        let bytes = 4 * (emitter.graph.width.of(buffer.rows) * buffer.columns) as u64;
        // Rows that are changed in place stay where the host wrote them.
        let memory = match emitter.graph.home(value).1 {
            Home::Host(input) => inputs.buffer(input),
            _ => &bound.scratch,
        };
        let from = memory.part(address - memory.address(), bytes);
        Copy { from, to: bound.outputs[index].part(0, bytes), bytes }
    }

    /// Returns the indices of the dispatches before which a submission ends, so that none is
    /// predicted to take too long, and the seconds that each submission is predicted to take.
    fn cuts(
        &self,
        plan: &Plan,
        key: PassKey,
        dispatches: &[Dispatch],
        gpu: &Gpu,
    ) -> (Vec<usize>, Vec<f64>) {
        let workload = key.workload(self.options);
        let speed = gpu.capabilities().cautious_speed();
        let most = gpu.submission_seconds();
        let (mut cuts, mut ended) = (Vec::new(), Vec::new());
        let mut seconds = 0.0;
        let mut last_step = None;
        for (index, dispatch) in dispatches.iter().enumerate() {
            // The launches of a step are predicted together.
            if last_step.replace(dispatch.step) == Some(dispatch.step) {
                continue;
            }
            let cost = plan.step_cost(&plan.steps[dispatch.step], workload);
            let bytes = (cost.memory_bytes() + cost.activation_bytes) as f64;
            let step = (bytes / speed.bytes).max(cost.operations as f64 / speed.operations);
            if seconds > 0.0 && seconds + step > most {
                cuts.push(index);
                ended.push(seconds);
                seconds = 0.0;
            }
            seconds += step;
        }
        ended.push(seconds);
        (cuts, ended)
    }
}

/// The passes of a Program, for tuning.
pub(super) struct ShownPasses<'a> {
    pub(super) binding: &'a Binding<'a>,
    pub(super) bound: &'a Bound,
    /// Their launches, while they are at hand and not yet recorded.
    pub(super) graphs: Option<&'a [Lowered]>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A step that nobody will wait for may be in flight. It uses the memory that is about to be
        // freed.
        let recorded = self.passes.iter_mut().flat_map(|pass| &mut pass.sides);
        recorded.for_each(|recorded| recorded.recording.cancel());
        self.series.iter_mut().for_each(SeriesRuns::cancel);
        self.sampler.iter_mut().for_each(Sampler::cancel);
    }
}

impl Bound {
    /// Returns the memory of values that the launches of a pass hand on as they come, if they do.
    fn fresh(&self, lowered: &Lowered) -> Option<Buffer> {
        let bytes = lowered.placement.fresh as u64;
        let hands_on = self.order == Order::Values && bytes > 0;
        hands_on.then(|| self.scratch.part(0, bytes))
    }

    /// Returns the counters that are 0 between launches, unless a chain breaks.
    fn zero_between(&self) -> Vec<Buffer> {
        let of_products = self.split_scratch.part(0, MatmulLaunch::COUNTER_BYTES as u64);
        vec![of_products, self.counters.clone()]
    }

    fn clear_counters(&self) -> Result<(), GpuError> {
        Recording::zeros(&self.gpu, &self.zero_between())?.run("clearing counters")
    }

    /// Gives a draft without chains the values that it has with them.
    fn mark(&self, lowered: &Lowered, draft: &mut Draft) {
        if let Some(fresh) = self.fresh(lowered) {
            chain::mark(&mut draft.dispatches, fresh.span());
        }
    }

    /// Records all passes that have chains again, without them.
    pub(super) fn unchain(&mut self, binding: &Binding<'_>) -> Result<(), GpuError> {
        let device = self.gpu.capabilities().name.as_str();
        tracing::warn!(
            device,
            "workgroups waited for others that did not run: going on with barriers, which is slower"
        );
        // Draws from what it left are of no use.
        self.sampler.as_mut().map(Sampler::end).transpose()?;
        // Dispatches of the broken chain that counted at the same time have left counts that are
        // not 0.
        self.clear_counters()?;
        for index in 0..self.passes.len() {
            if self.passes[index].has_chains() {
                let Pass { key, exact, .. } = self.passes[index];
                let lowered = binding.plans().lower(key, exact, &self.selection)?;
                self.passes[index] = binding.record(self, &lowered, None)?;
            }
        }
        Ok(())
    }

    /// Records a pass with timestamps, if that has not been done.
    fn record_timed(&mut self, binding: &Binding<'_>, pass: usize) -> Result<(), GpuError> {
        if self.passes[pass].timed.is_some() {
            return Ok(());
        }
        let key = self.passes[pass].key;
        let lowered = binding.plans().lower(key, None, &self.selection)?;
        let mut draft = binding.draft(self, &lowered, 0)?;
        self.mark(&lowered, &mut draft);
        let recording = Recording::timed(&self.gpu, &draft.dispatches, &draft.copies)?;
        let steps = draft.dispatches.iter().map(|dispatch| dispatch.step).collect();
        self.passes[pass].timed = Some((recording, steps));
        Ok(())
    }

    /// Copies the places of `positions` positions in the local layers' rings from one slot to
    /// another: [from, to].
    pub(super) fn copy_rings(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        slots: [u32; 2],
        positions: usize,
    ) -> Result<(), GpuError> {
        let ring = |(cache, memory): (&trine_model::Cache, &Buffer)| {
            let blocks = options.ring_length(cache.window?) / BLOCK;
            let ring = cache_bytes(options, cache) / options.sequences as u64;
            let bytes = ring / blocks as u64 * blocks.min(positions.div_ceil(BLOCK)) as u64;
            let [from, to] = slots.map(|slot| memory.part(u64::from(slot) * ring, bytes));
            Some(Copy { from, to, bytes })
        };
        let copies: Vec<Copy> = plan.caches.iter().zip(&self.caches).filter_map(ring).collect();
        Recording::record(&self.gpu, &[], &copies, &[])?.run("copying the rings of a sequence")
    }

    /// Copies parts of an output of the pass that ran last to the host, unless every step does.
    pub(super) fn fetch(
        &self,
        Track { pass, side }: Track,
        index: usize,
        parts: &[Range<usize>],
    ) -> Result<(), GpuError> {
        let fetch = &self.passes[pass].sides[side].fetch;
        let Some(Copy { from, to, .. }) = &fetch[index] else { return Ok(()) };
        let copies = parts.iter().map(|part| {
            let [start, bytes] = [part.start, part.len()].map(|values| 4 * values as u64);
            Copy { from: from.part(start, bytes), to: to.part(start, bytes), bytes }
        });
        Recording::record(&self.gpu, &[], &copies.collect::<Vec<_>>(), &[])?.run("fetching logits")
    }

    /// Returns values of an output that were fetched.
    pub(super) fn output(&self, index: usize, values: Range<usize>) -> &[f32] {
        self.outputs[index].values(values.start, values.len())
    }
}
