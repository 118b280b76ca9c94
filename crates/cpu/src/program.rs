//! A Plan bound to the processor: packed weights, caches, scratch memory and threads.
//!
//! A step is one dispatch of the pool. Each operation of the Plan is a phase or two, whose units
//! threads take one after the other. Results do not depend on which thread took a chunk.

mod expert_groups;
mod fixed;
pub(crate) mod forecast;
#[allow(unsafe_code, reason = "threads write disjoint parts of the activations within a phase")]
mod frame;
mod layers;
mod terms;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use trine_backend::{
    BackendError, Batch, Facts, Flights, Hosted, InFlight, InputSums, KvPage, Memory, Noted,
    PageLayout, Pages, Partner, Program, ProgramOptions, Results, gather,
};
use trine_model::{
    Buffer, Goal, Model, ModelError, Plan, Scratch, Source, WeightId, WeightPlace, Width, away,
};

use trine_weights::Tensor;

use crate::attention::{AttentionError, AttentionScratch, LayerCache, SequenceRows};
use crate::isa::Isa;
use crate::matmul::{PackError, PackedMatrix, Scratch as MatmulScratch};
use crate::pool::Pool;
use crate::quantize::QuantizedBlock;
use crate::shared::{OutOfMemory, SharedBuffer};
use crate::vector::VectorKernels;
use fixed::{ExpertPart, Fixed, Loaded, ThreadState};
use forecast::{
    cache_shape, expert_parts, kv_kind, largest_groups, largest_input, largest_up, multiplied,
};
use frame::{Frame, PANELS_MAX};
use layers::{
    AttentionKind, RotaryTable, attention_kinds, kinds_of_caches, recycle, ring_of, rotary_tables,
};
use terms::TWO_TERM_ROWS;

/// Most rows in a panel on any instruction set.
const ROWS_PER_PANEL_MAX: usize = 16;

/// A Plan bound to the processor.
pub(crate) struct CpuProgram {
    model: Model,
    /// The number of token ids.
    ids: usize,
    pool: Pool,
    fixed: Fixed,
    attention: Vec<AttentionKind>,
    /// One list for each [`AttentionKind`]; kept for their memory.
    rows: Vec<Vec<SequenceRows<'static>>>,
    tables: Vec<RotaryTable>,
    /// Cosines and sines of the batch's rows, where the tables say.
    angles: SharedBuffer<f32>,
    /// Activations, placed by [`Scratch`].
    memory: SharedBuffer<f32>,
    /// Quantised input of the matrix product at hand.
    quantized: SharedBuffer<QuantizedBlock>,
    /// Up projection of the gated product at hand: (rows, feed-forward).
    up: SharedBuffer<f32>,
    /// Rows sorted by their experts.
    groups: SharedBuffer<u32>,
    /// Steps in flight have run.
    flights: Flights<Ran>,
    /// The step that was waited for last.
    done: Ran,
}

/// What is kept of a step.
#[derive(Debug, Clone, Copy)]
struct Ran {
    /// Rows of each kind.
    rows: Width,
    goal: Goal,
}

