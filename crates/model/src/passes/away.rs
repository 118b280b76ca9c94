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

#[cfg(test)]
mod tests {
    use trine_weights::DType;

    use super::*;
    use crate::plan::{Buffer, BufferId, Product, Rows, Weight, WeightKind};

    /// A product of buffer `input` with a weight, and the buffer of its results.
    fn product(input: usize, weight: usize, output: usize) -> Step {
        let products = vec![Product { weight: WeightId(weight), output: BufferId(output) }];
        let op = Op::MatMul { input: BufferId(input), products };
        Step { label: format!("{input} to {output}"), op }
    }

    fn away(steps: Vec<Step>) -> Step {
        Step { label: "away".to_owned(), op: Op::Away { steps } }
    }

    /// A Plan over 9 buffers and 4 weights, of which the last two are aside.
    fn plan(steps: Vec<Step>) -> Plan {
        let buffer =
            |number| Buffer { name: format!("b{number}"), rows: Rows::Tokens, columns: 32 };
        let weight = |number| Weight {
            name: format!("w{number}"),
            kind: WeightKind::Matrix,
            rows: 32,
            columns: 32,
            dtype: DType::Q8_0,
            place: if number < 2 { WeightPlace::Device } else { WeightPlace::Aside },
        };
        Plan {
            buffers: (0..9).map(buffer).collect(),
            weights: (0..4).map(weight).collect(),
            caches: Vec::new(),
            steps,
            inputs: Vec::new(),
            outputs: vec![BufferId(8)],
            ends: Vec::new(),
        }
    }

    #[test]
    fn a_guest_begins_after_its_inputs_and_what_it_did_before() {
        let found = |step, begin, job, is_whole| Away { step, begin, job, is_whole };
        for (steps, expected) in [
            (vec![product(0, 0, 1)], vec![]),
            // What it reads is there from the start.
            (vec![product(0, 0, 1), away(vec![product(0, 1, 2)])], vec![found(1, 0, 0, false)]),
            // The last step that writes its input is the first.
            (
                vec![product(0, 0, 1), product(0, 0, 2), away(vec![product(1, 1, 3)])],
                vec![found(2, 1, 0, false)],
            ),
            // The second waits for the end of the first, although its input is there. Equal
            // weights are one job; others are another one.
            (
                vec![
                    away(vec![product(0, 1, 1)]),
                    product(0, 0, 2),
                    away(vec![product(0, 1, 3)]),
                    away(vec![product(2, 2, 4), product(4, 3, 5)]),
                ],
                vec![found(0, 0, 0, false), found(2, 1, 0, false), found(3, 3, 1, true)],
            ),
        ] {
            let plan = plan(steps);
            let all = aways(&plan);
            assert_eq!(all, expected);
            assert!(jobs(&plan).iter().enumerate().all(|(number, away)| away.job == number));
        }
    }

    #[test]
    fn jobs_are_known_by_their_weights() {
        let plan = plan(vec![
            away(vec![product(0, 1, 1)]),
            away(vec![product(0, 2, 2), product(2, 3, 3)]),
            away(vec![product(3, 1, 4)]),
        ]);
        assert_eq!(weights(&plan), [vec![WeightId(1)], vec![WeightId(2), WeightId(3)]]);
        // What only its own steps read is not awaited by others.
        assert_eq!(plan.steps[1].op.reads(), [BufferId(0)]);
        let labels =
            |plan: &Plan| plan.steps.iter().map(|step| step.label.clone()).collect::<Vec<_>>();
        assert_eq!(labels(&here(plan)), ["0 to 1", "0 to 2", "2 to 3", "3 to 4"]);
    }
}
