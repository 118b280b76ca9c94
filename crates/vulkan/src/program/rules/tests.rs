//! For each rule, what it changes and what it must not change.

use trine_backend::ProgramOptions;
use trine_model::{
    Ahead, Buffer, BufferId, Cache, CacheId, Goal, Heads, KvType, Op, Plan, Product, Rope, Rows,
    Source, Step, Term, Weight, WeightId, WeightKind, WeightPlace, Width,
};
use trine_weights::DType;

use super::super::graph::Node;
use super::super::lower::translate;
use super::super::passes::PassKey;
use super::super::print::Printed;
use super::*;
use crate::capabilities::Capabilities;
use crate::capabilities::presets::{h200, software};

/// Adds a launch over rows of tokens.
pub(super) fn push(graph: &mut Graph, work: Work) {
    graph.nodes.push(Node { step: 0, label: "x".to_owned(), rows: Rows::Tokens, work });
}

/// What is selected on an H200 for no Plan in particular.
pub(super) fn selection() -> Selection {
    let plan = Plan {
        buffers: Vec::new(),
        weights: Vec::new(),
        caches: Vec::new(),
        steps: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        ends: Vec::new(),
    };
    let width = Width { tokens: 3, outputs: 3 };
    let options = ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks: 2 };
    Selection::new(&h200(), &plan, &options)
}

const A: BufferId = BufferId(0);
const B: BufferId = BufferId(1);
const C: BufferId = BufferId(2);
const D: BufferId = BufferId(3);
const E: BufferId = BufferId(4);

/// Factors of norms.
const N: WeightId = WeightId(0);
const M: WeightId = WeightId(1);
/// Matrices in Q4_0.
const V: WeightId = WeightId(2);
const W: WeightId = WeightId(3);
/// A matrix in F16.
const F: WeightId = WeightId(4);

const EPSILON: f32 = 1e-6;
const HEADS: Heads = Heads { query: 4, kv: 4, dim: 64 };

/// A Plan over square matrices and buffers of 256 columns; the first buffer is its input.
fn plan(ops: &[Op], output: BufferId) -> Plan {
    let buffer = |index| Buffer { name: format!("b{index}"), rows: Rows::Tokens, columns: 256 };
    let weight = |name: &str, kind, rows, dtype| Weight {
        name: name.to_owned(),
        kind,
        rows,
        columns: 256,
        dtype,
        place: WeightPlace::Device,
    };
    let vector = |name| weight(name, WeightKind::Vector, 1, DType::F32);
    let matrix = |name, dtype| weight(name, WeightKind::Matrix, 256, dtype);
    let step = |op: &Op| Step { label: op.name().to_owned(), op: op.clone() };
    Plan {
        buffers: (0..5).map(buffer).collect(),
        weights: vec![
            vector("n"),
            vector("m"),
            matrix("v", DType::Q4_0),
            matrix("w", DType::Q4_0),
            matrix("f", DType::F16),
        ],
        caches: vec![Cache { layer: 0, kv_heads: 4, head_dim: 64, window: None }],
        steps: ops.iter().map(step).collect(),
        inputs: vec![trine_model::Input { buffer: A, source: Source::Part }],
        outputs: vec![output],
        ends: Vec::new(),
    }
}

/// A device, a number of rows, and how attention goes through them.
struct Case {
    capabilities: Capabilities,
    kv: KvType,
    rows: usize,
    attended: Attended,
}

/// Eight rows on matrix units, which take halves.
fn eight() -> Case {
    Case { capabilities: h200(), kv: KvType::F16, rows: 8, attended: Attended::Sequences }
}

/// Returns the case of one row, on this device.
fn one(capabilities: Capabilities) -> Case {
    Case { capabilities, kv: KvType::F16, rows: 1, attended: Attended::Sequences }
}

/// A device on which no kernel streams: its subgroups are too narrow.
fn narrow() -> Capabilities {
    Capabilities { subgroup: 4, subgroup_range: (4, 4), ..software() }
}

impl Case {
    /// The launches of a Plan before and after some rules.
    fn walked(&self, plan: &Plan, rules: &[Rule]) -> [Vec<String>; 2] {
        let width = Width { tokens: self.rows, outputs: self.rows };
        let options = ProgramOptions { width, kv: self.kv, context: 64, sequences: 8, blocks: 64 };
        let selection = Selection::new(&self.capabilities, plan, &options);
        let mut graph = translate(
            plan,
            PassKey { width, attended: self.attended, goal: Goal::Main },
            0,
            &selection,
        )
        .unwrap();
        let before = Printed::new(&graph, plan).lines();
        rules.iter().for_each(|rule| walk(&mut graph, *rule, &selection));
        [before, Printed::new(&graph, plan).lines()]
    }

