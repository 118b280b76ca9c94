//! Rules for sums: a sum takes over the norms of its terms, the parts of one of them, the norm of
//! its result, and the addition of that norm to a row.

use trine_model::TERMS_MAX;

use super::super::graph::{Graph, Ids, MadeValue, Normed, ValueId, Work};
use super::super::selection::Selection;
use crate::kernels::rows::{RowWork, RowsLaunch, Target};
use crate::kernels::sum::{Finish, NORMED_COLUMNS_MAX, SumAdd, SumLaunch, SumTerm};

/// Returns whether the norms of a sum have no other epsilon.
fn agrees(sum: &SumLaunch<Ids>, epsilon: f32) -> bool {
    !sum.norms() || sum.epsilon == epsilon
}

/// Returns the sum that has a value as one term, with the number of its launch and of the term, if
/// nothing else reads the value and the sum may norm such rows.
fn only_term(graph: &Graph, value: ValueId) -> Option<(usize, &SumLaunch<Ids>, usize)> {
    let reader = graph.nodes.iter().position(|node| node.work.reads(value))?;
    let Work::Sum(sum) = &graph.nodes[reader].work else { return None };
    let mut terms = (0..sum.terms.len()).filter(|&at| sum.terms[at].values == value);
    let (Some(term), None) = (terms.next(), terms.next()) else { return None };
    let fits = graph.readers(value) == 1 && graph.value(value).columns <= NORMED_COLUMNS_MAX;
    fits.then_some((reader, sum, term))
}

/// Lets a sum norm a term, if nothing else reads the norm.
pub(super) fn sum_norms_term(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some(Normed { source, weight, epsilon, made: MadeValue::Rows(normed) }) =
        graph.nodes[index].work.normed()
    else {
        return false;
    };
    let Some((reader, sum, term)) = only_term(graph, normed) else { return false };
    let fits = agrees(sum, epsilon) && graph.is_kept(index + 1..reader, source);
    if fits && let Work::Sum(sum) = &mut graph.nodes[reader].work {
        sum.terms[term] = SumTerm { values: source, norm: Some(weight), ..sum.terms[term] };
        sum.epsilon = epsilon;
        graph.nodes.remove(index);
    }
    fits
}

/// Lets a sum give its norm, too.
pub(super) fn sum_norms_result(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Sum(sum) = &graph.nodes[index].work else { return false };
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let Some(Normed { source, weight, epsilon, made }) = next.work.normed() else {
        return false;
    };
    let fits = source == sum.sum
        && sum.finish.is_none()
        && sum.added.is_none()
        && agrees(sum, epsilon)
        && graph.value(source).columns <= NORMED_COLUMNS_MAX;
    if fits && let Work::Sum(sum) = &mut graph.nodes[index].work {
        (sum.finish, sum.epsilon) = (Some(Finish { weight, made }), epsilon);
        graph.nodes.remove(index + 1);
    }
    fits
}

/// Lets a sum add the parts of a term itself, if only it reads what another one makes of them.
pub(super) fn sum_takes_sum(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Sum(SumLaunch { terms, added: None, sum, finish: None, .. }) =
        &graph.nodes[index].work
    else {
        return false;
    };
    let ([own @ SumTerm { factor: 1.0, norm: None, shares: Some(shares), .. }], result) =
        (&terms[..], *sum)
    else {
        return false;
    };
    let (own, shares) = (*own, *shares);
    let Some((reader, sum, term)) = only_term(graph, result) else { return false };
    // A launch has the shares of one term, in the place of another one.
    let fits = sum.terms.len() < TERMS_MAX
        && sum.terms.iter().all(|term| term.shares.is_none())
        && [own.values, shares.0].iter().all(|&id| graph.is_kept(index + 1..reader, id));
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
    let Work::Sum(SumLaunch { added: None, finish: None, sum: result, .. }) =
        graph.nodes[index].work
    else {
        return false;
    };
    let Some(next) = graph.nodes.get(index + 1) else { return false };
    let Some(RowsLaunch { work, source, epsilon, made: Some(made), .. }) = next.work.unlimited()
    else {
        return false;
    };
    let RowWork::NormAddNorm { weight, target: Target { old, updated }, scale, next_weight } = work
    else {
        return false;
    };
    let Work::Sum(sum) = &graph.nodes[index].work else { return false };
    let fits = source == result
        && agrees(sum, epsilon)
        && graph.readers(result) == 1
        // The result replaces the target.
        && graph.home(updated).0 == graph.home(old).0
        && graph.value(source).columns <= NORMED_COLUMNS_MAX;
    if fits && let Work::Sum(sum) = &mut graph.nodes[index].work {
        sum.added = Some(SumAdd { norm: weight, target: old, scale });
        (sum.sum, sum.epsilon) = (updated, epsilon);
        sum.finish = Some(Finish { weight: next_weight, made });
        graph.nodes.remove(index + 1);
    }
    fits
}

#[cfg(test)]
mod tests;
