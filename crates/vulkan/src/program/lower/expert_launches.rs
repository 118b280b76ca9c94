//! Operations of experts.

use trine_model::{BufferId, ExpertMatrix, Op, Routes, Rows, WeightId};

use super::super::graph::{Form, Home, Ids, MadeValue, OperandValue, ValueId, Work};
use super::Lowering;
use crate::error::GpuError;
use crate::kernels::elements::ElementWork;
use crate::kernels::experts::clusters::ClustersLaunch;
use crate::kernels::experts::product::{ExpertsLaunch, ExpertsOutput};
use crate::kernels::experts::{ChoiceLaunch, GatherLaunch, Grouping, SortLaunch};
use crate::kernels::operand::OperandKind;
use crate::kernels::rows::{RowWork, RowsLaunch};
use crate::kernels::sum::{SumLaunch, SumTerm};
use crate::pack::Format;
use crate::weights::Joint;

/// The entries of an operation.
#[derive(Clone, Copy)]
struct Entries {
    grouping: Grouping,
    order: ValueId,
}

/// A product of entries.
struct Multiplied {
    /// The numbers of the experts of each row.
    chosen: BufferId,
    /// A row for each row of the step, or one for each of its entries.
    input: BufferId,
    /// Entries that share a row of the input.
    shared: usize,
    joint: Joint,
    matrix: ExpertMatrix,
    /// Rows of an expert, or of its gate.
    rows: usize,
    output: ExpertsOutput<Ids>,
}

