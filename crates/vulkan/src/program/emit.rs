//! From launches over values to dispatches over addresses.

use std::cell::RefCell;
use std::sync::Arc;

use trine_backend::{BLOCK, ProgramOptions};
use trine_model::{CacheId, Plan, Rows, Scratch, WeightId, Width};

use super::frame::StepAddresses;
use super::graph::{
    AttendWork, ElementsKind, Graph, HeadsWork, Input, Node, OperandValue, Output, RowsKind,
    ValueId, Work,
};
use super::lower::Choices;
use super::ropes::Ropes;
use super::selection::Selection;
use super::tuning::Survey;
use crate::dispatch::{Dispatch, Span};
use crate::error::GpuError;
use crate::kernels::attention::{
    DecodeLaunch, FrameAddresses, Fused, KvCache, MatrixLaunch, MatrixOutput, TILE_ROWS,
    TileChoice, TileLaunch,
};
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::embed::EmbedLaunch;
use crate::kernels::heads::{HeadsLaunch, Stored, Turned};
use crate::kernels::matmul::{MatmulLaunch, MatmulOutput};
use crate::kernels::matvec::{MatvecInput, MatvecLaunch, MatvecOutput, Segment};
use crate::kernels::operand::{Operand, OperandKind};
use crate::kernels::rows::{RowWork, RowsLaunch};
use crate::kernels::stream::StreamLaunch;
use crate::kernels::tunable::Tunable;
use crate::pack::Matrix;
use crate::raw::gpu::Gpu;
use crate::raw::memory::Buffer;
use crate::weights::Weights;

/// What addresses are taken from.
pub(super) struct Emitter<'a> {
    pub(super) gpu: &'a Arc<Gpu>,
    pub(super) plan: &'a Plan,
    pub(super) weights: &'a Weights,
    pub(super) selection: &'a Selection,
    pub(super) frame: StepAddresses,
    /// Rows of the recording.
    pub(super) width: Width,
    pub(super) graph: &'a Graph,
    pub(super) scratch: &'a Scratch,
    /// First byte of scratch memory.
    pub(super) base: u64,
    /// Addresses of the Plan's inputs.
    pub(super) inputs: Vec<u64>,
    /// Memory of products that several workgroups share.
    pub(super) split_scratch: Span,
    pub(super) options: &'a ProgramOptions,
    pub(super) caches: &'a [Buffer],
    pub(super) ropes: &'a Ropes,
    /// Counters of attention's parts; 0 between launches.
    pub(super) counters: Span,
    /// Whether attention goes by rows instead of by tiles.
    pub(super) by_rows: bool,
    /// Sees the products, where their shapes are yet to be chosen.
    pub(super) survey: Option<&'a RefCell<Survey>>,
}

