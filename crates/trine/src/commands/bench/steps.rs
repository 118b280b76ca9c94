//! `bench --steps`: how the time of a pass is divided among steps of the Plan.

use std::collections::HashMap;

use serde::Serialize;
use trine_model::{Plan, Workload};

use crate::terminal::output;

/// Equal steps of all layers together.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct StepTime {
    /// The label without the layer, and the operation.
    pub(crate) step: String,
    /// The number of layers that have the step.
    pub(crate) count: usize,
    /// The seconds of all of them in one pass.
    pub(crate) seconds: f64,
    /// Bytes from memory per second.
    pub(crate) bytes_per_second: f64,
    /// Operations per second.
    pub(crate) operations_per_second: f64,
    /// The share of the bound, which is the time that moving the bytes alone takes at the measured
    /// bandwidth.
    pub(crate) bound_share: Option<f64>,
}

/// Groups equal steps of all layers and averages their seconds over `passes` passes.
pub(crate) fn group(
    plan: &Plan,
    seconds: &[f64],
    passes: usize,
    workload: Workload,
    bandwidth: Option<f64>,
) -> Vec<StepTime> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut groups: Vec<(StepTime, f64, f64)> = Vec::new();
    for (step, seconds) in plan.steps.iter().zip(seconds) {
        let label = step.label.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let name =
            format!("{} ({})", label.map_or(step.label.as_str(), |(_, rest)| rest), step.op.name());
        let place = *places.entry(name.clone()).or_insert(groups.len());
        if place == groups.len() {
            let empty = StepTime {
                step: name,
                count: 0,
                seconds: 0.0,
                bytes_per_second: 0.0,
                operations_per_second: 0.0,
                bound_share: None,
            };
            groups.push((empty, 0.0, 0.0));
        }
        let cost = plan.step_cost(step, workload);
        let (group, bytes, operations) = &mut groups[place];
        group.count += 1;
        group.seconds += seconds / passes.max(1) as f64;
        *bytes += cost.memory_bytes() as f64;
        *operations += cost.operations as f64;
    }
    let finish = |(mut group, bytes, operations): (StepTime, f64, f64)| {
        if group.seconds > 0.0 {
            group.bytes_per_second = bytes / group.seconds;
            group.operations_per_second = operations / group.seconds;
            group.bound_share = bandwidth.map(|bandwidth| group.bytes_per_second / bandwidth);
        }
        group
    };
    groups.into_iter().map(finish).collect()
}

/// Formats the steps as a table.
pub(crate) fn describe(test: &str, steps: &[StepTime], markdown: bool) -> String {
    const HEADER: [&str; 7] = ["step", "layers", "us", "us each", "GB/s", "of read", "Gop/s"];
    let row = |step: &StepTime| {
        vec![
            step.step.clone(),
            step.count.to_string(),
            output::rate(step.seconds * 1e6),
            output::rate(step.seconds * 1e6 / step.count.max(1) as f64),
            output::rate(step.bytes_per_second / 1e9),
            step.bound_share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
            output::rate(step.operations_per_second / 1e9),
        ]
    };
    let rows: Vec<_> = steps.iter().map(row).collect();
    let total: f64 = steps.iter().map(|step| step.seconds).sum();
    let table = if markdown {
        output::markdown(&HEADER, rows, &[1, 2, 3, 4, 5, 6])
    } else {
        output::table(&HEADER, rows, &[1, 2, 3, 4, 5, 6])
    };
    format!("{test}: {} us with a pause after each step\n{table}", output::rate(total * 1e6))
}