    /// Asserts the launches after some rules.
    #[track_caller]
    fn expect(&self, plan: &Plan, rules: &[Rule], expected: &[&str]) {
        assert_eq!(self.walked(plan, rules)[1], expected);
    }

    /// Asserts that the last of some rules changes nothing.
    #[track_caller]
    fn refuses(&self, plan: &Plan, rules: &[Rule]) {
        let [_, before] = self.walked(plan, &rules[..rules.len() - 1]);
        assert_eq!(self.walked(plan, rules)[1], before);
    }
}

fn matmul(input: BufferId, weight: WeightId, output: BufferId) -> Op {
    Op::MatMul { input, products: vec![Product { weight, output }] }
}

fn norm(input: BufferId, output: BufferId) -> Op {
    Op::Norm { input, weight: N, epsilon: EPSILON, output }
}

fn norm_add_norm(input: BufferId, target: BufferId, output: BufferId) -> Op {
    Op::NormAddNorm {
        input,
        weight: N,
        epsilon: EPSILON,
        target,
        scale: 1.0,
        next_weight: M,
        output,
    }
}

fn gated(input: BufferId, output: BufferId) -> Op {
    Op::GatedMatMul { input, gate: V, up: W, output }
}

fn attend(query: BufferId, output: BufferId) -> Op {
    Op::Attend {
        query,
        cache: CacheId(0),
        heads: HEADS,
        scale: 0.5,
        window: None,
        ahead: Ahead::All,
        output,
    }
}

fn prepare(query: BufferId) -> Op {
    Op::PrepareQkv {
        query,
        key: B,
        value: C,
        query_norm: N,
        key_norm: M,
        heads: HEADS,
        epsilon: EPSILON,
        rope: Rope::full(1e4, 1.0),
        cache: CacheId(0),
    }
}

#[test]
fn products_of_the_same_rows_share_a_conversion() {
    let both = plan(&[matmul(A, V, B), matmul(A, W, C)], C);
    eight().expect(
        &both,
        &[convert_once],
        &[
            "convert %0 f32[8,256] -> %1 halves[8,256]",
            "matmul %1 halves[8,256] x v:q4_0 -> %2 f32[8,256]",
            "matmul %1 halves[8,256] x w:q4_0 -> %3 f32[8,256]",
        ],
    );
    // The rows are changed in between.
    let changed = [matmul(A, V, B), Op::Add { source: B, target: A }, matmul(A, W, C)];
    eight().refuses(&plan(&changed, C), &[convert_once]);
    eight().refuses(&plan(&[matmul(A, V, B), matmul(B, W, C)], C), &[convert_once]);
}

#[test]
fn a_norm_gives_the_operand_that_it_is_converted_to() {
    let normed = plan(&[norm(A, B), matmul(B, V, C)], C);
    eight().expect(
        &normed,
        &[rows_give_operand],
        &[
            "norm %0 f32[8,256] x n -> %1 halves[8,256]",
            "matmul %1 halves[8,256] x v:q4_0 -> %2 f32[8,256]",
        ],
    );
    // A product with floats and the Plan's output need the rows too.
    let rows_too = "norm %0 f32[8,256] x n -> %1 f32[8,256], %2 halves[8,256]";
    for plan in [
        plan(&[norm(A, B), matmul(B, V, C), matmul(B, F, D)], D),
        plan(&[norm(A, B), matmul(B, V, C)], B),
    ] {
        assert_eq!(eight().walked(&plan, &[rows_give_operand])[1][0], rows_too);
    }
    // What is not the result of a norm stays converted.
    eight().refuses(&plan(&[matmul(A, F, B), matmul(B, V, C)], C), &[rows_give_operand]);
    let added = [norm(A, B), Op::Add { source: A, target: B }, matmul(B, V, C)];
    eight().refuses(&plan(&added, C), &[rows_give_operand]);
}

