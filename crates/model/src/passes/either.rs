//! Alternatives: combines two Plans over the same layers into one, of which each step runs one of
//! the two ends.
//!
//! Texts are generated from the logits of few rows, and embedded from the hidden states of all. Up
//! to the last step that writes a KV cache the two Plans are the same. Combined
//! they share weights and caches, and a batch says which end its rows are for.

use crate::plan::goal::Goal;
use crate::plan::{BufferId, Plan, WeightId};

/// Joins two Plans that begin with the same steps, over the same caches: a Plan whose first outputs
/// are the main ones, and whose second are hidden states. Weights are the same if they have one
/// name.
///
/// Returns `None` if the Plans have different inputs or caches, or differ up to the last step that
/// writes a cache. Both ends may read caches.
pub fn either(mut first: Plan, mut second: Plan) -> Option<Plan> {
    if first.caches != second.caches || first.inputs != second.inputs {
        return None;
    }
    let same = |(a, b): &(_, _)| a == b;
    let shared = first.steps.iter().zip(&second.steps).take_while(same).count();
    let touched = first.steps[..shared].iter().flat_map(|step| step.op.touches());
    let weights = first.steps[..shared].iter().flat_map(|step| step.op.weights());
    let is_same_buffer = |id: BufferId| first.buffer(id) == second.buffer(id);
    let is_same_weight = |id: WeightId| first.weight(id) == second.weight(id);
    let begins_alike =
        touched.into_iter().all(is_same_buffer) && weights.into_iter().all(is_same_weight);
    let ends = [&first.steps[shared..], &second.steps[shared..]];
    let stores = ends.into_iter().flatten().any(|step| step.op.stores());
    if !begins_alike || stores {
        return None;
    }
    second.steps.drain(..shared);
    second.inputs.clear();
    first.append(second, Goal::States);
    Some(first)
}

#[cfg(test)]
mod tests {
    use trine_weights::DType;

    use super::*;
    use crate::checkpoint::config::{Ahead, Rope};
    use crate::plan::{
        Buffer, Cache, CacheId, Heads, Input, Op, Product, Rows, Source, Step, Weight, WeightKind,
        WeightPlace,
    };

    /// The residual stream, the output of attention, and the hidden states.
    const STREAM: BufferId = BufferId(0);
    const ATTENDED: BufferId = BufferId(1);
    const STATES: BufferId = BufferId(2);
    const HEADS: Heads = Heads { query: 1, kv: 1, dim: 4 };

    fn attend(window: Option<usize>) -> Op {
        Op::Attend {
            query: STREAM,
            cache: CacheId(0),
            heads: HEADS,
            scale: 1.0,
            window,
            ahead: Ahead::All,
            output: ATTENDED,
        }
    }

    fn norm(weight: usize, output: BufferId) -> Op {
        Op::Norm { input: STREAM, weight: WeightId(weight), epsilon: 1e-6, output }
    }

    /// Returns a Plan of one layer's attention, after which some operations produce the states.
    fn plan(states: Rows, weights: &[&str], window: Option<usize>, tail: Vec<Op>) -> Plan {
        let buffer = |name: &str, rows| Buffer { name: name.to_owned(), rows, columns: 4 };
        let weight = |name: &&str| Weight {
            name: (*name).to_owned(),
            kind: WeightKind::Matrix,
            rows: 4,
            columns: 4,
            dtype: DType::F32,
            place: WeightPlace::Device,
        };
        let rope = Rope::full(1e4, 1.0);
        let mut ops = vec![Op::Rotate { buffer: STREAM, heads: 1, rope }, attend(window)];
        ops.extend(tail);
        Plan {
            buffers: vec![
                buffer("stream", Rows::Tokens),
                buffer("attended", Rows::Tokens),
                buffer("states", states),
            ],
            weights: weights.iter().map(weight).collect(),
            caches: vec![Cache { layer: 0, kv_heads: 1, head_dim: 4, window }],
            steps: ops.into_iter().map(|op| Step { label: op.name().to_owned(), op }).collect(),
            inputs: vec![Input { buffer: STREAM, source: Source::Part }],
            outputs: vec![STATES],
            ends: Vec::new(),
        }
    }

    fn of_outputs() -> Plan {
        let products = vec![Product { weight: WeightId(0), output: STATES }];
        plan(Rows::Outputs, &["head", "norm"], None, vec![Op::MatMul { input: ATTENDED, products }])
    }

    #[test]
    fn ends_stand_after_what_they_share() {
        let add = Op::Add { source: ATTENDED, target: STREAM };
        let second = plan(Rows::Tokens, &["norm"], None, vec![add, norm(0, STATES)]);
        let joined = either(of_outputs(), second).unwrap();
        let names: Vec<&str> = joined.steps.iter().map(|step| step.op.name()).collect();
        assert_eq!(names, ["rotate", "attend", "matmul", "add", "norm"]);
        assert_eq!(joined.weights.len(), 2);
        assert_eq!(joined.steps[4].op.weights(), [WeightId(1)]);
        assert_eq!(joined.outputs, [BufferId(2), BufferId(3)]);
        assert_eq!(joined.goals(), [Goal::Main, Goal::States]);
        assert_eq!(joined.serving(Goal::Main), [true, true, true, false, false]);
        // The rotated query is in the residual stream, which only the second goal reads later.
        assert_eq!(joined.serving(Goal::States), [true, true, false, true, true]);
        assert!(joined.gives(Goal::States, 1) && !joined.gives(Goal::States, 0));
    }

    #[test]
    fn a_plan_with_one_goal_runs_whole() {
        let plan = of_outputs();
        assert_eq!((plan.goals(), plan.serving(Goal::Main)), (vec![Goal::Main], vec![true; 3]));
    }

    fn store() -> Step {
        let op = Op::StoreKv { key: STREAM, value: STREAM, cache: CacheId(0) };
        Step { label: op.name().to_owned(), op }
    }

    #[test]
    fn plans_that_differ_before_their_last_write_of_a_cache_stay_apart() {
        let tail = || vec![norm(0, STATES)];
        assert!(either(of_outputs(), plan(Rows::Tokens, &["norm"], Some(2), tail())).is_none());
        let mut other = plan(Rows::Tokens, &["norm"], None, tail());
        other.inputs.clear();
        assert!(either(of_outputs(), other).is_none());
        // The second stores rows that are not rotated, after which both attend.
        let mut first = of_outputs();
        first.steps.insert(1, store());
        let mut second = plan(Rows::Tokens, &["norm"], None, tail());
        second.steps.insert(0, store());
        assert!(either(first.clone(), second.clone()).is_none());
        second.steps.swap(0, 1);
        assert!(either(first, second).is_some());
    }

    #[test]
    fn both_ends_may_read_a_cache() {
        let mut second = plan(Rows::Tokens, &["norm"], None, vec![norm(0, STATES)]);
        second.steps[1].op = attend(Some(2));
        let joined = either(of_outputs(), second).unwrap();
        assert_eq!(joined.serving(Goal::Main), [true, true, true, false, false]);
        assert_eq!(joined.serving(Goal::States), [true, false, false, false, true]);
    }
}
