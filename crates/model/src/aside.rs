//! Experts aside: another device computes the experts of some layers, for a device that has no room
//! for them.
//!
//! The Plan keeps its operations. The weights of these experts are [`WeightPlace::Aside`]: the
//! device that runs the Plan has none of them. At [`Op::GatedExperts`] it hands over the rows with
//! the experts of each and their shares, and at the [`Op::SumExperts`] that reads the result it
//! takes the sums. The steps between the two are its own work meanwhile: [`set_aside`] moves those
//! of the layer there that neither needs.
//!
//! [`others`] is the other device's Plan. It has a goal for each layer whose experts are aside, so
//! that one Program with one scratch memory computes them all.

use crate::cost::{Cost, Workload};
use crate::goal::{End, Goal};
use crate::plan::{
    Buffer, BufferId, ExpertMatrix, Input, Op, Plan, Rows, Source, Step, Weight, WeightId,
    WeightPlace,
};

/// The two steps of a layer's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Index of the [`Op::GatedExperts`].
    pub gated: usize,
    /// Index of the [`Op::SumExperts`] that reads its result.
    pub sum: usize,
    /// The number of the experts: pairs that read the same matrices, for different goals of the
    /// Plan, have the same.
    pub number: usize,
}

/// The columns of what goes into experts and comes out: of the input, the chosen experts, the gated
/// product, and the sum.
type Columns = [usize; 4];

/// Returns the layers whose experts can be set aside: all that have some, or none if they differ in
/// their columns.
pub fn layers(plan: &Plan) -> usize {
    let pairs = pairs(plan, &|_| true);
    let Some(first) = pairs.first().map(|pair| columns_of(plan, *pair)) else { return 0 };
    let is_alike = pairs.iter().all(|pair| columns_of(plan, *pair) == first);
    if is_alike { count(&pairs) } else { 0 }
}

/// Returns the Plan with the experts of its first `layers` layers that have some aside.
pub fn set_aside(plan: &Plan, layers: usize) -> Plan {
    let mut plan = plan.clone();
    let pairs = pairs(&plan, &|_| true);
    for pair in pairs.into_iter().filter(|pair| pair.number < layers) {
        for id in weights(&plan, pair) {
            plan.weights[id.0].place = WeightPlace::Aside;
        }
        move_between(&mut plan.steps, pair);
    }
    plan
}

/// Returns the experts of a Plan that are aside, in the order of its steps. Their numbers are the
/// goals of [`others`].
pub fn aside(plan: &Plan) -> Vec<Pair> {
    pairs(plan, &|id| plan.weight(id).place == WeightPlace::Aside)
}

/// Returns the numbers of a Plan's layers whose experts are aside, in ascending order.
pub fn aside_layers(plan: &Plan) -> Vec<usize> {
    let serving = plan.serving(Goal::Main);
    let attends = |end: usize| {
        let steps = plan.steps[..end].iter().zip(&serving);
        steps.filter(|(step, serves)| **serves && matches!(step.op, Op::Attend { .. })).count()
    };
    let mut numbers: Vec<usize> =
        aside(plan).iter().map(|pair| attends(pair.gated).saturating_sub(1)).collect();
    numbers.dedup();
    numbers
}

/// Returns the Plan of the device that computes the experts that are aside; `None` if there are
/// none. Its inputs are the rows, (tokens, in-features), the experts of each and their shares,
/// (tokens, used). A step has a goal, the number of the experts, and gives the sums, (tokens,
/// out-features). A row of it is a row of either kind in the Plan.
pub fn others(plan: &Plan) -> Option<Plan> {
    let mut pairs = aside(plan);
    pairs.dedup_by_key(|pair| pair.number);
    let mut known = 0;
    pairs.retain(|pair| {
        pair.number == known && {
            known += 1;
            true
        }
    });
    let first = *pairs.first()?;
    let [input, used, width, output] = columns_of(plan, first);
    let buffer =
        |name: &str, columns| Buffer { name: name.to_owned(), rows: Rows::Tokens, columns };
    let mut buffers = vec![
        buffer("experts_input", input),
        buffer("chosen", used),
        buffer("shares", used),
        buffer("experts_gated", width),
    ];
    let [rows, chosen, shares, between] = [0, 1, 2, 3].map(BufferId);
    let (mut steps, mut outputs) = (Vec::new(), Vec::new());
    for pair in pairs {
        let [gated, sum] = [pair.gated, pair.sum].map(|index| &plan.steps[index]);
        let (gate_and_up, down) = (gate_and_up(&gated.op), down(&sum.op));
        let op = Op::GatedExperts { input: rows, chosen, gate_and_up, output: between };
        steps.push(Step { label: gated.label.clone(), op });
        let target = BufferId(buffers.len());
        buffers.push(buffer(&plan.buffer(sum.op.writes()[0]).name, output));
        outputs.push(target);
        let op = Op::SumExperts { input: between, chosen, shares, down, output: target };
        steps.push(Step { label: sum.label.clone(), op });
    }
    let given = |buffer| Input { buffer, source: Source::Part };
    let here = |weight: &Weight| Weight { place: WeightPlace::Device, ..weight.clone() };
    let own = Plan {
        buffers,
        weights: plan.weights.iter().map(here).collect(),
        caches: Vec::new(),
        steps,
        inputs: [rows, chosen, shares].map(given).to_vec(),
        ends: (0..outputs.len())
            .map(|number| End { goal: Goal::Experts(number), outputs: 1 })
            .collect(),
        outputs,
    };
    Some(own.compacted())
}

