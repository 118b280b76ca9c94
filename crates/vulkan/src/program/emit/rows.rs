//! Launches over rows and over elements.

use trine_model::WeightId;

use super::super::graph::{
    ElementsKind, LayerWeights, Made, Node, NormWork, OperandValue, ValueId,
};
use super::super::limits::{LimitedRows, LimitedWork};
use super::Emitter;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::rows::{LayerNorm, RowLimits, RowWork, RowsLaunch};

impl Emitter<'_> {
    pub(super) fn norm(
        &self,
        node: &Node,
        norm: NormWork,
        made: Made,
    ) -> Result<Dispatch, GpuError> {
        let (work, source, epsilon) = self.norm_work(norm);
        self.rows(node, work, source, epsilon, Some(made))
    }

    pub(super) fn limited(&self, node: &Node, limited: LimitedWork) -> Result<Dispatch, GpuError> {
        let LimitedWork { rows, within, made } = limited;
        let (work, source, epsilon) = match rows {
            LimitedRows::Convert { source } => (RowWork::Convert { parts: 1 }, source, 0.0),
            LimitedRows::Norm(norm) => self.norm_work(norm),
            LimitedRows::Gate { gate, up } => (RowWork::Gate { up: self.span(up) }, gate, 0.0),
        };
        self.rows_within(node, work, (source, epsilon), Some(made), within)
    }

    /// Returns what a norm does, with its rows and what is added to their mean square.
    fn norm_work(&self, norm: NormWork) -> (RowWork, ValueId, f32) {
        let vector = |id| self.weights.vector(id);
        match norm {
            NormWork::Norm { source, weight, epsilon } => {
                (RowWork::Norm { weight: Some(vector(weight)) }, source, epsilon)
            }
            NormWork::Bare { source, epsilon } => (RowWork::Norm { weight: None }, source, epsilon),
            NormWork::Layer { source, layer } => {
                (RowWork::LayerNorm(self.layer_norm(layer)), source, layer.epsilon)
            }
            NormWork::AddLayer { source, bias, target, layer, .. } => {
                let (bias, target) = (bias.map(vector), self.span(target));
                let norm = self.layer_norm(layer);
                (RowWork::AddLayerNorm { bias, target, norm }, source, layer.epsilon)
            }
            NormWork::NormAddNorm {
                source, weight, target, scale, next_weight, epsilon, ..
            } => {
                let (weight, next_weight) = (vector(weight), vector(next_weight));
                let target = self.span(target);
                (RowWork::NormAddNorm { weight, target, scale, next_weight }, source, epsilon)
            }
        }
    }

    /// A conversion of rows, each of which may become several of the operand.
    pub(super) fn convert(
        &self,
        node: &Node,
        source: ValueId,
        operand: OperandValue,
    ) -> Result<Dispatch, GpuError> {
        let (from, to) = (self.graph.value(source), self.graph.value(operand.id));
        let launch = RowsLaunch {
            work: RowWork::Convert { parts: from.columns / to.columns },
            source: self.span(source),
            columns: to.columns,
            rows: self.graph.width.of(node.rows),
            row_count: self.row_count(node.rows),
            epsilon: 0.0,
            within: RowLimits::NONE,
            plain: None,
            operand: Some(self.operand(operand)),
        };
        launch.dispatch(self.compiler, &node.label, node.step)
    }

    pub(super) fn rows(
        &self,
        node: &Node,
        work: RowWork,
        source: ValueId,
        epsilon: f32,
        made: Option<Made>,
    ) -> Result<Dispatch, GpuError> {
        self.rows_within(node, work, (source, epsilon), made, RowLimits::NONE)
    }

    fn rows_within(
        &self,
        node: &Node,
        work: RowWork,
        (source, epsilon): (ValueId, f32),
        made: Option<Made>,
        within: RowLimits,
    ) -> Result<Dispatch, GpuError> {
        let launch = RowsLaunch {
            work,
            source: self.span(source),
            columns: self.graph.value(source).columns,
            rows: self.graph.width.of(node.rows),
            row_count: self.row_count(node.rows),
            epsilon,
            within,
            plain: made.and_then(Made::rows).map(|id| self.span(id)),
            operand: made.and_then(Made::operand).map(|value| self.operand(value)),
        };
        launch.dispatch(self.compiler, &node.label, node.step)
    }

    pub(super) fn activate(
        &self,
        node: &Node,
        source: ValueId,
        bias: Option<WeightId>,
        made: Made,
    ) -> Result<Dispatch, GpuError> {
        let bias = bias.map(|id| self.weights.vector(id));
        self.rows(node, RowWork::Gelu { bias }, source, 0.0, Some(made))
    }

    fn layer_norm(&self, layer: LayerWeights) -> LayerNorm {
        let [weight, bias] = [layer.weight, layer.bias].map(|id| self.weights.vector(id));
        LayerNorm { weight, bias }
    }

    pub(super) fn elements(
        &self,
        node: &Node,
        kind: ElementsKind,
        result: ValueId,
    ) -> Result<Dispatch, GpuError> {
        let launch = ElementsLaunch {
            work: self.element_work(kind),
            result: self.span(result),
            columns: self.graph.value(result).columns,
            rows: self.graph.width.of(node.rows),
            row_count: self.row_count(node.rows),
        };
        launch.dispatch(self.compiler, &node.label, node.step)
    }

    fn element_work(&self, kind: ElementsKind) -> ElementWork {
        match kind {
            ElementsKind::Geglu { gate, up, first } => ElementWork::Geglu {
                gate: self.span(gate),
                up: self.span_after(up, first),
                stride: self.graph.value(up).columns,
            },
            ElementsKind::Scale { source, weight } => ElementWork::Scale {
                source: self.span(source),
                weight: self.weights.vector(weight),
            },
            ElementsKind::Add { source, .. } => ElementWork::Add { source: self.span(source) },
            ElementsKind::Softcap { cap, .. } => ElementWork::Softcap { cap },
            ElementsKind::Select { source } => {
                ElementWork::Select { source: self.span(source), picks: self.frame.outputs }
            }
            ElementsKind::Bias { weight, .. } => {
                ElementWork::Bias { bias: self.weights.vector(weight) }
            }
            ElementsKind::Gelu { .. } => ElementWork::Gelu,
            ElementsKind::Clamp { source, low, high } => {
                ElementWork::Clamp { source: self.span(source), low, high }
            }
            ElementsKind::Pool { source, count } => {
                ElementWork::Pool { source: self.span(source), picks: self.frame.outputs, count }
            }
            ElementsKind::Insert { source, .. } => {
                ElementWork::Insert { source: self.span(source), frame: self.frame.frame }
            }
        }
    }
}
