//! Rules for pictures: rows of soft tokens in a text, and the layers of towers.

use trine_model::WeightId;

use super::super::graph::{Graph, Home, MadeValue, Node, Output, ValueId, Work};
use super::super::selection::Selection;
use crate::kernels::attention::{MatrixLaunch, WholeLaunch};
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::heads::{HeadsLaunch, Stored};
use crate::kernels::operand::OperandKind;
use crate::kernels::rows::{RowWork, RowsLaunch, Target};

/// Lets the launch that looks up tokens copy the rows of soft ones, if they are put in right after
/// it.
pub(super) fn embed_inserts(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Elements(ElementsLaunch {
        work: ElementWork::Insert { source, target, .. },
        result,
        ..
    }) = graph.nodes[index].work
    else {
        return false;
    };
    let Some(before) = index.checked_sub(1) else { return false };
    let fits = graph.readers(target) == 1;
    match &mut graph.nodes[before].work {
        Work::Embed(launch) if launch.soft.is_none() && launch.target == target && fits => {
            launch.soft = Some(source);
            launch.target = result;
        }
        _ => return false,
    }
    graph.values[result.0].home = Home::Own;
    graph.nodes.remove(index);
    true
}

/// Returns the launch before `index` that adds a bias, if its result is this value and nothing else
/// reads it: its number, the weight, and the value that the bias is added to.
fn bias_of(graph: &Graph, index: usize, value: ValueId) -> Option<(usize, WeightId, ValueId)> {
    let at = graph.maker(index, value)?;
    match graph.nodes[at].work {
        Work::Elements(ElementsLaunch {
            work: ElementWork::Bias { bias: weight, target }, ..
        }) => {
            let is_only = graph.readers(value) == 1 && graph.readers(target) == 1;
            let is_kept = graph.is_kept(at + 1..index, graph.home(value).0);
            (is_only && is_kept).then_some((at, weight, target))
        }
        _ => None,
    }
}

/// Lets a product add the biases of its results, if its kernel does and each of them has one.
pub(super) fn products_add(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let Work::Product(work) = &graph.nodes[index].work else { return false };
    let Output::Segments(segments) = work.product.output else { return false };
    if !selection.adds_biases(work) {
        return false;
    }
    let bias_after = |part: &ValueId| {
        let biased = |node: &Node| match node.work {
            Work::Elements(ElementsLaunch {
                work: ElementWork::Bias { bias: weight, target },
                result,
                ..
            }) if target == *part => Some((weight, result)),
            _ => None,
        };
        let after = &graph.nodes[index + 1..];
        let (at, found) =
            after.iter().enumerate().find_map(|(at, node)| Some((at, biased(node)?)))?;
        (graph.readers(*part) == 1).then_some((index + 1 + at, found))
    };
    let found = segments.targets().iter().map(bias_after).collect::<Option<Vec<_>>>();
    let Some(found) = found else {
        return false;
    };
    let (mut places, found): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let (biases, results): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    for result in &results {
        graph.values[result.0].home = Home::Own;
    }
    if let Work::Product(work) = &mut graph.nodes[index].work {
        let mut results = results.into_iter();
        let segments = segments.map(|_| results.next().expect("each part has a bias"));
        let biases = std::array::from_fn(|at| biases.get(at).copied());
        work.product.output = Output::Biased { segments, biases };
    }
    places.sort_unstable();
    for at in places.into_iter().rev() {
        graph.nodes.remove(at);
    }
    true
}

/// Lets a product with a bias do the activation after it, where that gives an operand that the
/// product can give.
pub(super) fn products_activate(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let Some(RowsLaunch {
        work: RowWork::Gelu { bias: None },
        source,
        made: Some(MadeValue::Operand(operand)),
        ..
    }) = graph.nodes[index].work.unlimited()
    else {
        return false;
    };
    let Some(maker) = graph.maker(index, source) else { return false };
    let Work::Product(work) = &graph.nodes[maker].work else { return false };
    let Output::Biased { segments, biases: [Some(bias), ..] } = work.product.output else {
        return false;
    };
    let is_whole = segments.only() == Some(source) && graph.readers(source) == 1;
    if !is_whole || operand.kind != OperandKind::Fragments || !selection.activates(work) {
        return false;
    }
    if let Work::Product(work) = &mut graph.nodes[maker].work {
        work.product.output = Output::Activated { bias, operand, unit: () };
    }
    graph.nodes.remove(index);
    true
}

