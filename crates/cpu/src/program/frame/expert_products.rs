//! Products of rows with the matrices of their experts.

use std::ops::Range;

use trine_model::{BufferId, EXPERTS_USED_MAX, ExpertMatrix, Op, WeightId};

use super::super::expert_groups::{Group, GroupShape, Groups, route, sort};
use super::super::fixed::ThreadState;
use super::super::terms::quantize_terms;
use super::Frame;
use crate::matmul::{MatmulInput, MatrixSlice};
use crate::quantize::QuantizedRows;
use crate::shared::SharedSlice;

/// The phases of an operation of experts.
const SORT: usize = 0;
const QUANTIZE: usize = 1;
const MULTIPLY: usize = 2;
const SUM: usize = 3;

/// What the products of an operation of experts have in common.
#[derive(Clone, Copy)]
struct Products<'a> {
    input: BufferId,
    chosen: BufferId,
    /// One matrix, or a gate and an up projection.
    matrices: &'a [ExpertMatrix],
    output: BufferId,
    /// Rows of each matrix.
    rows: usize,
    /// Columns of each matrix.
    columns: usize,
}

/// How the rows of all experts' matrices are cut into units, none of which spans two experts.
#[derive(Clone, Copy)]
struct ExpertChunks {
    /// Rows of a matrix in a unit.
    each: usize,
    /// Units of an expert.
    of_expert: usize,
}

