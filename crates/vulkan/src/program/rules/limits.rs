//! Rules for limits of values: what makes or reads limited rows keeps the limits itself.

use super::super::graph::{Graph, Home, Ids, MadeValue, ValueId, Work};
use super::super::selection::Selection;
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::heads::HeadsLaunch;
use crate::kernels::limits::ValueLimits;
use crate::kernels::rows::{RowLimits, RowWork, RowsLaunch};

/// Returns a launch with room for limits, if it is of a kind that can keep them.
fn limited(graph: &Graph, work: &Work) -> Option<RowsLaunch<Ids>> {
    match *work {
        Work::Rows(launch) => match launch.work {
            RowWork::Norm { .. }
            | RowWork::NormAddNorm { .. }
            | RowWork::LayerNorm(_)
            | RowWork::AddLayerNorm { .. }
            | RowWork::Gate { .. } => Some(launch),
            _ => None,
        },
        Work::Elements(ElementsLaunch {
            work: ElementWork::Geglu { gate, up, first: 0, .. },
            result,
            ..
        }) if graph.value(gate).columns == graph.value(up).columns => {
            Some(RowsLaunch::of(RowWork::Gate { up }, gate, 0.0, MadeValue::Rows(result)))
        }
        _ => None,
    }
}

/// A launch that only limits values.
struct Limit {
    at: usize,
    /// The rows that it reads.
    rows: ValueId,
    limits: ValueLimits,
}

/// Returns the launch that makes a value, if it only limits rows that are still there at `index`.
fn limit_of(graph: &Graph, index: usize, value: ValueId) -> Option<Limit> {
    let at = graph.maker(index, value)?;
    match graph.nodes[at].work {
        Work::Elements(ElementsLaunch {
            work: ElementWork::Clamp { source: rows, low, high },
            ..
        }) => graph.is_kept(at + 1..index, rows).then_some(Limit {
            at,
            rows,
            limits: ValueLimits { low, high },
        }),
        _ => None,
    }
}

/// Takes the rows before their limits where nothing else reads the limited ones. Returns the
/// launches that have nothing left to do.
fn take<'a>(
    graph: &Graph,
    index: usize,
    all: impl IntoIterator<Item = (&'a mut ValueId, &'a mut ValueLimits)>,
) -> Vec<usize> {
    let taken = all.into_iter().filter_map(|(rows, limits)| {
        let is_only = graph.readers(*rows) == 1 && limits.are_none();
        let limit = limit_of(graph, index, *rows).filter(|_| is_only)?;
        (*rows, *limits) = (limit.rows, limit.limits);
        Some(limit.at)
    });
    taken.collect()
}

/// Gives a launch other work, and removes earlier ones.
fn replace(graph: &mut Graph, index: usize, work: Work, mut removed: Vec<usize>) {
    graph.nodes[index].work = work;
    removed.sort_unstable();
    for at in removed.into_iter().rev() {
        graph.nodes.remove(at);
    }
}

/// Lets norms and gates limit the rows that they read.
pub(super) fn rows_are_limited(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some(mut launch) = limited(graph, &graph.nodes[index].work) else { return false };
    let RowLimits { row, target, .. } = &mut launch.within;
    let source = &mut launch.source;
    let removed = match &mut launch.work {
        RowWork::Gate { up } => take(graph, index, [(source, row), (up, target)]),
        _ => take(graph, index, [(source, row)]),
    };
    let changes = !removed.is_empty();
    if changes {
        replace(graph, index, Work::Rows(launch), removed);
    }
    changes
}

/// Returns whether the launch that prepares heads may change the rows before the limits of queries
/// in place: if it does not read keys or values there, and nothing reads them later.
fn queries_may_change(graph: &Graph, index: usize, query: ValueId, others: [ValueId; 2]) -> bool {
    let before = |id| limit_of(graph, index, id).map(|limit| limit.rows);
    let Some(rows) = before(query) else { return false };
    let shares = |id: ValueId| graph.home(id).0 == graph.home(rows).0;
    let is_shared = others.into_iter().any(|id| shares(before(id).unwrap_or(id)));
    !is_shared && !graph.is_read_from(index + 1, rows)
}

/// Lets the launch that prepares heads by places limit what products left.
pub(super) fn heads_are_limited(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Heads(mut launch) = graph.nodes[index].work else { return false };
    let HeadsLaunch { query: Some(turned), stored: Some(stored), side: 1.., within, .. } =
        &mut launch
    else {
        return false;
    };
    let is_fixed = !queries_may_change(graph, index, turned.query, [stored.key, stored.value]);
    let all = [&mut turned.query, &mut stored.key, &mut stored.value].into_iter().zip(within);
    let removed = take(graph, index, all.skip(usize::from(is_fixed)));
    let changes = !removed.is_empty();
    if changes {
        // Queries are changed in place.
        graph.values[turned.turned.0].home = Home::Of(turned.query);
        replace(graph, index, Work::Heads(launch), removed);
    }
    changes
}

/// Lets a conversion limit the rows that it reads.
pub(super) fn conversions_limit(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some((source, operand)) = graph.nodes[index].work.conversion() else { return false };
    let columns = |id| graph.value(id).columns;
    let Some(limit) = limit_of(graph, index, source) else { return false };
    if columns(source) != columns(operand.id) {
        return false;
    }
    let within = RowLimits { result: limit.limits, ..RowLimits::NONE };
    let (work, made) = (RowWork::Convert { parts: 1 }, MadeValue::Operand(operand));
    let launch = RowsLaunch { within, ..RowsLaunch::of(work, limit.rows, 0.0, made) };
    graph.nodes[index].work = Work::Rows(launch);
    if graph.readers(source) == 0 {
        graph.nodes.remove(limit.at);
    }
    true
}

/// Lets norms and gates limit their result and convert it, if nothing else reads it.
pub(super) fn results_are_limited(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Rows(RowsLaunch { work: RowWork::Convert { .. }, source, within, made, .. }) =
        graph.nodes[index].work
    else {
        return false;
    };
    let Some(maker) = graph.maker(index, source) else { return false };
    let Some(mut launch) = limited(graph, &graph.nodes[maker].work) else { return false };
    let fits = launch.made == Some(MadeValue::Rows(source))
        && launch.within.result.are_none()
        && !within.result.are_none()
        && graph.readers(source) == 1;
    if fits {
        (launch.within.result, launch.made) = (within.result, made);
        graph.nodes[maker].work = Work::Rows(launch);
        graph.nodes.remove(index);
    }
    fits
}

#[cfg(test)]
mod tests;
