//! Products.

use trine_model::WeightId;

use super::super::graph::{
    Input, Made, Node, Output, ProductKernel, ProductWork, ValueId, allocated,
};
use super::Emitter;
use crate::dispatch::{Dispatch, Span};
use crate::error::GpuError;
use crate::kernels::matmul::MatmulLaunch;
use crate::kernels::matvec::MatvecLaunch;
use crate::kernels::product::{
    OUTPUTS_MAX, Product, ProductInput, ProductLaunch, ProductOutput, Segment,
};
use crate::kernels::stream::StreamLaunch;

impl Emitter<'_> {
    pub(super) fn product(
        &self,
        node: &Node,
        work: &ProductWork,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        let ids = &work.joint.weights;
        let width = self.graph.product_rows(node.rows, work);
        let segments: Vec<Segment>;
        let output = match &work.output {
            Output::Parts(values) => {
                segments = self.segments(ids, values, width);
                if work.biases.is_empty() {
                    ProductOutput::Segments(&segments)
                } else {
                    let biases = self.biases(&work.biases);
                    ProductOutput::Biased { segments: &segments, biases }
                }
            }
            Output::Heads { query, keys, values, dim } => {
                let [query, keys, values] = [*query, *keys, *values].map(|id| self.span(id));
                let biases = self.biases(&work.biases);
                ProductOutput::Heads { query, keys, values, dim: *dim, biases }
            }
            Output::Activated(value) => ProductOutput::Activated {
                bias: self.weights.vector(work.biases[0]),
                operand: self.operand(*value),
                unit: self.weights.unit(ids[0]),
            },
            Output::Gated(Made::Operand(value)) if value.kind.is_halves() => {
                let unit = self.weights.unit(ids[0]);
                ProductOutput::GatedHalves { operand: self.operand(*value), unit }
            }
            Output::Gates { by, first, result } => ProductOutput::Gates {
                by: self.span_after(*by, *first),
                target: self.span(*result),
            },
            Output::Gated(made) => ProductOutput::Gated {
                plain: made.rows().map(|id| self.span(id)),
                operand: made.operand().map(|value| self.operand(value)),
            },
        };
        let (matrix, input) = (self.weights.matrix(self.plan, ids), self.product_input(work.input));
        let product = Product { matrix, width, input, output };
        match work.kernel {
            ProductKernel::Stream => self.shaped(&StreamLaunch(product), node, out),
            ProductKernel::Matvec => self.shaped(&MatvecLaunch(product), node, out),
            ProductKernel::Matmul => {
                let scratch = Some(self.split_scratch);
                self.pieces(&MatmulLaunch { product, scratch }, node, out)
            }
        }
    }

    /// Returns the addresses of the biases of a product's outputs.
    fn biases(&self, ids: &[WeightId]) -> [u64; OUTPUTS_MAX] {
        let mut biases = [0; OUTPUTS_MAX];
        let found = ids.iter().map(|&id| self.weights.vector(id));
        biases.iter_mut().zip(found).for_each(|(to, address)| *to = address);
        biases
    }

    /// Adds a product of many rows, in as many dispatches as it takes.
    fn pieces(
        &self,
        launch: &MatmulLaunch<'_>,
        node: &Node,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        let width = launch.product.width;
        let rows = launch.rows_at_once(self.compiler.capabilities(), allocated(width));
        if rows == width {
            return self.shaped(launch, node, out);
        }
        let mut segments = Vec::new();
        for first in (0..width).step_by(rows) {
            self.shaped(&launch.piece(first, rows, &mut segments), node, out)?;
        }
        Ok(())
    }

    /// Adds a product in the shape that was chosen for it, or shows it to the survey.
    fn shaped<L: ProductLaunch>(
        &self,
        launch: &L,
        node: &Node,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        if let Some(survey) = self.survey {
            return survey.borrow_mut().see(launch);
        }
        let shape = self.selection.shape(launch);
        out.push(launch.dispatch(self.compiler, shape, &node.label, node.step)?);
        Ok(())
    }

    /// Returns where each part of a matrix sends its products.
    fn segments(&self, weights: &[WeightId], values: &[ValueId], width: usize) -> Vec<Segment> {
        let segment = |(id, value): (&WeightId, &ValueId)| {
            let rows = self.plan.weight(*id).rows;
            let target = Span { bytes: (4 * width * rows) as u64, ..self.span(*value) };
            Segment { rows, target }
        };
        weights.iter().zip(values).map(segment).collect()
    }

    fn product_input(&self, input: Input) -> ProductInput {
        let vector = |id| self.weights.vector(id);
        match input {
            Input::Given(form) => ProductInput::Operand(self.form(form)),
            Input::Norm { source, weight, epsilon } => {
                ProductInput::Norm { x: self.span(source), weight: vector(weight), epsilon }
            }
            Input::NormAddNorm { source, weight, target, scale, updated, next_weight, epsilon } => {
                ProductInput::NormAddNorm {
                    x: self.span(target),
                    scale,
                    added: self.span(source),
                    added_weight: vector(weight),
                    weight: vector(next_weight),
                    epsilon,
                    x_out: updated.map(|updated| self.span(updated)),
                }
            }
        }
    }
}
