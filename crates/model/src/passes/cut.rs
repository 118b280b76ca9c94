//! Cutting: divides a Plan into two at the border of two layers, so that two devices can share a
//! model.
//!
//! At such a border few buffers hold values that are read later, usually one: the residual stream.
//! They are the outputs of the first part and inputs of the second, in ascending order. An input
//! that is gathered from a table or comes from another Plan, and that no step of the first part
//! changes, is an input of each part that reads it instead. Each part has only the weights and
//! caches of its own steps.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::goal::Goal;
use crate::plan::{BufferId, CacheId, Input, Op, Plan, Rows, Source, Step, WeightId};

/// Returns the largest number of a Plan's last layers for which `fits` holds: of the whole Plan, or
/// of the second part of a cut. If `fits` holds for a part, it has to hold for those with fewer
/// layers.
pub fn last_layers_that_fit(plan: &Plan, fits: impl Fn(&Plan) -> bool) -> usize {
    if fits(plan) {
        return plan.layers();
    }
    let last = |before: &usize| cut(plan, *before).map(|[_, last]| last);
    // Not every border can be cut. `fits` may take long, so it is called for few of them.
    let borders: Vec<usize> = (1..plan.layers()).filter(|before| last(before).is_some()).collect();
    let first = borders.partition_point(|before| !last(before).is_some_and(|part| fits(&part)));
    borders.get(first).map_or(0, |before| plan.layers() - before)
}

/// Cuts a Plan in any form after its first `layers` layers: the first part with the embedding, the
/// second with the output matrix. Of several borders it takes the last of those that the fewest
/// buffers cross. Returns `None` if there is no border: `layers` is 0 or not less than the Plan's,
/// the Plan drafts, a cache is needed on both sides, or the first part has an input or output whose
/// rows are those of wanted logits.
pub fn cut(plan: &Plan, layers: usize) -> Option<[Plan; 2]> {
    // A guess reads caches of the first layers' part, which a step for another goal would write.
    if layers == 0 || layers >= plan.layers() || plan.has_goal(Goal::Draft) {
        return None;
    }
    let border = narrowest_border(plan, layers)?;
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
    let touched = |steps: &[Step]| -> BTreeSet<BufferId> {
        steps.iter().flat_map(|step| step.op.touches()).collect()
    };
    let (touched_before, touched_after) = (touched(&before), touched(&after));
    let crosses = |id: &BufferId| border.crossing.contains(id);
    let stays = |input: &Input| {
        let id = input.buffer;
        !crosses(&id) && (touched_after.contains(&id) || plan.outputs.contains(&id))
    };
    // An input that no step reads stays with the first part: a batch has rows for it.
    let reads_before = |input: &Input| touched_before.contains(&input.buffer) || !stays(input);
    let first_inputs: Vec<Input> = plan.inputs.iter().copied().filter(reads_before).collect();
    let handed_over = |&buffer: &BufferId| Input { buffer, source: Source::Part };
    let mut second_inputs: Vec<Input> = border.crossing.iter().map(handed_over).collect();
    second_inputs.extend(plan.inputs.iter().copied().filter(stays));
    let is_of_outputs = |id: &BufferId| plan.buffer(*id).rows == Rows::Outputs;
    let inputs = first_inputs.iter().map(|input| &input.buffer);
    if border.crossing.iter().chain(inputs).any(is_of_outputs) {
        return None;
    }
    let second = Plan { steps: after, inputs: second_inputs, ..plan.clone() };
    let first = Plan {
        steps: before,
        inputs: first_inputs,
        outputs: border.crossing,
        ends: Vec::new(),
        ..plan.clone()
    };
    Some([first, second].map(Plan::compacted))
}

