//! One step of the engine as work of the pool.
//!
//! The unsafe calls of this module all rest on the same argument. Phases follow one another; within
//! a phase every unit of work (a row, a chunk of panels, an attention item) is taken by exactly one
//! thread, writes only its own part of the outputs, and reads only what earlier phases wrote.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use trine_backend::{Batch, table_row};
use trine_model::{BufferId, CacheId, Op, Product, Rows, TERMS_MAX, WeightId};

use super::fixed::{Fixed, Loaded, ThreadState};
use super::layers::{AttentionKind, RotaryTable};
use super::terms::{InputRows, quantize_terms};
use crate::attention::{Attention, SequenceRows, Strided};
use crate::matmul::{MatmulInput, PackedMatrix};
use crate::pool::{Units, Work};
use crate::quantize::{BLOCK, QuantizedBlock, QuantizedRows};
use crate::shared::SharedSlice;

/// The number of phases of each operation; one that it does not need has no units.
const PHASES: usize = 2;

/// The number of chunks of panels that each thread gets on average: enough to even out a slow core.
/// A product of few rows waits for memory, and its threads should end together; one of many rows
/// reads its input again for each chunk.
const CHUNKS_PER_THREAD: usize = 8;
const CHUNKS_PER_THREAD_NARROW: usize = 32;

/// The fewest multiplications in a chunk, about 1 us of work: a chunk should take much longer than
/// taking it from the board.
const CHUNK_PRODUCTS_MIN: usize = 16 << 10;

/// The fewest blocks in a run, if a row is quantised in several. Quantising these takes about as
/// long as another thread needs to learn of a run.
const RUN_BLOCKS_MIN: usize = 64;

/// The most rows of a product that counts as narrow.
const NARROW_ROWS: usize = 8;

/// The most panels in a chunk, so that a chunk's outputs stay in the second-level cache.
pub(super) const PANELS_MAX: usize = 64;

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

/// How the panels of a product are cut into units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chunks {
    panels: usize,
    each: usize,
}

impl Chunks {
    fn count(self) -> usize {
        self.panels.div_ceil(self.each)
    }

    fn get(self, index: usize) -> Range<usize> {
        index * self.each..((index + 1) * self.each).min(self.panels)
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
        }
        let op = &steps.get(step)?.op;
        if !self.fixed.serving[self.batch.goal][step] {
            return Some(0);
        }
        Some(match (op, part) {
            (Op::MatMul { input, products }, part) => {
                let weights = products.iter().map(|product| product.weight);
                if part == 0 {
                    self.quantized_runs(*input, weights)
                } else {
                    self.chunks(*input, products).count()
                }
            }
            (Op::GatedMatMul { input, gate, up, .. }, part) => {
                if part == 0 {
                    self.quantized_runs(*input, [*gate, *up])
                } else {
                    self.gated_chunks(*input, *gate, *up).count()
                }
            }
            (Op::Attend { .. }, part) => {
                let plan = &self.attention[self.fixed.attention_of_step[step]].plan;
                if part == 0 { plan.items() } else { plan.merges() }
            }
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
            Op::MatMul { input, .. } | Op::GatedMatMul { input, .. } if part == 0 => {
                units.for_each(|unit| self.quantize_run(*input, unit, state));
            }
            Op::MatMul { input, products } => {
                let chunks = self.chunks(*input, products);
                units.for_each(|unit| {
                    self.multiply_chunk(*input, products, &chunks.get(unit), state)
                });
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
            op if works_on_heads(op) => units.for_each(|row| self.heads_row(step, op, row)),
            op => units.for_each(|row| self.row(op, row)),
        }
    }
}

/// Returns whether the operation works on the heads of rows.
fn works_on_heads(op: &Op) -> bool {
    matches!(
        op,
        Op::PrepareQkv { .. } | Op::HeadNorm { .. } | Op::Rotate { .. } | Op::StoreKv { .. }
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
            table.fill(self.batch.positions[row], angles);
        }
    }

    /// Returns the number of units in which the input of a product is quantised: 0 if no matrix
    /// needs it.
    fn quantized_runs(
        &self,
        input: BufferId,
        weights: impl IntoIterator<Item = WeightId>,
    ) -> usize {
        let rows = self.input_rows(input);
        let wanted = weights.into_iter().any(|id| self.fixed.matrix(id).needs_quantized_input());
        if wanted { rows.rows * self.runs_of_row(input, rows) } else { 0 }
    }

