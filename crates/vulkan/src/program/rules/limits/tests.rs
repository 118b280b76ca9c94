//! Which launches keep limits themselves, and which must not.

use trine_backend::ProgramOptions;
use trine_model::{KvType, Plan, Rows, WeightId, Width};

use super::super::super::graph::{Node, NormWork};
use super::super::super::passes::Attended;
use super::super::walk;
use super::*;
use crate::capabilities::presets::h200;
use crate::kernels::operand::OperandKind;

fn push(graph: &mut Graph, work: Work) {
    graph.nodes.push(Node { step: 0, label: "x".to_owned(), rows: Rows::Tokens, work });
}

/// What is selected on an H200 for no Plan in particular.
fn selection() -> Selection {
    let plan = Plan {
        buffers: Vec::new(),
        weights: Vec::new(),
        caches: Vec::new(),
        steps: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        goal_outputs: Vec::new(),
    };
    let width = Width { tokens: 3, outputs: 3 };
    let options = ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks: 2 };
    Selection::new(&h200(), &plan, &options)
}

/// Returns a graph of three rows, and values of 64 columns.
fn room<const N: usize>() -> (Graph, [ValueId; N]) {
    let mut graph = Graph::new(Width { tokens: 3, outputs: 3 }, Attended::Tiles);
    let values = std::array::from_fn(|_| graph.fresh_rows(3, 64, Home::Own));
    (graph, values)
}

fn works(graph: &Graph) -> Vec<Work> {
    graph.nodes.iter().map(|node| node.work.clone()).collect()
}

const LIMITS: Limits = Limits { low: -1.0, high: 2.0 };
const OTHERS: Limits = Limits { low: -3.0, high: 0.5 };

fn clamp(source: ValueId, limits: Limits, result: ValueId) -> Work {
    let Limits { low, high } = limits;
    Work::Elements { kind: ElementsKind::Clamp { source, low, high }, result }
}

fn norm(source: ValueId) -> NormWork {
    NormWork::Norm { source, weight: WeightId(1), epsilon: 1e-6 }
}

#[test]
fn norms_limit_what_they_read_and_what_they_make() {
    // Whether something else reads the limited rows before the norm, and after it.
    for (is_read, is_given) in [(false, false), (true, false), (false, true)] {
        let (mut graph, [product, limited, normed, result]) = room();
        let operand = graph.fresh_operand(result, OperandKind::Halves);
        push(&mut graph, clamp(product, LIMITS, limited));
        push(&mut graph, Work::Norm { norm: norm(limited), made: Made::Rows(normed) });
        push(&mut graph, clamp(normed, OTHERS, result));
        push(&mut graph, Work::Convert { source: result, operand });
        if is_read {
            graph.outputs.push(Some(limited));
        }
        if is_given {
            graph.outputs.push(Some(normed));
        }
        for rule in [rows_are_limited, conversions_limit, results_are_limited] {
            walk(&mut graph, rule, &selection());
        }
        let within = |row, result| RowLimits { row, result, ..RowLimits::NONE };
        let made = Made::Operand(operand);
        let limited_norm = |source, within, made| {
            let rows = LimitedRows::Norm(norm(source));
            Work::Limited(LimitedWork { rows, within, made })
        };
        let expected = match (is_read, is_given) {
            (false, false) => vec![limited_norm(product, within(LIMITS, OTHERS), made)],
            (true, _) => vec![
                clamp(product, LIMITS, limited),
                limited_norm(limited, within(Limits::NONE, OTHERS), made),
            ],
            (false, true) => vec![
                limited_norm(product, within(LIMITS, Limits::NONE), Made::Rows(normed)),
                Work::Limited(LimitedWork {
                    rows: LimitedRows::Convert { source: normed },
                    within: within(Limits::NONE, OTHERS),
                    made,
                }),
            ],
        };
        assert_eq!(works(&graph), expected, "{is_read} {is_given}");
    }
}

#[test]
fn gates_limit_both_of_their_rows() {
    let (mut graph, [gate, up, first, second, gated, result]) = room();
    let operand = graph.fresh_operand(result, OperandKind::Halves);
    push(&mut graph, clamp(gate, LIMITS, first));
    push(&mut graph, clamp(up, OTHERS, second));
    let kind = ElementsKind::Geglu { gate: first, up: second, first: 0 };
    push(&mut graph, Work::Elements { kind, result: gated });
    push(&mut graph, clamp(gated, LIMITS, result));
    push(&mut graph, Work::Convert { source: result, operand });
    for rule in [rows_are_limited, conversions_limit, results_are_limited] {
        walk(&mut graph, rule, &selection());
    }
    let within = RowLimits { row: LIMITS, target: OTHERS, result: LIMITS };
    let rows = LimitedRows::Gate { gate, up };
    let joined = Work::Limited(LimitedWork { rows, within, made: Made::Operand(operand) });
    assert_eq!(works(&graph), [joined]);
}

/// The rows before the limit have to be there still.
#[test]
fn rows_that_are_replaced_are_not_limited_later() {
    let (mut graph, [product, limited, normed]) = room();
    let replaced = graph.fresh_rows(3, 64, Home::Of(product));
    push(&mut graph, clamp(product, LIMITS, limited));
    push(
        &mut graph,
        Work::Elements { kind: ElementsKind::Gelu { target: product }, result: replaced },
    );
    push(&mut graph, Work::Norm { norm: norm(limited), made: Made::Rows(normed) });
    let before = works(&graph);
    walk(&mut graph, rows_are_limited, &selection());
    assert_eq!(works(&graph), before);
}

/// One launch may take over several earlier ones; the next launch is then not passed over.
#[test]
fn launches_after_those_that_are_removed_are_limited_too() {
    let (mut graph, [gate, up, first, second, gated, product, limited, normed]) = room();
    push(&mut graph, clamp(product, LIMITS, limited));
    push(&mut graph, clamp(gate, LIMITS, first));
    push(&mut graph, clamp(up, OTHERS, second));
    let kind = ElementsKind::Geglu { gate: first, up: second, first: 0 };
    push(&mut graph, Work::Elements { kind, result: gated });
    push(&mut graph, Work::Norm { norm: norm(limited), made: Made::Rows(normed) });
    walk(&mut graph, rows_are_limited, &selection());
    let gates = Work::Limited(LimitedWork {
        rows: LimitedRows::Gate { gate, up },
        within: RowLimits { row: LIMITS, target: OTHERS, ..RowLimits::NONE },
        made: Made::Rows(gated),
    });
    let norms = Work::Limited(LimitedWork {
        rows: LimitedRows::Norm(norm(product)),
        within: RowLimits { row: LIMITS, ..RowLimits::NONE },
        made: Made::Rows(normed),
    });
    assert_eq!(works(&graph), [gates, norms]);
}
