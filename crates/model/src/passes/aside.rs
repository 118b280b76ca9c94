//! Experts aside: another device computes the experts of some layers, for a device that has no room
//! for them.
//!
//! The experts of a layer are an [`Op::Away`] of [`Op::GatedExperts`] and [`Op::SumExperts`], with
//! weights that are [`WeightPlace::Aside`]: the device that runs the Plan has none of them. It
//! hands over the rows with the experts of each and their shares, and takes the sums. [`set_aside`]
//! moves the steps of the layer that neither needs between the two.
//!
//! [`others`] is the other device's Plan. It has a goal for each job, so that one Program with one
//! scratch memory computes them all.

use std::collections::BTreeMap;

use crate::away::{Away, aways, here, jobs};
use crate::plan::cost::{Cost, Workload};
use crate::plan::goal::{End, Goal};
use crate::plan::{
    Buffer, BufferId, ExpertMatrix, Input, Op, Plan, Rows, Source, Step, Weight, WeightPlace,
};

/// The two operations of a layer's experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    /// Index of the step of [`Op::GatedExperts`].
    gated: usize,
    /// Index of the step of the [`Op::SumExperts`] that reads its result.
    sum: usize,
    /// The number of the experts: pairs that read the same matrices, for different goals of the
    /// Plan, have the same.
    number: usize,
}

/// The columns of what goes into experts and comes out: of the input, the chosen experts, the gated
/// product, and the sum.
type Columns = [usize; 4];

/// Returns the layers whose experts can be set aside: all that have some, or none if they differ in
/// their columns.
pub fn layers(plan: &Plan) -> usize {
    let plan = &here(plan.clone());
    let pairs = pairs(plan);
    let Some(first) = pairs.first().map(|pair| columns_of(plan, *pair)) else { return 0 };
    let is_alike = pairs.iter().all(|pair| columns_of(plan, *pair) == first);
    let count = || pairs.iter().map(|pair| pair.number + 1).max().unwrap_or(0);
    if is_alike { count() } else { 0 }
}

/// Returns the Plan with the experts of its first `layers` layers that have some aside.
pub fn set_aside(plan: &Plan, layers: usize) -> Plan {
    let mut plan = here(plan.clone());
    // From the back: steps before stay where they are.
    for pair in pairs(&plan).into_iter().filter(|pair| pair.number < layers).rev() {
        let gated = move_between(&mut plan.steps, pair);
        let steps = vec![plan.steps[gated].clone(), plan.steps[pair.sum].clone()];
        for id in steps.iter().flat_map(|step| step.op.weights()) {
            plan.weights[id.0].place = WeightPlace::Aside;
        }
        let label = steps[1].label.clone();
        plan.steps[pair.sum] = Step { label, op: Op::Away { steps } };
        plan.steps.remove(gated);
    }
    plan
}

/// Returns the experts of a Plan that are aside, in the order of its steps. The numbers of their
/// jobs are the goals of [`others`].
pub fn aside(plan: &Plan) -> Vec<Away> {
    aways(plan).into_iter().filter(|away| away.is_whole).collect()
}

/// Returns the numbers of a Plan's layers whose experts are aside, in ascending order.
pub fn aside_layers(plan: &Plan) -> Vec<usize> {
    let serving = plan.serving(Goal::Main);
    let attends = |end: usize| {
        let steps = plan.steps[..end].iter().zip(&serving);
        steps.filter(|(step, serves)| **serves && matches!(step.op, Op::Attend { .. })).count()
    };
    let mut numbers: Vec<usize> =
        aside(plan).iter().map(|away| attends(away.step).saturating_sub(1)).collect();
    numbers.dedup();
    numbers
}