/// Lets attention of a picture take keys and values from the product that makes them, instead of a
/// cache, where both kernels do that.
pub(super) fn attends_whole(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let Work::AttendMatrix(launch) = &graph.nodes[index].work else { return false };
    let MatrixLaunch { query, cache, attention, made: MadeValue::Operand(output), .. } = *launch
    else {
        return false;
    };
    let [.., product, store] = &graph.nodes[..index] else { return false };
    let (Work::Product(product), Some(Stored { key, value, biases: None, cache: own, .. })) =
        (&product.work, store.work.store())
    else {
        return false;
    };
    let Output::Biased { segments, biases } = product.product.output else { return false };
    let parts = [query, key, value];
    let fits = segments.targets() == parts
        && own == cache
        && parts.iter().all(|&id| graph.readers(id) == 1)
        && output.kind == OperandKind::Fragments
        && selection.attends_whole(product, &attention);
    if !fits {
        return false;
    }
    let (rows, columns) = WholeLaunch::memory(attention.heads, graph.value(query).rows);
    let [keys, values] = [0; 2].map(|_| graph.fresh_rows(rows, columns, Home::Own));
    if let Work::Product(work) = &mut graph.nodes[index - 2].work {
        let dim = attention.heads.dim;
        work.product.output = Output::Heads { query, keys, values, dim, biases };
    }
    let launch = WholeLaunch { attention, extent: (), query, keys, values, operand: output };
    graph.nodes[index].work = Work::AttendWhole(launch);
    graph.nodes.remove(index - 1);
    true
}

/// Lets a layer norm do the addition before it, with the bias of what is added.
pub(super) fn layer_norms_add(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Elements(ElementsLaunch {
        work: ElementWork::Add { source, target }, result, ..
    }) = graph.nodes[index].work
    else {
        return false;
    };
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let Some(launch @ RowsLaunch { work: RowWork::LayerNorm(norm), .. }) = next.work.unlimited()
    else {
        return false;
    };
    if launch.source != result {
        return false;
    }
    let biased = bias_of(graph, index, source).filter(|(at, ..)| at + 1 == index);
    let (bias, added) = match biased {
        Some((_, weight, added)) => (Some(weight), added),
        None => (None, source),
    };
    let target = Target { old: target, updated: result };
    let work = RowWork::AddLayerNorm { bias, target, norm };
    graph.nodes[index + 1].work = Work::Rows(RowsLaunch { work, source: added, ..launch });
    graph.nodes.remove(index);
    if let Some((at, ..)) = biased {
        graph.nodes.remove(at);
    }
    true
}

/// Lets an activation be a launch over whole rows, which can write an operand, and add the bias
/// before it.
pub(super) fn activations_add(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Elements(ElementsLaunch { work: ElementWork::Gelu { target }, result, .. }) =
        graph.nodes[index].work
    else {
        return false;
    };
    let biased = bias_of(graph, index, target).filter(|(at, ..)| at + 1 == index);
    let (source, bias) = match biased {
        Some((_, weight, source)) => (source, Some(weight)),
        None => (target, None),
    };
    let launch = RowsLaunch::of(RowWork::Gelu { bias }, source, 0.0, MadeValue::Rows(result));
    graph.nodes[index].work = Work::Rows(launch);
    if let Some((at, ..)) = biased {
        graph.nodes.remove(at);
    }
    true
}

/// Lets the launch that stores keys and values add their biases, if both have one.
pub(super) fn stores_add(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Heads(launch) = graph.nodes[index].work else { return false };
    let Some(stored @ Stored { key, value, biases: None, .. }) = graph.nodes[index].work.store()
    else {
        return false;
    };
    let [Some(first), Some(second)] = [key, value].map(|id| bias_of(graph, index, id)) else {
        return false;
    };
    let ((key_at, key_bias, key), (value_at, value_bias, value)) = (first, second);
    let biases = Some([key_bias, value_bias]);
    let stored = Some(Stored { key, value, biases, ..stored });
    graph.nodes[index].work = Work::Heads(HeadsLaunch { stored, ..launch });
    graph.nodes.remove(key_at.max(value_at));
    graph.nodes.remove(key_at.min(value_at));
    true
}

#[cfg(test)]
mod tests;
