//! Rules for models of several streams. A norm, a router, the product with its coefficients and the
//! mix become one launch, to which the additions before it and the work on the first stream after
//! it are added.
//!
//! They come before the other rules: what they look for are plain products and norms.

use trine_model::WeightId;

use super::super::graph::{
    Form, Graph, Home, Ids, Input, MadeValue, Normed, Output, ProductWork, ValueId, Work,
};
use super::super::selection::Selection;
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::mix::{MixLaunch, Stream};
use crate::kernels::route::{Added, FirstStream, ROUTED_COLUMNS_MAX, RouteLaunch, Router};
use crate::kernels::rows::{RowWork, RowsLaunch};
use crate::kernels::sum::{Finish, SumLaunch, SumTerm};

/// A product of f32 rows with one matrix of floats: what it multiplies, the matrix, the result.
pub(super) fn small_product(graph: &Graph, index: usize) -> Option<(ValueId, WeightId, ValueId)> {
    let Work::Product(ProductWork { product, .. }) = &graph.nodes.get(index)?.work else {
        return None;
    };
    let (Input::Operand(Form::Rows(input)), Output::Segments(segments)) =
        (product.input, product.output)
    else {
        return None;
    };
    match &product.matrix.weights[..] {
        &[weight] if product.matrix.format.is_float() => Some((input, weight, segments.only()?)),
        _ => None,
    }
}

/// What a norm before a router norms, and what it adds first.
struct NormBeforeRouter {
    row: ValueId,
    added: Option<Added<Ids>>,
    weight: WeightId,
    epsilon: f32,
    result: ValueId,
}

fn norm_before_router(graph: &Graph, index: usize) -> Option<NormBeforeRouter> {
    let launch = graph.nodes[index].work.unlimited()?;
    let RowsLaunch { source, epsilon, made: Some(MadeValue::Rows(result)), .. } = launch else {
        return None;
    };
    match launch.work {
        RowWork::Norm { weight: Some(weight) } => {
            let row = source;
            Some(NormBeforeRouter { row, added: None, weight, epsilon, result })
        }
        RowWork::NormAddNorm { weight, target, scale: 1.0, next_weight } => {
            // Whoever else reads the row after the addition would need it written.
            let is_only = graph.readers(target.updated) == 1;
            let added = Some(Added { values: source, weight });
            let (row, weight) = (target.old, next_weight);
            is_only.then_some(NormBeforeRouter { row, added, weight, epsilon, result })
        }
        _ => None,
    }
}

/// Makes one launch of a norm, a router, the product with its coefficients and a mix.
pub(super) fn route(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some((count, work)) = found_route(graph, index) else { return false };
    for stream in &work.streams {
        graph.values[stream.output.0].home = Home::Of(stream.input);
    }
    let mix = graph.nodes[index + count - 1].clone();
    graph.nodes[index] = mix;
    graph.nodes[index].work = Work::Route(work);
    graph.nodes.drain(index + 1..index + count);
    true
}

/// Returns how many launches from `index` on a mix with a router replaces.
fn found_route(graph: &Graph, index: usize) -> Option<(usize, RouteLaunch<Ids>)> {
    let routed = norm_before_router(graph, index)?;
    let (input, router, product) = small_product(graph, index + 1)?;
    let Work::Elements(ElementsLaunch {
        work: ElementWork::Softcap { cap, target },
        result: capped,
        ..
    }) = graph.nodes.get(index + 2)?.work
    else {
        return None;
    };
    let (second, coefficients, result) = small_product(graph, index + 3)?;
    let (difference, mix) = match &graph.nodes.get(index + 4)?.work {
        Work::Sum(sum) => (Some(sum), &graph.nodes.get(index + 5)?.work),
        work => (None, work),
    };
    let Work::Mix(MixLaunch { streams, sources, coefficients: last, bias, scale, .. }) = mix else {
        return None;
    };
    let chain = [(input, routed.result), (target, product), (second, capped), (*last, result)];
    let is_chain = chain.iter().all(|&(read, made)| read == made && graph.readers(made) == 1);
    let inputs: Vec<ValueId> = streams.iter().map(|stream| stream.input).collect();
    let row = match difference {
        None => (routed.added.is_none() && routed.row == inputs[0] && *sources == inputs)
            .then_some(None)?,
        Some(sum) => Some(corrected(graph, index, &routed, sum, inputs[0], sources)?),
    };
    let count = if difference.is_some() { 6 } else { 5 };
    let is_last = |id: &ValueId| !graph.is_read_from(index + count, *id);
    let columns = |id: ValueId| graph.value(id).columns;
    let fits = is_chain
        && columns(product) == inputs.len()
        && columns(result) == inputs.len() * sources.len()
        && graph.value(inputs[0]).columns <= ROUTED_COLUMNS_MAX
        && inputs.iter().all(is_last)
        && inputs.iter().all(|id| inputs.iter().filter(|other| *other == id).count() == 1);
    let work = RouteLaunch {
        streams: streams.clone(),
        row,
        added: routed.added,
        router: Router { norm: routed.weight, router, coefficients, cap },
        bias: *bias,
        scale: *scale,
        first: None,
        epsilon: routed.epsilon,
        extent: (),
    };
    fits.then_some((count, work))
}