/// Returns what the experts aside cost another device in a step for the main goal.
pub fn cost(plan: &Plan, workload: Workload) -> Cost {
    let mut total = Cost::default();
    let serving = plan.serving(Goal::Main);
    for index in aside(plan).iter().flat_map(|pair| [pair.gated, pair.sum]) {
        if serving[index] {
            total += plan.step_cost(&plan.steps[index], workload);
        }
    }
    total
}

/// Returns the pairs whose matrices are all `wanted`.
fn pairs(plan: &Plan, wanted: &dyn Fn(WeightId) -> bool) -> Vec<Pair> {
    let mut known: Vec<([ExpertMatrix; 2], ExpertMatrix)> = Vec::new();
    let mut pairs = Vec::new();
    for (gated, step) in plan.steps.iter().enumerate() {
        let Op::GatedExperts { gate_and_up, output, .. } = step.op else { continue };
        let reads = |step: &Step| step.op.reads().contains(&output);
        let Some(sum) = plan.steps[gated + 1..].iter().position(reads) else { continue };
        let sum = gated + 1 + sum;
        let Op::SumExperts { down, .. } = plan.steps[sum].op else { continue };
        let [gate, up] = gate_and_up.map(|matrix| matrix.weight);
        if ![gate, up, down.weight].into_iter().all(wanted) {
            continue;
        }
        let matrices = (gate_and_up, down);
        let number = known.iter().position(|other| *other == matrices).unwrap_or_else(|| {
            known.push(matrices);
            known.len() - 1
        });
        pairs.push(Pair { gated, sum, number });
    }
    pairs
}

fn count(pairs: &[Pair]) -> usize {
    pairs.iter().map(|pair| pair.number + 1).max().unwrap_or(0)
}

fn gate_and_up(op: &Op) -> [ExpertMatrix; 2] {
    let Op::GatedExperts { gate_and_up, .. } = op else { unreachable!("a pair begins with it") };
    *gate_and_up
}

fn down(op: &Op) -> ExpertMatrix {
    let Op::SumExperts { down, .. } = op else { unreachable!("a pair ends with it") };
    *down
}

fn weights(plan: &Plan, pair: Pair) -> Vec<WeightId> {
    [pair.gated, pair.sum].iter().flat_map(|&index| plan.steps[index].op.weights()).collect()
}

fn columns_of(plan: &Plan, pair: Pair) -> Columns {
    let columns = |id: BufferId| plan.buffer(id).columns;
    let Op::GatedExperts { input, chosen, output, .. } = plan.steps[pair.gated].op else {
        unreachable!("a pair begins with it")
    };
    let sum = plan.steps[pair.sum].op.writes()[0];
    [input, chosen, output, sum].map(columns)
}

/// Moves steps from before the first step of a pair to after it, if neither that step nor what it
/// needs depends on them. Goes back to the last step with a cache: the attention of the layer.
fn move_between(steps: &mut [Step], pair: Pair) {
    let start = steps[..pair.gated].iter().rposition(|step| step.op.cache().is_some());
    let start = start.map_or(0, |attends| attends + 1);
    // From the back: what a step that stays depends on stays before it.
    let (mut before, mut between) = (Vec::new(), Vec::new());
    for step in steps[start..=pair.gated].iter().rev() {
        let is_needed = before.is_empty() || before.iter().any(|later| depends(later, step));
        if is_needed { before.push(step.clone()) } else { between.push(step.clone()) }
    }
    let ordered = before.into_iter().rev().chain(between.into_iter().rev());
    steps[start..=pair.gated].iter_mut().zip(ordered).for_each(|(old, new)| *old = new);
}

/// Returns whether two steps cannot change places.
fn depends(later: &Step, earlier: &Step) -> bool {
    let (reads, writes) = (later.op.reads(), later.op.writes());
    let earlier_writes = earlier.op.writes();
    earlier_writes.iter().any(|id| reads.contains(id) || writes.contains(id))
        || earlier.op.reads().iter().any(|id| writes.contains(id))
}
