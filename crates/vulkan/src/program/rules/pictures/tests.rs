//! What launches for pictures take over, and what they must not.

use trine_model::{CacheId, WeightId, Width};

use super::super::super::graph::{Form, Input, ProductKernel, ProductWork};
use super::super::super::passes::Attended;
use super::super::super::values::{Ids, Numbers};
use super::super::tests::{push, selection};
use super::super::walk;
use super::*;
use crate::kernels::embed::EmbedLaunch;
use crate::kernels::limits::ValueLimits;
use crate::kernels::product::{Product, Segment, Segments};
use crate::kernels::rows::LayerNorm;
use crate::pack::Format;
use crate::weights::Joint;

fn embed(soft: Option<ValueId>, target: ValueId) -> Work {
    let (table, frame, extent) = (WeightId(0), Numbers::Frame, ());
    Work::Embed(EmbedLaunch { table, frame, target, extent, factor: 2.0, soft, side: 0 })
}

fn elements(work: ElementWork<Ids>, result: ValueId) -> Work {
    Work::Elements(ElementsLaunch { work, result, extent: () })
}

fn insert(source: ValueId, target: ValueId, result: ValueId) -> Work {
    elements(ElementWork::Insert { source, frame: Numbers::Frame, target }, result)
}

#[test]
fn tokens_are_looked_up_with_the_rows_of_soft_ones() {
    // Whether something else reads the rows between the two, or the launches are apart.
    for (is_read, is_apart) in [(false, false), (true, false), (false, true)] {
        let mut graph = Graph::new(Width { tokens: 3, outputs: 3 }, Attended::Rows);
        let [rows, soft, other] = [0; 3].map(|_| graph.fresh_rows(3, 64, Home::Own));
        let result = graph.fresh_rows(3, 64, Home::Of(rows));
        push(&mut graph, embed(None, rows));
        if is_apart {
            push(&mut graph, embed(None, other));
        }
        push(&mut graph, insert(soft, rows, result));
        if is_read {
            let work = ElementWork::Select { source: rows, picks: Numbers::Outputs };
            push(&mut graph, elements(work, other));
        }
        walk(&mut graph, embed_inserts, &selection());
        let joined = embed(Some(soft), result);
        let is_joined = graph.nodes.len() == 1 && graph.nodes[0].work == joined;
        assert_eq!(is_joined, !is_read && !is_apart, "{:?}", graph.nodes);
        assert_eq!(graph.value(result).home == Home::Own, is_joined);
    }
}

/// Returns a graph without launches and eight values in it, of which the second of each two
/// replaces the first.
fn room() -> (Graph, [ValueId; 8]) {
    let mut graph = Graph::new(Width { tokens: 3, outputs: 3 }, Attended::Rows);
    let values = [0, 1, 2, 3].map(|_| {
        let before = graph.fresh_rows(3, 64, Home::Own);
        [before, graph.fresh_rows(3, 64, Home::Of(before))]
    });
    let [[a, b], [c, d], [e, f], [g, h]] = values;
    (graph, [a, b, c, d, e, f, g, h])
}

fn bias(weight: usize, target: ValueId, result: ValueId) -> Work {
    elements(ElementWork::Bias { bias: WeightId(weight), target }, result)
}

fn add(source: ValueId, target: ValueId, result: ValueId) -> Work {
    elements(ElementWork::Add { source, target }, result)
}

const LAYER: LayerNorm<Ids> = LayerNorm { weight: WeightId(1), bias: WeightId(2) };

fn rows(work: RowWork<Ids>, source: ValueId, made: MadeValue) -> Work {
    Work::Rows(RowsLaunch::of(work, source, 1e-6, made))
}

fn works(graph: &Graph) -> Vec<Work> {
    graph.nodes.iter().map(|node| node.work.clone()).collect()
}

#[test]
fn layer_norms_take_over_additions_and_their_biases() {
    // Whether there is a bias, and something else that reads the rows with it.
    for (is_biased, is_read) in [(true, false), (false, false), (true, true)] {
        let (mut graph, [delta, biased, x, sum, normed, ..]) = room();
        let source = if is_biased { biased } else { delta };
        if is_biased {
            push(&mut graph, bias(5, delta, biased));
        }
        push(&mut graph, add(source, x, sum));
        let made = MadeValue::Rows(normed);
        push(&mut graph, rows(RowWork::LayerNorm(LAYER), sum, made));
        if is_read {
            graph.outputs.push(Some(biased));
        }
        walk(&mut graph, layer_norms_add, &selection());
        let joins = is_biased && !is_read;
        let (bias_of, target) = (joins.then_some(WeightId(5)), Target { old: x, updated: sum });
        let work = RowWork::AddLayerNorm { bias: bias_of, target, norm: LAYER };
        let mut expected = vec![rows(work, if joins { delta } else { source }, made)];
        if is_read {
            expected.insert(0, bias(5, delta, biased));
        }
        assert_eq!(works(&graph), expected);
    }
    // Of other rows than the sum.
    let (mut graph, [delta, _, x, sum, other, normed, ..]) = room();
    push(&mut graph, add(delta, x, sum));
    push(&mut graph, rows(RowWork::LayerNorm(LAYER), other, MadeValue::Rows(normed)));
    let before = works(&graph);
    walk(&mut graph, layer_norms_add, &selection());
    assert_eq!(works(&graph), before);
}