impl Lowering<'_> {
    pub(super) fn experts(&mut self, op: &Op) -> Result<(), GpuError> {
        match *op {
            Op::Route { logits, factors, scale, chosen, shares } => {
                let logits = self.rows(logits)?;
                let rows = self.rows_of(chosen);
                let (chosen, shares) = (self.fresh(chosen), self.fresh(shares));
                let [experts, used] = [logits, chosen].map(|id| self.graph.value(id).columns);
                let launch = ChoiceLaunch {
                    logits,
                    factors,
                    scale,
                    experts,
                    used,
                    chosen,
                    shares,
                    extent: (),
                };
                self.push(rows, Work::Choose(launch));
                Ok(())
            }
            Op::GatedExperts { input, chosen, gate_and_up, output } => {
                self.gated_experts(op, input, gate_and_up, chosen, output)
            }
            Op::SumExperts { input, chosen, shares, down, output } => {
                let shares = self.rows(shares)?;
                let used = self.plan.buffer(chosen).columns;
                let (count, rows) = (self.count(output), self.plan.buffer(output).columns);
                let parts = self.graph.fresh_rows(count, used * rows, Home::Own);
                let joint = Joint::of(self.plan, down.weight);
                let made = ExpertsOutput::Rows(parts);
                let (matrix, shared) = (down, 1);
                let product =
                    Multiplied { chosen, input, shared, joint, matrix, rows, output: made };
                self.entry_product(product)?;
                let result = self.fresh(output);
                let term = SumTerm { shares: Some((shares, used)), ..SumTerm::of(parts, 1.0) };
                let work = SumLaunch::of(vec![term], result);
                self.push(self.rows_of(output), Work::Sum(work));
                Ok(())
            }
            Op::Search { input, routes, clusters, tokens, output } => {
                self.search(input, routes, clusters, tokens, output)
            }
            _ => unreachable!("only operations of experts come here"),
        }
    }

    /// Adds the products of rows with their clusters, and the rows of logits that these become.
    fn search(
        &mut self,
        input: BufferId,
        routes: Routes,
        clusters: ExpertMatrix,
        tokens: WeightId,
        output: BufferId,
    ) -> Result<(), GpuError> {
        let Routes { chosen, shares } = routes;
        let [choice, shares] = [self.rows(chosen)?, self.rows(shares)?];
        let (used, rows) = (self.plan.buffer(chosen).columns, clusters.step);
        let products = self.graph.fresh_rows(self.count(output), used * rows, Home::Own);
        let joint = Joint::of(self.plan, clusters.weight);
        let (matrix, made) = (clusters, ExpertsOutput::Rows(products));
        let product = Multiplied { chosen, input, shared: used, joint, matrix, rows, output: made };
        self.entry_product(product)?;
        let result = self.fresh(output);
        let launch = ClustersLaunch {
            products,
            chosen: choice,
            shares,
            tokens,
            logits: result,
            clusters: self.graph.value(result).columns / rows,
            size: rows,
            used,
            extent: (),
        };
        self.push(self.rows_of(output), Work::Clusters(launch));
        Ok(())
    }

    /// Adds the gated product of entries. If gate and up are in different matrices of the device,
    /// it is a product for each and a separate activation.
    fn gated_experts(
        &mut self,
        op: &Op,
        input: BufferId,
        gate_and_up: [ExpertMatrix; 2],
        chosen: BufferId,
        output: BufferId,
    ) -> Result<(), GpuError> {
        let shared = self.plan.buffer(chosen).columns;
        let rows = self.plan.buffer(output).columns / shared;
        let joints = Joint::all(self.selection.capabilities(), self.plan, op);
        let [gate, up] = gate_and_up.map(|matrix| self.first_row(&joints[0], matrix));
        if let (Some(gate), Some(up)) = (gate, up)
            && gate < up
            && gate_and_up[0].step == gate_and_up[1].step
        {
            let (joint, matrix) = (joints[0].clone(), gate_and_up[0]);
            let made = MadeValue::Rows(self.fresh(output));
            let made = ExpertsOutput::Gated { made, split: up - gate };
            let product = Multiplied { chosen, input, shared, joint, matrix, rows, output: made };
            return self.entry_product(product);
        }
        let parts = [0, 1].map(|_| self.like(output, Home::Own));
        for (matrix, part) in gate_and_up.into_iter().zip(parts) {
            let holds = |joint: &&Joint| joint.weights.contains(&matrix.weight);
            let joint =
                joints.iter().find(holds).expect("a matrix is in one of the joints").clone();
            let made = ExpertsOutput::Rows(part);
            let product = Multiplied { chosen, input, shared, joint, matrix, rows, output: made };
            self.entry_product(product)?;
        }
        let ([gate, up], result) = (parts, self.fresh(output));
        let stride = self.graph.value(up).columns;
        self.elements(output, ElementWork::Geglu { gate, up, first: 0, stride }, result);
        Ok(())
    }

    /// Returns the row of a joint at which the matrix of the first expert begins; `None` if it is
    /// in another one.
    fn first_row(&self, joint: &Joint, matrix: ExpertMatrix) -> Option<usize> {
        let at = joint.weights.iter().position(|id| *id == matrix.weight)?;
        let rows = |id: &WeightId| self.plan.weight(*id).rows;
        Some(joint.weights[..at].iter().map(rows).sum::<usize>() + matrix.first)
    }

    /// Returns the entries with the experts that a buffer holds, sorted if there are several rows,
    /// for a product with matrices of this format.
    fn entries(
        &mut self,
        chosen: BufferId,
        matrix: ExpertMatrix,
        format: Format,
    ) -> Result<Entries, GpuError> {
        let (count, rows) = (self.count(chosen), self.rows_of(chosen));
        let used = self.plan.buffer(chosen).columns;
        let chosen = self.rows(chosen)?;
        let experts = self.plan.weight(matrix.weight).rows / matrix.step;
        let grouping = self.selection.grouping(format, count, used, experts);
        if !grouping.is_sorted() {
            return Ok(Entries { grouping, order: chosen });
        }
        let known = self.graph.nodes.iter().find_map(|node| match node.work {
            Work::Sort(SortLaunch { chosen: of, sorted, grouping: same, .. }) => {
                ((of, same) == (chosen, grouping)).then_some(sorted)
            }
            _ => None,
        });
        let order = known.unwrap_or_else(|| {
            let sorted = self.graph.fresh_bytes(grouping.bytes());
            self.push(rows, Work::Sort(SortLaunch { grouping, chosen, sorted, extent: () }));
            sorted
        });
        Ok(Entries { grouping, order })
    }

    /// A product of entries, after the conversion of its input if it takes an operand.
    fn entry_product(&mut self, product: Multiplied) -> Result<(), GpuError> {
        let Multiplied { chosen, input, shared, joint, matrix, rows, output } = product;
        let used = self.plan.buffer(chosen).columns;
        let Entries { grouping, order } = self.entries(chosen, matrix, joint.format)?;
        let (source, of) = (self.rows(input)?, self.rows_of(input));
        let form = if grouping.is_padded {
            Form::Operand(self.gathered(&joint, grouping, order, (source, of), shared))
        } else if joint.format.is_float() {
            Form::Rows(source)
        } else {
            let (count, kind) = (self.count(input) * used / shared, OperandKind::Fixed16);
            let operand = self.graph.fresh_operand_of(count, joint.columns, kind);
            let parts = self.graph.value(source).columns / joint.columns;
            let (work, made) = (RowWork::Convert { parts }, MadeValue::Operand(operand));
            self.push(of, Work::Rows(RowsLaunch::of(work, source, 0.0, made)));
            Form::Operand(operand)
        };
        let first = self.first_row(&joint, matrix).expect("a product's joint has its matrix");
        let launch = ExpertsLaunch {
            matrix: joint,
            first,
            rows,
            step: matrix.step,
            grouping,
            order,
            input: form,
            shared,
            used,
            extent: (),
            output,
        };
        self.push(of, Work::Experts(launch));
        Ok(())
    }

    /// Returns the operand of matrix units with a row for each place of sorted entries. An entry of
    /// the same rows may have one already.
    fn gathered(
        &mut self,
        joint: &Joint,
        grouping: Grouping,
        sorted: ValueId,
        (source, of): (ValueId, Rows),
        shared: usize,
    ) -> OperandValue {
        let (kind, columns) = (self.selection.units_operand(joint.format), joint.columns);
        let source = match shared {
            1 => Form::Rows(source),
            _ => Form::Operand(self.halves(source, of)),
        };
        let known = self.graph.nodes.iter().find_map(|node| match node.work {
            Work::Gather(GatherLaunch { sorted: by, source: from, operand, .. }) => {
                ((by, from, operand.kind) == (sorted, source, kind)).then_some(operand)
            }
            _ => None,
        });
        known.unwrap_or_else(|| {
            // Fragments lie in whole tiles of 64 rows.
            let rows = grouping.places().next_multiple_of(64);
            let operand = self.graph.fresh_operand_of(rows, columns, kind);
            let launch = GatherLaunch { grouping, sorted, source, shared, columns, operand };
            self.push(of, Work::Gather(launch));
            operand
        })
    }

    /// Returns rows as halves, after their conversion if there is none yet.
    fn halves(&mut self, source: ValueId, of: Rows) -> OperandValue {
        let kind = OperandKind::Halves;
        let known = self.graph.nodes.iter().find_map(|node| {
            let (rows, operand) = node.work.conversion()?;
            ((rows, operand.kind) == (source, kind)).then_some(operand)
        });
        known.unwrap_or_else(|| {
            let operand = self.graph.fresh_operand(source, kind);
            let (work, made) = (RowWork::Convert { parts: 1 }, MadeValue::Operand(operand));
            self.push(of, Work::Rows(RowsLaunch::of(work, source, 0.0, made)));
            operand
        })
    }
}
