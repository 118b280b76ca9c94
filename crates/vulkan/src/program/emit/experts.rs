//! Launches with experts.

use super::super::experts::{EntryOutput, ExpertsProduct, ExpertsWork};
use super::super::graph::Node;
use super::{At, Emitter};
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::kernels::experts::clusters::ClustersLaunch;
use crate::kernels::experts::product::{ExpertsLaunch, ExpertsOutput};
use crate::kernels::experts::router::{ROUTED_ROWS_MAX, RouterLaunch};
use crate::kernels::experts::{ChoiceLaunch, GatherLaunch, SortLaunch};
use crate::kernels::matmul::MatmulLaunch;

impl Emitter<'_> {
    pub(super) fn experts(&self, node: &Node, work: &ExpertsWork) -> Result<Dispatch, GpuError> {
        let (rows, row_count) = (self.graph.width.of(node.rows), self.row_count(node.rows));
        let columns = |id| self.graph.value(id).columns;
        match *work {
            ExpertsWork::Choose { router, logits, factors, scale, chosen, shares } => {
                let choice = ChoiceLaunch {
                    logits: self.span(logits),
                    factors: factors.map(|id| self.weights.vector(id)),
                    scale,
                    experts: columns(logits),
                    used: columns(chosen),
                    chosen: self.span(chosen),
                    shares: self.span(shares),
                    rows,
                    row_count,
                };
                let Some(router) = router else {
                    return choice.dispatch(self.compiler, &node.label, node.step);
                };
                const { assert!(4 * ROUTED_ROWS_MAX <= MatmulLaunch::COUNTER_BYTES) };
                let launch = RouterLaunch {
                    choice,
                    source: self.span(router.source),
                    norm: self.weights.vector(router.norm),
                    epsilon: router.epsilon,
                    router: self.weights.matrix(self.plan, &[router.router]),
                    other: router
                        .other
                        .map(|other| other.visit(&mut At { emitter: self, rows: node.rows })),
                    counters: self.split_scratch,
                };
                launch.dispatch(self.compiler, &node.label, node.step)
            }
            ExpertsWork::Sort { grouping, chosen, sorted } => {
                let (used, sorted) = (columns(chosen), self.span(sorted));
                let chosen = self.span(chosen);
                let launch = SortLaunch { grouping, used, chosen, sorted, row_count };
                launch.dispatch(self.compiler, &node.label, node.step)
            }
            ExpertsWork::Gather { grouping, sorted, source, operand, shared, used } => {
                let launch = GatherLaunch {
                    grouping,
                    sorted: self.span(sorted),
                    source: self.span(source),
                    columns: columns(operand.id),
                    shared,
                    used,
                    operand: self.operand(operand),
                    rows,
                    row_count,
                };
                launch.dispatch(self.compiler, &node.label, node.step)
            }
            ExpertsWork::Product(ref product) => self.expert_product(node, product),
            ExpertsWork::Spread { products, chosen, shares, tokens, result } => {
                let used = columns(chosen);
                let size = columns(products) / used;
                let launch = ClustersLaunch {
                    products: self.span(products),
                    chosen: self.span(chosen),
                    shares: self.span(shares),
                    tokens: self.weights.vector(tokens),
                    logits: self.span(result),
                    clusters: columns(result) / size,
                    size,
                    used,
                    rows,
                    row_count,
                };
                launch.dispatch(self.compiler, &node.label, node.step)
            }
        }
    }

    fn expert_product(&self, node: &Node, product: &ExpertsProduct) -> Result<Dispatch, GpuError> {
        let ExpertsProduct { ref joint, first, step, rows, grouping, shared, used, .. } = *product;
        let all = self.weights.matrix(self.plan, &joint.weights);
        let output = match product.output {
            EntryOutput::Rows(rows) => ExpertsOutput::Rows(self.span(rows)),
            EntryOutput::Gated { made, split } => ExpertsOutput::Gated {
                split,
                plain: made.rows().map(|id| self.span(id)),
                operand: made.operand().map(|value| self.operand(value)),
            },
        };
        let launch = ExpertsLaunch {
            matrix: all.part(first, all.rows - first),
            rows,
            step,
            grouping,
            order: self.span(product.order),
            input: self.form(product.input),
            shared,
            used,
            row_count: self.row_count(node.rows),
            output,
        };
        launch.dispatch(self.compiler, &node.label, node.step)
    }
}