impl Emitter<'_> {
    /// All dispatches, in order.
    pub(super) fn emit(&self) -> Result<Vec<Dispatch>, GpuError> {
        let mut dispatches = Vec::with_capacity(self.graph.nodes.len());
        for node in &self.graph.nodes {
            self.node(node, &mut dispatches)?;
        }
        Ok(dispatches)
    }

    /// Shows all products to the survey.
    pub(super) fn survey(&self) -> Result<(), GpuError> {
        let mut dispatches = Vec::new();
        let products = |node: &&Node| matches!(node.work, Work::Product { .. });
        self.graph
            .nodes
            .iter()
            .filter(products)
            .try_for_each(|node| self.node(node, &mut dispatches))
    }

    /// Where a value is.
    pub(super) fn span(&self, id: ValueId) -> Span {
        let bytes = self.graph.values[id.0] as u64;
        if let Some(input) = self.graph.inputs.iter().position(|input| *input == id) {
            return Span { address: self.inputs[input], bytes };
        }
        let offset = self.scratch.offsets[id.0].expect("a value that a launch touches is placed");
        Span { address: self.base + offset as u64, bytes }
    }

    fn operand(&self, value: OperandValue) -> Operand {
        Operand { kind: value.kind, codes: self.span(value.codes), scales: self.span(value.scales) }
    }

    /// Address of the number of rows of a kind in the step.
    fn row_count(&self, rows: Rows) -> u64 {
        match rows {
            Rows::Tokens => self.frame.rows,
            Rows::Outputs => self.frame.output_count,
        }
    }

    fn node(&self, node: &Node, out: &mut Vec<Dispatch>) -> Result<(), GpuError> {
        let rows = self.width.of(node.rows);
        match &node.work {
            Work::Embed { table, scale, output } => {
                let launch = EmbedLaunch {
                    table: self.weights.matrix(&[*table]),
                    frame: self.frame.frame,
                    target: self.span(*output),
                    rows,
                    factor: *scale,
                };
                out.push(launch.dispatch(self.gpu, &node.label, node.step)?);
            }
            Work::Rows { kind, source, columns, epsilon, plain, operand } => {
                let launch = RowsLaunch {
                    work: self.row_work(*kind),
                    source: self.span(*source),
                    columns: *columns,
                    rows,
                    row_count: self.row_count(node.rows),
                    epsilon: *epsilon,
                    plain: plain.map(|value| self.span(value)),
                    operand: operand.map(|value| self.operand(value)),
                };
                out.push(launch.dispatch(self.gpu, &node.label, node.step)?);
            }
            Work::Elements { kind, result, columns } => {
                let launch = ElementsLaunch {
                    work: self.element_work(*kind),
                    result: self.span(*result),
                    columns: *columns,
                    rows,
                    row_count: self.row_count(node.rows),
                };
                out.push(launch.dispatch(self.gpu, &node.label, node.step)?);
            }
            Work::Heads(work) => out.push(self.heads(node, work)?),
            Work::Attend(work) => out.push(self.attend(node, work)?),
            Work::Product { weights, input, output } => {
                self.product(node, weights, *input, output, rows, out)?;
            }
        }
        Ok(())
    }

    fn row_work(&self, kind: RowsKind) -> RowWork {
        let vector = |id| self.weights.vector(id);
        match kind {
            RowsKind::Convert => RowWork::Convert,
            RowsKind::Norm { weight } => RowWork::Norm { weight: vector(weight) },
            RowsKind::NormAdd { weight, target } => {
                RowWork::NormAdd { weight: vector(weight), target: self.span(target) }
            }
            RowsKind::NormAddNorm { weight, target, next_weight } => RowWork::NormAddNorm {
                weight: vector(weight),
                target: self.span(target),
                next_weight: vector(next_weight),
            },
        }
    }

    fn element_work(&self, kind: ElementsKind) -> ElementWork {
        match kind {
            ElementsKind::Geglu { gate, up } => {
                ElementWork::Geglu { gate: self.span(gate), up: self.span(up) }
            }
            ElementsKind::Add { source } => ElementWork::Add { source: self.span(source) },
            ElementsKind::Softcap { cap } => ElementWork::Softcap { cap },
            ElementsKind::Select { source } => {
                ElementWork::Select { source: self.span(source), picks: self.frame.outputs }
            }
        }
    }

    fn product(
        &self,
        node: &Node,
        weights: &[WeightId],
        input: Input,
        output: &Output,
        rows: usize,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        let matrix = self.weights.matrix(weights);
        if self.selection.is_narrow(matrix.format, rows) {
            out.extend(self.matvec(node, matrix, weights, input, output, rows)?);
            return Ok(());
        }
        self.matmul(node, matrix, weights, input, output, rows, out)
    }

    /// A product in the shape that was chosen for it; `None` where it is only shown to a survey.
    fn shaped<L: Tunable>(&self, launch: &L, node: &Node) -> Result<Option<Dispatch>, GpuError> {
        if let Some(survey) = self.survey {
            survey.borrow_mut().see(launch)?;
            return Ok(None);
        }
        let shape = self.selection.shape(launch);
        launch.dispatch(self.gpu, shape, &node.label, node.step).map(Some)
    }

    /// Where each part of a matrix sends its products.
    fn segments(&self, weights: &[WeightId], values: &[ValueId], width: usize) -> Vec<Segment> {
        let segment = |(id, value): (&WeightId, &ValueId)| {
            let rows = self.plan.weight(*id).rows;
            let target = Span { bytes: (4 * width * rows) as u64, ..self.span(*value) };
            Segment { rows, target }
        };
        weights.iter().zip(values).map(segment).collect()
    }

    fn matmul(
        &self,
        node: &Node,
        matrix: Matrix,
        weights: &[WeightId],
        input: Input,
        output: &Output,
        width: usize,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), GpuError> {
        let operand = match input {
            Input::Plain(value) => plain_operand(self.span(value)),
            Input::Operand(value) => self.operand(value),
            Input::Norm { .. } | Input::NormAddNorm { .. } => {
                unreachable!("a product of several rows does not norm them")
            }
        };
        let segments: Vec<Segment>;
        let output = match output {
            Output::Parts(values) => {
                segments = self.segments(weights, values, width);
                MatmulOutput::Segments(&segments)
            }
            Output::Gated { operand: Some(operand), .. } => MatmulOutput::GatedHalves {
                operand: self.operand(*operand),
                unit: self.weights.unit(weights[0]),
            },
            Output::Gated { plain, .. } => {
                let value = plain.expect("a gated product without an operand gives f32 rows");
                MatmulOutput::Gated { target: self.span(value) }
            }
        };
        let scratch = Some(self.split_scratch);
        let launch = MatmulLaunch { matrix, width, operand, output, scratch };
        let allocated = self.selection.allocated(width);
        let rows = launch.rows_at_once(self.gpu.capabilities(), allocated);
        if rows == width {
            out.extend(self.shaped(&launch, node)?);
            return Ok(());
        }
        let mut segments = Vec::new();
        for first in (0..width).step_by(rows) {
            let piece = launch.piece(first, rows, &mut segments);
            out.extend(self.shaped(&piece, node)?);
        }
        Ok(())
    }

    fn matvec(
        &self,
        node: &Node,
        matrix: Matrix,
        weights: &[WeightId],
        input: Input,
        output: &Output,
        width: usize,
    ) -> Result<Option<Dispatch>, GpuError> {
        let input = match input {
            Input::Plain(value) => MatvecInput::Operand(plain_operand(self.span(value))),
            Input::Operand(value) => MatvecInput::Operand(self.operand(value)),
            Input::Norm { source, weight, epsilon } => MatvecInput::Norm {
                x: self.span(source),
                weight: self.weights.vector(weight),
                epsilon,
            },
            Input::NormAddNorm { source, weight, target, updated, next_weight, epsilon } => {
                MatvecInput::NormAddNorm {
                    x: self.span(target),
                    added: self.span(source),
                    added_weight: self.weights.vector(weight),
                    weight: self.weights.vector(next_weight),
                    epsilon,
                    x_out: self.span(updated),
                }
            }
        };
        let segments: Vec<Segment>;
        let output = match output {
            Output::Parts(values) => {
                segments = self.segments(weights, values, width);
                MatvecOutput::Segments(&segments)
            }
            Output::Gated { plain, operand } => MatvecOutput::Gated {
                plain: plain.map(|value| self.span(value)),
                operand: operand.map(|value| self.operand(value)),
            },
        };
        let norm = !matches!(input, MatvecInput::Operand(_));
        if self.selection.streams(matrix.format, matrix.columns, width, norm) {
            return self.shaped(&StreamLaunch { matrix, input, output }, node);
        }
        self.shaped(&MatvecLaunch { matrix, width, input, output }, node)
    }
}

