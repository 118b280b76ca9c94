//! Plans as text: one line per step.

use std::fmt;

use crate::listing::{Line, Listing};
use crate::plan::{BufferId, Input, Op, Plan, Rows, Source, Step, WeightId};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for input in &self.inputs {
            writeln!(f, "      {:<24} {}", "input", self.describe_input(input))?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{index:4}  {:<24} {}", step.label, self.describe(&step.op))?;
        }
        // A single output is the result of the last step.
        if self.outputs.len() > 1 {
            for id in &self.outputs {
                let name = if self.ends.len() > 1 { "output, or" } else { "output" };
                writeln!(f, "      {name:<24} {}", self.shape(*id))?;
            }
        }
        Ok(())
    }
}

impl Plan {
    /// Returns the inputs and steps as a listing, in which equal layers are printed once.
    pub fn listing(&self) -> Listing {
        let input = |input| Line {
            number: None,
            label: "input".to_owned(),
            text: self.describe_input(input),
        };
        let step = |(number, step): (usize, &Step)| Line {
            number: Some(number),
            label: step.label.clone(),
            text: self.describe(&step.op),
        };
        let steps = self.steps.iter().enumerate().map(step);
        Listing(self.inputs.iter().map(input).chain(steps).collect())
    }

    fn describe_input(&self, input: &Input) -> String {
        let source = match input.source {
            Source::Part => "part".to_owned(),
            Source::Table { table, .. } => format!("gather x {}", self.weight_shape(table)),
            Source::Plan => "plan".to_owned(),
            Source::Picture => "picture".to_owned(),
            Source::State => "states of another step".to_owned(),
        };
        format!("{source} -> {}", self.shape(input.buffer))
    }

    /// Returns one line about an operation: inputs, weights with shapes and formats, outputs.
    pub fn describe(&self, op: &Op) -> String {
        let reads: Vec<_> = op.reads().into_iter().map(|id| self.shape(id)).collect();
        let weights: Vec<_> = op.weights().into_iter().map(|id| self.weight_shape(id)).collect();
        let writes: Vec<_> = op.writes().into_iter().map(|id| self.shape(id)).collect();
        let mut line = op.name().to_owned();
        for (mark, parts) in [("", reads), ("x ", weights), ("-> ", writes)] {
            if !parts.is_empty() {
                line.push_str(&format!(" {mark}{}", parts.join(", ")));
            }
        }
        match op {
            Op::Attend { window: Some(window), .. } => {
                line.push_str(&format!(" (window {window})"));
            }
            Op::Sum { terms, .. } => {
                let factors: Vec<_> = terms.iter().map(|term| term.factor.to_string()).collect();
                line.push_str(&format!(" (factors {})", factors.join(", ")));
            }
            Op::NormAdd { scale, .. } | Op::NormAddNorm { scale, .. } if *scale != 1.0 => {
                line.push_str(&format!(" (scale {scale})"));
            }
            Op::Mix { bias, scale, .. } => {
                line.push_str(&format!(" (bias {bias}, scale {scale})"));
            }
            Op::PositionEmbedding { side, .. } | Op::RotateByPosition { side, .. } => {
                line.push_str(&format!(" (side {side})"));
            }
            Op::Clamp { low, high, .. } => {
                line.push_str(&format!(" (from {low} to {high})"));
            }
            Op::Pool { count, .. } => {
                line.push_str(&format!(" (means of {count})"));
            }
            Op::Away { steps } => {
                let names: Vec<_> = steps.iter().map(|step| step.op.name()).collect();
                line.push_str(&format!(" ({})", names.join(", ")));
            }
            Op::Cutoff { deviations, .. } => {
                line.push_str(&format!(" ({deviations} deviations)"));
            }
            _ => {}
        }
        line
    }

    fn shape(&self, id: BufferId) -> String {
        let buffer = self.buffer(id);
        let rows = match buffer.rows {
            Rows::Tokens => "n",
            Rows::Outputs => "m",
            Rows::Soft => "s",
        };
        format!("{}[{rows},{}]", buffer.name, buffer.columns)
    }

    fn weight_shape(&self, id: WeightId) -> String {
        let weight = self.weight(id);
        format!("{}[{},{}]:{}", weight.name, weight.rows, weight.columns, weight.dtype.name())
    }
}
