//! The goals of a Plan: which outputs a step computes, and which steps of the Plan it runs for
//! them.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::plan::goal::Goal;
use crate::plan::{BufferId, Plan, Step};

impl Plan {
    /// Returns the goals that a step may have, at least one, in the order of their outputs.
    pub fn goals(&self) -> Vec<Goal> {
        match &self.ends[..] {
            [] => vec![Goal::Main],
            ends => ends.iter().map(|end| end.goal).collect(),
        }
    }

    /// Returns whether a step may have a goal.
    pub fn has_goal(&self, goal: Goal) -> bool {
        match &self.ends[..] {
            [] => goal == Goal::Main,
            ends => ends.iter().any(|end| end.goal == goal),
        }
    }

    /// Returns the goal of the first outputs.
    pub fn first_goal(&self) -> Goal {
        self.ends.first().map_or(Goal::Main, |end| end.goal)
    }

    /// Returns which outputs a step with this goal computes: none if no step may have it.
    pub fn outputs_for(&self, goal: Goal) -> Range<usize> {
        if self.ends.is_empty() && goal == Goal::Main {
            return 0..self.outputs.len();
        }
        let mut first = 0;
        for end in &self.ends {
            if end.goal == goal {
                return first..first + end.outputs;
            }
            first += end.outputs;
        }
        first..first
    }

    /// Returns the outputs that a step with this goal computes.
    pub fn outputs_of(&self, goal: Goal) -> &[BufferId] {
        &self.outputs[self.outputs_for(goal)]
    }

    /// Returns whether a step with this goal computes the output of an index.
    pub fn gives(&self, goal: Goal, output: usize) -> bool {
        self.outputs_for(goal).contains(&output)
    }

    /// Returns for each step whether it is run for a goal: whether it changes a cache, if the goal
    /// writes caches, or a value that is read for one of the goal's outputs.
    pub fn serving(&self, goal: Goal) -> Vec<bool> {
        if self.ends.len() <= 1 {
            return vec![true; self.steps.len()];
        }
        let mut live: BTreeSet<BufferId> = self.outputs_of(goal).iter().copied().collect();
        let mut serving = vec![false; self.steps.len()];
        let stores = goal.stores();
        for (serves, Step { op, .. }) in serving.iter_mut().zip(&self.steps).rev() {
            let (reads, writes) = (op.reads(), op.writes());
            *serves = op.stores() && stores || writes.iter().any(|id| live.contains(id));
            if *serves {
                live.retain(|id| !writes.contains(id));
                live.extend(reads);
            }
        }
        serving
    }

    /// Returns whether a step that is run for a goal reads a buffer.
    pub fn reads_for(&self, goal: Goal, buffer: BufferId) -> bool {
        let mut steps = self.steps.iter().zip(self.serving(goal));
        steps.any(|(step, serves)| serves && step.op.reads().contains(&buffer))
    }
}
