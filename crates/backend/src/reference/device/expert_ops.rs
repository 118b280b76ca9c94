//! Operations of experts, and the search of clusters, whose rows are chosen as experts are.

use trine_model::{BufferId, ExpertMatrix, Op, Routes, WeightId};

use super::{ReferenceProgram, decode};
use crate::reference::ops;

impl ReferenceProgram {
    /// Runs an operation of experts.
    pub(super) fn execute_experts(&mut self, op: &Op) {
        match op {
            Op::Route { logits, factors, scale, chosen, shares } => {
                let experts = self.columns(*logits);
                let factors = factors.map_or_else(|| vec![1.0; experts], |id| self.vector(id));
                let (mut numbers, mut parts) = (self.take(*chosen), self.take(*shares));
                let logits = &self.buffers[logits.0];
                ops::route(logits, &factors, *scale, &mut numbers, &mut parts);
                self.put(*chosen, numbers);
                self.put(*shares, parts);
            }
            Op::GatedExperts { input, chosen, gate_and_up: [gate, up], output } => {
                let width = self.columns(*output) / self.columns(*chosen);
                let mut target = self.take(*output);
                let rows = self.rounded_rows(*input);
                let used = self.columns(*chosen);
                let experts = self.buffers[chosen.0].iter().map(|&expert| expert as usize);
                for ((at, expert), out) in experts.enumerate().zip(target.chunks_exact_mut(width)) {
                    let x = &rows[at / used];
                    let mut gates = vec![f32::NAN; width];
                    let mut ups = vec![f32::NAN; width];
                    self.expert_product(*gate, expert, x, &mut gates);
                    self.expert_product(*up, expert, x, &mut ups);
                    ops::geglu(&gates, &ups, out);
                }
                self.put(*output, target);
            }
            Op::SumExperts { input, chosen, shares, down, output } => {
                let columns = self.columns(*output);
                let (used, mut target) = (self.columns(*chosen), self.take(*output));
                let rows = self.rounded_rows(*input);
                let width = self.columns(*input) / used;
                for (row, out) in target.chunks_exact_mut(columns).enumerate() {
                    let mut sums = vec![0.0_f64; columns];
                    for (slot, x) in rows[row].chunks_exact(width).enumerate() {
                        let at = row * used + slot;
                        let expert = self.buffers[chosen.0][at] as usize;
                        let share = f64::from(self.buffers[shares.0][at]);
                        let mut products = vec![f32::NAN; columns];
                        self.expert_product(*down, expert, x, &mut products);
                        for (sum, product) in sums.iter_mut().zip(products) {
                            *sum += share * f64::from(product);
                        }
                    }
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum as f32);
                }
                self.put(*output, target);
            }
            other => unreachable!("{} has no experts", other.name()),
        }
    }

    pub(super) fn search(
        &mut self,
        input: BufferId,
        routes: Routes,
        clusters: ExpertMatrix,
        tokens: WeightId,
        output: BufferId,
    ) {
        let mut target = self.take(output);
        let (used, tokens) = (self.columns(routes.chosen), self.vector(tokens));
        let [chosen, shares] = [routes.chosen, routes.shares].map(|id| &self.buffers[id.0][..]);
        let rows = self.rounded_rows(input);
        let mut products = vec![f32::NAN; chosen.len() * clusters.step];
        let parts = products.chunks_exact_mut(clusters.step);
        for ((entry, &cluster), part) in chosen.iter().enumerate().zip(parts) {
            self.expert_product(clusters, cluster as usize, &rows[entry / used], part);
        }
        let (products, tokens) = (&products[..], &tokens[..]);
        let searched = ops::Searched { chosen, shares, products, tokens, used };
        ops::search(searched, &mut target);
        self.put(output, target);
    }

    /// Returns the rows of a buffer as the products read them.
    fn rounded_rows(&self, id: BufferId) -> Vec<Vec<f32>> {
        let rows = self.buffers[id.0].chunks_exact(self.columns(id));
        let rounded = rows.map(|row| {
            let mut row = row.to_vec();
            self.products.round_input(&mut row);
            row
        });
        rounded.collect()
    }

    /// Multiplies a row with the first `output.len()` rows of an expert's matrix.
    fn expert_product(&self, matrix: ExpertMatrix, expert: usize, x: &[f32], output: &mut [f32]) {
        let tensor = &self.tensors[matrix.weight.0];
        let mut row = vec![f32::NAN; x.len()];
        for (index, y) in output.iter_mut().enumerate() {
            let at = matrix.first + expert * matrix.step + index;
            decode(tensor, at, &mut row);
            self.products.round_weights(&mut row);
            *y = self.products.dot(x, &row);
        }
    }
}
