//! One step of the engine as work of the pool.
//!
//! The unsafe calls of this module all rest on the same argument. Phases follow one another; within
//! a phase every unit of work (a row, a chunk of panels, an attention item) is taken by exactly one
//! thread, writes only its own part of the outputs, and reads only what earlier phases wrote.

mod expert_products;
mod observed;
mod products;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use trine_backend::{Batch, What, table_row};
use trine_model::{BufferId, CacheId, Op, Rows, TERMS_MAX, WeightId};

use super::fixed::{Fixed, Loaded, ThreadState};
use super::layers::{AttentionKind, RotaryTable};
use crate::attention::{Attention, SequenceRows, Strided};
use crate::pool::{Units, Work};
use crate::quantize::QuantizedBlock;
use crate::shared::SharedSlice;

/// The number of phases of each operation; one that it does not need has no units.
const PHASES: usize = 4;

/// The most panels in a chunk, so that a chunk's outputs stay in the second-level cache.
pub(super) const PANELS_MAX: usize = 64;

/// Values that are decoded at once where they are added: whole blocks of every format.
const PIECE: usize = 256;

/// The state that the threads of one step share.
pub(super) struct Frame<'a> {
    pub(super) fixed: &'a Fixed,
    pub(super) batch: &'a Batch<'a>,
    pub(super) attention: &'a [AttentionKind],
    /// The batch's sequences, for each [`AttentionKind`].
    pub(super) rows: &'a [Vec<SequenceRows<'a>>],
    pub(super) tables: &'a [RotaryTable],
    pub(super) angles: SharedSlice<'a, f32>,
    pub(super) memory: SharedSlice<'a, f32>,
    pub(super) quantized: SharedSlice<'a, QuantizedBlock>,
    pub(super) up: SharedSlice<'a, f32>,
    /// Rows sorted by their experts.
    pub(super) groups: SharedSlice<'a, u32>,
    /// Whether the guest has begun, or has computed, the bulk rows of the [`Op::Away`] at hand.
    pub(super) is_away: AtomicBool,
    /// Whether the work ended before the last step of the Plan because it was asked to stop.
    pub(super) stopped: AtomicBool,
    /// When the current step of the Plan began, if steps are profiled.
    pub(super) step_began: Option<Mutex<Instant>>,
}

/// The kind of a phase of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Computes the angles of all rows.
    Angles,
    /// One of the [`PHASES`] of a step of the Plan.
    OfStep { step: usize, part: usize },
}

impl Phase {
    fn new(index: usize) -> Self {
        match index.checked_sub(1) {
            None => Phase::Angles,
            Some(index) => Phase::OfStep { step: index / PHASES, part: index % PHASES },
        }
    }
}