/// Returns the row that is routed, if the only source is its distance from the first stream.
fn corrected(
    graph: &Graph,
    index: usize,
    routed: &NormBeforeRouter,
    sum: &SumLaunch<Ids>,
    first: ValueId,
    sources: &[ValueId],
) -> Option<ValueId> {
    // The row as it is after the addition.
    let row = match graph.nodes[index].work {
        Work::Rows(RowsLaunch { work: RowWork::NormAddNorm { target, .. }, .. }) => target.updated,
        _ => routed.row,
    };
    let [plus @ SumTerm { values, .. }, minus] = sum.terms[..] else { return None };
    let subtracts = plus == SumTerm::of(values, 1.0) && minus == SumTerm::of(first, -1.0);
    let is_source = *sources == [sum.sum] && graph.readers(sum.sum) == 1;
    (values == row && subtracts && is_source && sum.finish.is_none()).then_some(routed.row)
}

/// Lets a mix with a router add the norm of a row to all its streams but the first.
pub(super) fn route_adds(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some(Normed { source, weight, epsilon, made: MadeValue::Rows(normed) }) =
        graph.nodes[index].work.normed()
    else {
        return false;
    };
    let added = |node: usize| match graph.nodes.get(node)?.work {
        Work::Elements(ElementsLaunch {
            work: ElementWork::Add { source, target },
            result,
            ..
        }) => (source == normed && graph.readers(result) == 1)
            .then_some(Stream { input: target, output: result }),
        _ => None,
    };
    let all: Vec<Stream<Ids>> = (index + 1..).map_while(added).collect();
    let at = index + 1 + all.len();
    let Some(Work::Route(work)) = graph.nodes.get(at).map(|node| &node.work) else { return false };
    let fits = work.added.is_none()
        && work.row.is_none()
        && work.epsilon == epsilon
        && graph.readers(normed) == all.len()
        && work.streams.len() == all.len() + 1
        && work.streams[1..].iter().zip(&all).all(|(stream, add)| stream.input == add.output);
    if !fits {
        return false;
    }
    if let Work::Route(work) = &mut graph.nodes[at].work {
        work.added = Some(Added { values: source, weight });
        work.streams[1..].iter_mut().zip(&all).for_each(|(stream, add)| stream.input = add.input);
    }
    graph.nodes.drain(index..at);
    true
}

/// Lets a mix with a router go on with its first stream: norm it, or multiply it with a vector.
pub(super) fn route_finishes(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Route(RouteLaunch { streams, first: None, epsilon, .. }) = &graph.nodes[index].work
    else {
        return false;
    };
    let (stream, epsilon) = (streams[0].output, *epsilon);
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let found = match (next.work.normed(), &next.work) {
        (Some(Normed { source, weight, epsilon: same, made }), _)
            if source == stream && same == epsilon =>
        {
            FirstStream::Normed(Finish { weight, made })
        }
        (
            _,
            &Work::Elements(ElementsLaunch {
                work: ElementWork::Scale { source, weight },
                result,
                ..
            }),
        ) if source == stream => {
            FirstStream::Scaled(Finish { weight, made: MadeValue::Rows(result) })
        }
        _ => return false,
    };
    if let Work::Route(work) = &mut graph.nodes[index].work {
        work.first = Some(found);
    }
    graph.nodes.remove(index + 1);
    true
}

#[cfg(test)]
mod tests;
