//! What each rule changes in a layer of two streams, and what it must not change.

use trine_backend::ProgramOptions;
use trine_model::{
    Buffer, BufferId, Goal, Input as PlanInput, KvType, Op, Plan, Product, Rows, Source, Step,
    Stream, Term, Weight, WeightId, WeightKind, WeightPlace, Width,
};
use trine_weights::DType;

use super::super::super::lower::translate;
use super::super::super::passes::{Attended, PassKey};
use super::super::super::print::Printed;
use super::super::{RULES, walk};
use super::*;
use crate::capabilities::presets::h200;

const COLUMNS: usize = 256;
const EPSILON: f32 = 1e-6;

/// Streams before and after, a row, what a branch gives, its norm, the routed row, products, the
/// difference, and what is made of the first stream.
const X: [BufferId; 2] = [BufferId(0), BufferId(1)];
const Y: [BufferId; 2] = [BufferId(2), BufferId(3)];
const ROW: BufferId = BufferId(4);
const BRANCH: BufferId = BufferId(5);
const NORMED: BufferId = BufferId(6);
const ROUTED: BufferId = BufferId(7);
const DIFFERENCE: BufferId = BufferId(8);
const FIRST: BufferId = BufferId(9);
const PRODUCT: BufferId = BufferId(10);
const COEFFICIENTS: BufferId = BufferId(11);

const NORM: WeightId = WeightId(0);
const ROUTER: WeightId = WeightId(1);
const MATRIX: WeightId = WeightId(2);

fn plan(ops: &[Op], outputs: &[BufferId], coefficients: usize, router: DType) -> Plan {
    let buffer = |index| Buffer {
        name: format!("b{index}"),
        rows: Rows::Tokens,
        columns: match index {
            10 => 2,
            11 => coefficients,
            _ => COLUMNS,
        },
    };
    let weight = |name: &str, kind, rows, columns, dtype| Weight {
        name: name.to_owned(),
        kind,
        rows,
        columns,
        dtype,
        place: WeightPlace::Device,
    };
    let input = |buffer| PlanInput { buffer, source: Source::Part };
    Plan {
        buffers: (0..12).map(buffer).collect(),
        weights: vec![
            weight("norm", WeightKind::Vector, 1, COLUMNS, DType::F32),
            weight("router", WeightKind::Matrix, 2, COLUMNS, router),
            weight("matrix", WeightKind::Matrix, coefficients, 2, DType::F32),
        ],
        caches: Vec::new(),
        steps: ops.iter().map(|op| Step { label: op.name().to_owned(), op: op.clone() }).collect(),
        inputs: [X[0], X[1], ROW, BRANCH].map(input).to_vec(),
        outputs: outputs.to_vec(),
        ends: Vec::new(),
    }
}

/// The launches of a Plan for one row after all rules.
fn launches(plan: &Plan) -> Vec<String> {
    let width = Width { tokens: 1, outputs: 1 };
    let options = ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks: 2 };
    let selection = Selection::new(&h200(), plan, &options);
    let key = PassKey { width, attended: Attended::Sequences, goal: Goal::Main };
    let mut graph = translate(plan, key, 0, &selection).unwrap();
    RULES.iter().for_each(|rule| walk(&mut graph, *rule, &selection));
    let name = |line: &String| line.split(" %").next().unwrap_or_default().to_owned();
    Printed::new(&graph, plan).lines().iter().map(name).collect()
}

fn norm(input: BufferId, output: BufferId) -> Op {
    Op::Norm { input, weight: NORM, epsilon: EPSILON, output }
}

fn product(input: BufferId, weight: WeightId, output: BufferId) -> Op {
    Op::MatMul { input, products: vec![Product { weight, output }] }
}

fn streams() -> Vec<Stream> {
    X.into_iter().zip(Y).map(|(input, output)| Stream { input, output }).collect()
}

fn mix(sources: &[BufferId]) -> Op {
    let (streams, sources) = (streams(), sources.to_vec());
    Op::Mix { streams, sources, coefficients: COEFFICIENTS, bias: 0.0, scale: 0.5 }
}