impl Work for Frame<'_> {
    fn units(&self, phase: usize) -> Option<usize> {
        let Phase::OfStep { step, part } = Phase::new(phase) else {
            return Some(self.batch.tokens.len());
        };
        let steps = &self.fixed.facts.plan.steps;
        if part == 0 {
            self.note_time(step);
            let between = (1..steps.len()).contains(&step);
            if between && self.fixed.stop.load(Ordering::Relaxed) {
                self.stopped.store(true, Ordering::Relaxed);
                return None;
            }
            self.begin_away(step);
        }
        let op = &steps.get(step)?.op;
        if !self.fixed.serving[&self.batch.goal][step] {
            return Some(0);
        }
        if part == 0 {
            self.observe(step);
        }
        Some(match (op, part) {
            (Op::Away { .. }, 0) => usize::from(self.is_away.load(Ordering::Relaxed)),
            (Op::MatMul { .. } | Op::Away { .. }, _) => match self.products_of(op, part) {
                (input, products, 0) => {
                    self.quantized_runs(input, products.iter().map(|product| product.weight))
                }
                ((_, rows), products, 1) => self.chunks(rows, products).count(),
                _ => 0,
            },
            (Op::GatedMatMul { input, gate, up, .. }, 0) => {
                self.quantized_runs((*input, self.input_rows(*input)), [*gate, *up])
            }
            (Op::GatedMatMul { input, gate, up, .. }, 1) => {
                self.gated_chunks(*input, *gate, *up).count()
            }
            (Op::Attend { .. }, 0) => self.attention_of(step).plan.items(),
            (Op::Attend { .. }, 1) => self.attention_of(step).plan.merges(),
            (
                Op::Route { .. }
                | Op::GatedExperts { .. }
                | Op::SumExperts { .. }
                | Op::Search { .. },
                _,
            ) => self.expert_units(op, part),
            (op, 0) => self.batch.rows(self.fixed.facts.plan.rows(op)),
            _ => 0,
        })
    }

    fn run(&self, phase: usize, thread: usize, units: &mut Units<'_>) {
        let Phase::OfStep { step, part } = Phase::new(phase) else {
            return units.for_each(|row| self.fill_angles(row));
        };
        // Never contended: a thread does one thing at a time.
        let state = &mut *self.fixed.threads[thread].lock().unwrap_or_else(PoisonError::into_inner);
        match &self.fixed.facts.plan.steps[step].op {
            Op::Away { .. } if part == 0 => units.for_each(|_| self.finish_away(step)),
            op @ (Op::MatMul { .. } | Op::Away { .. }) => match self.products_of(op, part) {
                (input, _, 0) => units.for_each(|unit| self.quantize_run(input, unit, state)),
                (input, products, _) => {
                    let chunks = self.chunks(input.1, products);
                    units.for_each(|unit| {
                        self.multiply_chunk(input, products, &chunks.get(unit), state);
                    });
                }
            },
            Op::GatedMatMul { input, .. } if part == 0 => {
                let rows = self.input_rows(*input);
                units.for_each(|unit| self.quantize_run((*input, rows), unit, state));
            }
            Op::GatedMatMul { input, gate, up, output } => {
                let chunks = self.gated_chunks(*input, *gate, *up);
                units.for_each(|unit| {
                    self.gated_chunk(*input, (*gate, *up), *output, &chunks.get(unit), state);
                });
            }
            Op::Attend { query, cache, output, .. } => {
                self.attend((step, part), (*query, *cache, *output), units, state);
            }
            op @ (Op::Route { .. }
            | Op::GatedExperts { .. }
            | Op::SumExperts { .. }
            | Op::Search { .. }) => {
                units.for_each(|unit| self.expert_unit(op, part, unit, state));
            }
            op if works_on_heads(op) => units.for_each(|row| self.heads_row(step, op, row)),
            op => units.for_each(|row| self.row(step, op, row)),
        }
    }
}

/// Returns whether the operation works on the heads of rows.
fn works_on_heads(op: &Op) -> bool {
    matches!(
        op,
        Op::PrepareQkv { .. }
            | Op::HeadNorm { .. }
            | Op::Rotate { .. }
            | Op::RotateByPosition { .. }
            | Op::StoreKv { .. }
    )
}

