//! The matrix products of a frame: their inputs in 8-bit terms, their chunks, and the part of a
//! guest.

use std::ops::Range;
use std::sync::atomic::Ordering;

use trine_backend::Job;
use trine_model::away::Away;
use trine_model::{BufferId, Op, Product, WeightId};

use super::super::fixed::{Fixed, ThreadState};
use super::super::terms::{InputRows, quantize_terms};
use super::{Frame, PANELS_MAX};
use crate::matmul::{MatmulInput, MatrixSlice};
use crate::quantize::{BLOCK, QuantizedBlock, QuantizedRows};
use crate::shared::SharedSlice;

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

/// The rows of a unit of a product that is cut by rows: as many as float products keep in the
/// second-level cache for all panels.
const ROWS_EACH: usize = 64;

/// The most bytes of the matrices of a product that is cut by rows, each of whose units reads all
/// of them: half of the third-level cache (32 MB) of the machine of the figures in
/// docs/benchmarks/cpu.md. The cache of another machine may be smaller: its size is not asked for.
const BY_ROWS_BYTES: usize = 16 << 20;

/// The fewest units for each thread of a product that is cut by rows.
const ROW_UNITS_PER_THREAD: usize = 4;

/// How a product is cut into units: by panels, or by rows of its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    panels: usize,
    panels_each: usize,
    rows: usize,
    rows_each: usize,
}

/// A unit of a product.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) panels: Range<usize>,
    pub(super) rows: Range<usize>,
}

impl Chunks {
    fn by_rows(panels: usize, rows: usize) -> Self {
        Chunks { panels, panels_each: panels.max(1), rows, rows_each: ROWS_EACH }
    }

    fn of_panels(self) -> usize {
        self.panels.div_ceil(self.panels_each)
    }

    pub(super) fn count(self) -> usize {
        self.of_panels() * self.rows.div_ceil(self.rows_each)
    }

    pub(super) fn get(self, index: usize) -> Chunk {
        let (row, panel) = (index / self.of_panels(), index % self.of_panels());
        let part =
            |index: usize, each: usize, all: usize| index * each..((index + 1) * each).min(all);
        Chunk {
            panels: part(panel, self.panels_each, self.panels),
            rows: part(row, self.rows_each, self.rows),
        }
    }
}