/// Router and coefficients of a row.
fn router(first: Op) -> Vec<Op> {
    let cap = Op::Softcap { buffer: PRODUCT, cap: 9.0 };
    vec![first, product(ROUTED, ROUTER, PRODUCT), cap, product(PRODUCT, MATRIX, COEFFICIENTS)]
}

fn prediction() -> Vec<Op> {
    let add = Op::Add { source: NORMED, target: X[1] };
    let mut ops = vec![norm(BRANCH, NORMED), add];
    ops.extend(router(norm(X[0], ROUTED)));
    ops.extend([mix(&X), norm(Y[0], FIRST)]);
    ops
}

fn correction() -> Vec<Op> {
    let (weight, next_weight, epsilon) = (NORM, NORM, EPSILON);
    let (input, target, output) = (BRANCH, ROW, ROUTED);
    let mut ops =
        router(Op::NormAddNorm { input, weight, epsilon, target, scale: 1.0, next_weight, output });
    let term = |(buffer, factor)| Term { buffer, factor };
    let terms = [(ROW, 1.0), (X[0], -1.0)].map(term).to_vec();
    ops.push(Op::Sum { terms, output: DIFFERENCE });
    ops.extend([mix(&[DIFFERENCE]), Op::Scale { input: Y[0], weight: NORM, output: FIRST }]);
    ops
}

#[test]
fn a_prediction_and_a_correction_are_one_launch_each() {
    let outputs = [FIRST, Y[0], Y[1]];
    let found = launches(&plan(&prediction(), &outputs, 4, DType::F16));
    assert_eq!(found, ["norm + add + router + mix + norm"]);
    let found = launches(&plan(&correction(), &outputs, 2, DType::BF16));
    assert_eq!(found, ["norm_add + router + mix + scale"]);
}

#[test]
fn what_others_read_is_written() {
    let outputs = [FIRST, Y[0], Y[1]];
    let whole = |ops: &[Op], more: BufferId, coefficients| {
        let outputs = [&outputs[..], &[more]].concat();
        launches(&plan(ops, &outputs, coefficients, DType::F16))
    };
    // A stream from before the mix, the routed row, the capped products, the coefficients.
    for more in [X[0], ROUTED, PRODUCT, COEFFICIENTS] {
        let found = whole(&prediction(), more, 4);
        assert!(found.iter().any(|name| name.starts_with("mix")), "{more:?}: {found:?}");
    }
    for more in [X[1], ROW, DIFFERENCE] {
        let found = whole(&correction(), more, 2);
        assert!(found.iter().any(|name| name.starts_with("mix")), "{more:?}: {found:?}");
    }
    // The norm that is added to a stream.
    let found = whole(&prediction(), NORMED, 4);
    assert_eq!(found, ["norm", "add", "router + mix + norm"]);
}

#[test]
fn a_router_that_is_no_matrix_of_floats_has_a_launch_of_its_own() {
    let found = launches(&plan(&prediction(), &[FIRST, Y[0], Y[1]], 4, DType::Q8_0));
    assert!(found.iter().any(|name| name.starts_with("mix")), "{found:?}");
}

#[test]
fn a_sum_norms_its_terms_and_its_result() {
    let term = |(buffer, factor)| Term { buffer, factor };
    let terms = [(X[0], 0.5), (NORMED, 0.5), (ROUTED, 2.0)].map(term).to_vec();
    let sum = Op::Sum { terms, output: DIFFERENCE };
    let ops = [norm(BRANCH, NORMED), norm(ROW, ROUTED), sum.clone(), norm(DIFFERENCE, FIRST)];
    let of = |outputs: &[BufferId]| launches(&plan(&ops, outputs, 2, DType::F16));
    assert_eq!(of(&[FIRST, DIFFERENCE]), ["norm + norm + sum + norm"]);
    assert_eq!(of(&[FIRST, NORMED]), ["norm", "norm + sum + norm"]);
    // What is normed has changed before the sum.
    let add = Op::Add { source: X[0], target: BRANCH };
    let ops = [norm(BRANCH, NORMED), add, norm(ROW, ROUTED), sum];
    let found = launches(&plan(&ops, &[DIFFERENCE, BRANCH], 2, DType::F16));
    assert_eq!(found, ["norm", "add", "norm + sum"]);
}
