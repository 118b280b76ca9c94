//! Rules for pictures: rows of soft tokens in a text, and the layers of towers.

use trine_model::WeightId;

use super::super::graph::{ElementsKind, Graph, HeadsWork, Home, Made, NormWork, ValueId, Work};
use super::super::selection::Selection;

/// Lets the launch that looks up tokens copy the rows of soft ones, if they are put in right after
/// it.
pub(super) fn embed_inserts(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Elements { kind: ElementsKind::Insert { source, target }, result } =
        graph.nodes[index].work
    else {
        return false;
    };
    let Some(before) = index.checked_sub(1) else { return false };
    let fits = graph.readers(target) == 1;
    match &mut graph.nodes[before].work {
        Work::Embed { soft: soft @ None, output, .. } if *output == target && fits => {
            *soft = Some(source);
            *output = result;
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
        Work::Elements { kind: ElementsKind::Bias { weight, target }, .. } => {
            let is_only = graph.readers(value) == 1 && graph.readers(target) == 1;
            let is_kept = graph.is_kept(at + 1..index, graph.home(value).0);
            (is_only && is_kept).then_some((at, weight, target))
        }
        _ => None,
    }
}

/// Lets a layer norm do the addition before it, with the bias of what is added.
pub(super) fn layer_norms_add(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Elements { kind: ElementsKind::Add { source, target }, result } =
        graph.nodes[index].work
    else {
        return false;
    };
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let Work::Norm { norm: NormWork::Layer { source: normed, layer }, made } = next.work else {
        return false;
    };
    if normed != result {
        return false;
    }
    let biased = bias_of(graph, index, source).filter(|(at, ..)| at + 1 == index);
    let (bias, added) = match biased {
        Some((_, weight, added)) => (Some(weight), added),
        None => (None, source),
    };
    let norm = NormWork::AddLayer { source: added, bias, target, updated: result, layer };
    graph.nodes[index + 1].work = Work::Norm { norm, made };
    graph.nodes.remove(index);
    if let Some((at, ..)) = biased {
        graph.nodes.remove(at);
    }
    true
}

/// Lets an activation add the bias before it.
pub(super) fn activations_add(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Elements { kind: ElementsKind::Gelu { target }, result } = graph.nodes[index].work
    else {
        return false;
    };
    let Some((at, weight, source)) = bias_of(graph, index, target) else { return false };
    if at + 1 != index {
        return false;
    }
    let (bias, made) = (Some(weight), Made::Rows(result));
    graph.nodes[index].work = Work::Activate { source, bias, made };
    graph.nodes.remove(at);
    true
}

/// Lets the launch that stores keys and values add their biases, if both have one.
pub(super) fn stores_add(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Heads(HeadsWork::Store { key, value, biases: None, cache }) = graph.nodes[index].work
    else {
        return false;
    };
    let [Some(first), Some(second)] = [key, value].map(|id| bias_of(graph, index, id)) else {
        return false;
    };
    let ((key_at, key_bias, key), (value_at, value_bias, value)) = (first, second);
    let biases = Some([key_bias, value_bias]);
    graph.nodes[index].work = Work::Heads(HeadsWork::Store { key, value, biases, cache });
    graph.nodes.remove(key_at.max(value_at));
    graph.nodes.remove(key_at.min(value_at));
    true
}

#[cfg(test)]
mod tests;