impl Frame<'_> {
    fn expert_products<'a>(&self, op: &'a Op) -> Products<'a> {
        match op {
            Op::GatedExperts { input, chosen, gate_and_up, output } => Products {
                input: *input,
                chosen: *chosen,
                matrices: gate_and_up,
                output: *output,
                rows: self.columns(*output) / self.columns(*chosen),
                columns: self.columns(*input),
            },
            Op::SumExperts { input, chosen, down, output, .. } => Products {
                input: *input,
                chosen: *chosen,
                matrices: std::slice::from_ref(down),
                output: *output,
                rows: self.columns(*output),
                columns: self.columns(*input) / self.columns(*chosen),
            },
            Op::Search { input, routes, clusters, output, .. } => Products {
                input: *input,
                chosen: routes.chosen,
                matrices: std::slice::from_ref(clusters),
                output: *output,
                rows: clusters.step,
                columns: self.columns(*input),
            },
            other => unreachable!("{} has no experts", other.name()),
        }
    }

    /// Returns the shape of the groups of an operation's rows.
    fn group_shape(&self, products: Products<'_>) -> GroupShape {
        GroupShape {
            experts: self.fixed.experts(products.matrices[0]).len(),
            used: self.columns(products.chosen),
            rows: self.input_rows(products.chosen),
        }
    }

    fn groups(&self, products: Products<'_>) -> Groups<'_> {
        let shape = self.group_shape(products);
        // SAFETY: the first phase of the operation wrote them.
        Groups::of(shape, unsafe { self.groups.read(0..shape.words()) })
    }

    fn expert_chunks(&self, products: Products<'_>, groups: Groups<'_>) -> ExpertChunks {
        let height = |matrix: &ExpertMatrix| self.fixed.expert(*matrix, 0).rows_per_panel();
        let height = products.matrices.iter().map(height).max().unwrap_or(1);
        let panels = products.rows.div_ceil(height);
        let entries = self.group_shape(products).entries();
        let rows = entries.div_ceil(groups.count().max(1));
        let each = self.panels_each(rows, products.columns, panels * groups.count(), height);
        let each = each.min(panels.max(1));
        ExpertChunks { each: each * height, of_expert: panels.div_ceil(each) }
    }

    /// Returns the number of units of a phase of an operation of experts.
    pub(super) fn expert_units(&self, op: &Op, part: usize) -> usize {
        if let Op::Route { logits, .. } = op {
            return if part == 0 { self.input_rows(*logits).rows } else { 0 };
        }
        let products = self.expert_products(op);
        let rows = self.input_rows(products.chosen).rows;
        match part {
            SORT => usize::from(rows > 0),
            QUANTIZE if self.is_quantized(products) => self.group_shape(products).entries(),
            MULTIPLY if rows > 0 => {
                let groups = self.groups(products);
                groups.count() * self.expert_chunks(products, groups).of_expert
            }
            SUM if matches!(op, Op::SumExperts { .. } | Op::Search { .. }) => rows,
            _ => 0,
        }
    }

    /// Runs a unit of a phase of an operation of experts.
    pub(super) fn expert_unit(&self, op: &Op, part: usize, unit: usize, state: &mut ThreadState) {
        if let Op::Route { logits, factors, scale, chosen, shares } = op {
            let factors = factors.map_or(&[][..], |factors| self.fixed.vector(factors));
            let (chosen, shares) = (self.write(*chosen, unit), self.write(*shares, unit));
            return route(self.read(*logits, unit), factors, *scale, chosen, shares);
        }
        let products = self.expert_products(op);
        match (part, op) {
            (SORT, _) => self.sort_entries(products),
            (QUANTIZE, _) => self.quantize_entry(products, unit, state),
            (MULTIPLY, _) => self.multiply_experts(op, products, unit, state),
            (_, Op::SumExperts { shares, .. }) => self.sum_experts(products, *shares, unit),
            (_, Op::Search { routes, tokens, .. }) => {
                self.spread_clusters(products, routes.shares, *tokens, unit);
            }
            _ => {}
        }
    }

    fn is_quantized(&self, products: Products<'_>) -> bool {
        let wants = |matrix: &ExpertMatrix| self.fixed.expert(*matrix, 0).needs_quantized_input();
        products.matrices.iter().any(wants)
    }

    fn sort_entries(&self, products: Products<'_>) {
        let shape = self.group_shape(products);
        let chosen = |entry: usize| {
            let (row, slot) = (entry / shape.used, entry % shape.used);
            self.read(products.chosen, row)[slot] as usize
        };
        // SAFETY: this unit is the only one of its phase.
        sort(shape, chosen, unsafe { self.groups.write(0..shape.words()) });
    }

    /// Returns the input of an entry: the row, or the part of it that belongs to the entry's slot.
    fn entry_input(&self, products: Products<'_>, entry: usize) -> &[f32] {
        let used = self.columns(products.chosen);
        let row = self.read(products.input, entry / used);
        match row.len() == products.columns {
            true => row,
            false => &row[entry % used * products.columns..][..products.columns],
        }
    }

    /// Calls `each` with the expert, the number of experts and the input of each entry.
    pub(super) fn each_entry(&self, op: &Op, mut each: impl FnMut(usize, usize, &[f32])) {
        let products = self.expert_products(op);
        let shape = self.group_shape(products);
        for entry in 0..shape.entries() {
            let (row, slot) = (entry / shape.used, entry % shape.used);
            let expert = self.read(products.chosen, row)[slot] as usize;
            each(expert, shape.experts, self.entry_input(products, entry));
        }
    }

    /// Returns the first block of a group. Each entry has room for two terms.
    fn first_block(products: Products<'_>, group: Group) -> usize {
        2 * group.first * QuantizedRows::blocks_per_row(products.columns)
    }

    fn quantize_entry(&self, products: Products<'_>, place: usize, state: &mut ThreadState) {
        let groups = self.groups(products);
        let (group, own) = groups.at(place);
        let per_row = QuantizedRows::blocks_per_row(products.columns);
        let start = Self::first_block(products, group) + group.rows.terms_before(own) * per_row;
        let second = if group.rows.terms(own) == 2 { per_row } else { 0 };
        let middle = start + per_row;
        // SAFETY: only the thread that took the entry writes its blocks, and the terms do not
        // overlap.
        let (first, second) = unsafe {
            (self.quantized.write(start..middle), self.quantized.write(middle..middle + second))
        };
        let values = self.entry_input(products, groups.entry(place));
        quantize_terms(self.fixed.isa, values, &mut state.residual, first, second);
    }

    /// Multiplies the rows of an expert with a chunk of the rows of its matrices.
    fn multiply_experts(
        &self,
        op: &Op,
        products: Products<'_>,
        unit: usize,
        state: &mut ThreadState,
    ) {
        let groups = self.groups(products);
        let chunks = self.expert_chunks(products, groups);
        let group = groups.get(unit / chunks.of_expert);
        let start = unit % chunks.of_expert * chunks.each;
        let rows = start..(start + chunks.each).min(products.rows);
        let all = self.group_shape(products).entries() * products.rows;
        let place = group.first * products.rows..(group.first + group.rows.rows) * products.rows;
        for (index, matrix) in products.matrices.iter().enumerate() {
            let matrix = self.fixed.expert(*matrix, group.expert);
            let target = self.up.part(index * all + place.start..index * all + place.end);
            self.multiply_group(products, &matrix, group, rows.clone(), &target, state);
        }
        if let Op::GatedExperts { output, .. } = op {
            for (row, entry) in groups.entries(group).enumerate() {
                let start = place.start + row * products.rows;
                let range = start + rows.start..start + rows.end;
                let ups = all + range.start..all + range.end;
                let target = self.gated_range(*output, products, entry, rows.clone());
                // SAFETY: only this thread took these columns of all three.
                let (gates, ups, target) =
                    unsafe { (self.up.write(range), self.up.read(ups), self.memory.write(target)) };
                self.fixed.kernels.gelu(gates);
                self.fixed.kernels.product(gates, ups, target);
            }
        }
    }

    /// Returns the place of some columns of an entry's part of the gated rows.
    fn gated_range(
        &self,
        output: BufferId,
        products: Products<'_>,
        entry: usize,
        columns: Range<usize>,
    ) -> Range<usize> {
        let used = self.columns(products.chosen);
        let start = self.range(output, entry / used).start + entry % used * products.rows;
        start + columns.start..start + columns.end
    }

    /// Multiplies the entries of a group with some rows of a matrix. `target` is (entries, rows of
    /// the matrix).
    fn multiply_group(
        &self,
        products: Products<'_>,
        matrix: &MatrixSlice<'_>,
        group: Group,
        rows: Range<usize>,
        target: &SharedSlice<'_, f32>,
        state: &mut ThreadState,
    ) {
        let panels = matrix.panels_of(rows);
        if matrix.needs_quantized_input() {
            let start = Self::first_block(products, group);
            let per_row = QuantizedRows::blocks_per_row(products.columns);
            let length = group.rows.terms_before(group.rows.rows) * per_row;
            let blocks = self.quantized.part(start..start + length);
            let input = (&blocks, products.columns);
            return self.multiply_quantized(matrix, input, group.rows, panels, target, state);
        }
        let stride = matrix.rows();
        for (row, entry) in self.groups(products).entries(group).enumerate() {
            let values = self.entry_input(products, entry);
            let input = MatmulInput::F32 { values, stride: values.len(), rows: 1 };
            let target = target.part(row * stride..(row + 1) * stride);
            // SAFETY: only this thread took the panels.
            unsafe {
                let panels = panels.clone();
                matrix.matmul_window(input, panels, &target, stride, 0, &mut state.matmul);
            }
        }
    }

    /// Puts the products of a row's clusters at their tokens: see `Op::Search`.
    fn spread_clusters(
        &self,
        products: Products<'_>,
        shares: BufferId,
        tokens: WeightId,
        row: usize,
    ) {
        let (groups, tokens) = (self.groups(products), self.fixed.vector(tokens));
        let (chosen, shares) = (self.read(products.chosen, row), self.read(shares, row));
        let part = |slot: usize| {
            let start = groups.place(row * chosen.len() + slot) * products.rows;
            // SAFETY: an earlier phase wrote the products.
            unsafe { self.up.read(start..start + products.rows) }
        };
        let (mut smallest, mut is_broken) = (f32::INFINITY, shares.iter().any(|own| own.is_nan()));
        for &product in (0..chosen.len()).flat_map(part) {
            is_broken |= product.is_nan();
            smallest = smallest.min(product);
        }
        let target = self.write(products.output, row);
        target.fill(if is_broken { f32::NAN } else { smallest - 1.0 });
        for (slot, &cluster) in chosen.iter().enumerate() {
            let tokens = &tokens[cluster as usize * products.rows..];
            for (token, product) in tokens.iter().zip(part(slot)) {
                target[*token as usize] = *product;
            }
        }
    }

    /// Adds the products of a row's experts by their shares.
    fn sum_experts(&self, products: Products<'_>, shares: BufferId, row: usize) {
        let groups = self.groups(products);
        let shares = self.read(shares, row);
        let mut terms = [(0.0, &[][..]); EXPERTS_USED_MAX];
        for (slot, (term, &share)) in terms.iter_mut().zip(shares).enumerate() {
            let start = groups.place(row * shares.len() + slot) * products.rows;
            // SAFETY: an earlier phase wrote the products.
            *term = (share, unsafe { self.up.read(start..start + products.rows) });
        }
        let target = self.write(products.output, row);
        self.fixed.kernels.combine(&terms[..shares.len()], target);
    }
}
