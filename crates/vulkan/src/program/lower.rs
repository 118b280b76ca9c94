//! From a Plan's steps to launches.
//!
//! Every operation has a launch of its own. Where a neighbour can do its work on the way, it does: norms, gated products and
//! attention hand their rows on as the operand that the next product takes; the work on the heads moves into attention where each
//! row is of another sequence, and at one row the norm into the product, so that a layer is five launches.

use trine_model::{BufferId, Op, Plan, Product, Rows, WeightId, Width};

use super::Attended;
use super::graph::{
    AttendWork, ElementsKind, Graph, HeadsWork, Input, Node, OperandValue, Output, RowsKind,
    ValueId, Work,
};
use crate::kernels::attention::AttentionShape;
use crate::kernels::operand::{BLOCK, GROUP, OperandKind};
use crate::weights::{Joint, norm_before};

/// What the device's kernels want.
pub(super) trait Choices {
    /// The operand of a product for `rows` rows.
    fn operand(&self, joint: &Joint, rows: usize) -> OperandKind;
    /// Whether a product can norm its input itself.
    fn can_norm(&self, joint: &Joint, rows: usize) -> bool;
    /// Whether a gated product can hand its result on as an operand.
    fn can_hand_on(&self, joint: &Joint, rows: usize) -> bool;
    /// Whether a gated product hands its result on interleaved to the product `next`, its only reader.
    fn interleaves(&self, gated: &Joint, next: &Joint, rows: usize) -> bool;
    /// Whether attention can give its result in halves.
    fn attends_in_halves(&self, shape: &AttentionShape, attended: Attended) -> bool;
    /// Rows of memory that buffers and operands of `rows` rows take.
    fn allocated(&self, rows: usize) -> usize;
    /// Bytes of attention's partial results.
    fn partial_bytes(&self, work: &AttendWork, rows: usize) -> usize;
}

/// A norm that waits for the product that does it.
struct Pending {
    buffer: BufferId,
    input: Input,
}

/// A Plan on its way to launches.
pub(super) struct Lowering<'a> {
    plan: &'a Plan,
    width: Width,
    attended: Attended,
    choices: &'a dyn Choices,
    graph: Graph,
    /// Where the f32 rows of each buffer are.
    plain: Vec<Option<ValueId>>,
    /// Where they are as an operand.
    operands: Vec<Option<OperandValue>>,
    pending: Option<Pending>,
    /// Work on the heads that waits for the attention that does it.
    heads: Option<HeadsWork>,
    step: usize,
}

