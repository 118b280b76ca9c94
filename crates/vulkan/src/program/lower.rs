//! From a Plan's steps to launches: a plain translation.
//!
//! Every operation becomes a launch of its own that reads and writes f32 rows, and every product
//! that takes an operand is preceded by a launch that converts its rows. [`rules`] then let
//! neighbours take over each other's work.

use trine_model::away::{Away, aways};
use trine_model::{
    BufferId, CacheId, Goal, Op, Plan, Product, Rope, Rows, Step, Term, WeightId, Width,
};

use super::frame::tile_rows;
use super::graph::{
    Form, Graph, Home, Ids, Input, MadeValue, Node, Output, ProductWork, ValueId, Work, whole,
};
use super::lent::LentWork;
use super::loans::places;
use super::passes::{Attended, PassKey};
use super::rules;
use super::selection::Selection;
use super::values::{Numbers, Shared};
use crate::capabilities::Capabilities;
use crate::error::GpuError;
use crate::kernels::attention::{Attention, DecodeLaunch, MatrixLaunch, Splits, TileLaunch};
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::embed::EmbedLaunch;
use crate::kernels::experts::chooses;
use crate::kernels::heads::{DIM_MAX, Factors, HeadsLaunch, Rotated, Stored};
use crate::kernels::limits::ValueLimits;
use crate::kernels::mix::{MixLaunch, Stream};
use crate::kernels::operand::OperandKind;
use crate::kernels::product::{self, Segment};
use crate::kernels::rows::{LayerNorm, RowLimits, RowWork, RowsLaunch, Target};
use crate::kernels::sum::{SumLaunch, SumTerm};
use crate::weights::Joint;

mod expert_launches;

/// Checks that each operation of a Plan has a kernel.
///
/// # Errors
/// [`GpuError::NoKernel`] with the first operation that has none.
pub(super) fn check(plan: &Plan, capabilities: &Capabilities) -> Result<(), GpuError> {
    match plan.steps.iter().find(|step| lacks_kernel(plan, &step.op, capabilities)) {
        Some(step) => Err(GpuError::NoKernel { operation: step.op.name() }),
        None => Ok(()),
    }
}

/// Heads are worked on in pairs of elements, by a limited number of invocations; experts are chosen
/// by one workgroup, in its shared memory.
fn lacks_kernel(plan: &Plan, op: &Op, capabilities: &Capabilities) -> bool {
    match op {
        // Such a head is a whole row.
        Op::HeadNorm { weight: None, heads: 1, .. } => false,
        Op::HeadNorm { buffer, heads, .. } | Op::Rotate { buffer, heads, .. } => {
            !is_worked_on_in_pairs(plan.buffer(*buffer).columns / heads)
        }
        Op::RotateByPosition { buffer, heads, .. } => {
            let dim = plan.buffer(*buffer).columns / heads;
            // Each half has pairs of its own.
            !is_worked_on_in_pairs(dim) || !dim.is_multiple_of(4)
        }
        Op::Route { logits, chosen, .. } => {
            let [experts, used] = [logits, chosen].map(|id| plan.buffer(*id).columns);
            !chooses(capabilities, experts, used)
        }
        _ => false,
    }
}

/// Returns whether the kernels for heads take heads with this number of elements.
fn is_worked_on_in_pairs(dim: usize) -> bool {
    dim <= DIM_MAX && dim.is_multiple_of(2)
}

/// Returns the launches of a Plan for a pass.
///
/// # Errors
/// [`GpuError::NoKernel`] if the Plan has an operation without kernels, [`GpuError::Unwritten`] if
/// it reads a buffer that it has not written.
pub(super) fn lower(plan: &Plan, key: PassKey, selection: &Selection) -> Result<Graph, GpuError> {
    lower_lent(plan, key, 0, selection)
}

