//! Rules for experts: the norm before a router, the product with it and the choice from its logits
//! become one launch, which also gives another norm of the same rows.

use super::super::graph::{Graph, Ids, MadeValue, Normed, Work};
use super::super::selection::Selection;
use super::super::values::Shared;
use super::streams::small_product;
use crate::capabilities::Capabilities;
use crate::kernels::experts::ChoiceLaunch;
use crate::kernels::experts::router::{COUNTER_BYTES, RouterLaunch, routes};
use crate::kernels::sum::Finish;

/// Lets a choice multiply with the router, after the norm before it. The next norm of the same rows
/// is given by the same launch.
pub(super) fn choice_routes(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let found = found_router(graph, index, selection.capabilities());
    let Some((norm_at, product, routed)) = found else { return false };
    let next = next_norm(graph, index, &routed);
    let other = next.map(|(_, other)| other);
    graph.nodes[index].work = Work::ChooseRouted(RouterLaunch { other, ..routed });
    if let Some((at, _)) = next {
        graph.nodes.remove(at);
    }
    graph.nodes.remove(product);
    graph.nodes.remove(norm_at);
    true
}

/// Returns the launches of the norm and of the product before a choice, and the router.
fn found_router(
    graph: &Graph,
    index: usize,
    capabilities: &Capabilities,
) -> Option<(usize, usize, RouterLaunch<Ids>)> {
    let Work::Choose(choice) = graph.nodes[index].work else { return None };
    let ChoiceLaunch { logits, experts, used, .. } = choice;
    let product = graph.maker(index, logits)?;
    let (normed, router, result) = small_product(graph, product)?;
    let norm_at = graph.maker(product, normed)?;
    let Some(Normed { source, weight, epsilon, made: MadeValue::Rows(row) }) =
        graph.nodes[norm_at].work.normed()
    else {
        return None;
    };
    let (columns, rows) = (|id| graph.value(id).columns, graph.width.of(graph.nodes[index].rows));
    let fits = (row, result) == (normed, logits)
        && graph.readers(normed) == 1
        && graph.readers(logits) == 1
        && routes(capabilities, (experts, used), columns(source), rows)
        && graph.is_kept(norm_at + 1..index, source);
    let launch = RouterLaunch {
        choice,
        source,
        norm: weight,
        epsilon,
        router,
        other: None,
        counters: Shared::Counters(COUNTER_BYTES),
    };
    fits.then_some((norm_at, product, launch))
}

/// Returns the launch after a choice that norms the routed rows too, if it may be done with it.
fn next_norm(
    graph: &Graph,
    index: usize,
    routed: &RouterLaunch<Ids>,
) -> Option<(usize, Finish<Ids>)> {
    let found = |at: &usize| {
        let Normed { source, weight, epsilon, made } = graph.nodes[*at].work.normed()?;
        let fits = source == routed.source && epsilon == routed.epsilon;
        fits.then_some((*at, Finish { weight, made }))
    };
    let (at, other) = (index + 1..graph.nodes.len()).find_map(|at| found(&at))?;
    graph.is_kept(index..at, routed.source).then_some((at, other))
}
