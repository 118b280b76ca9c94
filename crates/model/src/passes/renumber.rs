//! Ids of one Plan become those of another: the one place where Plans are joined and renumbered.

use std::collections::BTreeSet;

use crate::plan::goal::{End, Goal};
use crate::plan::{BufferId, CacheId, Input, Plan, Source, WeightId};

impl Plan {
    /// Replaces every id in its steps, inputs and outputs according to the maps. The lists that
    /// they are indices of stay as they are.
    pub(crate) fn renumber(
        &mut self,
        buffers: &dyn Fn(BufferId) -> BufferId,
        weights: &dyn Fn(WeightId) -> WeightId,
        caches: &dyn Fn(CacheId) -> CacheId,
    ) {
        for step in &mut self.steps {
            step.op.rename(buffers);
            step.op.rebind(weights, caches);
        }
        for input in &mut self.inputs {
            input.buffer = buffers(input.buffer);
            if let Source::Table { table, .. } = &mut input.source {
                *table = weights(*table);
            }
        }
        self.outputs.iter_mut().for_each(|id| *id = buffers(*id));
    }

    /// Returns it with only the buffers, weights and caches that its steps, inputs and outputs
    /// name, in their order.
    pub(crate) fn compacted(mut self) -> Self {
        let ends = self.inputs.iter().map(|input| input.buffer).chain(self.outputs.iter().copied());
        let mut buffers: BTreeSet<BufferId> = ends.collect();
        let mut weights: BTreeSet<WeightId> = self.inputs.iter().filter_map(Input::table).collect();
        let mut caches = BTreeSet::new();
        for step in &self.steps {
            buffers.extend(step.op.touches());
            weights.extend(step.op.weights());
            caches.extend(step.op.cache());
        }
        self.renumber(
            &|id| BufferId(buffers.range(..id).count()),
            &|id| WeightId(weights.range(..id).count()),
            &|id| CacheId(caches.range(..id).count()),
        );
        self.buffers = buffers.iter().map(|id| self.buffer(*id).clone()).collect();
        self.weights = weights.iter().map(|id| self.weight(*id).clone()).collect();
        self.caches = caches.iter().map(|id| self.cache(*id).clone()).collect();
        self
    }

    /// Adds what another Plan over the same caches computes, as a goal of its own. Buffers that are
    /// equal are one, and weights that have one name.
    pub(crate) fn append(&mut self, mut own: Self, goal: Goal) {
        let buffers: Vec<BufferId> = own
            .buffers
            .drain(..)
            .map(|buffer| BufferId(place_in(&mut self.buffers, buffer, |a, b| a == b)))
            .collect();
        let weights: Vec<WeightId> = own
            .weights
            .drain(..)
            .map(|weight| WeightId(place_in(&mut self.weights, weight, |a, b| a.name == b.name)))
            .collect();
        own.renumber(&|id| buffers[id.0], &|id| weights[id.0], &|id| id);
        if self.ends.is_empty() {
            self.ends.push(End { goal: Goal::Main, outputs: self.outputs.len() });
        }
        self.ends.push(End { goal, outputs: own.outputs.len() });
        self.steps.append(&mut own.steps);
        self.inputs.append(&mut own.inputs);
        self.outputs.append(&mut own.outputs);
    }
}

/// Returns the place of an element in a list, which gets it if it has none that is the same.
fn place_in<T>(list: &mut Vec<T>, element: T, is_same: impl Fn(&T, &T) -> bool) -> usize {
    list.iter().position(|other| is_same(other, &element)).unwrap_or_else(|| {
        list.push(element);
        list.len() - 1
    })
}