/// Returns a Plan of the steps of parts of `whole` one after the other: their work together, for
/// reports. What a part hands over to the next one is one buffer. A buffer within the parts, a
/// weight or a gathered input that several have is listed for each. Inputs that come with the batch
/// are those of the whole, in its order; its outputs are those of the last part.
///
/// # Panics
/// Panics if there are no parts.
pub fn join<'a>(whole: &Plan, parts: impl IntoIterator<Item = &'a Plan>) -> Plan {
    let mut parts = parts.into_iter();
    let first = parts.next().expect("a model has at least one part").clone();
    let mut joined = parts.fold(first, |mut joined, next| {
        let mut next = next.clone();
        // What it is given that the parts before have: their outputs, and rows of another Plan.
        let mut handed_over = joined.outputs.iter().copied();
        let mut known: BTreeMap<BufferId, BufferId> = BTreeMap::new();
        next.inputs.retain(|input| {
            let name = &next.buffers[input.buffer.0].name;
            let place = match input.source {
                Source::Part => handed_over.next(),
                Source::Plan | Source::Picture | Source::State => {
                    joined.given().find(|given| joined.buffer(*given).name == *name)
                }
                Source::Table { .. } => None,
            };
            known.extend(place.map(|place| (input.buffer, place)));
            place.is_none()
        });
        let own = |id: &usize| !known.contains_key(&BufferId(*id));
        let (buffers, weights, caches) =
            (joined.buffers.len(), joined.weights.len(), joined.caches.len());
        let buffer_of = |id: BufferId| match known.get(&id) {
            Some(place) => *place,
            None => BufferId(buffers + (0..id.0).filter(own).count()),
        };
        next.renumber(&buffer_of, &|id| WeightId(id.0 + weights), &|id| CacheId(id.0 + caches));
        let own_buffers = next.buffers.into_iter().enumerate().filter(|(id, _)| own(id));
        joined.buffers.extend(own_buffers.map(|(_, buffer)| buffer));
        joined.inputs.append(&mut next.inputs);
        joined.weights.append(&mut next.weights);
        joined.caches.append(&mut next.caches);
        joined.steps.append(&mut next.steps);
        (joined.outputs, joined.ends) = (next.outputs, next.ends);
        joined
    });
    let place = |name: &str| whole.given().position(|id| whole.buffer(id).name == name);
    let Plan { inputs, buffers, .. } = &mut joined;
    inputs.sort_by_key(|input| {
        let place = place(&buffers[input.buffer.0].name).filter(|_| input.is_given());
        place.unwrap_or(usize::MAX)
    });
    joined
}

/// A place where a Plan can be cut.
struct Border {
    /// Number of whole steps before it.
    steps: usize,
    /// Whether the step after these adds to the residual stream and norms it for the next layer.
    /// The border is then between the two.
    splits_norms: bool,
    /// The buffers that are handed over: at least one, in ascending order.
    crossing: Vec<BufferId>,
}

/// Returns the border after the first `layers` layers that the fewest buffers cross, the last of
/// several: those before it lie within a layer.
fn narrowest_border(plan: &Plan, layers: usize) -> Option<Border> {
    let mut live: BTreeSet<BufferId> = plan.outputs.iter().copied().collect();
    let mut attends = plan.layers();
    let serving = plan.serving(Goal::Main);
    let mut narrowest: Option<Border> = None;
    let mut see = |live: &BTreeSet<BufferId>, steps, splits_norms| {
        let changed = &plan.steps[..steps + usize::from(splits_norms)];
        let crossing: Vec<BufferId> =
            live.iter().copied().filter(|&id| !comes_again(plan, changed, id)).collect();
        let most = narrowest.as_ref().map_or(usize::MAX, |border| border.crossing.len());
        if (1..most).contains(&crossing.len()) {
            narrowest = Some(Border { steps, splits_norms, crossing });
        }
    };
    for (index, step) in plan.steps.iter().enumerate().rev() {
        if attends < layers {
            break;
        }
        if attends == layers {
            see(&live, index + 1, false);
            if let Op::NormAddNorm { target, output, .. } = step.op {
                let mut between = live.clone();
                between.remove(&output);
                between.insert(target);
                see(&between, index, true);
            }
        }
        step.op.writes().iter().for_each(|id| {
            live.remove(id);
        });
        live.extend(step.op.reads());
        // The layers of another goal's end are those of the first's.
        attends -= usize::from(serving[index] && matches!(step.op, Op::Attend { .. }));
    }
    narrowest
}

/// Returns whether a buffer is an input that each part gets again: it comes from no other part, and
/// none of these steps changes it.
fn comes_again(plan: &Plan, steps: &[Step], id: BufferId) -> bool {
    let is_own = |input: &Input| input.buffer == id && input.source != Source::Part;
    plan.inputs.iter().any(is_own) && !steps.iter().any(|step| step.op.writes().contains(&id))
}

/// Returns the two norms of a step as steps of their own.
fn halves(step: &Step) -> Option<(Step, Step)> {
    let Op::NormAddNorm { input, weight, epsilon, target, scale, next_weight, output } = step.op
    else {
        return None;
    };
    let half = |op| Step { label: step.label.clone(), op };
    let add = Op::NormAdd { input, weight, epsilon, target, scale };
    Some((half(add), half(Op::Norm { input: target, weight: next_weight, epsilon, output })))
}

fn shares_a_cache(before: &[Step], after: &[Step]) -> bool {
    let caches = |steps: &[Step]| -> BTreeSet<CacheId> {
        steps.iter().filter_map(|step| step.op.cache()).collect()
    };
    !caches(before).is_disjoint(&caches(after))
}