#[test]
fn activations_take_over_biases() {
    for is_read in [false, true] {
        let (mut graph, [up, biased, ..]) = room();
        let active = graph.fresh_rows(3, 64, Home::Of(biased));
        push(&mut graph, bias(5, up, biased));
        push(&mut graph, elements(ElementWork::Gelu { target: biased }, active));
        if is_read {
            graph.outputs.push(Some(biased));
        }
        walk(&mut graph, activations_add, &selection());
        let activate = |source, bias| {
            let made = MadeValue::Rows(active);
            Work::Rows(RowsLaunch::of(RowWork::Gelu { bias }, source, 0.0, made))
        };
        let expected = match is_read {
            true => vec![bias(5, up, biased), activate(biased, None)],
            false => vec![activate(up, Some(WeightId(5)))],
        };
        assert_eq!(works(&graph), expected);
    }
}

#[test]
fn the_launch_that_stores_takes_over_both_biases() {
    for has_both in [true, false] {
        let (mut graph, [query, turned, key, biased_key, value, biased_value, ..]) = room();
        push(&mut graph, bias(3, query, turned));
        push(&mut graph, bias(4, key, biased_key));
        if has_both {
            push(&mut graph, bias(5, value, biased_value));
        }
        let stored = if has_both { biased_value } else { value };
        let store = |key, value, biases| {
            let (cache, key_norm, value_norm) = (CacheId(0), None, false);
            let stored = Some(Stored { key, value, cache, biases, key_norm, value_norm });
            Work::Heads(HeadsLaunch {
                frame: (),
                rows: 3,
                dim: 64,
                query: None,
                stored,
                rope: None,
                side: 0,
                epsilon: 0.0,
                within: [ValueLimits::NONE; 3],
            })
        };
        push(&mut graph, store(biased_key, stored, None));
        let before = works(&graph);
        walk(&mut graph, stores_add, &selection());
        let biases = Some([WeightId(4), WeightId(5)]);
        let joined = vec![bias(3, query, turned), store(key, value, biases)];
        assert_eq!(works(&graph), if has_both { joined } else { before });
    }
}

/// A product of two matrices, with these biases and results.
fn product(format: Format, input: ValueId, biases: &[usize], parts: [ValueId; 2]) -> Work {
    let weights = vec![WeightId(1), WeightId(2)];
    let segments = Segments::of(&parts.map(|target| Segment { rows: 64, target }));
    let output = match biases {
        [] => Output::Segments(segments),
        _ => {
            let biases = std::array::from_fn(|at| biases.get(at).copied().map(WeightId));
            Output::Biased { segments, biases }
        }
    };
    let matrix = Joint { weights, format, columns: 64 };
    let input = Input::Operand(Form::Rows(input));
    let product = Product { matrix, width: 16, input, output };
    Work::Product(ProductWork { kernel: ProductKernel::Matmul, product })
}

#[test]
fn products_take_over_biases_if_every_result_has_one() {
    // The format, whether both have a bias, and whether something else reads a result without it.
    let cases = [
        (Format::F16Fragments, true, false),
        (Format::F16Fragments, false, false),
        (Format::F16Fragments, true, true),
        (Format::F16, true, false),
    ];
    for (format, has_both, is_read) in cases {
        let (mut graph, [input, _, a, with_a, b, with_b, ..]) = room();
        push(&mut graph, product(format, input, &[], [a, b]));
        if has_both {
            push(&mut graph, bias(6, b, with_b));
        }
        push(&mut graph, bias(5, a, with_a));
        if is_read {
            graph.outputs.push(Some(a));
        }
        let before = works(&graph);
        walk(&mut graph, products_add, &selection());
        let joins = format == Format::F16Fragments && has_both && !is_read;
        let joined = vec![product(format, input, &[5, 6], [with_a, with_b])];
        assert_eq!(works(&graph), if joins { joined } else { before });
        let homes = [with_a, with_b].map(|id| graph.value(id).home == Home::Own);
        assert_eq!(homes, [joins; 2]);
    }
}
