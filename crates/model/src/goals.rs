//! The goals of a Plan: which outputs a step computes, and which steps of the Plan it runs for
//! them.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::plan::{BufferId, Plan, Source, Step};

impl Plan {
    /// Returns the number of goals that a step may have.
    pub fn goals(&self) -> usize {
        self.goal_outputs.len().max(1)
    }

    /// Returns which outputs a step with this goal computes.
    pub fn outputs_for(&self, goal: usize) -> Range<usize> {
        let Some(&count) = self.goal_outputs.get(goal) else { return 0..self.outputs.len() };
        let first: usize = self.goal_outputs[..goal].iter().sum();
        first..first + count
    }

    /// Returns the outputs that a step with this goal computes.
    pub fn outputs_of(&self, goal: usize) -> &[BufferId] {
        &self.outputs[self.outputs_for(goal)]
    }

    /// Returns whether a step with this goal computes the output of an index.
    pub fn gives(&self, goal: usize, output: usize) -> bool {
        self.outputs_for(goal).contains(&output)
    }

    /// Returns the goal that drafts, if there is one.
    pub fn draft_goal(&self) -> Option<usize> {
        self.inputs.iter().find_map(|input| match input.source {
            Source::State { goal } => Some(goal),
            _ => None,
        })
    }

    /// Returns whether steps with a goal write caches, as all do but those that begin with the
    /// states of another step ([`Source::State`]).
    pub fn stores_for(&self, goal: usize) -> bool {
        self.draft_goal() != Some(goal)
    }

    /// Returns for each step whether it is run for a goal: whether it changes a cache, if the goal
    /// writes caches, or a value that is read for one of the goal's outputs.
    pub fn serving(&self, goal: usize) -> Vec<bool> {
        if self.goals() == 1 {
            return vec![true; self.steps.len()];
        }
        let mut live: BTreeSet<BufferId> = self.outputs_of(goal).iter().copied().collect();
        let mut serving = vec![false; self.steps.len()];
        let stores = self.stores_for(goal);
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
    pub fn reads_for(&self, goal: usize, buffer: BufferId) -> bool {
        let mut steps = self.steps.iter().zip(self.serving(goal));
        steps.any(|(step, serves)| serves && step.op.reads().contains(&buffer))
    }
}