/// Returns the launches of a Plan that is lent to a partner, whose first rows, up to `exact`, are
/// no bulk rows.
///
/// # Errors
/// As [`lower`].
pub(super) fn lower_lent(
    plan: &Plan,
    key: PassKey,
    exact: usize,
    selection: &Selection,
) -> Result<Graph, GpuError> {
    let mut graph = translate(plan, key, exact, selection)?;
    rules::apply(&mut graph, selection);
    Ok(graph)
}

/// Returns the launches before any rule is applied.
pub(super) fn translate(
    plan: &Plan,
    key: PassKey,
    exact: usize,
    selection: &Selection,
) -> Result<Graph, GpuError> {
    let PassKey { width, attended, goal } = key;
    let graph = Graph::new(width, attended);
    let current = vec![None; plan.buffers.len()];
    let serving = plan.serving(goal);
    let mut lowering = Lowering {
        plan,
        goal,
        exact,
        serving: &serving,
        selection,
        graph,
        current,
        tile_rows: tile_rows(plan),
        step: 0,
    };
    for (index, input) in plan.inputs.iter().enumerate() {
        let value = lowering.like(input.buffer, Home::Host(index));
        lowering.current[input.buffer.0] = Some(value);
    }
    let is_wanted = |step: usize| serving[step] && width.of(plan.rows(&plan.steps[step].op)) > 0;
    let aways = aways(plan);
    for (index, step) in plan.steps.iter().enumerate() {
        let mut begun = aways.iter().filter(|away| away.begin == index && is_wanted(away.step));
        // The rows are handed over at the end of the step before.
        begun.try_for_each(|away| lowering.hand_over(away))?;
        lowering.step = index;
        if is_wanted(index) {
            lowering.op(&step.op)?;
        }
    }
    for (index, &id) in plan.outputs.iter().enumerate() {
        let is_given = plan.gives(goal, index) && width.of(plan.buffer(id).rows) > 0;
        let value = is_given.then(|| lowering.rows(id)).transpose()?;
        lowering.graph.outputs.push(value);
    }
    Ok(lowering.graph)
}

/// A Plan on its way to launches.
struct Lowering<'a> {
    plan: &'a Plan,
    goal: Goal,
    /// The first rows that may be no bulk rows.
    exact: usize,
    /// The steps that serve the goal.
    serving: &'a [bool],
    selection: &'a Selection,
    graph: Graph,
    /// The value that each buffer holds at this step; `None` before the first one.
    current: Vec<Option<ValueId>>,
    /// Most rows of a tile of the frame.
    tile_rows: usize,
    step: usize,
}

