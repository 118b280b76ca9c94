//! What sums take over, and what they must not.

use trine_backend::ProgramOptions;
use trine_model::{
    Buffer, BufferId, Goal, Input as PlanInput, KvType, Op, Plan, Rows, Source, Step, Weight,
    WeightId, WeightKind, WeightPlace, Width,
};
use trine_weights::DType;

use super::super::super::graph::Home;
use super::super::super::lower::translate;
use super::super::super::passes::{Attended, PassKey};
use super::super::tests::push;
use super::super::{Rule, walk};
use super::*;
use crate::capabilities::presets::h200;

const EPSILON: f32 = 1e-6;
/// A row that is there, and the result of a copy of it.
const A: BufferId = BufferId(0);
const B: BufferId = BufferId(1);
const NORM: WeightId = WeightId(0);

/// A graph over rows of these columns, without launches, and five values in it.
fn room(columns: usize) -> (Graph, Selection, [ValueId; 5]) {
    let buffer = |name: &str| Buffer { name: name.to_owned(), rows: Rows::Tokens, columns };
    let weight = Weight {
        name: "norm".to_owned(),
        kind: WeightKind::Vector,
        rows: 1,
        columns,
        dtype: DType::F32,
        place: WeightPlace::Device,
    };
    let op = Op::Sum { terms: vec![trine_model::Term { buffer: A, factor: 1.0 }], output: B };
    let plan = Plan {
        buffers: vec![buffer("a"), buffer("b")],
        weights: vec![weight],
        caches: Vec::new(),
        steps: vec![Step { label: "copy".to_owned(), op }],
        inputs: vec![PlanInput { buffer: A, source: Source::Part }],
        outputs: vec![B],
        ends: Vec::new(),
    };
    let width = Width { tokens: 3, outputs: 3 };
    let options = ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks: 2 };
    let selection = Selection::new(&h200(), &plan, &options);
    let key = PassKey { width, attended: Attended::Rows, goal: Goal::Main };
    let mut graph = translate(&plan, key, 0, &selection).unwrap();
    graph.nodes.clear();
    graph.outputs.clear();
    let values = [0; 5].map(|_| graph.fresh_rows(3, columns, Home::Own));
    (graph, selection, values)
}

fn sum(terms: Vec<SumTerm<Ids>>, result: ValueId) -> Work {
    Work::Sum(SumLaunch::of(terms, result))
}

fn parts(values: ValueId, shares: ValueId) -> SumTerm<Ids> {
    SumTerm { shares: Some((shares, 2)), ..SumTerm::of(values, 1.0) }
}

/// Returns how many launches are left after a rule.
fn left(mut graph: Graph, selection: &Selection, rule: Rule) -> usize {
    walk(&mut graph, rule, selection);
    graph.nodes.len()
}

/// Returns how many launches are left of a sum of the parts of a row, of some that replace a value
/// each, and of a sum with this number of terms, of which the first is the sum of parts.
fn of_parts(terms: usize, more: &[usize]) -> usize {
    let (mut graph, selection, v) = room(64);
    push(&mut graph, sum(vec![parts(v[0], v[1])], v[2]));
    for &changed in more {
        push(&mut graph, sum(vec![SumTerm::of(v[3], 1.0)], v[changed]));
    }
    let mut list = vec![SumTerm::of(v[2], 0.5)];
    list.resize(terms, SumTerm::of(v[3], 1.0));
    push(&mut graph, sum(list, v[4]));
    left(graph, &selection, sum_takes_sum)
}

#[test]
fn a_sum_adds_the_parts_of_a_term() {
    assert_eq!(of_parts(1, &[]), 1);
    assert_eq!(of_parts(TERMS_MAX - 1, &[]), 1);
    assert_eq!(of_parts(TERMS_MAX, &[]), 2, "the shares have no place");
    assert_eq!(of_parts(2, &[0]), 3, "the parts are replaced before");
    assert_eq!(of_parts(2, &[1]), 3, "the shares are replaced before");

    let (mut graph, selection, v) = room(64);
    push(&mut graph, sum(vec![parts(v[0], v[1])], v[2]));
    push(&mut graph, sum(vec![SumTerm::of(v[2], 1.0), parts(v[0], v[1])], v[4]));
    assert_eq!(left(graph, &selection, sum_takes_sum), 2, "two terms of parts");

    let (mut graph, selection, v) = room(64);
    push(&mut graph, sum(vec![parts(v[0], v[1])], v[2]));
    push(&mut graph, sum(vec![SumTerm::of(v[2], 1.0)], v[3]));
    push(&mut graph, sum(vec![SumTerm::of(v[2], 1.0)], v[4]));
    assert_eq!(left(graph, &selection, sum_takes_sum), 3, "two readers");
}

/// A sum of `v[0]` and its addition to `v[2]`, with another reader of the sum or without one.
fn added(columns: usize, epsilon: f32, is_in_place: bool, others: usize) -> usize {
    let (mut graph, selection, v) = room(columns);
    let home = if is_in_place { Home::Of(v[2]) } else { Home::Own };
    let updated = graph.fresh_rows(3, columns, home);
    let terms = vec![SumTerm { norm: Some(NORM), ..SumTerm::of(v[0], 1.0) }];
    push(&mut graph, Work::Sum(SumLaunch { epsilon: EPSILON, ..SumLaunch::of(terms, v[1]) }));
    let (weight, next_weight, target) = (NORM, NORM, Target { old: v[2], updated });
    let work = RowWork::NormAddNorm { weight, target, scale: 0.5, next_weight };
    push(&mut graph, Work::Rows(RowsLaunch::of(work, v[1], epsilon, MadeValue::Rows(v[3]))));
    for _ in 0..others {
        push(&mut graph, sum(vec![SumTerm::of(v[1], 1.0)], v[4]));
    }
    left(graph, &selection, sum_adds) - others
}

#[test]
fn a_sum_adds_its_norm_to_a_row() {
    assert_eq!(added(64, EPSILON, true, 0), 1);
    assert_eq!(added(64, 1e-5, true, 0), 2, "another epsilon");
    assert_eq!(added(64, EPSILON, false, 0), 2, "the target is kept");
    assert_eq!(added(64, EPSILON, true, 1), 2, "another reader");
    assert_eq!(added(NORMED_COLUMNS_MAX, EPSILON, true, 0), 1);
    assert_eq!(added(NORMED_COLUMNS_MAX + 1, EPSILON, true, 0), 2, "too many columns");
}