/// Returns the Plan of the device that computes what is aside; `None` if nothing is. Its inputs are
/// those of each [`Op::Away`]: the rows, (tokens, in-features), the experts of each and their
/// shares, (tokens, used). A step has a goal, the number of the job, and gives the sums, (tokens,
/// out-features). A row of it is a row of either kind in the Plan.
pub fn others(plan: &Plan) -> Option<Plan> {
    let jobs: Vec<Away> = jobs(plan).into_iter().filter(|job| job.is_whole).collect();
    let first = jobs.first()?.op(plan);
    // The goals of the guest's Plan have the numbers of its jobs.
    assert!(jobs.iter().zip(0..).all(|(job, number)| job.job == number), "all jobs are whole");
    let placed = |weight: &Weight| Weight { place: WeightPlace::Device, ..weight.clone() };
    let given = |number| Input { buffer: BufferId(number), source: Source::Part };
    let end = |number| End { goal: Goal::Experts(number), outputs: 1 };
    let mut own = Plan {
        buffers: Vec::new(),
        weights: plan.weights.iter().map(placed).collect(),
        caches: Vec::new(),
        steps: Vec::new(),
        inputs: (0..first.reads().len()).map(given).collect(),
        outputs: Vec::new(),
        ends: (0..jobs.len()).map(end).collect(),
    };
    for job in &jobs {
        let Op::Away { steps } = job.op(plan) else { unreachable!("a job is away") };
        let (reads, writes, all) =
            (job.op(plan).reads(), job.op(plan).writes(), job.op(plan).touches());
        let within = all.iter().filter(|id| !reads.contains(id) && !writes.contains(id));
        // The first buffers are shared by all jobs.
        let shared: Vec<BufferId> = reads.iter().chain(within).copied().collect();
        let copy = |id: BufferId| Buffer { rows: Rows::Tokens, ..plan.buffer(id).clone() };
        if own.buffers.is_empty() {
            // They are of no layer.
            let named = |buffer: Buffer| {
                let name = buffer.name.rsplit('.').next().unwrap_or_default().to_owned();
                Buffer { name, ..buffer }
            };
            own.buffers.extend(shared.iter().map(|id| named(copy(*id))));
        }
        let mut map: BTreeMap<BufferId, BufferId> =
            shared.into_iter().zip((0..).map(BufferId)).collect();
        for id in writes {
            let output = BufferId(own.buffers.len());
            own.buffers.push(copy(id));
            own.outputs.push(output);
            map.insert(id, output);
        }
        for mut step in steps.iter().cloned() {
            step.op.rename(&|id| map[&id]);
            own.steps.push(step);
        }
    }
    Some(own.compacted())
}

/// Returns what the experts aside cost another device in a step for the main goal.
pub fn cost(plan: &Plan, workload: Workload) -> Cost {
    let mut total = Cost::default();
    let serving = plan.serving(Goal::Main);
    for away in aside(plan).iter().filter(|away| serving[away.step]) {
        total += plan.step_cost(&plan.steps[away.step], workload);
    }
    total
}

/// Returns the experts of a Plan in which nothing is away.
fn pairs(plan: &Plan) -> Vec<Pair> {
    let mut known: Vec<([ExpertMatrix; 2], ExpertMatrix)> = Vec::new();
    let mut pairs = Vec::new();
    for (gated, step) in plan.steps.iter().enumerate() {
        let Op::GatedExperts { gate_and_up, output, .. } = &step.op else { continue };
        let reads = |step: &Step| step.op.reads().contains(output);
        let Some(later) = plan.steps[gated + 1..].iter().position(reads) else { continue };
        let sum = gated + 1 + later;
        let Op::SumExperts { down, .. } = &plan.steps[sum].op else { continue };
        let matrices = (*gate_and_up, *down);
        let number = known.iter().position(|other| *other == matrices).unwrap_or_else(|| {
            known.push(matrices);
            known.len() - 1
        });
        pairs.push(Pair { gated, sum, number });
    }
    pairs
}

fn columns_of(plan: &Plan, pair: Pair) -> Columns {
    let columns = |id: BufferId| plan.buffer(id).columns;
    let Op::GatedExperts { input, chosen, output, .. } = plan.steps[pair.gated].op else {
        unreachable!("a pair begins with it")
    };
    [input, chosen, output, plan.steps[pair.sum].op.writes()[0]].map(columns)
}

/// Moves steps from before the first step of a pair to after it, if neither that step nor what it
/// needs depends on them. Goes back to the last step with a cache: the attention of the layer.
/// Returns where the first step of the pair is then.
fn move_between(steps: &mut [Step], pair: Pair) -> usize {
    let start = steps[..pair.gated].iter().rposition(|step| step.op.cache().is_some());
    let start = start.map_or(0, |attends| attends + 1);
    // From the back: what a step that stays depends on stays before it.
    let (mut before, mut between) = (Vec::new(), Vec::new());
    for step in steps[start..=pair.gated].iter().rev() {
        let is_needed = before.is_empty() || before.iter().any(|later| depends(later, step));
        if is_needed { before.push(step.clone()) } else { between.push(step.clone()) }
    }
    let gated = start + before.len() - 1;
    let ordered = before.into_iter().rev().chain(between.into_iter().rev());
    steps[start..=pair.gated].iter_mut().zip(ordered).for_each(|(old, new)| *old = new);
    gated
}

/// Returns whether two steps cannot change places.
fn depends(later: &Step, earlier: &Step) -> bool {
    let (reads, writes) = (later.op.reads(), later.op.writes());
    let earlier_writes = earlier.op.writes();
    earlier_writes.iter().any(|id| reads.contains(id) || writes.contains(id))
        || earlier.op.reads().iter().any(|id| writes.contains(id))
}
