//! From launches over values to dispatches over addresses.

use std::cell::RefCell;
use std::ops::Range;

use trine_backend::{BLOCK, ProgramOptions};
use trine_model::{CacheId, Plan, Rope, Rows, Scratch, WeightId};

use super::frame::StepAddresses;
use super::graph::{Form, Graph, Home, Ids, Node, OperandValue, Value, ValueId, Work};
use super::lent::LentWork;
use super::ropes::Ropes;
use super::selection::Selection;
use super::tuning::Survey;
use super::values::{Numbers, Shared};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Span};
use crate::error::GpuError;
use crate::kernels::attention::{CacheSpan, FrameAddresses};
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::handles::{Addresses, Extent, Role, Visitor};
use crate::kernels::matmul::MatmulLaunch;
use crate::kernels::operand::Operand;
use crate::pack::Matrix;
use crate::weights::{Joint, Weights};

mod products;

/// The span of something absent.
const NOWHERE: Span = Span { address: 0, bytes: 0 };

/// What addresses are taken from.
pub(super) struct Emitter<'a> {
    pub(super) compiler: &'a dyn Compiler,
    pub(super) plan: &'a Plan,
    pub(super) weights: &'a Weights,
    pub(super) selection: &'a Selection,
    pub(super) frame: StepAddresses,
    pub(super) graph: &'a Graph,
    pub(super) scratch: &'a Scratch,
    /// First byte of scratch memory.
    pub(super) base: u64,
    /// Addresses of the Plan's inputs.
    pub(super) inputs: Vec<u64>,
    /// Memory of products that several workgroups share.
    pub(super) split_scratch: Span,
    pub(super) options: &'a ProgramOptions,
    /// One for each cache of the Plan.
    pub(super) caches: Vec<Span>,
    pub(super) ropes: &'a Ropes,
    /// Counters of attention's parts; 0 between launches.
    pub(super) counters: Span,
    /// Addresses of the rows for a guest and of its results, if there is one.
    pub(super) loans: Option<[u64; 2]>,
    /// Sees the products, if their shapes are still to be chosen.
    pub(super) survey: Option<&'a RefCell<Survey>>,
}

/// The dispatches of a pass.
pub(super) struct Emitted {
    /// In order.
    pub(super) dispatches: Vec<Dispatch>,
    /// For each loan, those between the last that writes rows for the guest and those that read its
    /// results.
    pub(super) own: Vec<Range<usize>>,
}

impl Emitter<'_> {
    /// All dispatches.
    pub(super) fn emit(&self) -> Result<Emitted, GpuError> {
        self.emit_first(self.graph.nodes.len())
    }

    /// The dispatches of the first `count` nodes.
    pub(super) fn emit_first(&self, count: usize) -> Result<Emitted, GpuError> {
        let mut dispatches = Vec::with_capacity(count);
        let (mut own, mut handed_at) = (Vec::new(), 0);
        for node in &self.graph.nodes[..count] {
            let before = dispatches.len();
            self.node(node, &mut dispatches)?;
            let at = dispatches.len();
            let is_whole = dispatches[before..].iter().all(|dispatch| dispatch.workgroups() > 0);
            assert!(is_whole, "a launch of {} has no workgroups", node.label);
            if self.graph.handed_over(node).is_some() {
                handed_at = at;
            } else if let Work::Lent(LentWork::Collect { .. }) = node.work {
                own.push(handed_at..at);
            }
        }
        Ok(Emitted { dispatches, own })
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

    /// Returns how many nodes begin a step with `launches` launches of what the survey watches for,
    /// all that follows each of them included. Returns `None` if there are not two of these.
    pub(super) fn nodes_with_launches(&self, launches: usize) -> Result<Option<usize>, GpuError> {
        let mut found = 0;
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if let Work::Product { .. } = node.work {
                self.node(node, &mut Vec::new())?;
                found +=
                    usize::from(self.survey.is_some_and(|survey| survey.borrow_mut().take_seen()));
                if found > launches {
                    return Ok(Some(index));
                }
            }
        }
        Ok((found > 1).then_some(self.graph.nodes.len()))
    }

    /// Returns where a piece of a value is; an empty piece is nowhere.
    fn piece(&self, id: ValueId, piece: usize) -> Span {
        let bytes = self.graph.value(id).bytes[piece] as u64;
        let (home, place) = self.graph.home(id);
        let shared = || self.loans.expect("a Plan with a guest has memory for it");
        match place {
            Home::Host(input) => return Span { address: self.inputs[input], bytes },
            Home::Handed(offset) => {
                return Span { address: shared()[0] + offset as u64, bytes };
            }
            Home::Lent(offset) => return Span { address: shared()[1] + offset as u64, bytes },
            Home::Own | Home::Of(_) => {}
        }
        if bytes == 0 {
            return NOWHERE;
        }
        let offset = self.scratch.offsets[Graph::piece(home, piece)];
        let offset = offset.expect("a value that a launch touches is placed");
        let end = offset as u64 + bytes;
        assert!(end <= self.scratch.bytes as u64, "value {id:?} ends at {end}, beyond the memory");
        Span { address: self.base + offset as u64, bytes }
    }

    /// Returns where f32 rows are.
    pub(super) fn span(&self, id: ValueId) -> Span {
        self.piece(id, 0)
    }

    /// Returns where f32 rows are after the first columns of the first one.
    fn span_after(&self, id: ValueId, first: usize) -> Span {
        let Span { address, bytes } = self.span(id);
        let skipped = 4 * first as u64;
        assert!(skipped <= bytes, "value {id:?} has {bytes} bytes, of which {skipped} are skipped");
        Span { address: address + skipped, bytes: bytes - skipped }
    }

    fn operand(&self, value: OperandValue) -> Operand {
        let [codes, scales] = [0, 1].map(|piece| self.piece(value.id, piece));
        Operand { kind: value.kind, codes, scales }
    }

    /// Returns a value as a product takes it.
    fn form(&self, form: Form) -> Operand {
        match form {
            Form::Rows(rows) => Operand::plain(self.span(rows)),
            Form::Operand(operand) => self.operand(operand),
        }
    }

    /// Returns the address of the number of rows of a kind in the step.
    fn row_count(&self, rows: Rows) -> u64 {
        match rows {
            Rows::Tokens => self.frame.rows,
            Rows::Soft => unreachable!("no launch is over rows of soft tokens"),
            Rows::Outputs => self.frame.output_count,
        }
    }

    /// Adds the dispatches of a launch.
    pub(super) fn node(&self, node: &Node, out: &mut Vec<Dispatch>) -> Result<(), GpuError> {
        let at = &mut At { emitter: self, rows: node.rows };
        if let Some(dispatch) = node.work.dispatch(at, self.compiler, &node.label, node.step) {
            out.push(dispatch?);
            return Ok(());
        }
        match &node.work {
            Work::Product(work) => self.product(node, work, out)?,
            Work::Lent(LentWork::Collect { .. }) => {}
            Work::Lent(LentWork::Amend { exact, amended, .. }) => {
                out.push(self.amend(node, *exact, *amended)?);
            }
            _ => unreachable!("{} is described by its kernel", node.label),
        }
        Ok(())
    }

    /// Puts rows that are no bulk rows over those of the partner.
    fn amend(&self, node: &Node, exact: ValueId, amended: ValueId) -> Result<Dispatch, GpuError> {
        let Value { rows, columns, .. } = *self.graph.value(exact);
        let work = ElementWork::Join { first: self.span(exact), second: None, split: columns };
        let extent = Extent { columns, rows, row_count: self.frame.exact_count };
        let launch = ElementsLaunch { work, result: self.span(amended), extent };
        launch.dispatch(self.compiler, &node.label, node.step)
    }
}