impl CpuProgram {
    /// Binds the Plan to the threads of the pool, for the device of this name.
    pub(crate) fn load(
        name: String,
        isa: Isa,
        pool: Pool,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
        partner: Option<&Arc<dyn Partner>>,
    ) -> Result<Self, BackendError> {
        let fail = Failures { device: &name };
        let guest = Hosted::load(partner, model, &plan)?;
        let plan = if guest.is_some() { plan } else { away::here(plan) };
        let weights = load_weights(&plan, model, isa, pool.threads(), &fail)?;
        let caches = make_caches(&plan, options).map_err(|error| fail.attention(error))?;
        let (attention, attention_of_step) =
            attention_kinds(&plan, options).map_err(|error| fail.attention(error))?;
        let (tables, rotary_of_step) = rotary_tables(&plan, options.width.tokens);
        let thread = |_| {
            let attention =
                attention.iter().map(|kind| AttentionScratch::new(&kind.shape)).collect();
            let matmul = MatmulScratch::new().map_err(|error| fail.pack(&error))?;
            let residual =
                vec![0.0; plan.buffers.iter().map(|buffer| buffer.columns).max().unwrap_or(0)];
            let rows = options.width.tokens.min(TWO_TERM_ROWS);
            let terms = vec![0.0; 2 * rows * PANELS_MAX * ROWS_PER_PANEL_MAX];
            Ok(Mutex::new(ThreadState { matmul, attention, residual, terms }))
        };
        let threads = (0..pool.threads()).map(thread).collect::<Result<_, BackendError>>()?;
        let scratch = Scratch::place(&plan, options.width);
        let reserve = |count| SharedBuffer::new(count).map_err(|error| fail.memory(error));
        let memory = reserve(scratch.bytes / size_of::<f32>())?;
        let up = reserve(largest_up(&plan, options))?;
        let angles =
            reserve(tables.iter().map(|table| table.elements(options.width.tokens)).sum())?;
        let blocks = largest_input(&plan, options);
        let quantized = SharedBuffer::new(blocks).map_err(|error| fail.memory(error))?;
        let groups = SharedBuffer::new(largest_groups(&plan, options));
        let groups = groups.map_err(|error| fail.memory(error))?;
        let kernels = VectorKernels::for_isa(isa).ok_or_else(|| BackendError::Unsupported {
            device: name.clone(),
            what: format!("it lacks {isa:?}"),
        })?;
        let order = if cfg!(target_endian = "little") { "little" } else { "big" };
        let layout = format!("cpu, {isa:?}, {}, {order}-endian", options.kv.name());
        let layout = PageLayout::of(layout, &plan.caches, |cache| caches[cache].page_bytes());
        let fixed = Fixed {
            isa,
            kernels,
            attention_of_cache: kinds_of_caches(&plan, &attention, options),
            aways: away::aways(&plan),
            serving: plan.goals().into_iter().map(|goal| (goal, plan.serving(goal))).collect(),
            facts: Facts { pages: Some(layout), ..Facts::new(name, plan, *options) },
            scratch,
            weights,
            guest,
            caches,
            attention_of_step,
            rotary_of_step,
            threads,
            profile: Mutex::new(None),
            observed: Mutex::new(None),
            noted: Noted::default(),
            stop: Arc::default(),
        };
        let list = |_: &AttentionKind| Vec::with_capacity(options.sequences);
        let rows = attention.iter().map(list).collect();
        let ids = model.ids(&fixed.facts.plan);
        let model = model.clone();
        Ok(Self {
            model,
            ids,
            pool,
            fixed,
            attention,
            rows,
            tables,
            angles,
            memory,
            quantized,
            up,
            groups,
            flights: Flights::new(1),
            done: Ran { rows: Width { tokens: 0, outputs: 0 }, goal: Goal::Main },
        })
    }

    /// Writes the rows of the Plan's inputs to their places.
    fn fill_inputs(&mut self, batch: &Batch<'_>) {
        let Self { fixed, memory, .. } = self;
        let plan = &fixed.facts.plan;
        let mut given = batch.inputs.iter();
        for input in plan.inputs.iter().filter(|input| input.is_for(batch.goal)) {
            let Buffer { rows, columns, .. } = plan.buffer(input.buffer);
            let (start, length) = (fixed.offset(input.buffer), batch.rows(*rows) * columns);
            let target = &mut memory.as_mut_slice()[start..start + length];
            match input.source {
                Source::Table { table, scale } => {
                    gather(fixed.table(table), scale, batch.tokens, target);
                }
                Source::Part | Source::Plan | Source::Picture | Source::State => {
                    let rows = given.next().expect("the batch was checked");
                    target.copy_from_slice(rows);
                }
            }
        }
    }

    fn prepare_and_dispatch<'a>(
        &mut self,
        batch: &Batch<'a>,
        rows: &mut [Vec<SequenceRows<'a>>],
    ) -> Result<(), BackendError> {
        for (kind, rows) in self.attention.iter_mut().zip(rows.iter_mut()) {
            let prepared = kind.prepare(batch, rows);
            prepared.map_err(|error| BackendError::BadBatch { what: error.to_string() })?;
        }
        let profiled = self.fixed.profile.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let frame = Frame {
            fixed: &self.fixed,
            batch,
            attention: &self.attention,
            rows,
            tables: &self.tables,
            angles: self.angles.share(),
            memory: self.memory.share(),
            quantized: self.quantized.share(),
            up: self.up.share(),
            groups: self.groups.share(),
            is_away: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            step_began: profiled.then(|| Mutex::new(Instant::now())),
        };
        self.pool.run(&frame).map_err(|error| BackendError::Failed {
            device: self.fixed.facts.device.clone(),
            what: error.to_string(),
        })?;
        if frame.was_stopped() { Err(BackendError::Stopped) } else { Ok(()) }
    }
}