#[test]
fn attention_gives_halves_where_its_cache_holds_them() {
    let rules: [Rule; 2] = [convert_once, attention_gives_operand];
    let attended = plan(&[attend(A, B), matmul(B, V, C)], C);
    let rows = Case { rows: 16, attended: Attended::Rows, ..eight() };
    let tiles = Case { rows: 16, attended: Attended::Tiles, ..eight() };
    let found = rows.walked(&attended, &rules)[1].clone();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].ends_with("bytes -> %1 fragments[16,256]"), "{found:?}");
    tiles.expect(
        &attended,
        &rules,
        &[
            "attend by tiles on matrix units %0 f32[16,256] -> %1 fragments[16,256]",
            "matmul %1 fragments[16,256] x v:q4_0 -> %2 f32[16,256]",
        ],
    );
    // An int8 cache holds values of any size.
    Case { kv: KvType::Int8, ..eight() }.refuses(&attended, &rules);
    // Something else reads the rows.
    eight().refuses(&plan(&[attend(A, B), matmul(B, V, C), matmul(B, F, D)], D), &rules);
    eight().refuses(&plan(&[attend(A, B), matmul(B, V, C)], B), &rules);
    // The kernel without matrix units writes rows.
    let rows = Case { capabilities: software(), rows: 16, attended: Attended::Tiles, ..eight() };
    rows.refuses(&attended, &rules);
}

#[test]
fn attention_of_one_row_gives_fixed_point() {
    let attended = plan(&[attend(A, B), matmul(B, V, C)], C);
    one(narrow()).expect(
        &attended,
        &[attention_gives_operand],
        &[
            "attend by rows %0 f32[1,256] -> %1 fixed16[1,256]",
            "matvec %1 fixed16[1,256] x v:q4_0 -> %2 f32[1,256]",
        ],
    );
    // With several rows it does not.
    let two = Case { rows: 2, ..one(narrow()) };
    two.refuses(&attended, &[attention_gives_operand]);
}

#[test]
fn a_gated_product_after_a_norm_gives_halves() {
    let rules: [Rule; 3] = [convert_once, rows_give_operand, gated_gives_operand];
    let normed = plan(&[norm(A, B), gated(B, C), matmul(C, V, D)], D);
    let found = &eight().walked(&normed, &rules)[1];
    assert_eq!(found[1], "matmul + geglu %1 halves[8,256] x v:q4_0, w:q4_0 -> %2 halves[8,256]");
    assert_eq!(found.len(), 3, "{found:?}");
    // Without a norm it is unknown how large its results are.
    eight().refuses(&plan(&[gated(A, C), matmul(C, V, D)], D), &rules);
    // Something else reads the rows.
    eight().refuses(&plan(&[norm(A, B), gated(B, C), matmul(C, V, D)], C), &rules);
}

#[test]
fn a_gated_product_of_few_rows_gives_fixed_point() {
    let few = Case { capabilities: software(), ..eight() };
    let plain = plan(&[gated(A, B), matmul(B, V, C)], C);
    let found = &few.walked(&plain, &[gated_gives_operand])[1];
    assert_eq!(found[1], "matvec + geglu %1 fixed16[8,256] x v:q4_0, w:q4_0 -> %2 fixed16[8,256]");
    let found = &few.walked(&plan(&[gated(A, B), matmul(B, V, C)], B), &[gated_gives_operand])[1];
    assert!(found[1].ends_with("-> %2 f32[8,256], %3 fixed16[8,256]"), "{found:?}");
    // More rows go to another kernel.
    Case { rows: 16, ..few }.refuses(&plain, &[gated_gives_operand]);
}

#[test]
fn a_gated_product_of_one_row_interleaves_it_for_its_only_reader() {
    let plain = plan(&[gated(A, B), matmul(B, V, C)], C);
    // A row has as many blocks as a workgroup has invocations.
    let device = Capabilities { invocations: 32, ..h200() };
    one(device.clone()).expect(
        &plain,
        &[gated_interleaves],
        &[
            "one_row + geglu %0 f32[1,256] x v:q4_0, w:q4_0 -> %1 interleaved[1,256]",
            "one_row %1 interleaved[1,256] x v:q4_0 -> %2 f32[1,256]",
        ],
    );
    let refused = [
        // The rows are read elsewhere.
        plan(&[gated(A, B), matmul(B, V, C)], B),
        plan(&[gated(A, B), matmul(B, V, C), matmul(B, W, D)], D),
        // The next product is not the kernel for one row, or has several matrices.
        plan(&[gated(A, B), matmul(B, F, C)], C),
        plan(&[gated(A, B), gated(B, C)], C),
    ];
    refused.iter().for_each(|plan| one(device.clone()).refuses(plan, &[gated_interleaves]));
    one(h200()).refuses(&plain, &[gated_interleaves]);
    eight().refuses(&plain, &[gated_interleaves]);
}

