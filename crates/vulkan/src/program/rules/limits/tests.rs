//! Which launches keep limits themselves, and which must not.

use trine_model::{CacheId, Rope, WeightId, Width};

use super::super::super::passes::Attended;
use super::super::tests::{push, selection};
use super::super::walk;
use super::*;
use crate::kernels::heads::{Factors, Rotated, Stored};
use crate::kernels::operand::OperandKind;

/// Returns a graph of three rows, and values of 64 columns.
fn room<const N: usize>() -> (Graph, [ValueId; N]) {
    let mut graph = Graph::new(Width { tokens: 3, outputs: 3 }, Attended::Tiles);
    let values = std::array::from_fn(|_| graph.fresh_rows(3, 64, Home::Own));
    (graph, values)
}

fn works(graph: &Graph) -> Vec<Work> {
    graph.nodes.iter().map(|node| node.work.clone()).collect()
}

const LIMITS: ValueLimits = ValueLimits { low: -1.0, high: 2.0 };
const OTHERS: ValueLimits = ValueLimits { low: -3.0, high: 0.5 };

fn clamp(source: ValueId, limits: ValueLimits, result: ValueId) -> Work {
    let ValueLimits { low, high } = limits;
    let work = ElementWork::Clamp { source, low, high };
    Work::Elements(ElementsLaunch { work, result, extent: () })
}

fn norm(source: ValueId, within: RowLimits, made: MadeValue) -> Work {
    let work = RowWork::Norm { weight: Some(WeightId(1)) };
    Work::Rows(RowsLaunch { within, ..RowsLaunch::of(work, source, 1e-6, made) })
}

fn convert(source: ValueId, within: RowLimits, made: MadeValue) -> Work {
    let work = RowWork::Convert { parts: 1 };
    Work::Rows(RowsLaunch { within, ..RowsLaunch::of(work, source, 0.0, made) })
}

fn geglu(gate: ValueId, up: ValueId, result: ValueId) -> Work {
    let work = ElementWork::Geglu { gate, up, first: 0, stride: 64 };
    Work::Elements(ElementsLaunch { work, result, extent: () })
}

fn gated_rows([gate, up]: [ValueId; 2], within: RowLimits, made: MadeValue) -> Work {
    let launch = RowsLaunch::of(RowWork::Gate { up }, gate, 0.0, made);
    Work::Rows(RowsLaunch { within, ..launch })
}

