//! One step of the engine, as every thread of the pool walks it.
//!
//! The unsafe calls of this module all rest on the same argument. Between two barriers a phase runs; within a phase
//! every unit of work (a row, a range of panels, an attention item) is taken by exactly one thread, writes only its own
//! part of the outputs, and reads only what earlier phases wrote.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use trine_backend::Batch;
use trine_model::{BufferId, CacheId, Op, Product, WeightId};

use super::layers::{AttentionKind, RotaryTable};
use super::terms::{InputRows, quantize_terms};
use super::{Fixed, Loaded, ThreadState};
use crate::attention::{Attention, SequenceRows, Strided};
use crate::matmul::{MatmulInput, PackedMatrix};
use crate::pool::{Barrier, ThreadIndex};
use crate::quantize::{BLOCK, QuantizedBlock, QuantizedRows};
use crate::shared::SharedSlice;

/// Most phases of one step: each has its own counter of work handed out.
pub(super) const PHASES: usize = 2;

/// Chunks of panels that each thread gets on average: enough to even out a slow core. A product of few rows waits for
/// memory, and its threads should end together; one of many rows reads its input again for each chunk.
const CHUNKS_PER_THREAD: usize = 8;
const CHUNKS_PER_THREAD_NARROW: usize = 32;

/// Most rows of a product that counts as narrow.
const NARROW_ROWS: usize = 8;

/// Most panels in a chunk, so that a chunk's outputs stay in the second-level cache.
pub(super) const PANELS_MAX: usize = 64;

/// What the threads of one step share.
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
    /// The step of the Plan after which all threads end because the work is to be stopped; `usize::MAX` while it is not.
    pub(super) last_step: AtomicUsize,
}

/// A thread's place in a step: where it takes work from.
struct Cursor<'a> {
    thread: ThreadIndex,
    barrier: &'a Barrier,
    /// Index of the next phase's counter.
    phase: usize,
}

