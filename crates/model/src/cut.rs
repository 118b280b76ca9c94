//! Cutting: a Plan in two at the border of two layers, so that two devices can share a model.
//!
//! At such a border exactly one buffer holds values that are read later: the residual stream. It is the output of the
//! first part and the input of the second. Each part has only the weights and caches of its own steps.

use std::collections::BTreeSet;

use crate::plan::{BufferId, CacheId, Op, Plan, Step, WeightId};

/// The most of a Plan's last layers for which `fits` holds: of the whole Plan, or of the second part of a cut. What holds for a
/// part has to hold for those with fewer layers.
pub fn last_layers_that_fit(plan: &Plan, fits: impl Fn(&Plan) -> bool) -> usize {
    if fits(plan) {
        return plan.layers();
    }
    let last = |before: &usize| cut(plan, *before).map(|[_, last]| last);
    // Not every border can be cut. To ask whether a part fits may take long: it is asked of few.
    let borders: Vec<usize> = (1..plan.layers()).filter(|before| last(before).is_some()).collect();
    let first = borders.partition_point(|before| !last(before).is_some_and(|part| fits(&part)));
    borders.get(first).map_or(0, |before| plan.layers() - before)
}

/// Cuts a Plan in any form after its first `layers` layers: the first part with the embedding, the second with the output
/// matrix. None where there is no such border: `layers` is 0 or not less than the Plan's, or more than one buffer or a cache
/// is needed on both sides.
pub fn cut(plan: &Plan, layers: usize) -> Option<[Plan; 2]> {
    if layers == 0 || layers >= plan.layers() {
        return None;
    }
    let border = last_border(plan, layers)?;
    let mut before = plan.steps[..border.steps].to_vec();
    let mut after = Vec::with_capacity(plan.steps.len() - border.steps + 1);
    if border.splits_norms {
        let (add, norm) = halves(&plan.steps[border.steps])?;
        before.push(add);
        after.push(norm);
        after.extend_from_slice(&plan.steps[border.steps + 1..]);
    } else {
        after.extend_from_slice(&plan.steps[border.steps..]);
    }
    if shares_a_cache(&before, &after) {
        return None;
    }
    let crossing = border.crossing;
    Some([part(plan, before, plan.input, crossing), part(plan, after, Some(crossing), plan.output)])
}

/// The steps of parts one after the other: what they do together, for reports. A buffer or weight that several have is listed
/// for each.
///
/// # Panics
/// Without any part.
pub fn join<'a>(parts: impl IntoIterator<Item = &'a Plan>) -> Plan {
    let mut parts = parts.into_iter();
    let first = parts.next().expect("a model has at least one part").clone();
    parts.fold(first, |mut whole, next| {
        let (buffers, weights, caches) =
            (whole.buffers.len(), whole.weights.len(), whole.caches.len());
        whole.buffers.extend_from_slice(&next.buffers);
        whole.weights.extend_from_slice(&next.weights);
        whole.caches.extend_from_slice(&next.caches);
        whole.output = BufferId(next.output.0 + buffers);
        whole.steps.extend(next.steps.iter().cloned().map(|mut step| {
            step.op.rename(&|id| BufferId(id.0 + buffers));
            step.op.rebind(&|id| WeightId(id.0 + weights), &|id| CacheId(id.0 + caches));
            step
        }));
        whole
    })
}

/// A place where a Plan can be cut.
struct Border {
    /// Whole steps before it.
    steps: usize,
    /// Whether the step after these adds to the residual stream and norms it for the next layer: the border is between the
    /// two.
    splits_norms: bool,
    /// The one buffer whose values are read after the border.
    crossing: BufferId,
}

/// The last border after the first `layers` layers: those before it lie within a layer.
fn last_border(plan: &Plan, layers: usize) -> Option<Border> {
    let mut live = BTreeSet::from([plan.output]);
    let mut attends = plan.layers();
    for (index, step) in plan.steps.iter().enumerate().rev() {
        let border = |live: &BTreeSet<BufferId>, steps, splits_norms| match live.len() {
            1 if attends == layers => {
                live.first().map(|&crossing| Border { steps, splits_norms, crossing })
            }
            _ => None,
        };
        if let Some(found) = border(&live, index + 1, false) {
            return Some(found);
        }
        if let Op::NormAddNorm { target, output, .. } = step.op {
            let mut between = live.clone();
            between.remove(&output);
            between.insert(target);
            if let Some(found) = border(&between, index, true) {
                return Some(found);
            }
        }
        step.op.writes().iter().for_each(|id| {
            live.remove(id);
        });
        live.extend(step.op.reads());
        attends -= usize::from(matches!(step.op, Op::Attend { .. }));
    }
    None
}

/// The two norms of a step as steps of their own.
fn halves(step: &Step) -> Option<(Step, Step)> {
    let Op::NormAddNorm { input, weight, epsilon, target, next_weight, output } = step.op else {
        return None;
    };
    let half = |op| Step { label: step.label.clone(), op };
    let add = Op::NormAdd { input, weight, epsilon, target };
    Some((half(add), half(Op::Norm { input: target, weight: next_weight, epsilon, output })))
}

fn shares_a_cache(before: &[Step], after: &[Step]) -> bool {
    let caches = |steps: &[Step]| -> BTreeSet<CacheId> {
        steps.iter().filter_map(|step| step.op.cache()).collect()
    };
    !caches(before).is_disjoint(&caches(after))
}

/// A Plan of some steps, with what they need of the whole.
fn part(plan: &Plan, mut steps: Vec<Step>, input: Option<BufferId>, output: BufferId) -> Plan {
    let mut buffers: BTreeSet<BufferId> = input.into_iter().chain([output]).collect();
    let (mut weights, mut caches) = (BTreeSet::new(), BTreeSet::new());
    for step in &steps {
        buffers.extend(step.op.touches());
        weights.extend(step.op.weights());
        caches.extend(step.op.cache());
    }
    let buffer_of = |id| BufferId(buffers.range(..id).count());
    for step in &mut steps {
        step.op.rename(&buffer_of);
        step.op.rebind(&|id| WeightId(weights.range(..id).count()), &|id| {
            CacheId(caches.range(..id).count())
        });
    }
    Plan {
        buffers: buffers.iter().map(|id| plan.buffer(*id).clone()).collect(),
        weights: weights.iter().map(|id| plan.weight(*id).clone()).collect(),
        caches: caches.iter().map(|id| plan.cache(*id).clone()).collect(),
        steps,
        input: input.map(buffer_of),
        output: buffer_of(output),
    }
}
