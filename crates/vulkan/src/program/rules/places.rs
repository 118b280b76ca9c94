//! Rules for towers whose heads are rotated by places.

use trine_model::{Heads, Rope, WeightId};

use super::super::graph::{Graph, ValueId, Work};
use super::super::selection::Selection;
use crate::kernels::heads::{Factors, HeadsLaunch, Rotated, Stored};

/// The norm and, if there is one, the rotation of heads.
struct PreparedHeads {
    /// The launches, from the last one back.
    nodes: Vec<usize>,
    /// The heads as the projection left them.
    rows: ValueId,
    heads: usize,
    weight: Option<WeightId>,
    epsilon: f32,
    /// The turns, and the places on a side.
    rotation: Option<((usize, Rope), usize)>,
}

/// Returns what makes normed heads, if only one launch reads each value on the way.
fn prepared_heads(graph: &Graph, index: usize, made: ValueId) -> Option<PreparedHeads> {
    let mut nodes = vec![graph.maker(index, made)?];
    let (normed, rotation) = match graph.nodes[nodes[0]].work {
        Work::Heads(HeadsLaunch {
            query: Some(Rotated { query, query_norm: None, .. }),
            stored: None,
            rope: Some(rope),
            side,
            ..
        }) => (query, Some((rope, side))),
        _ => (made, None),
    };
    if rotation.is_some() {
        nodes.push(graph.maker(nodes[0], normed)?);
    }
    let last = *nodes.last()?;
    let (_, factors) = graph.nodes[last].work.head_norm()?;
    let Work::Heads(HeadsLaunch { query: Some(norm), epsilon, .. }) = graph.nodes[last].work else {
        return None;
    };
    let Rotated { query: rows, heads, .. } = norm;
    let weight = match factors {
        Factors::Ones => None,
        Factors::Of(weight) => Some(weight),
    };
    let is_only = [normed, made].into_iter().all(|id| graph.readers(id) == 1);
    is_only.then_some(PreparedHeads { nodes, rows, heads, weight, epsilon, rotation })
}

/// Lets the launch that stores keys and values norm all heads and rotate queries and keys by
/// places, if these are the launches right before it.
pub(super) fn places_prepare(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some(Stored { key, value, biases: None, cache, .. }) = graph.nodes[index].work.store()
    else {
        return false;
    };
    let Some((turned, attention)) = graph.nodes.get(index + 1).and_then(|node| node.work.attends())
    else {
        return false;
    };
    let Heads { query, kv, dim } = attention.heads;
    let [Some(queries), Some(keys), Some(values)] =
        [turned, key, value].map(|made| prepared_heads(graph, index, made))
    else {
        return false;
    };
    let all = [&queries, &keys, &values];
    let mut nodes: Vec<usize> = all.iter().flat_map(|it| it.nodes.clone()).collect();
    nodes.sort_unstable();
    let (Some(query_norm), Some(key_norm), None) = (queries.weight, keys.weight, values.weight)
    else {
        return false;
    };
    let Some((rope, side)) = queries.rotation.filter(|(_, side)| *side > 0) else {
        return false;
    };
    let fits = nodes.iter().copied().eq(index - nodes.len()..index)
        && all.iter().all(|it| it.epsilon == queries.epsilon)
        && all.map(|it| it.heads) == [query, kv, kv]
        && graph.value(turned).columns == query * dim
        && (keys.rotation, values.rotation) == (queries.rotation, None);
    if !fits {
        return false;
    }
    let Work::Heads(launch) = graph.nodes[index].work else { return false };
    let query_norm = Some(Factors::Of(query_norm));
    let (key, value, biases, key_norm) = (keys.rows, values.rows, None, Some(key_norm));
    graph.nodes[index].work = Work::Heads(HeadsLaunch {
        query: Some(Rotated { query: queries.rows, turned, heads: query, query_norm }),
        stored: Some(Stored { key, value, cache, biases, key_norm, value_norm: true }),
        rope: Some(rope),
        side,
        epsilon: queries.epsilon,
        ..launch
    });
    graph.nodes.drain(nodes[0]..index);
    true
}