impl Frame<'_> {
    /// The whole step, as one thread of the pool.
    pub(super) fn run(&self, thread: ThreadIndex, barrier: &Barrier) {
        let fixed = self.fixed;
        let mut state = fixed.threads[thread.index].lock().unwrap_or_else(PoisonError::into_inner);
        // The lock is taken by one thread per step and held for its duration: never contended.
        let mut profile = match thread.index {
            0 => Some(fixed.profile.lock().unwrap_or_else(PoisonError::into_inner)),
            _ => None,
        };
        let mut times = profile.as_mut().and_then(|guard| guard.as_mut());
        let mut cursor = Cursor { thread, barrier, phase: fixed.plan.steps.len() * PHASES };
        self.fill_angles(&mut cursor);
        let last = fixed.plan.steps.len().saturating_sub(1);
        for (index, step) in fixed.plan.steps.iter().enumerate() {
            let start = times.is_some().then(Instant::now);
            cursor.phase = index * PHASES;
            self.step(index, &step.op, &mut cursor, &mut state);
            // One thread decides, and names the step: a slow thread that finds a later one here goes on to it.
            if thread.index == 0 && fixed.stop.load(Ordering::Relaxed) && index < last {
                self.last_step.store(index, Ordering::Relaxed);
            }
            barrier.wait();
            if self.last_step.load(Ordering::Relaxed) <= index {
                return;
            }
            if let (Some(start), Some(times)) = (start, times.as_mut()) {
                times[index] += start.elapsed().as_secs_f64();
            }
        }
    }

    /// Whether the threads ended before the last step of the Plan.
    pub(super) fn was_stopped(&self) -> bool {
        self.last_step.load(Ordering::Relaxed) != usize::MAX
    }

    fn step(&self, index: usize, op: &Op, cursor: &mut Cursor<'_>, state: &mut ThreadState) {
        match op {
            Op::Embed { table, scale, output } => self.embed(*table, *scale, *output, cursor),
            Op::MatMul { input, products } => self.matmul(*input, products, cursor, state),
            Op::GatedMatMul { input, gate, up, output } => {
                self.gated_matmul(*input, *gate, *up, *output, cursor, state);
            }
            Op::Attend { query, cache, output, .. } => {
                self.attend(index, *query, *cache, *output, cursor, state);
            }
            Op::PrepareQkv { .. }
            | Op::HeadNorm { .. }
            | Op::Rotate { .. }
            | Op::StoreKv { .. } => {
                self.for_rows(self.batch.tokens.len(), cursor, |row| {
                    self.heads_row(index, op, row)
                });
            }
            row_wise => {
                let rows = self.batch.rows(self.fixed.plan.rows(op));
                self.for_rows(rows, cursor, |row| self.row(row_wise, row));
            }
        }
    }

    /// Runs one phase over rows.
    fn for_rows(&self, rows: usize, cursor: &mut Cursor<'_>, mut work: impl FnMut(usize)) {
        while let Some(row) = self.fixed.counters.next(cursor.phase, rows) {
            work(row);
        }
        cursor.phase += 1;
    }

    fn fill_angles(&self, cursor: &mut Cursor<'_>) {
        self.for_rows(self.batch.tokens.len(), cursor, |row| {
            for table in self.tables {
                // SAFETY: the angles of a row are written by the thread that took it.
                let angles = unsafe { self.angles.write(table.range(row)) };
                table.fill(self.batch.positions[row], angles);
            }
        });
        cursor.barrier.wait();
    }

    fn columns(&self, id: BufferId) -> usize {
        self.fixed.plan.buffer(id).columns
    }

    fn range(&self, id: BufferId, row: usize) -> Range<usize> {
        let columns = self.columns(id);
        let start = self.fixed.offset(id) + row * columns;
        start..start + columns
    }

    /// A row of activations that an earlier phase wrote.
    fn read(&self, id: BufferId, row: usize) -> &[f32] {
        // SAFETY: see the module: nobody writes this row in this phase.
        unsafe { self.memory.read(self.range(id, row)) }
    }

    /// A row of activations that belongs to this thread in this phase.
    #[expect(
        clippy::mut_from_ref,
        reason = "rows are taken by one thread at a time, see the module"
    )]
    fn write(&self, id: BufferId, row: usize) -> &mut [f32] {
        // SAFETY: see the module: this thread alone took the row.
        unsafe { self.memory.write(self.range(id, row)) }
    }

    /// A whole buffer, lent to kernels that write parts of it.
    fn whole(&self, id: BufferId, rows: usize) -> SharedSlice<'_, f32> {
        let start = self.fixed.offset(id);
        self.memory.part(start..start + rows * self.columns(id))
    }

    fn embed(&self, table: WeightId, scale: f32, output: BufferId, cursor: &mut Cursor<'_>) {
        self.for_rows(self.batch.tokens.len(), cursor, |row| {
            let token = self.batch.tokens[row] as usize;
            let target = self.write(output, row);
            match &self.fixed.weights[table.0] {
                Loaded::Matrix(matrix) => matrix.decode_row(token, target),
                Loaded::Table(tensor) => {
                    trine_weights::blocks::decode(tensor.dtype(), tensor.row(token), target)
                        .expect("row lengths were checked when the model was opened");
                }
                Loaded::Vector(_) => unreachable!("a table is no vector"),
            }
            self.fixed.kernels.scale(target, scale);
        });
    }

    /// Operations that map rows to rows.
    fn row(&self, op: &Op, row: usize) {
        let kernels = &self.fixed.kernels;
        match op {
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
            Op::Geglu { gate, up, output } => {
                kernels.geglu(self.read(*gate, row), self.read(*up, row), self.write(*output, row));
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

    /// Operations on the heads of one row.
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
                let weight = self.fixed.vector(*weight);
                let values = self.write(*buffer, row);
                for head in values.chunks_exact_mut(self.columns(*buffer) / heads) {
                    self.fixed.kernels.rms_norm_plain(head, *epsilon);
                    self.fixed.kernels.multiply(head, weight);
                }
            }
            Op::Rotate { buffer, heads, .. } => {
                let (cosines, sines) = self.row_angles(index, row);
                for head in self.write(*buffer, row).chunks_exact_mut(self.columns(*buffer) / heads)
                {
                    rotate(head, cosines, sines);
                }
            }
            other => unreachable!("{} is no operation on heads", other.name()),
        }
    }

    /// Cosines and sines of a row for a step.
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
        // SAFETY: no two rows of a batch share a place in a cache (`Batch::check`, `AttentionPlan::build`), and
        // attention over this cache runs in a later step.
        unsafe { self.fixed.caches[cache.0].write_shared(sequence.view, position, key, value) };
    }

    /// The sequence of a row as a cache addresses it, and the row's index within the sequence's rows.
    fn sequence_of(&self, cache: CacheId, row: usize) -> Option<(&SequenceRows<'_>, usize)> {
        let kind = self.fixed.attention_of_cache[cache.0];
        let holds = |sequence: &&SequenceRows<'_>| {
            (sequence.first_row..sequence.first_row + sequence.rows).contains(&row)
        };
        let sequence = self.rows[kind].iter().find(holds)?;
        Some((sequence, row - sequence.first_row))
    }

    fn attend(
        &self,
        index: usize,
        query: BufferId,
        cache: CacheId,
        output: BufferId,
        cursor: &mut Cursor<'_>,
        state: &mut ThreadState,
    ) {
        let fixed = self.fixed;
        let which = fixed.attention_of_step[index];
        let kind = &self.attention[which];
        let cache = &fixed.caches[cache.0];
        let attention =
            Attention::new(fixed.isa, &kind.plan, cache, &self.rows[which], &kind.partials);
        let rows = self.batch.tokens.len();
        let stride = self.columns(query);
        let queries = self.whole(query, rows);
        // SAFETY: an earlier phase wrote the queries.
        let queries = Strided { elements: unsafe { queries.read(0..queries.len()) }, stride };
        let output = self.whole(output, rows);
        let output = Strided { elements: &output, stride };
        let scratch = &mut state.attention[which];
        while let Some(item) = fixed.counters.next(cursor.phase, kind.plan.items()) {
            // SAFETY: each item is taken once and owns its rows and heads of the output.
            unsafe { attention.run_item(item, scratch, queries, output) };
        }
        cursor.phase += 1;
        if kind.plan.merges() == 0 {
            return;
        }
        cursor.barrier.wait();
        while let Some(merge) = fixed.counters.next(cursor.phase, kind.plan.merges()) {
            // SAFETY: as above; the items ended before the barrier.
            unsafe { attention.run_merge(merge, scratch, output) };
        }
    }

    fn matmul(
        &self,
        input: BufferId,
        products: &[Product],
        cursor: &mut Cursor<'_>,
        state: &mut ThreadState,
    ) {
        let rows = self.input_rows(input);
        if rows.rows == 0 {
            return;
        }
        let matrix = |product: &Product| self.fixed.matrix(product.weight);
        self.quantize(
            input,
            rows,
            products.iter().any(|p| matrix(p).needs_quantized_input()),
            cursor,
            state,
        );
        let panels: usize = products.iter().map(|product| matrix(product).panels()).sum();
        self.for_chunks(panels, rows.rows, cursor, |chunk| {
            // The products' panels count on from one another; a chunk may span several products.
            let mut first = 0;
            for product in products {
                let own = chunk.start.max(first)..chunk.end.min(first + matrix(product).panels());
                if own.start < own.end {
                    let panels = own.start - first..own.end - first;
                    let output = self.whole(product.output, rows.rows);
                    self.multiply(matrix(product), input, rows, panels, &output, state);
                }
                first += matrix(product).panels();
            }
        });
    }

    fn gated_matmul(
        &self,
        input: BufferId,
        gate: WeightId,
        up: WeightId,
        output: BufferId,
        cursor: &mut Cursor<'_>,
        state: &mut ThreadState,
    ) {
        let rows = self.input_rows(input);
        if rows.rows == 0 {
            return;
        }
        let (gate, up) = (self.fixed.matrix(gate), self.fixed.matrix(up));
        self.quantize(
            input,
            rows,
            gate.needs_quantized_input() || up.needs_quantized_input(),
            cursor,
            state,
        );
        let target = self.whole(output, rows.rows);
        let factors = self.up.part(0..target.len());
        let columns = self.columns(output);
        assert_eq!(gate.rows(), up.rows(), "gate and up projection have the same rows");
        // Panels of float and of quantised matrices may have different heights, of which the larger is a multiple of the smaller.
        let height = gate.rows_per_panel().max(up.rows_per_panel());
        self.for_chunks(gate.rows().div_ceil(height), rows.rows, cursor, |chunk| {
            let own = chunk.start * height..(chunk.end * height).min(gate.rows());
            self.multiply(gate, input, rows, gate.panels_of(own.clone()), &target, state);
            self.multiply(up, input, rows, up.panels_of(own.clone()), &factors, state);
            for row in 0..rows.rows {
                let range = row * columns + own.start..row * columns + own.end;
                // SAFETY: this thread alone took the panels, and so owns these columns of both.
                let (target, factors) =
                    unsafe { (target.write(range.clone()), factors.write(range)) };
                self.fixed.kernels.gelu(target);
                self.fixed.kernels.multiply(target, factors);
            }
        });
    }

    /// The rows of a product's input.
    fn input_rows(&self, input: BufferId) -> InputRows {
        InputRows::of(self.batch, self.fixed.plan.buffer(input).rows)
    }

    /// Quantises the input of a product, if any of its matrices wants it so.
    fn quantize(
        &self,
        input: BufferId,
        rows: InputRows,
        needed: bool,
        cursor: &mut Cursor<'_>,
        state: &mut ThreadState,
    ) {
        if needed {
            // A lone row is cut into as many runs of blocks as there are threads.
            let runs = if rows.rows < cursor.thread.count { cursor.thread.count } else { 1 };
            while let Some(unit) = self.fixed.counters.next(cursor.phase, rows.rows * runs) {
                self.quantize_run(input, rows, unit / runs, (unit % runs, runs), state);
            }
            cursor.barrier.wait();
        }
        cursor.phase += 1;
    }

    /// Quantises one of several runs of a row's blocks.
    fn quantize_run(
        &self,
        input: BufferId,
        rows: InputRows,
        row: usize,
        (run, runs): (usize, usize),
        state: &mut ThreadState,
    ) {
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
        // SAFETY: the blocks of a run are written by the thread that took it, and the terms lie apart.
        let (first, second) =
            unsafe { (self.quantized.write(of_term(0)), self.quantized.write(second)) };
        let values = &self.read(input, row)[elements];
        quantize_terms(self.fixed.isa, values, &mut state.residual, first, second);
    }

    /// Runs one phase over chunks of panels.
    fn for_chunks(
        &self,
        panels: usize,
        rows: usize,
        cursor: &mut Cursor<'_>,
        mut work: impl FnMut(Range<usize>),
    ) {
        let each = if rows <= NARROW_ROWS { CHUNKS_PER_THREAD_NARROW } else { CHUNKS_PER_THREAD };
        let chunk = panels.div_ceil(cursor.thread.count * each).clamp(1, PANELS_MAX);
        while let Some(index) = self.fixed.counters.next(cursor.phase, panels.div_ceil(chunk)) {
            work(index * chunk..((index + 1) * chunk).min(panels));
        }
        cursor.phase += 1;
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
            // SAFETY: this thread alone took the panels.
            unsafe { matrix.matmul(input, panels, output, stride, &mut state.matmul) };
            return;
        }
        for (group, terms) in rows.groups() {
            // SAFETY: written before the last barrier.
            let blocks = unsafe { self.quantized.read(rows.blocks_of(&group, columns)) };
            let input = QuantizedRows::new(blocks, columns);
            let output = output.part(group.start * stride..group.end * stride);
            if terms == 1 {
                let input = MatmulInput::Quantized(&input);
                // SAFETY: this thread alone took the panels.
                unsafe { matrix.matmul(input, panels.clone(), &output, stride, &mut state.matmul) };
            } else {
                multiply_two_terms(matrix, &input, panels.clone(), &output, state);
            }
        }
    }
}

/// Multiplies rows with two terms, one after the other in `input`, and adds the products of both. `output`:
/// (rows, rows of the matrix); this thread alone has the columns of the panels.
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
        // SAFETY: this thread alone has these columns of the output.
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