impl Emitter<'_> {
    fn attention_frame(&self, rows: Rows) -> FrameAddresses {
        let StepAddresses { frame, tables, tiles, outputs, .. } = self.frame;
        let picks = match rows {
            Rows::Tokens | Rows::Soft => 0,
            Rows::Outputs => ((outputs - frame) / 4) as u32,
        };
        FrameAddresses { frame, tables, tiles, picks }
    }

    fn cache(&self, id: CacheId) -> CacheSpan {
        let cache = self.plan.cache(id);
        let ring = cache.window.map_or(0, |window| self.options.ring_length(window) / BLOCK);
        CacheSpan {
            span: self.caches[id.0],
            kind: self.options.kv,
            heads: cache.kv_heads,
            dim: cache.head_dim,
            ring_blocks: ring as u32,
        }
    }
}

/// Turns the operands of a launch over some rows of the step into addresses.
struct At<'a> {
    emitter: &'a Emitter<'a>,
    rows: Rows,
}

impl Visitor<Ids, Addresses> for At<'_> {
    fn rows(&mut self, _: Role, rows: ValueId) -> Span {
        self.emitter.span(rows)
    }

    fn operand(&mut self, _: Role, operand: OperandValue) -> Operand {
        self.emitter.operand(operand)
    }

    fn form(&mut self, form: Form) -> Operand {
        self.emitter.form(form)
    }

    fn vector(&mut self, vector: WeightId) -> u64 {
        self.emitter.weights.vector(vector)
    }

    fn matrix(&mut self, matrix: WeightId) -> Matrix {
        self.emitter.weights.matrix(self.emitter.plan, &[matrix])
    }

    fn joint(&mut self, joint: &Joint, first: usize) -> Matrix {
        let all = self.emitter.weights.matrix(self.emitter.plan, &joint.weights);
        all.part(first, all.rows - first)
    }

    fn cache(&mut self, _: Role, cache: CacheId) -> CacheSpan {
        self.emitter.cache(cache)
    }

    fn turns(&mut self, (dim, rope): (usize, Rope)) -> u64 {
        self.emitter.ropes.address(dim, rope)
    }

    fn frame(&mut self, (): ()) -> FrameAddresses {
        self.emitter.attention_frame(self.rows)
    }

    fn shared(&mut self, _: Role, shared: Shared) -> Span {
        match shared {
            Shared::Counters(bytes) => {
                assert!(bytes <= MatmulLaunch::COUNTER_BYTES, "{bytes} bytes of counters");
                Span { bytes: bytes as u64, ..self.emitter.split_scratch }
            }
            Shared::AttentionCounters => self.emitter.counters,
            Shared::Partials(id) => self.emitter.span(id),
        }
    }

    fn numbers(&mut self, numbers: Numbers) -> u64 {
        match numbers {
            Numbers::Frame => self.emitter.frame.frame,
            Numbers::Outputs => self.emitter.frame.outputs,
        }
    }

    fn unit(&mut self, (): (), joint: &Joint) -> f32 {
        self.emitter.weights.unit(joint.weights[0])
    }

    fn read_from(&mut self, rows: ValueId, first: usize) -> Span {
        self.emitter.span_after(rows, first)
    }

    fn extent(&mut self, (): (), like: ValueId) -> Extent {
        Extent {
            columns: self.emitter.graph.value(like).columns,
            rows: self.emitter.graph.width.of(self.rows),
            row_count: self.emitter.row_count(self.rows),
        }
    }
}
