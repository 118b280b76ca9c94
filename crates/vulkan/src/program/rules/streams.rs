//! Rules for models of several streams. A norm, a router, the product with its coefficients and the
//! mix become one launch, to which the additions before it and the work on the first stream after
//! it are added. A sum takes over the norms of its terms, and that of its result.
//!
//! They come before the other rules: what they look for are plain products and norms.

use trine_model::{TERMS_MAX, WeightId};

use super::super::graph::{
    ElementsKind, Form, Graph, Home, Input, Made, NormWork, Output, ProductWork, ValueId, Work,
};
use super::super::selection::Selection;
use super::super::streams::{
    First, MixWork, RouteWork, RouterWork, RowNorm, StreamValues, SumAdd, SumTerm, SumWork,
};
use crate::kernels::route::ROUTED_COLUMNS_MAX;
use crate::kernels::sum::NORMED_COLUMNS_MAX;

/// A product of f32 rows with one matrix of floats: what it multiplies, the matrix, the result.
pub(super) fn small_product(graph: &Graph, index: usize) -> Option<(ValueId, WeightId, ValueId)> {
    let Work::Product(ProductWork { joint, input, output, .. }) = &graph.nodes.get(index)?.work
    else {
        return None;
    };
    let (Input::Given(Form::Rows(input)), Output::Parts(parts)) = (input, output) else {
        return None;
    };
    match (&joint.weights[..], &parts[..]) {
        ([weight], [result]) if joint.format.is_float() => Some((*input, *weight, *result)),
        _ => None,
    }
}

/// What a norm before a router norms, and what it adds first.
struct Routed {
    row: ValueId,
    added: Option<(ValueId, RowNorm)>,
    norm: RowNorm,
    result: ValueId,
}