impl Frame<'_> {
    /// Returns whether the work ended before the last step of the Plan.
    pub(super) fn was_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Adds the time since the last call to the step before `step`, which has just ended.
    fn note_time(&self, step: usize) {
        let Some(began) = &self.step_began else { return };
        let mut began = began.lock().unwrap_or_else(PoisonError::into_inner);
        let mut profile = self.fixed.profile.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let (Some(ended), Some(times)) = (step.checked_sub(1), profile.as_mut()) {
            times[ended] += (now - *began).as_secs_f64();
        }
        *began = now;
    }

    fn fill_angles(&self, row: usize) {
        for table in self.tables {
            // SAFETY: the angles of a row are written by the thread that took it.
            let angles = unsafe { self.angles.write(table.range(row)) };
            table.fill(self.batch, row, angles);
        }
    }

    fn columns(&self, id: BufferId) -> usize {
        self.fixed.facts.plan.buffer(id).columns
    }

    fn range(&self, id: BufferId, row: usize) -> Range<usize> {
        let columns = self.columns(id);
        let start = self.fixed.offset(id) + row * columns;
        start..start + columns
    }

    /// Returns a row of activations that an earlier phase wrote.
    fn read(&self, id: BufferId, row: usize) -> &[f32] {
        // SAFETY: see the module: no thread writes this row in this phase.
        unsafe { self.memory.read(self.range(id, row)) }
    }

    /// Returns a row of activations that belongs to this thread in this phase.
    #[expect(
        clippy::mut_from_ref,
        reason = "rows are taken by one thread at a time, see the module"
    )]
    fn write(&self, id: BufferId, row: usize) -> &mut [f32] {
        // SAFETY: see the module: only this thread took the row.
        unsafe { self.memory.write(self.range(id, row)) }
    }

    /// Lends a whole buffer to kernels that write parts of it.
    fn whole(&self, id: BufferId, rows: usize) -> SharedSlice<'_, f32> {
        let start = self.fixed.offset(id);
        self.memory.part(start..start + rows * self.columns(id))
    }

    fn embed(&self, table: WeightId, scale: f32, output: BufferId, row: usize) {
        let token = self.batch.tokens[row];
        let target = self.write(output, row);
        match &self.fixed.weights[table.0] {
            Loaded::Matrix(matrix) => matrix.decode_row(table_row(matrix.rows(), token), target),
            Loaded::Table(tensor) => {
                let decoded = tensor.decode_row(table_row(tensor.rows(), token), target);
                decoded.expect("row lengths were checked when the model was opened");
            }
            Loaded::Vector(_) | Loaded::Slice { .. } | Loaded::Experts(_) => {
                unreachable!("a table is neither a vector, a slice nor of experts")
            }
        }
        self.fixed.kernels.scale(target, scale);
    }

    /// Adds the entries of the column and the row of a row's place.
    fn places(&self, table: WeightId, side: usize, output: BufferId, row: usize) {
        let (place, table) = (self.batch.tokens[row] as usize, self.fixed.table(table));
        let dtype = table.dtype();
        let decode = |bytes: &[u8], target: &mut [f32]| {
            trine_weights::blocks::decode(dtype, bytes, target)
                .expect("row lengths were checked when the model was opened");
        };
        let target = self.write(output, row);
        decode(table.row(place % side), target);
        let mut piece = [0.0; PIECE];
        let bytes = PIECE / dtype.block_elements() * dtype.block_bytes();
        let of_row = table.row(side + place / side).chunks(bytes);
        for (bytes, target) in of_row.zip(target.chunks_mut(PIECE)) {
            let piece = &mut piece[..target.len()];
            decode(bytes, piece);
            self.fixed.kernels.add(target, piece);
        }
    }

    /// Notes the place of a step whose values are not finite, unless they are.
    fn note(&self, step: usize, what: What, are_finite: bool) {
        if !are_finite {
            self.fixed.noted.note(step, what);
        }
    }

    /// Runs an operation that maps rows to rows.
    fn row(&self, step: usize, op: &Op, row: usize) {
        let kernels = &self.fixed.kernels;
        match op {
            Op::Embed { table, scale, output } => self.embed(*table, *scale, *output, row),
            Op::Norm { input, weight, epsilon, output } => {
                let (weight, output) = (self.fixed.vector(*weight), self.write(*output, row));
                let input = self.read(*input, row);
                let is_finite = kernels.rms_norm(input, weight, *epsilon, output);
                self.note(step, What::Norm, is_finite);
            }
            Op::NormAdd { input, weight, epsilon, target, scale } => {
                let (weight, target) = (self.fixed.vector(*weight), self.write(*target, row));
                let input = self.read(*input, row);
                let is_finite = kernels.rms_norm_add(input, weight, *epsilon, *scale, target);
                self.note(step, What::Norm, is_finite);
            }
            Op::NormAddNorm { input, weight, epsilon, target, scale, next_weight, output } => {
                let (weight, sum) = (self.fixed.vector(*weight), self.write(*target, row));
                let input = self.read(*input, row);
                let is_finite = kernels.rms_norm_add(input, weight, *epsilon, *scale, sum);
                self.note(step, What::Norm, is_finite);
                let (next, output) = (self.fixed.vector(*next_weight), self.write(*output, row));
                let is_finite = kernels.rms_norm(sum, next, *epsilon, output);
                self.note(step, What::NextNorm, is_finite);
            }
            Op::Geglu { gate, up, first, output } => {
                let output = self.write(*output, row);
                let up = &self.read(*up, row)[*first..*first + output.len()];
                kernels.geglu(self.read(*gate, row), up, output);
            }
            Op::Sum { terms, output } => {
                let mut all = [(0.0, &[][..]); TERMS_MAX];
                for (slot, term) in all.iter_mut().zip(terms) {
                    *slot = (term.factor, self.read(term.buffer, row));
                }
                kernels.combine(&all[..terms.len()], self.write(*output, row));
            }
            Op::Mix { .. } => self.mix(op, row),
            Op::Rescale { buffer, like, floor } => {
                let (buffer, like) = (self.write(*buffer, row), self.read(*like, row));
                self.note(step, What::Norm, kernels.rescale(buffer, like, *floor));
            }
            Op::Scale { input, weight, output } => {
                let weight = self.fixed.vector(*weight);
                kernels.product(self.read(*input, row), weight, self.write(*output, row));
            }
            Op::Cutoff { buffer, deviations } => {
                let is_finite = kernels.cutoff(self.write(*buffer, row), *deviations);
                self.note(step, What::Norm, is_finite);
            }
            Op::Join { parts, output } => {
                let mut rest = self.write(*output, row);
                for part in parts {
                    let (own, others) = rest.split_at_mut(self.columns(*part));
                    own.copy_from_slice(self.read(*part, row));
                    rest = others;
                }
            }
            Op::Add { source, target } => {
                kernels.add(self.write(*target, row), self.read(*source, row))
            }
            Op::Softcap { buffer, cap } => kernels.softcap(self.write(*buffer, row), *cap),
            Op::Select { input, output } => {
                let source = self.batch.outputs[row] as usize;
                self.write(*output, row).copy_from_slice(self.read(*input, source));
            }
            other => self.picture_row(step, other, row),
        }
    }

    /// Runs an operation that pictures need on a row.
    fn picture_row(&self, step: usize, op: &Op, row: usize) {
        let kernels = &self.fixed.kernels;
        match op {
            Op::LayerNorm { input, weight, bias, epsilon, output } => {
                let (weight, bias) = (self.fixed.vector(*weight), self.fixed.vector(*bias));
                let (input, output) = (self.read(*input, row), self.write(*output, row));
                let is_finite = kernels.layer_norm(input, weight, bias, *epsilon, output);
                self.note(step, What::Norm, is_finite);
            }
            Op::Gelu { buffer } => kernels.gelu(self.write(*buffer, row)),
            Op::Bias { buffer, weight } => {
                kernels.add(self.write(*buffer, row), self.fixed.vector(*weight));
            }
            Op::PositionEmbedding { table, side, output } => {
                self.places(*table, *side, *output, row)
            }
            Op::Clamp { input, low, high, output } => {
                let values = self.write(*output, row).iter_mut().zip(self.read(*input, row));
                // An overflow does not become a limit.
                let within = |x: f32| if x.is_finite() { x.clamp(*low, *high) } else { f32::NAN };
                values.for_each(|(y, x)| *y = within(*x));
            }
            Op::Pool { input, count, output } => self.pool(*input, *count, *output, row),
            Op::Insert { source, target } => {
                let place = self.batch.soft_rows().nth(row).expect("there are as many as rows");
                self.write(*target, place).copy_from_slice(self.read(*source, row));
            }
            other => unreachable!("{} is not a row-wise operation", other.name()),
        }
    }

    /// Computes the mean of `count` rows that begin with an output row.
    fn pool(&self, input: BufferId, count: usize, output: BufferId, row: usize) {
        let first = self.batch.outputs[row] as usize;
        let output = self.write(output, row);
        output.copy_from_slice(self.read(input, first));
        for other in first + 1..first + count {
            self.fixed.kernels.add(output, self.read(input, other));
        }
        self.fixed.kernels.scale(output, 1.0 / count as f32);
    }

    /// Mixes the sources of one row into its streams.
    fn mix(&self, op: &Op, row: usize) {
        let Op::Mix { streams, sources, coefficients, bias, scale } = op else {
            unreachable!("{} is not a mix", op.name())
        };
        let coefficients = self.read(*coefficients, row);
        for (stream, own) in streams.iter().zip(coefficients.chunks_exact(sources.len())) {
            let mut terms = [(1.0, self.read(stream.input, row)); TERMS_MAX + 1];
            for ((slot, source), c) in terms[1..].iter_mut().zip(sources).zip(own) {
                *slot = (bias + scale * c, self.read(*source, row));
            }
            let terms = &terms[..=sources.len()];
            self.fixed.kernels.combine(terms, self.write(stream.output, row));
        }
    }

    /// Runs an operation on the heads of one row.
    fn heads_row(&self, index: usize, op: &Op, row: usize) {
        match op {
            Op::PrepareQkv { query, key, value, query_norm, key_norm, epsilon, cache, .. } => {
                let norms = [(query, query_norm, What::Norm), (key, key_norm, What::NextNorm)];
                for (buffer, weight, what) in norms {
                    let is_finite = self.norm_and_rotate(index, *buffer, *weight, *epsilon, row);
                    self.note(index, what, is_finite);
                }
                self.store_kv(index, (*key, *value), *cache, row);
            }
            Op::StoreKv { key, value, cache } => {
                self.store_kv(index, (*key, *value), *cache, row);
            }
            Op::HeadNorm { buffer, weight, heads, epsilon } => {
                let weight = weight.map(|weight| self.fixed.vector(weight));
                let values = self.write(*buffer, row);
                for head in values.chunks_exact_mut(self.columns(*buffer) / heads) {
                    let is_finite = self.fixed.kernels.rms_norm_plain(head, *epsilon);
                    self.note(index, What::Norm, is_finite);
                    if let Some(weight) = weight {
                        self.fixed.kernels.multiply(head, weight);
                    }
                }
            }
            Op::Rotate { buffer, heads, .. } => {
                let place = match self.fixed.facts.plan.buffer(*buffer).rows {
                    Rows::Tokens | Rows::Soft => row,
                    Rows::Outputs => self.batch.outputs[row] as usize,
                };
                let (cosines, sines) = self.row_angles(index, place);
                for head in self.write(*buffer, row).chunks_exact_mut(self.columns(*buffer) / heads)
                {
                    rotate(head, cosines, sines);
                }
            }
            Op::RotateByPosition { buffer, heads, .. } => {
                let (cosines, sines) = self.row_angles(index, row);
                let dim = self.columns(*buffer) / heads;
                let angles = cosines.chunks_exact(dim / 4).zip(sines.chunks_exact(dim / 4));
                let parts = self.write(*buffer, row).chunks_exact_mut(dim / 2);
                for (part, (cosines, sines)) in parts.zip(angles.cycle()) {
                    rotate(part, cosines, sines);
                }
            }
            other => unreachable!("{} is not an operation on heads", other.name()),
        }
    }

    /// Returns the cosines and sines of a row of the batch for a step.
    fn row_angles(&self, index: usize, row: usize) -> (&[f32], &[f32]) {
        let range = self.tables[self.fixed.rotary_of_step[index]].range(row);
        // SAFETY: written before the first step.
        let angles = unsafe { self.angles.read(range) };
        angles.split_at(angles.len() / 2)
    }

    fn norm_and_rotate(
        &self,
        index: usize,
        buffer: BufferId,
        norm: WeightId,
        epsilon: f32,
        row: usize,
    ) -> bool {
        let (cosines, sines) = self.row_angles(index, row);
        let heads = self.write(buffer, row);
        self.fixed.kernels.head_norm_rope(heads, self.fixed.vector(norm), epsilon, cosines, sines)
    }

    fn store_kv(
        &self,
        index: usize,
        (key, value): (BufferId, BufferId),
        cache: CacheId,
        row: usize,
    ) {
        let Some((sequence, offset)) = self.sequence_of(cache, row) else { return };
        let position = sequence.position + offset;
        let (key, value) = (self.read(key, row), self.read(value, row));
        // SAFETY: no two rows of a batch share a place in a cache (`Batch::check`,
        // `AttentionPlan::build`), and attention over this cache runs in a later step.
        let are_held =
            unsafe { self.fixed.caches[cache.0].write_shared(sequence.view, position, key, value) };
        self.note(index, What::Cache, are_held);
    }

    /// Returns the sequence of a row as a cache addresses it, and the row's index within the
    /// sequence's rows.
    fn sequence_of(&self, cache: CacheId, row: usize) -> Option<(&SequenceRows<'_>, usize)> {
        let kind = self.fixed.attention_of_cache[cache.0];
        let holds = |sequence: &&SequenceRows<'_>| {
            (sequence.first_row..sequence.first_row + sequence.rows).contains(&row)
        };
        let sequence = self.rows[kind].iter().find(holds)?;
        Some((sequence, row - sequence.first_row))
    }

    /// Runs a phase of attention: its items, or the merges of items that share a row.
    fn attend(
        &self,
        (index, part): (usize, usize),
        (query, cache, output): (BufferId, CacheId, BufferId),
        units: &mut Units<'_>,
        state: &mut ThreadState,
    ) {
        let fixed = self.fixed;
        let which = fixed.attention_of_step[index];
        let kind = self.attention_of(index);
        let cache = &fixed.caches[cache.0];
        let attention =
            Attention::new(fixed.isa, &kind.plan, cache, &self.rows[which], &kind.partials);
        let rows = self.batch.rows(fixed.facts.plan.buffer(query).rows);
        let stride = self.columns(query);
        let queries = self.whole(query, rows);
        // SAFETY: an earlier phase wrote the queries.
        let queries = Strided { elements: unsafe { queries.read(0..queries.len()) }, stride };
        let output = self.whole(output, rows);
        let output = Strided { elements: &output, stride };
        let scratch = &mut state.attention[which];
        for unit in units {
            if part == 0 {
                // SAFETY: each item is taken once and owns its rows and heads of the output.
                unsafe { attention.run_item(unit, scratch, queries, output) };
            } else {
                // SAFETY: as above; all items are done, because they are an earlier phase.
                unsafe { attention.run_merge(unit, scratch, output) };
            }
        }
    }

    fn attention_of(&self, step: usize) -> &AttentionKind {
        &self.attention[self.fixed.attention_of_step[step]]
    }
}

/// Half-split rotation of one head.
fn rotate(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (low, high) = head.split_at_mut(cosines.len());
    for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