impl Program for CpuProgram {
    fn facts(&self) -> &Facts {
        &self.fixed.facts
    }

    fn memory(&self) -> Memory {
        let (mut weights, mut mapped) = (0, 0);
        for loaded in &self.fixed.weights {
            match loaded {
                Loaded::Matrix(matrix) => weights += matrix.bytes(),
                Loaded::Experts(parts) => {
                    let matrices = parts.iter().flat_map(|part| &part.matrices);
                    weights += matrices.map(PackedMatrix::bytes).sum::<usize>();
                }
                Loaded::Vector(values) => weights += size_of_val(values.as_slice()),
                Loaded::Table(tensor) => mapped += tensor.bytes().len(),
                Loaded::Slice { .. } => {}
            }
        }
        let partials: usize = self.attention.iter().map(|kind| kind.partials.bytes()).sum();
        let threads = self.fixed.threads.len() * MatmulScratch::BYTES;
        let buffers = self.memory.bytes()
            + self.quantized.bytes()
            + self.up.bytes()
            + self.angles.bytes()
            + self.groups.bytes();
        Memory {
            weights: weights as u64,
            mapped: mapped as u64,
            caches: self.fixed.caches.iter().map(|cache| cache.bytes() as u64).sum(),
            scratch: (buffers + partials + threads) as u64,
        }
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        let Facts { plan, options, .. } = &self.fixed.facts;
        batch.check(options, plan, self.ids)?;
        self.flights.check_room()?;
        self.fill_inputs(batch);
        let mut rows = recycle(std::mem::take(&mut self.rows));
        let result = self.prepare_and_dispatch(batch, &mut rows);
        self.rows = recycle(rows);
        result?;
        self.model.check_intact()?;
        let rows = Width { tokens: batch.tokens.len(), outputs: batch.outputs.len() };
        Ok(self.flights.begin(Ran { rows, goal: batch.goal }))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.done = self.flights.end(step)?;
        Ok(self)
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Fixed { facts: Facts { plan, options, .. }, caches, .. } = &mut self.fixed;
        options.check_slots(from, to)?;
        for (index, cache) in caches.iter_mut().enumerate() {
            if let Some(ring) = ring_of(plan, trine_model::CacheId(index), options) {
                cache.copy(from as usize * ring, to as usize * ring, ring.min(positions));
            }
        }
        Ok(())
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        Some(self)
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.fixed.stop = stop;
    }

    fn take_overflow(&mut self) -> Option<String> {
        self.fixed.noted.take(&self.fixed.facts.plan)
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        let zeros = on.then(|| vec![0.0; self.fixed.facts.plan.steps.len()]);
        let mut profile = self.fixed.profile.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *profile, zeros).unwrap_or_default()
    }

    fn observe(&mut self, on: bool) -> Option<Vec<InputSums>> {
        // A guest's inputs are not seen.
        if self.fixed.guest.is_some() {
            return None;
        }
        let none = on.then(|| vec![InputSums::default(); self.fixed.facts.plan.steps.len()]);
        let mut observed = self.fixed.observed.lock().unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::replace(&mut *observed, none).unwrap_or_default())
    }
}

impl Results for CpuProgram {
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        let Facts { plan, .. } = &self.fixed.facts;
        self.fixed.facts.check_output(self.done.goal, index)?;
        let Buffer { rows, columns, .. } = *plan.output(index);
        let start = self.fixed.offset(plan.outputs[index]);
        let length = self.done.rows.of(rows) * columns;
        Ok(&self.memory.as_mut_slice()[start..start + length])
    }
}

