//! What a guest of a device may compute of a step: [`Op::Away`].
//!
//! The operation stands where its results are awaited. The guest begins as soon as its inputs are
//! there, and ends what it has begun before it begins anything else. The steps between are the
//! device's own work meanwhile.

use crate::plan::{Op, Plan, Step, WeightId, WeightPlace};

/// An [`Op::Away`] of a Plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away {
    /// Index of its step.
    pub step: usize,
    /// Index of the first step before which the guest can begin; at most `step`.
    pub begin: usize,
    /// The number of the job: operations with the same weights, for different goals of the Plan,
    /// have the same.
    pub job: usize,
    /// Whether only the guest has the weights ([`WeightPlace::Aside`]), and computes all rows. Else
    /// it computes the bulk rows.
    pub is_whole: bool,
}

impl Away {
    /// Returns the operation.
    pub fn op<'a>(&self, plan: &'a Plan) -> &'a Op {
        &plan.steps[self.step].op
    }
}

/// Returns what a guest may compute of a Plan, in the order of its steps.
pub fn aways(plan: &Plan) -> Vec<Away> {
    let (mut found, mut jobs) = (Vec::new(), Vec::new());
    let mut free = 0;
    for (step, Step { op, .. }) in plan.steps.iter().enumerate() {
        if !matches!(op, Op::Away { .. }) {
            continue;
        }
        let (inputs, weights) = (op.reads(), op.weights());
        let writes = |step: &Step| step.op.writes().iter().any(|id| inputs.contains(id));
        let written = plan.steps[free..step].iter().rposition(writes);
        let begin = written.map_or(free, |last| free + last + 1);
        let is_whole = weights.iter().all(|id| plan.weight(*id).place == WeightPlace::Aside);
        let job = jobs.iter().position(|other| *other == weights).unwrap_or_else(|| {
            jobs.push(weights);
            jobs.len() - 1
        });
        found.push(Away { step, begin, job, is_whole });
        free = step + 1;
    }
    found
}

/// Returns one of the operations of each job, in the order of their numbers.
pub fn jobs(plan: &Plan) -> Vec<Away> {
    let mut jobs: Vec<Away> = Vec::new();
    for away in aways(plan) {
        if away.job == jobs.len() {
            jobs.push(away);
        }
    }
    jobs
}

/// Returns the weights of each job.
pub fn weights(plan: &Plan) -> Vec<Vec<WeightId>> {
    jobs(plan).iter().map(|job| job.op(plan).weights()).collect()
}

/// Returns the Plan of a device that has no guest: the steps are its own.
pub fn here(mut plan: Plan) -> Plan {
    let own = |step| match step {
        Step { op: Op::Away { steps }, .. } => steps,
        step => vec![step],
    };
    plan.steps = std::mem::take(&mut plan.steps).into_iter().flat_map(own).collect();
    plan
}