impl Emitter<'_> {
    fn attention_frame(&self) -> FrameAddresses {
        let StepAddresses { frame, tables, tiles, .. } = self.frame;
        FrameAddresses { frame, tables, tiles }
    }

    fn cache(&self, id: CacheId) -> KvCache {
        let cache = self.plan.cache(id);
        let ring = cache.window.map_or(0, |window| self.options.ring_length(window) / BLOCK);
        KvCache {
            span: self.caches[id.0].span(),
            kind: self.options.kv,
            heads: cache.kv_heads,
            dim: cache.head_dim,
            ring_blocks: ring as u32,
        }
    }

    fn norm_of(&self, weight: Option<WeightId>) -> Option<u64> {
        weight.map(|id| self.weights.vector(id))
    }

    fn heads(&self, node: &Node, work: &HeadsWork) -> Result<Dispatch, GpuError> {
        let turned = |value| Turned {
            query: self.span(value),
            heads: work.heads.query,
            query_norm: self.norm_of(work.query_norm),
        };
        let stored = |cache| {
            Some(Stored {
                key: self.span(work.key?),
                value: self.span(work.value?),
                cache: self.cache(cache),
                key_norm: self.norm_of(work.key_norm),
            })
        };
        let launch = HeadsLaunch {
            frame: self.attention_frame(),
            rows: self.width.tokens,
            dim: work.heads.dim,
            query: work.query.map(turned),
            stored: work.cache.and_then(stored),
            rope: work.rope.map(|rope| self.ropes.address(work.heads.dim, rope)),
            epsilon: work.epsilon,
        };
        launch.dispatch(self.gpu, &node.label, node.step)
    }

    fn attend(&self, node: &Node, work: &AttendWork) -> Result<Dispatch, GpuError> {
        let (frame, cache, rows) =
            (self.attention_frame(), self.cache(work.cache), self.width.tokens);
        let shape = work.shape();
        let query = self.span(work.query);
        let none = Span { address: 0, bytes: 0 };
        if self.by_rows {
            let launch = DecodeLaunch {
                shape,
                cache,
                frame,
                rows,
                query,
                plain: work.plain.map(|value| self.span(value)),
                operand: work.operand.map(|value| self.operand(value)),
                scratch: work.partials.map_or(none, |value| self.span(value)),
                counters: self.counters,
                fused: work.fused.as_ref().and_then(|heads| self.fused(heads)),
                choice: self.selection.decode(&shape, rows),
            };
            return launch.dispatch(self.gpu, &node.label, node.step);
        }
        // Each sequence may end with a tile that is not full.
        let tiles = rows.min(rows.div_ceil(TILE_ROWS) + self.options.sequences);
        let plain = || self.span(work.plain.expect("attention gives f32 rows or an operand"));
        match self.selection.attend_matrix(&shape) {
            Some(choice) => {
                let operand = work.operand.map(|value| MatrixOutput::Operand(self.operand(value)));
                let output = operand.unwrap_or_else(|| MatrixOutput::Plain(plain()));
                MatrixLaunch { shape, cache, frame, tiles, query, output, choice }.dispatch(
                    self.gpu,
                    &node.label,
                    node.step,
                )
            }
            None => {
                let target = plain();
                let choice = TileChoice::suited(self.gpu.capabilities());
                TileLaunch { shape, cache, frame, tiles, query, target, choice }.dispatch(
                    self.gpu,
                    &node.label,
                    node.step,
                )
            }
        }
    }

    fn fused(&self, work: &HeadsWork) -> Option<Fused> {
        Some(Fused {
            key: self.span(work.key?),
            value: self.span(work.value?),
            query_norm: self.norm_of(work.query_norm),
            key_norm: self.norm_of(work.key_norm),
            rope: work.rope.map(|rope| self.ropes.address(work.heads.dim, rope)),
            epsilon: work.epsilon,
        })
    }
}

/// f32 rows as an operand.
fn plain_operand(codes: Span) -> Operand {
    Operand { kind: OperandKind::Plain, codes, scales: Span { address: 0, bytes: 0 } }
}