impl Frame<'_> {
    /// Returns the number of units in which rows of a product's input are quantised: 0 if no matrix
    /// needs it.
    pub(super) fn quantized_runs(
        &self,
        (input, rows): (BufferId, InputRows),
        weights: impl IntoIterator<Item = WeightId>,
    ) -> usize {
        let wanted = weights.into_iter().any(|id| self.fixed.matrix(id).needs_quantized_input());
        if wanted { rows.rows * self.runs_of_row(input, rows) } else { 0 }
    }

    /// Returns how a product with the panels of all matrices is cut.
    ///
    /// Many rows of floats are cut by rows where a cache holds the matrices: a row is then read
    /// from memory once, not once for each chunk of panels.
    pub(super) fn chunks(&self, rows: InputRows, products: &[Product]) -> Chunks {
        let matrices = || products.iter().map(|product| self.fixed.matrix(product.weight));
        let height = matrices().map(|matrix| matrix.rows_per_panel()).max().unwrap_or(1);
        let columns = products
            .first()
            .map_or(1, |product| self.fixed.facts.plan.weight(product.weight).columns);
        let panels: usize = matrices().map(|matrix| matrix.panels()).sum();
        if self.by_rows(rows, matrices()) {
            return Chunks::by_rows(panels, rows.rows);
        }
        self.cut(rows, columns, panels, height)
    }

    /// Returns how the panels of a gated product, of [`gated_height`](Self::gated_height) rows
    /// each, are cut.
    pub(super) fn gated_chunks(&self, input: BufferId, gate: WeightId, up: WeightId) -> Chunks {
        let height = self.gated_height(gate, up);
        let panels = self.fixed.matrix(gate).rows().div_ceil(height);
        let rows = self.input_rows(input);
        if self.by_rows(rows, [gate, up].map(|id| self.fixed.matrix(id))) {
            return Chunks::by_rows(panels, rows.rows);
        }
        self.cut(rows, self.columns(input), panels, height)
    }

    /// Returns whether a product is cut by rows.
    fn by_rows<'a>(
        &self,
        rows: InputRows,
        matrices: impl IntoIterator<Item = MatrixSlice<'a>>,
    ) -> bool {
        let mut bytes = 0;
        for matrix in matrices {
            if matrix.needs_quantized_input() {
                return false;
            }
            bytes += matrix.bytes();
        }
        bytes <= BY_ROWS_BYTES
            && rows.rows >= ROWS_EACH * ROW_UNITS_PER_THREAD * self.fixed.threads.len()
    }

    /// Cuts `panels` panels of `height` rows with `columns` weights each.
    fn cut(&self, rows: InputRows, columns: usize, panels: usize, height: usize) -> Chunks {
        let panels_each = self.panels_each(rows.rows, columns, panels, height);
        Chunks { panels, panels_each, rows: rows.rows, rows_each: rows.rows.max(1) }
    }

    /// Returns the number of panels in a chunk of `panels` panels of `height` rows with `columns`
    /// weights each.
    pub(super) fn panels_each(
        &self,
        rows: usize,
        columns: usize,
        panels: usize,
        height: usize,
    ) -> usize {
        let least = CHUNK_PRODUCTS_MIN / (rows * columns * height).max(1);
        let each = if rows <= NARROW_ROWS { CHUNKS_PER_THREAD_NARROW } else { CHUNKS_PER_THREAD };
        let even = panels.div_ceil(self.fixed.threads.len() * each);
        even.max(least).clamp(1, PANELS_MAX)
    }

    /// Has the guest begin what it can begin before a step.
    pub(super) fn begin_away(&self, step: usize) {
        let Fixed { guest, aways, serving, .. } = self.fixed;
        let away = aways.iter().find(|away| away.begin == step);
        let Some((guest, away)) = guest.as_ref().zip(away) else { return };
        let is_wanted = serving[&self.batch.goal][away.step] && guest.is_open();
        let begin = |job: &Job<'_>| job.rows > 0 && guest.begin(job).is_ok();
        self.is_away.store(is_wanted && self.with_job(away, begin), Ordering::Relaxed);
    }

    /// Waits for the guest's results of a step.
    pub(super) fn finish_away(&self, step: usize) {
        let Fixed { guest, aways, facts, .. } = self.fixed;
        let away = aways.iter().find(|away| away.step == step);
        let Some((guest, away)) = guest.as_ref().zip(away) else { return };
        let outputs = away.op(&facts.plan).writes();
        let mut give = |index: usize, rows: &[f32]| {
            let output = self.bulk(outputs[index]);
            // SAFETY: this unit is the only one of its phase.
            unsafe { self.memory.write(output) }.copy_from_slice(rows);
        };
        let is_done = self.with_job(away, |job| guest.finish(job, &|| true, &mut give).is_ok());
        self.is_away.store(is_done, Ordering::Relaxed);
    }

    /// Calls `then` with the bulk rows that a guest computes.
    fn with_job(&self, away: &Away, then: impl FnOnce(&Job<'_>) -> bool) -> bool {
        let plan = &self.fixed.facts.plan;
        let op = away.op(plan);
        // SAFETY: earlier phases wrote the inputs.
        let input = |id| unsafe { self.memory.read(self.bulk(id)) };
        let inputs: Vec<&[f32]> = op.reads().into_iter().map(input).collect();
        let rows = InputRows::of(self.batch, plan.rows(op)).bulk().len();
        then(&Job { number: away.job, inputs: &inputs, rows, exact: 0 })
    }

    /// Returns the place of a buffer's bulk rows.
    fn bulk(&self, id: BufferId) -> Range<usize> {
        let (start, columns, rows) =
            (self.fixed.offset(id), self.columns(id), self.input_rows(id).bulk());
        start + rows.start * columns..start + rows.end * columns
    }

    /// Returns the input and the products of a [`Op::MatMul`], or of one that is [`Op::Away`] and
    /// what is left of it, with the part of the product that a phase computes.
    pub(super) fn products_of<'b>(
        &self,
        op: &'b Op,
        part: usize,
    ) -> ((BufferId, InputRows), &'b [Product], usize) {
        match op {
            Op::MatMul { input, products } => ((*input, self.input_rows(*input)), products, part),
            // Its first phase waits for the guest.
            Op::Away { steps } => {
                let [step] = &steps[..] else { unreachable!("a partner computes one operation") };
                let ((input, rows), products, part) = self.products_of(&step.op, part - 1);
                let is_away = self.is_away.load(Ordering::Relaxed);
                ((input, if is_away { rows.without_bulk() } else { rows }), products, part)
            }
            other => unreachable!("{} has no products of its own", other.name()),
        }
    }

    /// Multiplies a chunk of the rows and of the panels of several matrices. The panels are
    /// numbered through all matrices; a chunk may span several.
    pub(super) fn multiply_chunk(
        &self,
        (input, rows): (BufferId, InputRows),
        products: &[Product],
        chunk: &Chunk,
        state: &mut ThreadState,
    ) {
        let mut first = 0;
        for product in products {
            let matrix = self.fixed.matrix(product.weight);
            let Range { start, end } = chunk.panels;
            let own = start.max(first)..end.min(first + matrix.panels());
            if own.start < own.end {
                let panels = own.start - first..own.end - first;
                let output = self.whole(product.output, rows.rows);
                let rows = (rows, &chunk.rows);
                self.multiply(&matrix, input, rows, panels, &output, state);
            }
            first += matrix.panels();
        }
    }

    /// Multiplies with a chunk of the panels of both matrices, and applies the gate.
    pub(super) fn gated_chunk(
        &self,
        input: BufferId,
        (gate, up): (WeightId, WeightId),
        output: BufferId,
        chunk: &Chunk,
        state: &mut ThreadState,
    ) {
        let rows = self.input_rows(input);
        let height = self.gated_height(gate, up);
        let (gate, up) = (self.fixed.matrix(gate), self.fixed.matrix(up));
        assert_eq!(gate.rows(), up.rows(), "gate and up projection have the same rows");
        let target = self.whole(output, rows.rows);
        let factors = self.up.part(0..target.len());
        let columns = self.columns(output);
        let Range { start, end } = chunk.panels;
        let own = start * height..(end * height).min(gate.rows());
        let rows = (rows, &chunk.rows);
        self.multiply(&gate, input, rows, gate.panels_of(own.clone()), &target, state);
        self.multiply(&up, input, rows, up.panels_of(own.clone()), &factors, state);
        for row in chunk.rows.clone() {
            let range = row * columns + own.start..row * columns + own.end;
            // SAFETY: only this thread took the panels for these rows, and so owns both parts.
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
    pub(super) fn input_rows(&self, input: BufferId) -> InputRows {
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
    pub(super) fn quantize_run(
        &self,
        (input, rows): (BufferId, InputRows),
        unit: usize,
        state: &mut ThreadState,
    ) {
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

    /// Multiplies a range of a matrix's panels with a unit's part of the rows of the input: with
    /// all of them, if the matrix is quantised.
    fn multiply(
        &self,
        matrix: &MatrixSlice<'_>,
        input: BufferId,
        (rows, part): (InputRows, &Range<usize>),
        panels: Range<usize>,
        output: &SharedSlice<'_, f32>,
        state: &mut ThreadState,
    ) {
        let columns = self.columns(input);
        if !matrix.needs_quantized_input() {
            return self.multiply_floats(matrix, input, part, panels, output, state);
        }
        assert_eq!(*part, 0..rows.rows, "rows in blocks are not cut");
        self.multiply_quantized(matrix, (&self.quantized, columns), rows, panels, output, state);
    }

    /// Multiplies a range of a float matrix's panels with some rows of the input. `output` has
    /// those of all rows.
    fn multiply_floats(
        &self,
        matrix: &MatrixSlice<'_>,
        input: BufferId,
        rows: &Range<usize>,
        panels: Range<usize>,
        output: &SharedSlice<'_, f32>,
        state: &mut ThreadState,
    ) {
        let (columns, stride) = (self.columns(input), matrix.rows());
        let input = self.whole(input, rows.end);
        // SAFETY: an earlier phase wrote the input.
        let values = unsafe { input.read(rows.start * columns..rows.end * columns) };
        let input = MatmulInput::F32 { values, stride: columns, rows: rows.len() };
        let output = output.part(rows.start * stride..rows.end * stride);
        // SAFETY: only this thread took the panels for these rows.
        unsafe { matrix.matmul_window(input, panels, &output, stride, 0, &mut state.matmul) };
    }

    /// Multiplies a range of a matrix's panels with rows of `columns` values in blocks.
    pub(super) fn multiply_quantized(
        &self,
        matrix: &MatrixSlice<'_>,
        (input, columns): (&SharedSlice<'_, QuantizedBlock>, usize),
        rows: InputRows,
        panels: Range<usize>,
        output: &SharedSlice<'_, f32>,
        state: &mut ThreadState,
    ) {
        let stride = matrix.rows();
        for (group, terms) in rows.groups() {
            // SAFETY: an earlier phase wrote the blocks.
            let blocks = unsafe { input.read(rows.blocks_of(&group, columns)) };
            let input = QuantizedRows::new(blocks, columns);
            let output = output.part(group.start * stride..group.end * stride);
            if terms == 1 {
                let input = MatmulInput::Quantized(&input);
                // SAFETY: only this thread took the panels.
                unsafe {
                    let panels = panels.clone();
                    matrix.matmul_window(input, panels, &output, stride, 0, &mut state.matmul);
                }
            } else {
                multiply_two_terms(matrix, &input, panels.clone(), &output, state);
            }
        }
    }
}

/// Multiplies rows with two terms, which are adjacent in `input`, and adds the products of both.
/// `output` is (rows, rows of the matrix); only this thread has the columns of the panels.
fn multiply_two_terms(
    matrix: &MatrixSlice<'_>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_each_row_of_each_panel_once() {
        for (panels, panels_each, rows, rows_each) in
            [(7, 3, 5, 5), (7, 7, 200, 64), (1, 1, 64, 64), (4, 3, 130, 64), (3, 1, 0, 1)]
        {
            let chunks = Chunks { panels, panels_each, rows, rows_each };
            let mut seen = vec![0; panels * rows];
            for chunk in (0..chunks.count()).map(|index| chunks.get(index)) {
                assert!(!chunk.panels.is_empty() && !chunk.rows.is_empty());
                for panel in chunk.panels {
                    chunk.rows.clone().for_each(|row| seen[panel * rows + row] += 1);
                }
            }
            assert!(seen.into_iter().all(|count| count == 1), "{chunks:?}");
        }
    }
}