    /// Returns how the panels of all matrices of a product are cut.
    fn chunks(&self, input: BufferId, products: &[Product]) -> Chunks {
        let matrices = || products.iter().map(|product| self.fixed.matrix(product.weight));
        let height = matrices().map(PackedMatrix::rows_per_panel).max().unwrap_or(1);
        self.cut(input, matrices().map(PackedMatrix::panels).sum(), height)
    }

    /// Returns how the panels of a gated product, of [`gated_height`](Self::gated_height) rows
    /// each, are cut.
    fn gated_chunks(&self, input: BufferId, gate: WeightId, up: WeightId) -> Chunks {
        let height = self.gated_height(gate, up);
        self.cut(input, self.fixed.matrix(gate).rows().div_ceil(height), height)
    }

    /// Cuts `panels` panels of `height` rows.
    fn cut(&self, input: BufferId, panels: usize, height: usize) -> Chunks {
        let rows = self.input_rows(input).rows;
        let least = CHUNK_PRODUCTS_MIN / (rows * self.columns(input) * height).max(1);
        let each = if rows <= NARROW_ROWS { CHUNKS_PER_THREAD_NARROW } else { CHUNKS_PER_THREAD };
        let even = panels.div_ceil(self.fixed.threads.len() * each);
        let each = even.max(least).clamp(1, PANELS_MAX);
        Chunks { panels: if rows == 0 { 0 } else { panels }, each }
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
                let entry = tensor.row(table_row(tensor.rows(), token));
                trine_weights::blocks::decode(tensor.dtype(), entry, target)
                    .expect("row lengths were checked when the model was opened");
            }
            Loaded::Vector(_) => unreachable!("a table is not a vector"),
        }
        self.fixed.kernels.scale(target, scale);
    }

    /// Runs an operation that maps rows to rows.
    fn row(&self, op: &Op, row: usize) {
        let kernels = &self.fixed.kernels;
        match op {
            Op::Embed { table, scale, output } => self.embed(*table, *scale, *output, row),
            Op::Norm { input, weight, epsilon, output } => {
                let weight = self.fixed.vector(*weight);
                kernels.rms_norm(
                    self.read(*input, row),
                    weight,
                    *epsilon,
                    self.write(*output, row),
                );
            }
            Op::NormAdd { input, weight, epsilon, target } => {
                let weight = self.fixed.vector(*weight);
                kernels.rms_norm_add(
                    self.read(*input, row),
                    weight,
                    *epsilon,
                    self.write(*target, row),
                );
            }
            Op::NormAddNorm { input, weight, epsilon, target, next_weight, output } => {
                let sum = self.write(*target, row);
                kernels.rms_norm_add(
                    self.read(*input, row),
                    self.fixed.vector(*weight),
                    *epsilon,
                    sum,
                );
                let next = self.fixed.vector(*next_weight);
                kernels.rms_norm(sum, next, *epsilon, self.write(*output, row));
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
                kernels.rescale(self.write(*buffer, row), self.read(*like, row), *floor);
            }
            Op::Scale { input, weight, output } => {
                let weight = self.fixed.vector(*weight);
                kernels.product(self.read(*input, row), weight, self.write(*output, row));
            }
            Op::Cutoff { buffer, deviations } => {
                kernels.cutoff(self.write(*buffer, row), *deviations);
            }
            Op::Add { source, target } => {
                kernels.add(self.write(*target, row), self.read(*source, row))
            }
            Op::Softcap { buffer, cap } => kernels.softcap(self.write(*buffer, row), *cap),
            Op::Select { input, output } => {
                let source = self.batch.outputs[row] as usize;
                self.write(*output, row).copy_from_slice(self.read(*input, source));
            }
            other => unreachable!("{} is not a row-wise operation", other.name()),
        }
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
                for (buffer, weight) in [(query, query_norm), (key, key_norm)] {
                    self.norm_and_rotate(index, *buffer, *weight, *epsilon, row);
                }
                self.store_kv(*key, *value, *cache, row);
            }
            Op::StoreKv { key, value, cache } => self.store_kv(*key, *value, *cache, row),
            Op::HeadNorm { buffer, weight, heads, epsilon } => {
                let weight = weight.map(|weight| self.fixed.vector(weight));
                let values = self.write(*buffer, row);
                for head in values.chunks_exact_mut(self.columns(*buffer) / heads) {
                    self.fixed.kernels.rms_norm_plain(head, *epsilon);
                    if let Some(weight) = weight {
                        self.fixed.kernels.multiply(head, weight);
                    }
                }
            }
            Op::Rotate { buffer, heads, .. } => {
                let place = match self.fixed.facts.plan.buffer(*buffer).rows {
                    Rows::Tokens => row,
                    Rows::Outputs => self.batch.outputs[row] as usize,
                };
                let (cosines, sines) = self.row_angles(index, place);
                for head in self.write(*buffer, row).chunks_exact_mut(self.columns(*buffer) / heads)
                {
                    rotate(head, cosines, sines);
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
    ) {
        let (cosines, sines) = self.row_angles(index, row);
        let heads = self.write(buffer, row);
        self.fixed.kernels.head_norm_rope(heads, self.fixed.vector(norm), epsilon, cosines, sines);
    }

    fn store_kv(&self, key: BufferId, value: BufferId, cache: CacheId, row: usize) {
        let Some((sequence, offset)) = self.sequence_of(cache, row) else { return };
        let position = sequence.position + offset;
        let (key, value) = (self.read(key, row), self.read(value, row));
        // SAFETY: no two rows of a batch share a place in a cache (`Batch::check`,
        // `AttentionPlan::build`), and attention over this cache runs in a later step.
        unsafe { self.fixed.caches[cache.0].write_shared(sequence.view, position, key, value) };
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
        let kind = &self.attention[which];
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

    /// Multiplies with a chunk of the panels of several matrices. The panels are numbered through
    /// all matrices; a chunk may span several.
    fn multiply_chunk(
        &self,
        input: BufferId,
        products: &[Product],
        chunk: &Range<usize>,
        state: &mut ThreadState,
    ) {
        let rows = self.input_rows(input);
        let mut first = 0;
        for product in products {
            let matrix = self.fixed.matrix(product.weight);
            let own = chunk.start.max(first)..chunk.end.min(first + matrix.panels());
            if own.start < own.end {
                let panels = own.start - first..own.end - first;
                let output = self.whole(product.output, rows.rows);
                self.multiply(matrix, input, rows, panels, &output, state);
            }
            first += matrix.panels();
        }
    }

    /// Multiplies with a chunk of the panels of both matrices, and applies the gate.
    fn gated_chunk(
        &self,
        input: BufferId,
        (gate, up): (WeightId, WeightId),
        output: BufferId,
        chunk: &Range<usize>,
        state: &mut ThreadState,
    ) {
        let rows = self.input_rows(input);
        let height = self.gated_height(gate, up);
        let (gate, up) = (self.fixed.matrix(gate), self.fixed.matrix(up));
        assert_eq!(gate.rows(), up.rows(), "gate and up projection have the same rows");
        let target = self.whole(output, rows.rows);
        let factors = self.up.part(0..target.len());
        let columns = self.columns(output);
        let own = chunk.start * height..(chunk.end * height).min(gate.rows());
        self.multiply(gate, input, rows, gate.panels_of(own.clone()), &target, state);
        self.multiply(up, input, rows, up.panels_of(own.clone()), &factors, state);
        for row in 0..rows.rows {
            let range = row * columns + own.start..row * columns + own.end;
            // SAFETY: only this thread took the panels, and so owns these columns of both.
            let (target, factors) = unsafe { (target.write(range.clone()), factors.write(range)) };
            self.fixed.kernels.gelu(target);
            self.fixed.kernels.multiply(target, factors);
        }
    }

    /// Returns the number of rows in a panel of a gated product. Panels of float and of quantised
    /// matrices may have different heights; the larger is a multiple of the smaller.
    fn gated_height(&self, gate: WeightId, up: WeightId) -> usize {
        let height = |id| self.fixed.matrix(id).rows_per_panel();
        height(gate).max(height(up))
    }

    /// The rows of a product's input.
    fn input_rows(&self, input: BufferId) -> InputRows {
        InputRows::of(self.batch, self.fixed.facts.plan.buffer(input).rows)
    }

    /// Returns the number of runs of blocks in which each row of a product's input is quantised.
    /// Rows are cut only if there are fewer of them than threads.
    fn runs_of_row(&self, input: BufferId, rows: InputRows) -> usize {
        let threads = self.fixed.threads.len();
        let blocks = QuantizedRows::blocks_per_row(self.columns(input));
        if rows.rows < threads { (blocks / RUN_BLOCKS_MIN).clamp(1, threads) } else { 1 }
    }

    /// Quantises one of several runs of a row's blocks; a row's runs follow one another.
    fn quantize_run(&self, input: BufferId, unit: usize, state: &mut ThreadState) {
        let rows = self.input_rows(input);
        let runs = self.runs_of_row(input, rows);
        let (row, run) = (unit / runs, unit % runs);
        let columns = self.columns(input);
        let per_row = QuantizedRows::blocks_per_row(columns);
        let length = per_row.div_ceil(runs);
        let blocks = (run * length).min(per_row)..((run + 1) * length).min(per_row);
        let elements = (blocks.start * BLOCK).min(columns)..(blocks.end * BLOCK).min(columns);
        let first = rows.terms_before(row) * per_row;
        let of_term = |term: usize| {
            let start = first + term * per_row;
            start + blocks.start..start + blocks.end
        };
        let second = if rows.terms(row) == 2 { of_term(1) } else { 0..0 };
        // SAFETY: only the thread that took a run writes its blocks, and the terms do not overlap.
        let (first, second) =
            unsafe { (self.quantized.write(of_term(0)), self.quantized.write(second)) };
        let values = &self.read(input, row)[elements];
        quantize_terms(self.fixed.isa, values, &mut state.residual, first, second);
    }

    /// Multiplies a range of a matrix's panels with all rows of the input.
    fn multiply(
        &self,
        matrix: &PackedMatrix,
        input: BufferId,
        rows: InputRows,
        panels: Range<usize>,
        output: &SharedSlice<'_, f32>,
        state: &mut ThreadState,
    ) {
        let columns = self.columns(input);
        let stride = matrix.rows();
        if !matrix.needs_quantized_input() {
            let input = self.whole(input, rows.rows);
            // SAFETY: an earlier phase wrote the input.
            let values = unsafe { input.read(0..input.len()) };
            let input = MatmulInput::F32 { values, stride: columns, rows: rows.rows };
            // SAFETY: only this thread took the panels.
            unsafe { matrix.matmul(input, panels, output, stride, &mut state.matmul) };
            return;
        }
        for (group, terms) in rows.groups() {
            // SAFETY: an earlier phase wrote the blocks.
            let blocks = unsafe { self.quantized.read(rows.blocks_of(&group, columns)) };
            let input = QuantizedRows::new(blocks, columns);
            let output = output.part(group.start * stride..group.end * stride);
            if terms == 1 {
                let input = MatmulInput::Quantized(&input);
                // SAFETY: only this thread took the panels.
                unsafe { matrix.matmul(input, panels.clone(), &output, stride, &mut state.matmul) };
            } else {
                multiply_two_terms(matrix, &input, panels.clone(), &output, state);
            }
        }
    }
}

/// Multiplies rows with two terms, which are adjacent in `input`, and adds the products of both.
/// `output` is (rows, rows of the matrix); only this thread has the columns of the panels.
fn multiply_two_terms(
    matrix: &PackedMatrix,
    input: &QuantizedRows<'_>,
    panels: Range<usize>,
    output: &SharedSlice<'_, f32>,
    state: &mut ThreadState,
) {
    let stride = matrix.rows();
    let rows = output.len() / stride;
    let range = matrix.rows_of(panels.clone());
    let sums = SharedSlice::new(&mut state.terms[..2 * rows * range.len()]);
    let quantized = MatmulInput::Quantized(input);
    // SAFETY: the output is this thread's own.
    unsafe {
        matrix.matmul_window(quantized, panels, &sums, range.len(), range.start, &mut state.matmul);
    }
    for row in 0..rows {
        let own = 2 * row * range.len()..2 * (row + 1) * range.len();
        let target = row * stride + range.start..row * stride + range.end;
        // SAFETY: only this thread has these columns of the output.
        let (sums, target) = unsafe { (sums.read(own), output.write(target)) };
        let (first, second) = sums.split_at(range.len());
        for ((target, first), second) in target.iter_mut().zip(first).zip(second) {
            *target = first + second;
        }
    }
}

/// Half-split rotation of one head.
fn rotate(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
    let (low, high) = head.split_at_mut(cosines.len());
    for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
