//! Launches over rows and over elements.

use trine_model::WeightId;

use super::super::graph::{ElementsKind, LayerWeights, Made, Node, NormWork, ValueId};
use super::Emitter;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::rows::{LayerNorm, RowWork};

impl Emitter<'_> {
    pub(super) fn norm(
        &self,
        node: &Node,
        norm: NormWork,
        made: Made,
    ) -> Result<Dispatch, GpuError> {
        let vector = |id| self.weights.vector(id);
        let (work, source, epsilon) = match norm {
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
        };
        self.rows(node, work, source, epsilon, Some(made))
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