#[test]
fn products_norm_their_row_themselves() {
    let rules: [Rule; 2] = [rows_give_operand, product_norms];
    for (capabilities, kernel) in [(h200(), "one_row"), (narrow(), "matvec")] {
        let expected = format!("norm + {kernel} %0 f32[1,256] x n, v:q4_0 -> %1 f32[1,256]");
        one(capabilities.clone()).expect(
            &plan(&[norm(A, B), matmul(B, V, C)], C),
            &rules,
            &[&expected],
        );
        let added = plan(&[matmul(A, F, E), norm_add_norm(E, A, B), matmul(B, V, C)], C);
        let found = &one(capabilities).walked(&added, &rules)[1];
        let expected = format!(
            "norm_add_norm + {kernel} %1 f32[1,256], %0 f32[1,256] x n, m, v:q4_0 -> %2 \
             f32[1,256], %3 f32[1,256]"
        );
        assert_eq!(found[1..], [expected]);
    }
    // Different formats make two products of one step. The first one updates the target.
    let gated = Op::GatedMatMul { input: B, gate: V, up: F, output: C };
    let added = plan(&[matmul(A, F, E), norm_add_norm(E, A, B), gated], C);
    let found = &one(h200()).walked(&added, &rules)[1];
    let normed = "%1 f32[1,256], %0 f32[1,256] x n, m";
    let expected = [
        format!("norm_add_norm + one_row {normed}, v:q4_0 -> %2 f32[1,256], %3 f32[1,256]"),
        format!("norm_add_norm + matvec {normed}, f:f16 -> %4 f32[1,256]"),
    ];
    assert_eq!(found[1..3], expected);
    let refused = [
        // The normed row is read elsewhere.
        plan(&[norm(A, B), matmul(B, V, C)], B),
        plan(&[norm(A, B), matmul(B, V, C), matmul(B, W, D)], B),
        // Another launch stands between.
        plan(&[norm(A, B), norm(A, D), matmul(B, V, C)], C),
        plan(&[norm(A, B), matmul(B, V, C), norm(A, D), matmul(B, W, E)], E),
    ];
    refused.iter().for_each(|plan| one(h200()).refuses(plan, &rules));
    eight().refuses(&plan(&[norm(A, B), matmul(B, V, C)], C), &rules);
}

#[test]
fn attention_prepares_the_heads_of_rows_of_different_sequences() {
    let ops = [matmul(A, F, B), matmul(A, F, C), prepare(A), attend(A, D)];
    let found = &eight().walked(&plan(&ops, D), &[attention_prepares])[1];
    assert_eq!(found.len(), 3);
    let expected =
        "prepare_qkv + attend by rows %0 f32[8,256], %1 f32[8,256], %2 f32[8,256] x n, m";
    assert!(found[2].starts_with(expected), "{found:?}");
    // Rows of one sequence see each other's keys.
    Case { attended: Attended::Rows, ..eight() }.refuses(&plan(&ops, D), &[attention_prepares]);
    // The rotated query is read elsewhere.
    eight().refuses(&plan(&ops, A), &[attention_prepares]);
    // Something stands between.
    let ops = [matmul(A, F, B), matmul(A, F, C), prepare(A), norm(B, E), attend(A, D)];
    eight().refuses(&plan(&ops, D), &[attention_prepares]);
}

#[test]
fn a_cutoff_goes_on_with_its_gate() {
    let cutoff = Op::Cutoff { buffer: B, deviations: 1.0 };
    let gate = |gate, up| Op::Geglu { gate, up, first: 0, output: D };
    let ops = |last: Op| [matmul(A, V, B), matmul(A, W, C), cutoff.clone(), last];
    let rules: &[Rule] = &[cutoff_gates];
    let found = one(h200()).walked(&plan(&ops(gate(B, C)), D), rules)[1].clone();
    assert_eq!(found.len(), 3);
    assert!(found[2].starts_with("cutoff + geglu %"), "{found:?}");
    one(h200()).refuses(&plan(&ops(gate(C, B)), D), rules);
    one(h200()).refuses(&plan(&ops(gate(B, C)), B), rules);
}