fn routed(graph: &Graph, index: usize) -> Option<Routed> {
    let Work::Norm { norm, made: Made::Rows(result) } = graph.nodes[index].work else {
        return None;
    };
    match norm {
        NormWork::Norm { source: row, weight, epsilon } => {
            Some(Routed { row, added: None, norm: RowNorm { weight, epsilon }, result })
        }
        NormWork::NormAddNorm {
            source,
            weight,
            target,
            scale: 1.0,
            updated,
            next_weight,
            epsilon,
        } => {
            // Whoever else reads the row after the addition would need it written.
            let is_only = graph.readers(updated) == 1;
            let added = Some((source, RowNorm { weight, epsilon }));
            let norm = RowNorm { weight: next_weight, epsilon };
            is_only.then_some(Routed { row: target, added, norm, result })
        }
        NormWork::NormAddNorm { .. } => None,
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
fn found_route(graph: &Graph, index: usize) -> Option<(usize, RouteWork)> {
    let routed = routed(graph, index)?;
    let (input, router, product) = small_product(graph, index + 1)?;
    let Work::Elements { kind: ElementsKind::Softcap { cap, target }, result: capped } =
        graph.nodes.get(index + 2)?.work
    else {
        return None;
    };
    let (second, coefficients, result) = small_product(graph, index + 3)?;
    let (difference, mix) = match &graph.nodes.get(index + 4)?.work {
        Work::Sum(sum) => (Some(sum), &graph.nodes.get(index + 5)?.work),
        work => (None, work),
    };
    let Work::Mix(MixWork { streams, sources, coefficients: last, bias, scale }) = mix else {
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
    let (norm, added) = (routed.norm, routed.added);
    let router = RouterWork { norm, router, cap, coefficients };
    let (streams, bias, scale) = (streams.clone(), *bias, *scale);
    fits.then_some((count, RouteWork { streams, row, added, router, bias, scale, first: None }))
}

/// Returns the row that is routed, if the only source is its distance from the first stream.
fn corrected(
    graph: &Graph,
    index: usize,
    routed: &Routed,
    sum: &SumWork,
    first: ValueId,
    sources: &[ValueId],
) -> Option<ValueId> {
    // The row as it is after the addition.
    let row = match graph.nodes[index].work {
        Work::Norm { norm: NormWork::NormAddNorm { updated, .. }, .. } => updated,
        _ => routed.row,
    };
    let [plus @ SumTerm { values, .. }, minus] = sum.terms[..] else { return None };
    let subtracts = plus == SumTerm::of(values, 1.0) && minus == SumTerm::of(first, -1.0);
    let is_source = *sources == [sum.result] && graph.readers(sum.result) == 1;
    (values == row && subtracts && is_source && sum.norm.is_none()).then_some(routed.row)
}

/// Lets a mix with a router add the norm of a row to all its streams but the first.
pub(super) fn route_adds(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Norm { norm: NormWork::Norm { source, weight, epsilon }, made: Made::Rows(normed) } =
        graph.nodes[index].work
    else {
        return false;
    };
    let added = |node: usize| match graph.nodes.get(node)?.work {
        Work::Elements { kind: ElementsKind::Add { source, target }, result } => (source == normed
            && graph.readers(result) == 1)
            .then_some(StreamValues { input: target, output: result }),
        _ => None,
    };
    let all: Vec<StreamValues> = (index + 1..).map_while(added).collect();
    let at = index + 1 + all.len();
    let Some(Work::Route(work)) = graph.nodes.get(at).map(|node| &node.work) else { return false };
    let norm = RowNorm { weight, epsilon };
    let fits = work.added.is_none()
        && work.row.is_none()
        && work.router.norm.epsilon == epsilon
        && graph.readers(normed) == all.len()
        && work.streams.len() == all.len() + 1
        && work.streams[1..].iter().zip(&all).all(|(stream, add)| stream.input == add.output);
    if !fits {
        return false;
    }
    if let Work::Route(work) = &mut graph.nodes[at].work {
        work.added = Some((source, norm));
        work.streams[1..].iter_mut().zip(&all).for_each(|(stream, add)| stream.input = add.input);
    }
    graph.nodes.drain(index..at);
    true
}

/// Lets a mix with a router go on with its first stream: norm it, or multiply it with a vector.
pub(super) fn route_finishes(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Route(RouteWork { streams, first: None, router, .. }) = &graph.nodes[index].work
    else {
        return false;
    };
    let (stream, epsilon) = (streams[0].output, router.norm.epsilon);
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let found = match next.work {
        Work::Norm { norm: NormWork::Norm { source, weight, epsilon: same }, made }
            if source == stream && same == epsilon =>
        {
            First::Normed(RowNorm { weight, epsilon }, made)
        }
        Work::Elements { kind: ElementsKind::Scale { source, weight }, result }
            if source == stream =>
        {
            First::Scaled(weight, Made::Rows(result))
        }
        _ => return false,
    };
    if let Work::Route(work) = &mut graph.nodes[index].work {
        work.first = Some(found);
    }
    graph.nodes.remove(index + 1);
    true
}

/// Returns whether the norms of a sum have no other epsilon.
fn agrees(sum: &SumWork, epsilon: f32) -> bool {
    sum.norms().all(|norm| norm.epsilon == epsilon)
}

/// Lets a sum norm a term, if nothing else reads the norm.
pub(super) fn sum_norms_term(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Norm { norm: NormWork::Norm { source, weight, epsilon }, made: Made::Rows(normed) } =
        graph.nodes[index].work
    else {
        return false;
    };
    let Some(reader) = graph.nodes.iter().position(|node| node.work.reads(normed)) else {
        return false;
    };
    let Work::Sum(sum) = &graph.nodes[reader].work else { return false };
    let mut terms = (0..sum.terms.len()).filter(|&at| sum.terms[at].values == normed);
    let (Some(term), None) = (terms.next(), terms.next()) else { return false };
    let fits = graph.readers(normed) == 1
        && graph.value(normed).columns <= NORMED_COLUMNS_MAX
        && agrees(sum, epsilon)
        && graph.is_kept(index + 1..reader, source);
    if fits && let Work::Sum(sum) = &mut graph.nodes[reader].work {
        let norm = Some(RowNorm { weight, epsilon });
        sum.terms[term] = SumTerm { values: source, norm, ..sum.terms[term] };
        graph.nodes.remove(index);
    }
    fits
}

/// Lets a sum give its norm, too.
pub(super) fn sum_norms_result(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Sum(sum) = &graph.nodes[index].work else { return false };
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let Work::Norm { norm: NormWork::Norm { source, weight, epsilon }, made } = next.work else {
        return false;
    };
    let fits = source == sum.result
        && sum.norm.is_none()
        && sum.added.is_none()
        && agrees(sum, epsilon)
        && graph.value(source).columns <= NORMED_COLUMNS_MAX;
    if fits && let Work::Sum(sum) = &mut graph.nodes[index].work {
        sum.norm = Some((RowNorm { weight, epsilon }, made));
        graph.nodes.remove(index + 1);
    }
    fits
}

/// Lets a sum add the parts of a term itself, if it alone reads what another one makes of them.
pub(super) fn sum_takes_sum(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Sum(SumWork { terms, added: None, result, norm: None }) = &graph.nodes[index].work
    else {
        return false;
    };
    let ([own @ SumTerm { factor: 1.0, norm: None, shares: Some(shares), .. }], result) =
        (&terms[..], *result)
    else {
        return false;
    };
    let (own, shares) = (*own, *shares);
    let Some(reader) = graph.nodes.iter().position(|node| node.work.reads(result)) else {
        return false;
    };
    let Work::Sum(sum) = &graph.nodes[reader].work else { return false };
    let mut terms = (0..sum.terms.len()).filter(|&at| sum.terms[at].values == result);
    let (Some(term), None) = (terms.next(), terms.next()) else { return false };
    let fits = graph.readers(result) == 1
        && graph.value(result).columns <= NORMED_COLUMNS_MAX
        // A launch has the shares of one term, in the place of another one.
        && sum.terms.len() < TERMS_MAX
        && sum.terms.iter().all(|term| term.shares.is_none())
        && [own.values, shares].iter().all(|&id| graph.is_kept(index + 1..reader, id));
    if fits && let Work::Sum(sum) = &mut graph.nodes[reader].work {
        let SumTerm { values, shares, .. } = own;
        sum.terms[term] = SumTerm { values, shares, ..sum.terms[term] };
        graph.nodes.remove(index);
    }
    fits
}

/// Lets a sum do the addition of its norm that follows, with the norm after that, if nothing else
/// reads the sum.
pub(super) fn sum_adds(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Sum(SumWork { added: None, norm: None, result, .. }) = graph.nodes[index].work else {
        return false;
    };
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let Work::Norm {
        norm: NormWork::NormAddNorm { source, weight, target, scale, updated, next_weight, epsilon },
        made,
    } = next.work
    else {
        return false;
    };
    let Work::Sum(sum) = &graph.nodes[index].work else { return false };
    let fits = source == result
        && agrees(sum, epsilon)
        && graph.readers(result) == 1
        // The result replaces the target.
        && graph.home(updated).0 == graph.home(target).0
        && graph.value(source).columns <= NORMED_COLUMNS_MAX;
    if fits && let Work::Sum(sum) = &mut graph.nodes[index].work {
        let norm = RowNorm { weight, epsilon };
        sum.added = Some(SumAdd { norm, target, scale });
        sum.result = updated;
        sum.norm = Some((RowNorm { weight: next_weight, epsilon }, made));
        graph.nodes.remove(index + 1);
    }
    fits
}

#[cfg(test)]
mod tests;