#[test]
fn norms_limit_what_they_read_and_what_they_make() {
    // Whether something else reads the limited rows before the norm, and after it.
    for (is_read, is_given) in [(false, false), (true, false), (false, true)] {
        let (mut graph, [product, limited, normed, result]) = room();
        let operand = graph.fresh_operand(result, OperandKind::Halves);
        push(&mut graph, clamp(product, LIMITS, limited));
        push(&mut graph, norm(limited, RowLimits::NONE, MadeValue::Rows(normed)));
        push(&mut graph, clamp(normed, OTHERS, result));
        push(&mut graph, convert(result, RowLimits::NONE, MadeValue::Operand(operand)));
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
        let made = MadeValue::Operand(operand);
        let expected = match (is_read, is_given) {
            (false, false) => vec![norm(product, within(LIMITS, OTHERS), made)],
            (true, _) => vec![
                clamp(product, LIMITS, limited),
                norm(limited, within(ValueLimits::NONE, OTHERS), made),
            ],
            (false, true) => vec![
                norm(product, within(LIMITS, ValueLimits::NONE), MadeValue::Rows(normed)),
                convert(normed, within(ValueLimits::NONE, OTHERS), made),
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
    push(&mut graph, geglu(first, second, gated));
    push(&mut graph, clamp(gated, LIMITS, result));
    push(&mut graph, convert(result, RowLimits::NONE, MadeValue::Operand(operand)));
    for rule in [rows_are_limited, conversions_limit, results_are_limited] {
        walk(&mut graph, rule, &selection());
    }
    let within = RowLimits { row: LIMITS, target: OTHERS, result: LIMITS };
    let joined = gated_rows([gate, up], within, MadeValue::Operand(operand));
    assert_eq!(works(&graph), [joined]);
}

/// The rows before the limit have to be there still.
#[test]
fn rows_that_are_replaced_are_not_limited_later() {
    let (mut graph, [product, limited, normed]) = room();
    let replaced = graph.fresh_rows(3, 64, Home::Of(product));
    push(&mut graph, clamp(product, LIMITS, limited));
    let work = ElementWork::Gelu { target: product };
    push(&mut graph, Work::Elements(ElementsLaunch { work, result: replaced, extent: () }));
    push(&mut graph, norm(limited, RowLimits::NONE, MadeValue::Rows(normed)));
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
    push(&mut graph, geglu(first, second, gated));
    push(&mut graph, norm(limited, RowLimits::NONE, MadeValue::Rows(normed)));
    walk(&mut graph, rows_are_limited, &selection());
    let within = RowLimits { row: LIMITS, ..RowLimits::NONE };
    let gates =
        gated_rows([gate, up], RowLimits { target: OTHERS, ..within }, MadeValue::Rows(gated));
    let norms = norm(product, within, MadeValue::Rows(normed));
    assert_eq!(works(&graph), [gates, norms]);
}

/// The preparation of heads of these rows.
fn prepare([query, key, value]: [ValueId; 3], turned: ValueId, within: [ValueLimits; 3]) -> Work {
    let query_norm = Some(Factors::Of(WeightId(0)));
    Work::Heads(HeadsLaunch {
        frame: (),
        rows: 3,
        dim: 16,
        query: Some(Rotated { query, turned, heads: 4, query_norm }),
        stored: Some(Stored {
            key,
            value,
            cache: CacheId(0),
            biases: None,
            key_norm: Some(WeightId(1)),
            value_norm: true,
        }),
        rope: Some((8, Rope::full(100.0, 1.0))),
        side: 8,
        epsilon: 1e-6,
        within,
    })
}

/// Queries are changed in place, so that what the product left must not be read elsewhere.
#[test]
fn heads_limit_queries_that_nothing_else_reads() {
    #[derive(Debug, PartialEq)]
    enum Reader {
        None,
        Earlier,
        Later,
        Output,
        Keys,
        UnlimitedKeys,
    }
    use Reader::{Earlier, Keys, Later, Output, UnlimitedKeys};
    for reader in [Reader::None, Earlier, Later, Output, Keys, UnlimitedKeys] {
        let (mut graph, [query, key, value, limited, second, third, other]) = room();
        let turned = graph.fresh_rows(3, 64, Home::Of(limited));
        let key = if matches!(reader, Keys | UnlimitedKeys) { query } else { key };
        let work = ElementWork::Add { source: query, target: value };
        let add = Work::Elements(ElementsLaunch { work, result: other, extent: () });
        push(&mut graph, clamp(query, LIMITS, limited));
        if reader != UnlimitedKeys {
            push(&mut graph, clamp(key, OTHERS, second));
        }
        push(&mut graph, clamp(value, LIMITS, third));
        if reader == Earlier {
            push(&mut graph, add.clone());
        }
        let read = if reader == UnlimitedKeys { key } else { second };
        let given = prepare([limited, read, third], turned, [ValueLimits::NONE; 3]);
        push(&mut graph, given);
        if reader == Later {
            push(&mut graph, add.clone());
        }
        if reader == Output {
            graph.outputs.push(Some(query));
        }
        walk(&mut graph, heads_are_limited, &selection());
        let changes = matches!(reader, Reader::None | Earlier);
        let own = if reader == UnlimitedKeys { ValueLimits::NONE } else { OTHERS };
        let within = [if changes { LIMITS } else { ValueLimits::NONE }, own, LIMITS];
        let rows = [if changes { query } else { limited }, key, value];
        let heads = prepare(rows, turned, within);
        let expected = match reader {
            Reader::None => vec![heads],
            Earlier => vec![add, heads],
            Later => vec![clamp(query, LIMITS, limited), heads, add],
            Output | Keys | UnlimitedKeys => vec![clamp(query, LIMITS, limited), heads],
        };
        assert_eq!(works(&graph), expected, "{reader:?}");
        assert_eq!(graph.value(turned).home, Home::Of(rows[0]), "{reader:?}");
    }
}