impl Lowering<'_> {
    fn op(&mut self, op: &Op) -> Result<(), GpuError> {
        match *op {
            _ if lacks_kernel(self.plan, op, self.selection.capabilities()) => {
                return Err(GpuError::NoKernel { operation: op.name() });
            }
            Op::Route { .. }
            | Op::GatedExperts { .. }
            | Op::SumExperts { .. }
            | Op::Search { .. } => {
                self.experts(op)?;
            }
            Op::Away { ref steps } => self.collect(op, steps)?,
            Op::Embed { table, scale, output } => {
                self.embed(table, scale, 0, output);
            }
            Op::PositionEmbedding { table, side, output } => {
                self.embed(table, 1.0, side, output);
            }
            Op::MatMul { input, ref products } => self.matmul(op, input, products)?,
            Op::GatedMatMul { input, output, .. } => self.gated(op, input, output)?,
            Op::Norm { .. }
            | Op::LayerNorm { .. }
            | Op::NormAdd { .. }
            | Op::NormAddNorm { .. } => self.norm(op)?,
            Op::HeadNorm { .. }
            | Op::Rotate { .. }
            | Op::RotateByPosition { .. }
            | Op::StoreKv { .. }
            | Op::PrepareQkv { .. } => self.heads(op)?,
            Op::Attend { query, cache, heads, scale, window, ahead, output } => {
                let query = self.rows(query)?;
                let tile_rows = self.tile_rows;
                let attention = Attention { heads, scale, window, ahead, tile_rows };
                let work = self.attend(query, cache, attention, output);
                self.push(self.rows_of(output), work);
            }
            Op::Geglu { .. }
            | Op::Add { .. }
            | Op::Softcap { .. }
            | Op::Bias { .. }
            | Op::Gelu { .. }
            | Op::Pool { .. }
            | Op::Insert { .. }
            | Op::Clamp { .. }
            | Op::Join { .. }
            | Op::Scale { .. } => self.element_op(op)?,
            Op::Select { input, output } => self.select(input, output)?,
            Op::Cutoff { buffer, deviations } => {
                let (source, result) = self.changed(buffer)?;
                let (work, made) = (RowWork::Cutoff { deviations }, MadeValue::Rows(result));
                let launch = RowsLaunch::of(work, source, 0.0, made);
                self.push(self.rows_of(buffer), Work::Rows(launch));
            }
            Op::Rescale { buffer, like, floor } => {
                let like = self.rows(like)?;
                let (source, result) = self.changed(buffer)?;
                let (work, made) = (RowWork::Rescale { like, floor }, MadeValue::Rows(result));
                let launch = RowsLaunch::of(work, source, 0.0, made);
                self.push(self.rows_of(buffer), Work::Rows(launch));
            }
            Op::Sum { ref terms, output } => self.sum(terms, output)?,
            Op::Mix { ref streams, ref sources, coefficients, bias, scale } => {
                let streams = self.streams(streams)?;
                let extent = ();
                let sources = sources.iter().map(|&source| self.rows(source));
                let sources = sources.collect::<Result<_, _>>()?;
                let coefficients = self.rows(coefficients)?;
                let work = MixLaunch { streams, sources, coefficients, bias, scale, extent };
                self.push(self.plan.rows(op), Work::Mix(work));
            }
        }
        Ok(())
    }

    fn push(&mut self, rows: Rows, work: Work) {
        let label = self.plan.steps[self.step].label.clone();
        self.graph.nodes.push(Node { step: self.step, label, rows, work });
    }

    fn rows_of(&self, id: BufferId) -> Rows {
        self.plan.buffer(id).rows
    }

    /// Number of rows of a buffer.
    fn count(&self, id: BufferId) -> usize {
        self.graph.width.of(self.rows_of(id))
    }

    /// A new value with the shape of a buffer and f32 rows.
    fn like(&mut self, id: BufferId, home: Home) -> ValueId {
        self.graph.fresh_rows(self.count(id), self.plan.buffer(id).columns, home)
    }

    /// Returns the value that a buffer holds.
    fn rows(&self, id: BufferId) -> Result<ValueId, GpuError> {
        let unwritten = || GpuError::Unwritten { buffer: self.plan.buffer(id).name.clone() };
        self.current[id.0].ok_or_else(unwritten)
    }

    /// Gives a buffer a new value, which it holds from here on.
    fn fresh(&mut self, id: BufferId) -> ValueId {
        let value = self.like(id, Home::Own);
        self.current[id.0] = Some(value);
        value
    }

    /// Returns the values that a buffer holds before and after a change in place.
    fn changed(&mut self, id: BufferId) -> Result<(ValueId, ValueId), GpuError> {
        let before = self.rows(id)?;
        let after = self.like(id, Home::Of(before));
        self.current[id.0] = Some(after);
        Ok((before, after))
    }

    /// Rows of a table, for tokens, or for places if the grid has a side.
    fn embed(&mut self, table: WeightId, factor: f32, side: usize, output: BufferId) {
        let (frame, target) = (Numbers::Frame, self.fresh(output));
        let (soft, extent) = (None, ());
        let launch = EmbedLaunch { table, frame, target, extent, factor, soft, side };
        self.push(Rows::Tokens, Work::Embed(launch));
    }

    /// An operation on elements.
    fn element_op(&mut self, op: &Op) -> Result<(), GpuError> {
        match *op {
            Op::Geglu { gate, up, first, output } => {
                let (gate, up) = (self.rows(gate)?, self.rows(up)?);
                let result = self.fresh(output);
                let stride = self.graph.value(up).columns;
                self.elements(output, ElementWork::Geglu { gate, up, first, stride }, result);
            }
            Op::Add { source, target } => {
                let source = self.rows(source)?;
                let (old, result) = self.changed(target)?;
                self.elements(target, ElementWork::Add { source, target: old }, result);
            }
            Op::Softcap { buffer, cap } => {
                let (target, result) = self.changed(buffer)?;
                self.elements(buffer, ElementWork::Softcap { cap, target }, result);
            }
            Op::Bias { buffer, weight } => {
                let (target, result) = self.changed(buffer)?;
                self.elements(buffer, ElementWork::Bias { bias: weight, target }, result);
            }
            Op::Gelu { buffer } => {
                let (target, result) = self.changed(buffer)?;
                self.elements(buffer, ElementWork::Gelu { target }, result);
            }
            Op::Pool { input, count, output } => {
                let source = self.rows(input)?;
                let result = self.fresh(output);
                let picks = Numbers::Outputs;
                self.elements(output, ElementWork::Pool { source, picks, count }, result);
            }
            Op::Clamp { input, low, high, output } => {
                let source = self.rows(input)?;
                let result = self.fresh(output);
                self.elements(output, ElementWork::Clamp { source, low, high }, result);
            }
            Op::Insert { source, target } => {
                let source = self.rows(source)?;
                let (old, result) = self.changed(target)?;
                let (id, frame, target) = (target, Numbers::Frame, old);
                self.elements(id, ElementWork::Insert { source, frame, target }, result);
            }
            Op::Join { ref parts, output } => {
                let first = self.rows(parts[0])?;
                let second = parts.get(1).map(|&part| self.rows(part)).transpose()?;
                let split = self.graph.value(first).columns;
                let result = self.fresh(output);
                self.elements(output, ElementWork::Join { first, second, split }, result);
            }
            Op::Scale { input, weight, output } => {
                let source = self.rows(input)?;
                let result = self.fresh(output);
                self.elements(output, ElementWork::Scale { source, weight }, result);
            }
            _ => unreachable!("only work on elements comes here"),
        }
        Ok(())
    }

    fn elements(&mut self, id: BufferId, work: ElementWork<Ids>, result: ValueId) {
        self.push(self.rows_of(id), Work::Elements(ElementsLaunch { work, result, extent: () }));
    }

    fn sum(&mut self, terms: &[Term], output: BufferId) -> Result<(), GpuError> {
        let term = |term: &Term| Ok(SumTerm::of(self.rows(term.buffer)?, term.factor));
        let terms = terms.iter().map(term).collect::<Result<_, GpuError>>()?;
        let result = self.fresh(output);
        self.push(self.rows_of(output), Work::Sum(SumLaunch::of(terms, result)));
        Ok(())
    }

    /// Returns what streams hold before a mix, and gives them new values.
    fn streams(&mut self, streams: &[trine_model::Stream]) -> Result<Vec<Stream<Ids>>, GpuError> {
        let inputs = streams.iter().map(|stream| self.rows(stream.input));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let outputs = streams.iter().map(|stream| self.fresh(stream.output));
        let pair = |(input, output)| Stream { input, output };
        Ok(inputs.into_iter().zip(outputs).map(pair).collect())
    }

    fn select(&mut self, input: BufferId, output: BufferId) -> Result<(), GpuError> {
        let source = self.rows(input)?;
        let later = self.plan.steps.iter().zip(self.serving).skip(self.step + 1);
        let is_last = !self.plan.outputs_of(self.goal).contains(&input)
            && !later
                .filter(|(_, serves)| **serves)
                .any(|(step, _)| step.op.touches().contains(&input));
        // With one row, the row that is wanted is that row. It may be changed in place if nothing
        // reads the old one.
        if self.graph.width == (Width { tokens: 1, outputs: 1 }) && is_last {
            self.current[output.0] = Some(source);
            return Ok(());
        }
        let result = self.fresh(output);
        let picks = Numbers::Outputs;
        self.elements(output, ElementWork::Select { source, picks }, result);
        Ok(())
    }

    fn norm(&mut self, op: &Op) -> Result<(), GpuError> {
        let (input, launch) = match *op {
            Op::Norm { input, weight, epsilon, output } => {
                let (source, work) = (self.rows(input)?, RowWork::Norm { weight: Some(weight) });
                let made = MadeValue::Rows(self.fresh(output));
                (input, RowsLaunch::of(work, source, epsilon, made))
            }
            Op::LayerNorm { input, weight, bias, epsilon, output } => {
                let source = self.rows(input)?;
                let made = MadeValue::Rows(self.fresh(output));
                let work = RowWork::LayerNorm(LayerNorm { weight, bias });
                (input, RowsLaunch::of(work, source, epsilon, made))
            }
            Op::NormAdd { input, weight, epsilon, target, scale } => {
                let source = self.rows(input)?;
                let (old, updated) = self.changed(target)?;
                let work = RowWork::NormAdd { weight, target: Target { old, updated }, scale };
                let (within, made) = (RowLimits::NONE, None);
                (input, RowsLaunch { work, source, epsilon, within, made, extent: () })
            }
            Op::NormAddNorm { input, weight, epsilon, target, scale, next_weight, output } => {
                let source = self.rows(input)?;
                let (old, updated) = self.changed(target)?;
                let target = Target { old, updated };
                let work = RowWork::NormAddNorm { weight, target, scale, next_weight };
                let made = MadeValue::Rows(self.fresh(output));
                (input, RowsLaunch::of(work, source, epsilon, made))
            }
            _ => unreachable!("only norms come here"),
        };
        self.push(self.rows_of(input), Work::Rows(launch));
        Ok(())
    }

    /// A product of the rows that a buffer holds, after their conversion if it takes an operand.
    fn product(
        &mut self,
        id: BufferId,
        joint: Joint,
        output: impl FnOnce(&mut Self) -> Output,
    ) -> Result<(), GpuError> {
        self.product_of(id, self.count(id), joint, output)
    }

    /// The same of the first `rows` rows.
    fn product_of(
        &mut self,
        id: BufferId,
        rows: usize,
        joint: Joint,
        output: impl FnOnce(&mut Self) -> Output,
    ) -> Result<(), GpuError> {
        let source = self.rows(id)?;
        let form = match self.selection.operand(&joint, rows) {
            OperandKind::Plain => Form::Rows(source),
            kind => {
                let operand = self.graph.fresh_operand(source, kind);
                let (work, made) = (RowWork::Convert { parts: 1 }, MadeValue::Operand(operand));
                let launch = RowsLaunch::of(work, source, 0.0, made);
                self.push(self.rows_of(id), Work::Rows(launch));
                Form::Operand(operand)
            }
        };
        let output = output(self);
        let kernel = self.selection.product(&joint, rows, false);
        let input = Input::Operand(form);
        let product = product::Product { matrix: joint, width: rows, input, output };
        self.push(self.rows_of(id), Work::Product(ProductWork { kernel, product }));
        Ok(())
    }

    fn matmul(&mut self, op: &Op, input: BufferId, products: &[Product]) -> Result<(), GpuError> {
        for joint in Joint::all(self.selection.capabilities(), self.plan, op) {
            let output = |id: &WeightId| {
                let own = products.iter().find(|product| product.weight == *id);
                own.expect("a joint is of the operation's matrices").output
            };
            let part = |id: &WeightId| (self.plan.weight(*id).rows, output(id));
            let parts: Vec<_> = joint.weights.iter().map(part).collect();
            self.product(input, joint, |lowering| {
                let segment = |(rows, id)| Segment { rows, target: lowering.fresh(id) };
                Output::segments(&parts.into_iter().map(segment).collect::<Vec<_>>())
            })?;
        }
        Ok(())
    }

    /// Hands the rows that a guest reads to the host.
    fn hand_over(&mut self, away: &Away) -> Result<(), GpuError> {
        let op = away.op(self.plan);
        let (inputs, label) = (op.reads(), &self.plan.steps[away.step].label);
        let (places, _) = places(self.plan, &inputs, self.count(inputs[0]));
        for (id, place) in inputs.iter().zip(places) {
            let (first, result) = (self.rows(*id)?, self.like(*id, Home::Handed(place)));
            let split = self.graph.value(first).columns;
            let work = ElementWork::Join { first, second: None, split };
            let work = Work::Elements(ElementsLaunch { work, result, extent: () });
            let (step, rows, label) = (self.step, self.rows_of(*id), label.clone());
            self.graph.nodes.push(Node { step, label, rows, work });
        }
        Ok(())
    }

    /// Adds what a guest computes. A partner's products of rows that are no bulk rows are the
    /// device's: it computes them meanwhile.
    fn collect(&mut self, op: &Op, steps: &[Step]) -> Result<(), GpuError> {
        let (outputs, rows) = (op.writes(), self.plan.rows(op));
        let (places, _) = places(self.plan, &outputs, self.graph.width.of(rows));
        let mut results = Vec::new();
        for (id, place) in outputs.iter().zip(places) {
            let value = self.like(*id, Home::Lent(place));
            self.current[id.0] = Some(value);
            results.push(value);
        }
        let (mut amends, exact_rows) = (Vec::new(), self.exact);
        for step in steps.iter().filter(|_| exact_rows > 0) {
            let Op::MatMul { input, products } = &step.op else {
                unreachable!("a partner computes products")
            };
            for Product { weight, output } in products {
                let columns = self.plan.buffer(*output).columns;
                let exact = self.graph.fresh_rows(exact_rows, columns, Home::Own);
                let joint = Joint::of(self.plan, *weight);
                self.product_of(*input, exact_rows, joint, |_| whole(columns, exact))?;
                amends.push((*output, exact));
            }
        }
        self.push(rows, Work::Lent(LentWork::Collect { results }));
        for (output, exact) in amends {
            let (results, amended) = self.changed(output)?;
            self.push(rows, Work::Lent(LentWork::Amend { exact, results, amended }));
        }
        Ok(())
    }

    /// Adds a gated product. If the formats of gate and up differ, it is a product for each and a
    /// separate activation.
    fn gated(&mut self, op: &Op, input: BufferId, output: BufferId) -> Result<(), GpuError> {
        let mut parts = Vec::new();
        let joints = Joint::all(self.selection.capabilities(), self.plan, op);
        if let [joint] = &joints[..] {
            return self.product(input, joint.clone(), |lowering| {
                Output::Gated(MadeValue::Rows(lowering.fresh(output)))
            });
        }
        for joint in joints {
            self.product(input, joint, |lowering| {
                let part = lowering.like(output, Home::Own);
                parts.push(part);
                whole(lowering.graph.value(part).columns, part)
            })?;
        }
        let [gate, up] = parts[..] else { unreachable!("a gated product has two matrices") };
        let result = self.fresh(output);
        let stride = self.graph.value(up).columns;
        self.elements(output, ElementWork::Geglu { gate, up, first: 0, stride }, result);
        Ok(())
    }

    fn heads(&mut self, op: &Op) -> Result<(), GpuError> {
        let blank = HeadsLaunch {
            frame: (),
            rows: self.graph.width.of(self.plan.rows(op)),
            dim: 0,
            query: None,
            stored: None,
            rope: None,
            side: 0,
            epsilon: 0.0,
            within: [ValueLimits::NONE; 3],
        };
        let launch = match *op {
            Op::HeadNorm { buffer, weight: None, heads: 1, epsilon }
                if !is_worked_on_in_pairs(self.plan.buffer(buffer).columns) =>
            {
                let (source, result) = self.changed(buffer)?;
                let (work, made) = (RowWork::Norm { weight: None }, MadeValue::Rows(result));
                let launch = RowsLaunch::of(work, source, epsilon, made);
                self.push(self.rows_of(buffer), Work::Rows(launch));
                return Ok(());
            }
            Op::HeadNorm { buffer, weight, heads, epsilon } => {
                let norm = weight.map_or(Factors::Ones, Factors::Of);
                let (dim, query) = self.turned(buffer, heads, Some(norm))?;
                HeadsLaunch { dim, query: Some(query), epsilon, ..blank }
            }
            Op::Rotate { buffer, heads, rope } => {
                let (dim, query) = self.turned(buffer, heads, None)?;
                HeadsLaunch { dim, query: Some(query), rope: Some((dim, rope)), ..blank }
            }
            Op::RotateByPosition { buffer, heads, theta, side } => {
                let (dim, query) = self.turned(buffer, heads, None)?;
                let rope = Some((dim / 2, Rope::full(theta, 1.0)));
                HeadsLaunch { dim, query: Some(query), rope, side, ..blank }
            }
            Op::StoreKv { key, value, cache } => {
                let (key, value) = (self.rows(key)?, self.rows(value)?);
                let (dim, biases) = (self.plan.cache(cache).head_dim, None);
                let (key_norm, value_norm) = (None, false);
                let stored = Stored { key, value, cache, biases, key_norm, value_norm };
                HeadsLaunch { dim, stored: Some(stored), ..blank }
            }
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
            } => {
                let norm = Some(Factors::Of(query_norm));
                let (dim, query) = self.turned(query, heads.query, norm)?;
                let (key, value) = (self.rows(key)?, self.rows(value)?);
                let (key_norm, biases, value_norm) = (Some(key_norm), None, false);
                let stored = Stored { key, value, cache, biases, key_norm, value_norm };
                let (query, stored, rope) = (Some(query), Some(stored), Some((dim, rope)));
                HeadsLaunch { dim, query, stored, rope, epsilon, ..blank }
            }
            _ => unreachable!("only work on heads comes here"),
        };
        self.push(self.plan.rows(op), Work::Heads(launch));
        Ok(())
    }

    /// Returns the elements of each head of a buffer, and heads that are changed in place.
    fn turned(
        &mut self,
        id: BufferId,
        heads: usize,
        query_norm: Option<Factors<Ids>>,
    ) -> Result<(usize, Rotated<Ids>), GpuError> {
        let (query, turned) = self.changed(id)?;
        let dim = self.graph.value(query).columns / heads;
        Ok((dim, Rotated { query, turned, heads, query_norm }))
    }

    /// Returns the launch that attends.
    fn attend(
        &mut self,
        query: ValueId,
        cache: CacheId,
        attention: Attention,
        output: BufferId,
    ) -> Work {
        let target = self.fresh(output);
        let (kind, rows) = (self.rows_of(output), self.count(output));
        // Tiles are of the step's rows.
        if self.graph.attended != Attended::Tiles || kind != Rows::Tokens {
            let shape = self.selection.decode(&attention, rows);
            let splits = (shape.splits > 1).then(|| {
                let bytes = DecodeLaunch::scratch_bytes(&attention, rows, &shape);
                let partials = Shared::Partials(self.graph.fresh_bytes(bytes as usize));
                Splits { partials, counters: Shared::AttentionCounters }
            });
            let (made, fused) = (MadeValue::Rows(target), None);
            let frame = ();
            return Work::AttendRows(DecodeLaunch {
                attention,
                cache,
                frame,
                rows,
                query,
                made,
                splits,
                fused,
                shape,
            });
        }
        let tiles = self.selection.tiles(&attention, rows);
        match self.selection.attend_matrix(&attention, rows) {
            Some(shape) => {
                let made = MadeValue::Rows(target);
                let frame = ();
                let launch = MatrixLaunch { attention, cache, frame, tiles, query, made, shape };
                Work::AttendMatrix(launch)
            }
            None => {
                let shape = self.selection.attend_tiles(&attention);
                let frame = ();
                let launch = TileLaunch { attention, cache, frame, tiles, query, target, shape };
                Work::AttendTiles(launch)
            }
        }
    }
}

#[cfg(test)]
mod tests;
