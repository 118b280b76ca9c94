//! Narrowing: leaves out the work on rows whose logits are not wanted.
//!
//! After the last step that writes a KV cache, no row depends on another row of the step, so the
//! steps from there on need only the output rows: its layer's attention, which reads the cache for
//! each row, and what follows. In a prefill piece that is one row of hundreds, or none. Queries of
//! that layer are multiplied together with keys and values, and selected afterwards. Layers that
//! read the cache of an earlier one are among these steps.

use crate::plan::{Buffer, BufferId, Op, Plan, Rows, Step};

/// Moves the selection of output rows up to directly after the last step that writes a cache.
pub fn narrow(mut plan: Plan) -> Plan {
    let Some(cut) = plan.steps.iter().rposition(|step| step.op.stores()).map(|last| last + 1)
    else {
        return plan;
    };
    let is_select = |step: &Step| matches!(step.op, Op::Select { .. });
    let Some(select) = plan.steps[cut..].iter().position(is_select).map(|at| cut + at) else {
        return plan;
    };
    if !plan.steps[cut..select].iter().all(|step| is_row_wise(&step.op)) {
        return plan;
    }
    if is_wanted_whole(&plan, cut, select) {
        return plan;
    }
    let mut tail: Vec<Step> = plan.steps.drain(cut..=select).collect();
    let Some(Step { op: Op::Select { input: selected, output: target }, .. }) = tail.pop() else {
        return plan;
    };
    let mut twins = Twins { plan: &mut plan, pairs: vec![(selected, target)] };
    let live_in = live_in(&tail, selected);
    let begins_with = tail.first().map(|step| step.op.reads()).unwrap_or_default();
    let mut steps = Vec::new();
    for step in &mut tail {
        for id in step.op.touches() {
            twins.of(id);
        }
        let pairs = &twins.pairs;
        step.op
            .rename(&|id| pairs.iter().find(|(old, _)| *old == id).map_or(id, |(_, twin)| *twin));
    }
    for &input in &live_in {
        let output = twins.of(input);
        let label = format!("{}.select", plan_name(twins.plan, input));
        steps.push(Step { label, op: Op::Select { input, output } });
    }
    // The first step follows what it reads: fusion finds attention beside its queries.
    let first = live_in.iter().take_while(|id| begins_with.contains(id)).count();
    let others = steps.split_off(first);
    steps.extend(tail.drain(..tail.len().min(1)));
    steps.extend(others);
    steps.append(&mut tail);
    plan.steps.splice(cut..cut, steps);
    plan
}

/// Returns whether a buffer that the steps `cut..select` write is needed with rows that nobody
/// selects: it is an output, or read later.
fn is_wanted_whole(plan: &Plan, cut: usize, select: usize) -> bool {
    let written: Vec<BufferId> =
        plan.steps[cut..select].iter().flat_map(|step| step.op.writes()).collect();
    let later = plan.steps[select + 1..].iter().flat_map(|step| step.op.reads());
    plan.outputs.iter().copied().chain(later).any(|id| written.contains(&id))
}

fn plan_name(plan: &Plan, id: BufferId) -> &str {
    &plan.buffer(id).name
}

/// The output-row twins of token-row buffers.
struct Twins<'a> {
    plan: &'a mut Plan,
    /// (token-row buffer, its twin).
    pairs: Vec<(BufferId, BufferId)>,
}

impl Twins<'_> {
    fn of(&mut self, id: BufferId) -> BufferId {
        if let Some((_, twin)) = self.pairs.iter().find(|(old, _)| *old == id) {
            return *twin;
        }
        let buffer = self.plan.buffer(id);
        let twin = Buffer {
            name: format!("{}.selected", buffer.name),
            rows: Rows::Outputs,
            ..buffer.clone()
        };
        self.plan.buffers.push(twin);
        let twin = BufferId(self.plan.buffers.len() - 1);
        self.pairs.push((id, twin));
        twin
    }
}

/// Returns the buffers that hold values from before the tail: those read in it before they are
/// written.
fn live_in(tail: &[Step], selected: BufferId) -> Vec<BufferId> {
    let mut written: Vec<BufferId> = Vec::new();
    let mut live = Vec::new();
    for step in tail {
        for id in step.op.reads() {
            if !written.contains(&id) && !live.contains(&id) {
                live.push(id);
            }
        }
        written.extend(step.op.writes());
    }
    if !written.contains(&selected) && !live.contains(&selected) {
        live.push(selected);
    }
    live
}

/// Returns whether each output row depends only on the same row of the inputs, its position, and a
/// cache.
fn is_row_wise(op: &Op) -> bool {
    matches!(
        op,
        Op::Norm { .. }
            | Op::LayerNorm { .. }
            | Op::Gelu { .. }
            | Op::Bias { .. }
            | Op::Clamp { .. }
            | Op::HeadNorm { .. }
            | Op::Rotate { .. }
            | Op::MatMul { .. }
            | Op::Attend { .. }
            | Op::Geglu { .. }
            | Op::Add { .. }
            | Op::Sum { .. }
            | Op::Mix { .. }
            | Op::Rescale { .. }
            | Op::Scale { .. }
            | Op::Cutoff { .. }
            | Op::Softcap { .. }
            | Op::Route { .. }
            | Op::GatedExperts { .. }
            | Op::SumExperts { .. }
            | Op::Search { .. }
    )
}
