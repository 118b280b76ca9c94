//! Rules for pictures: rows of soft tokens in a text, and the layers of towers.

use super::super::graph::{ElementsKind, Graph, Home, Work};
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

#[cfg(test)]
mod tests;
