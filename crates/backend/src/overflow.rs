//! Where values of a step first were not finite, for the errors about outputs that are not.
//!
//! No device hides such a value: what follows from one is NaN, up to the outputs, and the code that
//! reads these finds it (decision 065). Norms, which all values come to, note where it began.

use std::sync::atomic::{AtomicUsize, Ordering};

use trine_model::{Goal, Op, Plan};

/// The value in a step that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A sum of squares of the first norm.
    Norm,
    /// A sum of squares of the second norm.
    NextNorm,
    /// A key or a value, as the cache holds it.
    Cache,
    /// A result.
    Result,
}

impl What {
    const ALL: [Self; 4] = [Self::Norm, Self::NextNorm, Self::Cache, Self::Result];
}

/// The first place in the order of a Plan that was noted since it was last taken.
#[derive(Debug)]
pub struct Noted(AtomicUsize);

impl Default for Noted {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Noted {
    /// Notes a step of the Plan.
    pub fn note(&self, step: usize, what: What) {
        let at = What::ALL.len() * step + what as usize;
        self.0.fetch_min(at, Ordering::Relaxed);
    }

    /// Takes the place, and names it in the Plan that it was noted of.
    pub fn take(&self, plan: &Plan) -> Option<String> {
        let noted = self.0.swap(usize::MAX, Ordering::Relaxed);
        let (step, what) = (noted / What::ALL.len(), What::ALL[noted % What::ALL.len()]);
        let step = plan.steps.get(step)?;
        let weights = step.op.weights();
        let weight = match what {
            What::Norm => weights.first(),
            What::NextNorm => weights.get(1),
            What::Cache | What::Result => None,
        };
        Some(match (what, weight) {
            (What::Cache, _) => {
                let layer = layer(&step.label);
                let label = &step.label;
                format!(
                    "{layer}keys or values of {label} are beyond the KV cache's type; f32 holds all"
                )
            }
            (What::Norm | What::NextNorm, Some(weight)) => at_norm(&plan.weight(*weight).name),
            (What::Norm | What::NextNorm, None) => {
                let layer = layer(&step.label);
                format!("{layer}the sum of squares of {} is not finite", step.label)
            }
            (What::Result, _) => {
                let (layer, name) = (layer(&step.label), step.op.name());
                format!("{layer}results of {} ({name}) are not finite", step.label)
            }
        })
    }
}

/// Names a place by the weight of its norm.
pub fn at_norm(weight: &str) -> String {
    format!("{}the sum of squares before {weight} is not finite", layer(weight))
}

/// Names the place of the outputs of a goal, if there are no others: what was computed last.
pub(crate) fn at_outputs(plan: &Plan, goal: Goal) -> String {
    let output = plan.outputs.get(plan.outputs_for(goal).start);
    let writes = |op: &Op| output.is_some_and(|output| op.writes().contains(output));
    let mut steps = plan.steps.iter().rev();
    let last = steps.find(|step| writes(&step.op) && !step.op.weights().is_empty());
    match last {
        Some(step) => {
            let weight = &plan.weight(step.op.weights()[0]).name;
            format!("{}results of {} with {weight} are not finite", layer(weight), step.label)
        }
        None => "the outputs are not finite".to_owned(),
    }
}

/// Returns the layer that a name of a weight or a step is of, to be followed by what is wrong
/// there.
fn layer(name: &str) -> String {
    let mut parts = name.split('.');
    let number = parts.find(|part| *part == "blk").and_then(|_| parts.next());
    number.map_or(String::new(), |number| format!("layer {number}: "))
}