#[test]
fn a_product_of_one_row_gates_what_is_there() {
    let gate = |gate, up| Op::Geglu { gate, up, first: 0, output: D };
    let rules: &[Rule] = &[product_gates];
    let gates = plan(&[matmul(A, V, B), gate(B, A)], D);
    let found = one(h200()).walked(&gates, rules)[1].clone();
    assert_eq!(found.len(), 1);
    assert!(found[0].contains(" + geglu of another row %"), "{found:?}");
    eight().refuses(&gates, rules);
    one(h200()).refuses(&plan(&[matmul(A, V, B), gate(A, B)], D), rules);
    one(h200()).refuses(&plan(&[matmul(A, V, B), gate(B, A)], B), rules);
    // Floats have another kernel.
    one(h200()).refuses(&plan(&[matmul(A, F, B), gate(B, A)], D), rules);
}

#[test]
fn attention_norms_values_and_turns_queries() {
    let head_norm = |buffer, weight| Op::HeadNorm { buffer, weight, heads: 4, epsilon: EPSILON };
    let rules: &[Rule] = &[values_are_normed, queries_turn, attention_prepares, attention_turns];
    let case = one(h200());
    let projections = [matmul(A, V, B), matmul(A, W, C)];
    let ops = [&projections[..], &[head_norm(C, None), prepare(A), attend(A, D)]].concat();
    let found = case.walked(&plan(&ops, D), rules)[1].clone();
    assert_eq!(found.len(), 3, "{found:?}");
    let rope = Rope::full(1e4, 1.0);
    let rotate = Op::Rotate { buffer: B, heads: 4, rope };
    let ops = [matmul(A, V, B), head_norm(B, Some(N)), rotate, attend(B, D)];
    for case in [one(h200()), eight()] {
        let found = case.walked(&plan(&ops, D), rules)[1].clone();
        let last = found.last().unwrap();
        assert!(last.starts_with("head_norm + rotate + attend by rows %"), "{found:?}");
        let found = case.walked(&plan(&ops, B), rules)[1].clone();
        assert!(found.iter().any(|line| line.starts_with("head_norm + rotate %")), "{found:?}");
    }
}

#[test]
fn values_that_are_keys_are_read_as_keys() {
    let rules: &[Rule] = &[values_are_normed, values_are_keys];
    let copy = |factor| Op::Sum { terms: vec![Term { buffer: B, factor }], output: C };
    let head_norm = |buffer| Op::HeadNorm { buffer, weight: None, heads: 4, epsilon: EPSILON };
    let ops = |second: Op, third: Op| [matmul(A, V, B), second, third, prepare(A), attend(A, D)];
    let case = one(h200());
    let found = case.walked(&plan(&ops(copy(1.0), head_norm(C)), D), rules)[1].clone();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[1].starts_with("prepare_qkv %"), "{found:?}");
    // The values have a factor, are normed as keys before they are copied, or are read elsewhere.
    for plan in [
        plan(&ops(copy(0.5), head_norm(C)), D),
        plan(&ops(copy(1.0), head_norm(B)), D),
        plan(&ops(copy(1.0), head_norm(C)), C),
    ] {
        let found = case.walked(&plan, rules)[1].clone();
        assert!(found.iter().any(|line| line.starts_with("sum %")), "{found:?}");
    }
}

#[test]
fn a_small_product_stands_before_a_large_one() {
    let rules: &[Rule] = &[small_products_first];
    let ops = [matmul(A, V, B), matmul(A, F, C)];
    let [before, after] = one(h200()).walked(&plan(&ops, C), rules);
    assert_eq!(before.len(), 2);
    assert!(before[1].contains("f:f16") && after[0].contains("f:f16"), "{after:?}");
    // It needs the large one.
    one(h200()).refuses(&plan(&[matmul(A, V, B), matmul(B, F, C)], C), rules);
}

#[test]
fn a_plan_that_reads_what_nothing_wrote_is_refused() {
    let plan = plan(&[matmul(B, V, C)], C);
    let width = Width { tokens: 1, outputs: 1 };
    let options = ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks: 1 };
    let selection = Selection::new(&h200(), &plan, &options);
    let refused = super::super::lower::lower(
        &plan,
        PassKey { width, attended: Attended::Sequences, goal: Goal::Main },
        &selection,
    );
    let message = refused.unwrap_err().to_string();
    assert_eq!(message, "the Plan reads b1 before anything has written it");
}