impl<'a> Lowering<'a> {
    /// The launches of a Plan for a width.
    pub(super) fn lower(
        plan: &'a Plan,
        width: Width,
        attended: Attended,
        choices: &'a dyn Choices,
    ) -> Graph {
        let mut lowering = Lowering {
            plan,
            width,
            attended,
            choices,
            graph: Graph::default(),
            plain: vec![None; plan.buffers.len()],
            operands: vec![None; plan.buffers.len()],
            pending: None,
            heads: None,
            step: 0,
        };
        for input in &plan.inputs {
            let value = lowering.fresh_plain(input.buffer);
            lowering.graph.inputs.push(value);
        }
        for (index, step) in plan.steps.iter().enumerate() {
            lowering.step = index;
            if width.of(plan.rows(&step.op)) > 0 {
                lowering.op(&step.op);
            }
        }
        for id in &plan.outputs {
            let has_rows = width.of(plan.buffer(*id).rows) > 0;
            lowering.graph.outputs.push(has_rows.then(|| lowering.plain(*id)));
        }
        lowering.graph
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Embed { table, scale, output } => {
                let output = self.fresh_plain(*output);
                self.push(Rows::Tokens, Work::Embed { table: *table, scale: *scale, output });
            }
            Op::MatMul { input, products } => self.matmul(op, *input, products),
            Op::GatedMatMul { input, output, .. } => self.gated(op, *input, *output),
            Op::Norm { .. } | Op::NormAdd { .. } | Op::NormAddNorm { .. } => self.norm(op),
            Op::HeadNorm { .. }
            | Op::Rotate { .. }
            | Op::StoreKv { .. }
            | Op::PrepareQkv { .. } => {
                self.heads(op);
            }
            Op::Attend { .. } => self.attend(op),
            Op::Geglu { gate, up, output } => {
                let kind = ElementsKind::Geglu { gate: self.plain(*gate), up: self.plain(*up) };
                let result = self.fresh_plain(*output);
                self.elements(*output, kind, result);
            }
            Op::Add { source, target } => {
                let kind = ElementsKind::Add { source: self.plain(*source) };
                let result = self.changed_plain(*target);
                self.elements(*target, kind, result);
            }
            Op::Softcap { buffer, cap } => {
                let result = self.changed_plain(*buffer);
                self.elements(*buffer, ElementsKind::Softcap { cap: *cap }, result);
            }
            Op::Select { input, output } => self.select(*input, *output),
        }
    }

    fn push(&mut self, rows: Rows, work: Work) {
        let label = self.plan.steps[self.step].label.clone();
        self.graph.nodes.push(Node { step: self.step, label, rows, work });
    }

    fn value(&mut self, bytes: usize) -> ValueId {
        self.graph.values.push(bytes);
        ValueId(self.graph.values.len() - 1)
    }

    fn rows_of(&self, id: BufferId) -> Rows {
        self.plan.buffer(id).rows
    }

    /// Whether the f32 rows of a buffer are wanted after the last launch.
    fn is_output(&self, id: BufferId) -> bool {
        self.plan.outputs.contains(&id)
    }

    /// Rows of a buffer in memory.
    fn allocated(&self, id: BufferId) -> usize {
        self.choices.allocated(self.width.of(self.rows_of(id)))
    }

    /// The f32 rows of a buffer that was written.
    fn plain(&self, id: BufferId) -> ValueId {
        self.plain[id.0].expect("a Plan writes a buffer before it reads it")
    }

    /// New f32 rows of a buffer.
    fn fresh_plain(&mut self, id: BufferId) -> ValueId {
        let bytes = 4 * self.allocated(id) * self.plan.buffer(id).columns;
        let value = self.value(bytes);
        self.plain[id.0] = Some(value);
        self.operands[id.0] = None;
        value
    }

    /// The f32 rows of a buffer that is about to be changed in place.
    fn changed_plain(&mut self, id: BufferId) -> ValueId {
        self.operands[id.0] = None;
        self.plain(id)
    }

    fn fresh_operand(&mut self, id: BufferId, kind: OperandKind) -> OperandValue {
        let (rows, columns) = (self.allocated(id), self.plan.buffer(id).columns);
        let codes = self.value(rows * kind.code_bytes(columns));
        let scales = self.value(rows * kind.scale_bytes(columns));
        let operand = OperandValue { kind, codes, scales };
        self.operands[id.0] = Some(operand);
        operand
    }

    fn elements(&mut self, id: BufferId, kind: ElementsKind, result: ValueId) {
        let columns = self.plan.buffer(id).columns;
        self.push(self.rows_of(id), Work::Elements { kind, result, columns });
    }

    /// With one row, the row that is selected of a buffer is that row. A row that is itself an output may not be shared: what
    /// was selected may be changed.
    fn is_identity(&self, input: BufferId) -> bool {
        self.width == Width { tokens: 1, outputs: 1 } && !self.is_output(input)
    }

    fn select(&mut self, input: BufferId, output: BufferId) {
        if self.is_identity(input) {
            self.plain[output.0] = self.plain[input.0];
            self.operands[output.0] = self.operands[input.0];
            return;
        }
        let kind = ElementsKind::Select { source: self.plain(input) };
        let result = self.fresh_plain(output);
        self.elements(output, kind, result);
    }

    /// The steps after this one that read a buffer.
    fn readers(&self, id: BufferId) -> Vec<&'a Op> {
        let mut found = Vec::new();
        for step in &self.plan.steps[self.step + 1..] {
            if self.width.of(self.plan.rows(&step.op)) > 0 && step.op.reads().contains(&id) {
                match &step.op {
                    Op::Select { input, output } if self.is_identity(*input) => {
                        found.extend(self.readers(*output));
                    }
                    op => found.push(op),
                }
            }
        }
        found
    }

    /// The operands that an operation wants of a buffer.
    fn wanted(&self, op: &Op) -> Vec<OperandKind> {
        let rows = self.width.of(self.plan.rows(op));
        let joints = Joint::all(self.plan, op);
        if joints.is_empty() {
            return vec![OperandKind::Plain];
        }
        joints.iter().map(|joint| self.choices.operand(joint, rows)).collect()
    }

    /// What has to be made of a buffer for those that read it: whether f32 rows, and which operand.
    fn demands(&self, id: BufferId) -> (bool, Option<OperandKind>) {
        let kinds: Vec<OperandKind> =
            self.readers(id).into_iter().flat_map(|op| self.wanted(op)).collect();
        let kind = kinds.iter().copied().find(|&kind| kind != OperandKind::Plain);
        let plain = kind.is_none() || kinds.iter().any(|&other| Some(other) != kind);
        (plain || self.is_output(id), kind)
    }

    /// Makes what is demanded of a buffer.
    fn made(&mut self, id: BufferId) -> (Option<ValueId>, Option<OperandValue>) {
        let (plain, kind) = self.demands(id);
        self.plain[id.0] = None;
        let plain = plain.then(|| self.fresh_plain(id));
        let operand = kind.map(|kind| self.fresh_operand(id, kind));
        (plain, operand)
    }

    fn norm(&mut self, op: &Op) {
        let (input, epsilon, kind, output) = match *op {
            Op::Norm { input, weight, epsilon, output } => {
                (input, epsilon, RowsKind::Norm { weight }, Some(output))
            }
            Op::NormAdd { input, weight, epsilon, target } => {
                let target = self.changed_plain(target);
                (input, epsilon, RowsKind::NormAdd { weight, target }, None)
            }
            Op::NormAddNorm { input, weight, epsilon, target, next_weight, output } => {
                if self.product_norms(output) {
                    let source = self.plain(input);
                    let old = self.plain(target);
                    let updated = self.fresh_plain(target);
                    let input = Input::NormAddNorm {
                        source,
                        weight,
                        target: old,
                        updated,
                        next_weight,
                        epsilon,
                    };
                    self.pending = Some(Pending { buffer: output, input });
                    return;
                }
                let target = self.changed_plain(target);
                let kind = RowsKind::NormAddNorm { weight, target, next_weight };
                (input, epsilon, kind, Some(output))
            }
            _ => unreachable!("only norms come here"),
        };
        let source = self.plain(input);
        if let (RowsKind::Norm { weight }, Some(output)) = (kind, output)
            && self.product_norms(output)
        {
            let input = Input::Norm { source, weight, epsilon };
            self.pending = Some(Pending { buffer: output, input });
            return;
        }
        let (plain, operand) = output.map_or((None, None), |output| self.made(output));
        let columns = self.plan.buffer(input).columns;
        let work = Work::Rows { kind, source, columns, epsilon, plain, operand };
        self.push(self.rows_of(input), work);
    }

    /// Whether the norm that gives a buffer can be left to the product after it.
    fn product_norms(&self, output: BufferId) -> bool {
        let next = self.plan.steps[self.step + 1..].first();
        let [reader] = self.readers(output)[..] else { return false };
        let follows = next.is_some_and(|step| std::ptr::eq(&step.op, reader));
        let [joint] = &Joint::all(self.plan, reader)[..] else { return false };
        let rows = self.width.of(self.plan.rows(reader));
        follows && !self.is_output(output) && self.choices.can_norm(joint, rows)
    }

    /// A product's input in the form that it takes.
    fn input(&mut self, id: BufferId, joint: &Joint) -> Input {
        if let Some(pending) = self.pending.take_if(|pending| pending.buffer == id) {
            return pending.input;
        }
        let rows = self.width.of(self.rows_of(id));
        let kind = self.choices.operand(joint, rows);
        if kind == OperandKind::Plain {
            let made = self.operands[id.0].filter(|made| made.kind == OperandKind::Interleaved);
            return made.map_or_else(|| Input::Plain(self.plain(id)), Input::Operand);
        }
        if let Some(operand) = self.operands[id.0].filter(|operand| operand.kind == kind) {
            return Input::Operand(operand);
        }
        let source = self.plain(id);
        let operand = self.fresh_operand(id, kind);
        let work = Work::Rows {
            kind: RowsKind::Convert,
            source,
            columns: self.plan.buffer(id).columns,
            epsilon: 0.0,
            plain: None,
            operand: Some(operand),
        };
        self.push(self.rows_of(id), work);
        Input::Operand(operand)
    }

    fn matmul(&mut self, op: &Op, input: BufferId, products: &[Product]) {
        for joint in Joint::all(self.plan, op) {
            let source = self.input(input, &joint);
            let output = |id: &WeightId| {
                let own = products.iter().find(|product| product.weight == *id);
                own.expect("a joint is of the operation's matrices").output
            };
            let outputs = joint.weights.iter().map(output).collect::<Vec<_>>();
            let outputs = outputs.into_iter().map(|output| self.fresh_plain(output)).collect();
            self.product(input, joint, source, Output::Parts(outputs));
        }
    }

    fn product(&mut self, id: BufferId, joint: Joint, input: Input, output: Output) {
        let weights = joint.weights;
        self.push(self.rows_of(id), Work::Product { weights, input, output });
    }

    fn gated(&mut self, op: &Op, input: BufferId, output: BufferId) {
        let mut joints = Joint::all(self.plan, op);
        if joints.len() > 1 {
            return self.gated_apart(joints, input, output);
        }
        let joint = joints.remove(0);
        let rows = self.width.of(self.rows_of(input));
        let source = self.input(input, &joint);
        let hands_on = self.choices.can_hand_on(&joint, rows);
        let fixed = matches!(self.demands(output).1, Some(OperandKind::Fixed16));
        let (plain, operand) = if (hands_on && fixed) || self.gives_halves(output, &joint) {
            self.made(output)
        } else if self.interleaves(output, &joint) {
            self.plain[output.0] = None;
            (None, Some(self.fresh_operand(output, OperandKind::Interleaved)))
        } else {
            (Some(self.fresh_plain(output)), None)
        };
        self.product(input, joint, source, Output::Gated { plain, operand });
    }

    /// Gate and up whose formats differ: a product each, and their activation by itself.
    fn gated_apart(&mut self, joints: Vec<Joint>, input: BufferId, output: BufferId) {
        let bytes = 4 * self.allocated(output) * self.plan.buffer(output).columns;
        let halves: Vec<ValueId> = joints
            .into_iter()
            .map(|joint| {
                let source = self.input(input, &joint);
                let value = self.value(bytes);
                self.product(input, joint, source, Output::Parts(vec![value]));
                value
            })
            .collect();
        let [gate, up] = halves[..] else { unreachable!("a gated product has two matrices") };
        let result = self.fresh_plain(output);
        self.elements(output, ElementsKind::Geglu { gate, up }, result);
    }

    /// Whether a gated product gives its result in halves, and as nothing else: on matrix units, and with a norm before it,
    /// from which follows how large a result can be.
    fn gives_halves(&self, output: BufferId, joint: &Joint) -> bool {
        let rows = self.width.of(self.rows_of(output));
        self.demands(output) == (false, Some(OperandKind::Halves))
            && self.choices.operand(joint, rows) == OperandKind::Halves
            && self.plan.buffer(output).columns.is_multiple_of(GROUP)
            && norm_before(self.plan, joint.weights[0]).is_some()
    }

    /// Whether a gated product hands its result on interleaved.
    fn interleaves(&self, output: BufferId, joint: &Joint) -> bool {
        let [reader @ Op::MatMul { .. }] = self.readers(output)[..] else { return false };
        // Several matrices might not become one product.
        let [next] = &Joint::all(self.plan, reader)[..] else { return false };
        let rows = self.width.of(self.plan.rows(reader));
        self.width.of(self.rows_of(output)) == rows
            && !self.is_output(output)
            && next.weights.len() == 1
            && self.choices.interleaves(joint, next, rows)
    }

    fn heads(&mut self, op: &Op) {
        let plan = self.plan;
        let heads_of = |id: BufferId, heads: usize| trine_model::Heads {
            query: heads,
            kv: heads,
            dim: plan.buffer(id).columns / heads,
        };
        let none = |heads| HeadsWork {
            query: None,
            key: None,
            value: None,
            query_norm: None,
            key_norm: None,
            heads,
            epsilon: 0.0,
            rope: None,
            cache: None,
        };
        let work = match *op {
            Op::HeadNorm { buffer, weight, heads, epsilon } => HeadsWork {
                query: Some(self.changed_plain(buffer)),
                query_norm: Some(weight),
                epsilon,
                ..none(heads_of(buffer, heads))
            },
            Op::Rotate { buffer, heads, rope } => HeadsWork {
                query: Some(self.changed_plain(buffer)),
                rope: Some(rope),
                ..none(heads_of(buffer, heads))
            },
            Op::StoreKv { key, value, cache } => HeadsWork {
                key: Some(self.plain(key)),
                value: Some(self.plain(value)),
                cache: Some(cache),
                ..none(heads_of(key, plan.cache(cache).kv_heads))
            },
            Op::PrepareQkv {
                query,
                key,
                value,
                query_norm,
                key_norm,
                heads,
                epsilon,
                rope,
                cache,
            } => HeadsWork {
                query: Some(self.changed_plain(query)),
                key: Some(self.plain(key)),
                value: Some(self.plain(value)),
                query_norm: Some(query_norm),
                key_norm: Some(key_norm),
                heads,
                epsilon,
                rope: Some(rope),
                cache: Some(cache),
            },
            _ => unreachable!("only work on heads comes here"),
        };
        let next = plan.steps.get(self.step + 1).map(|step| &step.op);
        let goes_on = match (op, next) {
            (
                Op::PrepareQkv { query, cache, .. },
                Some(Op::Attend { query: next, cache: read, .. }),
            ) => {
                let only_attends = self.readers(*query).len() == 1 && !self.is_output(*query);
                query == next && cache == read && only_attends
            }
            _ => false,
        };
        if goes_on && self.attended == Attended::Sequences {
            self.heads = Some(work);
        } else {
            self.push(Rows::Tokens, Work::Heads(work));
        }
    }

    fn attend(&mut self, op: &Op) {
        let Op::Attend { query, cache, heads, scale, window, output } = *op else {
            unreachable!("only attention comes here")
        };
        let query = self.plain(query);
        let fixed = self.width.tokens == 1
            && heads.dim.is_multiple_of(BLOCK)
            && matches!(self.demands(output).1, Some(OperandKind::Fixed16));
        let shape = AttentionShape { heads, scale, window };
        let halves = self.demands(output) == (false, Some(OperandKind::Halves))
            && self.choices.attends_in_halves(&shape, self.attended);
        let (plain, operand) = if fixed || halves {
            self.made(output)
        } else {
            (Some(self.fresh_plain(output)), None)
        };
        let fused = self.heads.take();
        let mut work = AttendWork {
            query,
            cache,
            heads,
            scale,
            window,
            fused,
            plain,
            operand,
            partials: None,
        };
        let bytes = self.choices.partial_bytes(&work, self.width.tokens);
        if self.attended != Attended::Tiles && bytes > 0 {
            work.partials = Some(self.value(bytes));
        }
        self.push(Rows::Tokens, Work::Attend(work));
    }
}

#[cfg(test)]
mod tests;