impl Pages for CpuProgram {
    fn read(&mut self, pages: &[KvPage<'_>], bytes: &mut Vec<u8>) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Fixed { facts: Facts { plan, options, .. }, caches, .. } = &mut self.fixed;
        options.check_pages(pages)?;
        for (cache, start) in options.page_places(&plan.caches, pages) {
            caches[cache].read_page(start, bytes);
        }
        Ok(())
    }

    fn write(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Fixed { facts: Facts { plan, options, pages: layout, .. }, caches, .. } =
            &mut self.fixed;
        options.check_page_bytes(pages, layout.as_ref(), bytes)?;
        let mut rest = bytes;
        for (cache, start) in options.page_places(&plan.caches, pages) {
            let cache = &mut caches[cache];
            let (own, others) = rest.split_at(cache.page_bytes());
            cache.write_page(start, own);
            rest = others;
        }
        Ok(())
    }
}

/// Packs matrices, widens vectors; a table that is not an output matrix stays where it is mapped.
fn load_weights(
    plan: &Plan,
    model: &Model,
    isa: Isa,
    threads: usize,
    fail: &Failures<'_>,
) -> Result<Vec<Loaded>, BackendError> {
    let multiplied = multiplied(plan);
    let load = |(index, weight): (usize, &trine_model::Weight)| {
        if let WeightPlace::Slice { of, first } = weight.place {
            Ok(Loaded::Slice { of, rows: first..first + weight.rows })
        } else if let parts @ [_, ..] = &expert_parts(plan, WeightId(index))[..] {
            let tensor = model.converted(weight)?;
            let packed = parts.iter().map(|part| pack_experts(&tensor, *part, isa, threads, fail));
            Ok(Loaded::Experts(packed.collect::<Result<_, _>>()?))
        } else if multiplied.contains(&WeightId(index)) {
            let packed = PackedMatrix::pack(&model.converted(weight)?, isa, threads);
            packed.map(Loaded::Matrix).map_err(|error| fail.pack(&error))
        } else if !weight.is_matrix() {
            Ok(Loaded::Vector(model.vector(weight)))
        } else {
            Ok(Loaded::Table(model.converted(weight)?))
        }
    };
    plan.weights.iter().enumerate().map(load).collect()
}

/// Packs one of the matrices that each expert has in a weight: `rows` rows from `first` on of each
/// of `count` equal parts.
fn pack_experts(
    tensor: &Tensor,
    (first, rows, count): (usize, usize, usize),
    isa: Isa,
    threads: usize,
    fail: &Failures<'_>,
) -> Result<ExpertPart, BackendError> {
    let step = tensor.rows() / count;
    // The tokens of a cluster are too few to start threads for.
    let threads = threads.min(1 + rows * tensor.row_bytes() / (64 << 10));
    let pack = |expert: usize| {
        let start = first + expert * step;
        let own =
            tensor.slice_rows(tensor.name(), start..start + rows).map_err(ModelError::from)?;
        PackedMatrix::pack(&own, isa, threads).map_err(|error| fail.pack(&error))
    };
    Ok(ExpertPart { first, matrices: (0..count).map(pack).collect::<Result<_, _>>()? })
}

fn make_caches(plan: &Plan, options: &ProgramOptions) -> Result<Vec<LayerCache>, AttentionError> {
    let make = |index| {
        LayerCache::new(
            kv_kind(options.kv),
            cache_shape(plan, trine_model::CacheId(index), options),
        )
    };
    (0..plan.caches.len()).map(make).collect()
}

/// Turns the errors of the kernels into the seam's.
struct Failures<'a> {
    device: &'a str,
}

impl Failures<'_> {
    fn out_of_memory(&self, what: String, bytes: usize) -> BackendError {
        BackendError::OutOfMemory { what, needed: bytes as u64, device: self.device.to_owned() }
    }

    fn memory(&self, error: OutOfMemory) -> BackendError {
        self.out_of_memory("working memory".to_owned(), error.bytes)
    }

    fn pack(&self, error: &PackError) -> BackendError {
        match error {
            PackError::OutOfMemory { name, bytes } => {
                self.out_of_memory(format!("weight {name}"), *bytes)
            }
            other => BackendError::Unsupported {
                device: self.device.to_owned(),
                what: other.to_string(),
            },
        }
    }

    fn attention(&self, error: AttentionError) -> BackendError {
        match error {
            AttentionError::OutOfMemory(OutOfMemory { bytes }) => {
                self.out_of_memory("the KV cache".to_owned(), bytes)
            }
            other => BackendError::Unsupported {
                device: self.device.to_owned(),
                what: other.to_string(),
            },
        }
    }
}
