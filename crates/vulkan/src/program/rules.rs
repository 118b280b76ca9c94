//! Rules that let a launch take over work of its neighbours: norms, attention and gated products
//! hand their rows on as the operand that the next product takes, products norm their own row,
//! attention prepares its own heads. Those of models with several streams are in [`streams`], of
//! sums in [`sums`], of experts in [`experts`], of pictures in [`pictures`],
//! [`places`] and [`limits`].
//!
//! A rule looks at one launch and changes the graph if it applies there. Each rule walks the whole
//! graph before the next one does: products take over norms only after these have taken over
//! conversions.

use super::graph::{
    Form, Graph, Home, Input, MadeValue, Node, OperandValue, Output, ProductKernel, ProductWork,
    Touch, ValueId, Work,
};
use super::passes::Attended;
use super::selection::Selection;
use crate::kernels::attention::{Attention, DecodeLaunch, Fused, MatrixLaunch, OwnRows};
use crate::kernels::elements::ElementWork;
use crate::kernels::experts::product::{ExpertsLaunch, ExpertsOutput};
use crate::kernels::experts::{GatherLaunch, Grouping};
use crate::kernels::heads::{Factors, HeadsLaunch, Rotated, Stored};
use crate::kernels::matvec::CHAINED_ELEMENTS_MAX;
use crate::kernels::operand::OperandKind;
use crate::kernels::product::Product;
use crate::kernels::rows::{RowWork, RowsLaunch, Target};
use crate::kernels::sum::{SumLaunch, SumTerm};

mod expert_rules;
mod limits;
mod pictures;
mod places;
mod streams;
mod sums;

/// A rule, which returns whether it changed the graph at the launch of an index. A rule that did is
/// tried at this launch again, or at an earlier one.
type Rule = fn(&mut Graph, usize, &Selection) -> bool;

/// The rules, in the order in which they walk the graph.
const RULES: [Rule; 35] = [
    pictures::embed_inserts,
    pictures::products_add,
    pictures::layer_norms_add,
    pictures::activations_add,
    pictures::stores_add,
    places::places_prepare,
    limits::heads_are_limited,
    limits::rows_are_limited,
    streams::route,
    streams::route_adds,
    streams::route_finishes,
    sums::sum_norms_term,
    sums::sum_norms_result,
    sums::sum_takes_sum,
    cutoff_gates,
    convert_once,
    limits::conversions_limit,
    limits::results_are_limited,
    rows_give_operand,
    pictures::products_activate,
    experts_give_operand,
    attention_gives_operand,
    pictures::attends_whole,
    gated_gives_operand,
    gated_interleaves,
    expert_rules::choice_routes,
    product_gates,
    product_norms,
    sums::sum_adds,
    values_are_normed,
    values_are_keys,
    queries_turn,
    attention_prepares,
    attention_turns,
    small_products_first,
];

/// Applies every rule wherever it fits.
pub(super) fn apply(graph: &mut Graph, selection: &Selection) {
    RULES.iter().for_each(|rule| walk(graph, *rule, selection));
}

fn walk(graph: &mut Graph, rule: Rule, selection: &Selection) {
    let mut index = 0;
    while index < graph.nodes.len() {
        let launches = graph.nodes.len();
        if rule(graph, index, selection) {
            // The launches that are gone may have been before this one.
            index = index.saturating_sub(launches.saturating_sub(graph.nodes.len()));
        } else {
            index += 1;
        }
    }
}

/// A launch that converts rows, and the launch that makes them.
struct Conversion {
    maker: usize,
    rows: ValueId,
    operand: OperandValue,
    /// Whether nothing else reads the rows.
    is_only: bool,
}

/// Returns the conversion at an index, if a row becomes one row of the operand.
fn conversion(graph: &Graph, index: usize) -> Option<Conversion> {
    let columns = |id| graph.value(id).columns;
    any_conversion(graph, index).filter(|it| columns(it.rows) == columns(it.operand.id))
}

fn any_conversion(graph: &Graph, index: usize) -> Option<Conversion> {
    let (rows, operand) = graph.nodes[index].work.conversion()?;
    let maker = graph.maker(index, rows)?;
    Some(Conversion { maker, rows, operand, is_only: graph.readers(rows) == 1 })
}

impl Conversion {
    /// Returns what the maker writes if it converts the rows itself.
    fn made(&self) -> MadeValue {
        if self.is_only {
            MadeValue::Operand(self.operand)
        } else {
            MadeValue::Both(self.rows, self.operand)
        }
    }
}

/// Lets products of the same rows that take the same kind of operand share one conversion.
fn convert_once(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some((source, operand)) = graph.nodes[index].work.conversion() else { return false };
    let columns = |operand: OperandValue| graph.value(operand.id).columns;
    let same = |work: &Work| {
        let (other, first) = work.conversion()?;
        let alike = first.kind == operand.kind && columns(first) == columns(operand);
        (other == source && alike).then_some(first)
    };
    let Some(first) = graph.nodes[..index].iter().find_map(|node| same(&node.work)) else {
        return false;
    };
    for node in &mut graph.nodes[index..] {
        let form = match &mut node.work {
            Work::Product(ProductWork {
                product: Product { input: Input::Operand(form), .. },
                ..
            }) => form,
            Work::Experts(ExpertsLaunch { input, .. }) => input,
            Work::Gather(GatherLaunch { source, .. }) => source,
            _ => continue,
        };
        if *form == Form::Operand(operand) {
            *form = Form::Operand(first);
        }
    }
    graph.nodes.remove(index);
    true
}

/// Lets a launch over whole rows write the operand that its result is converted to.
fn rows_give_operand(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some(conversion) = conversion(graph, index) else { return false };
    let made = match &mut graph.nodes[conversion.maker].work {
        Work::Rows(RowsLaunch { work: RowWork::Rescale { .. }, .. }) => None,
        Work::Rows(launch) => launch.made.as_mut(),
        Work::Sum(sum) => sum.finish.as_mut().map(|finish| &mut finish.made),
        Work::Route(work) => work.first.as_mut().map(|first| &mut first.finish_mut().made),
        _ => None,
    };
    match made {
        Some(made) if *made == MadeValue::Rows(conversion.rows) => *made = conversion.made(),
        _ => return false,
    }
    graph.nodes.remove(index);
    true
}

/// Lets gated products with experts write the operand that their result is converted to.
fn experts_give_operand(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some(conversion) = any_conversion(graph, index) else { return false };
    let columns = graph.value(conversion.operand.id).columns;
    match &mut graph.nodes[conversion.maker].work {
        Work::Experts(ExpertsLaunch {
            rows,
            // Matrix units give only rows.
            grouping: Grouping { is_padded: false, .. },
            output: ExpertsOutput::Gated { made: made @ MadeValue::Rows(_), .. },
            ..
        }) if *rows == columns => *made = conversion.made(),
        _ => return false,
    }
    graph.nodes.remove(index);
    true
}

/// Lets attention write the operand that its result is converted to: for one row in fixed point, if
/// its workgroups see whole blocks, and in halves if these cannot lose anything and nothing else
/// reads the rows.
fn attention_gives_operand(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let Some(conversion) = conversion(graph, index) else { return false };
    let one_row = graph.width.tokens == 1;
    let takes = |attention: &Attention| match conversion.operand.kind {
        OperandKind::Fixed16 => one_row && attention.gives_fixed(),
        OperandKind::Halves | OperandKind::Fragments => {
            conversion.is_only && selection.attends_in_halves(attention)
        }
        OperandKind::Plain | OperandKind::Split | OperandKind::Interleaved => false,
    };
    match &mut graph.nodes[conversion.maker].work {
        Work::AttendRows(DecodeLaunch { attention, made: made @ MadeValue::Rows(_), .. })
            if takes(attention) =>
        {
            *made = conversion.made();
        }
        Work::AttendMatrix(MatrixLaunch { attention, made: made @ MadeValue::Rows(_), .. })
            if takes(attention) && conversion.is_only =>
        {
            *made = conversion.made();
        }
        _ => return false,
    }
    graph.nodes.remove(index);
    true
}

/// Lets a gated product write the operand that its result is converted to.
fn gated_gives_operand(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let Some(conversion) = conversion(graph, index) else { return false };
    let columns = graph.value(conversion.rows).columns;
    let node = &mut graph.nodes[conversion.maker];
    let Work::Product(ProductWork { product, .. }) = &mut node.work else { return false };
    let rows = product.width;
    let Output::Gated(MadeValue::Rows(_)) = product.output else { return false };
    let (operand, unit) = (conversion.operand, ());
    product.output = match operand.kind {
        OperandKind::Fixed16 if selection.gates_in_fixed(&product.matrix, rows) => {
            Output::Gated(conversion.made())
        }
        OperandKind::Halves | OperandKind::Fragments
            if conversion.is_only && selection.gates_in_halves(&product.matrix, columns, rows) =>
        {
            Output::GatedHalves { operand, unit }
        }
        _ => return false,
    };
    graph.nodes.remove(index);
    true
}

/// Lets a gated product of one row write it interleaved, for the product with one matrix that is
/// its only reader.
fn gated_interleaves(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let node = &graph.nodes[index];
    let Work::Product(ProductWork { product: gated, .. }) = &node.work else { return false };
    let Output::Gated(MadeValue::Rows(row)) = gated.output else { return false };
    let rows = gated.width;
    let Some(reader) = graph.nodes.iter().rposition(|node| node.work.reads(row)) else {
        return false;
    };
    let node = &graph.nodes[reader];
    let Work::Product(ProductWork { product: next, .. }) = &node.work else { return false };
    let fits = graph.readers(row) == 1
        && matches!(next.output, Output::Segments(_))
        && next.matrix.weights.len() == 1
        && next.width == rows
        && selection.interleaves(&gated.matrix, &next.matrix, rows);
    if !fits {
        return false;
    }
    let operand = graph.fresh_operand(row, OperandKind::Interleaved);
    if let Work::Product(work) = &mut graph.nodes[index].work {
        work.product.output = Output::Gated(MadeValue::Operand(operand));
    }
    if let Work::Product(work) = &mut graph.nodes[reader].work {
        work.product.input = Input::Operand(Form::Operand(operand));
    }
    true
}

/// Lets a cutoff go on with the gated product of its result.
fn cutoff_gates(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Rows(launch) = graph.nodes[index].work else { return false };
    let (RowWork::Cutoff { deviations }, Some(MadeValue::Rows(cut))) = (launch.work, launch.made)
    else {
        return false;
    };
    let Some(Node { work: Work::Elements(next), .. }) = graph.nodes.get(index + 1) else {
        return false;
    };
    let (ElementWork::Geglu { gate, up, first: 0, .. }, result) = (next.work, next.result) else {
        return false;
    };
    if gate != cut || graph.readers(cut) != 1 || graph.value(up).columns != graph.value(cut).columns
    {
        return false;
    }
    let (work, made) = (RowWork::GatedCutoff { deviations, up }, Some(MadeValue::Rows(result)));
    graph.nodes[index].work = Work::Rows(RowsLaunch { work, made, ..launch });
    graph.nodes.remove(index + 1);
    true
}

/// Lets a product of one row be the gate of a row that is there.
fn product_gates(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Product(ProductWork { kernel: ProductKernel::OneRow, product }) =
        &graph.nodes[index].work
    else {
        return false;
    };
    let Output::Segments(segments) = product.output else { return false };
    let Some(product) = segments.only() else { return false };
    let Some(Node { work: Work::Elements(next), .. }) = graph.nodes.get(index + 1) else {
        return false;
    };
    let (ElementWork::Geglu { gate, up, first, .. }, result) = (next.work, next.result) else {
        return false;
    };
    if gate != product || up == product || graph.readers(product) != 1 {
        return false;
    }
    if let Work::Product(work) = &mut graph.nodes[index].work {
        work.product.output = Output::Gates { by: up, first, target: result };
    }
    graph.nodes.remove(index + 1);
    true
}

/// Lets products norm their row themselves, if they are the next launches and the only ones that
/// read the normed row. Several have matrices of different formats. Each computes the norm, and the
/// first one writes the updated target. On an H100 that takes less time than a launch for the norm
/// (docs/benchmarks/gpu-kernels.md); other devices have not been measured.
fn product_norms(graph: &mut Graph, index: usize, selection: &Selection) -> bool {
    let Some(launch) = graph.nodes[index].work.unlimited() else { return false };
    let Some(form) = launch.made.and_then(MadeValue::only) else { return false };
    let RowsLaunch { source, epsilon, .. } = launch;
    let norm = |updates: bool| match launch.work {
        RowWork::Norm { weight: Some(weight) } => Some(Input::Norm { x: source, weight, epsilon }),
        RowWork::NormAddNorm { weight, target: Target { old, updated }, scale, next_weight } => {
            Some(Input::NormAddNorm {
                x: old,
                scale,
                added: source,
                added_weight: weight,
                weight: next_weight,
                epsilon,
                x_out: updates.then_some(updated),
            })
        }
        _ => None,
    };
    let Some(first) = norm(true) else { return false };
    let can_norm = |node: &Node| {
        let Work::Product(work) = &node.work else { return false };
        let Product { matrix, width, input, .. } = &work.product;
        *input == Input::Operand(form) && selection.can_norm(matrix, *width)
    };
    let readers = graph.readers(form.id());
    let products = graph.nodes[index + 1..].iter().take_while(|node| can_norm(node)).count();
    if products == 0 || products != readers {
        return false;
    }
    for (at, node) in graph.nodes[index + 1..=index + products].iter_mut().enumerate() {
        let Work::Product(work) = &mut node.work else { unreachable!("products can norm") };
        work.product.input = norm(at == 0).unwrap_or(first);
        work.kernel = selection.product(&work.product.matrix, work.product.width, true);
    }
    if let Input::NormAddNorm { x_out: Some(updated), .. } = first {
        // Every workgroup of the products reads the old one.
        graph.values[updated.0].home = Home::Own;
    }
    graph.nodes.remove(index);
    true
}

/// Lets the work before attention norm the values, too.
fn values_are_normed(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some((normed, Factors::Ones)) = graph.nodes[index].work.head_norm() else { return false };
    let Work::Heads(HeadsLaunch { query: Some(norm), epsilon, .. }) = graph.nodes[index].work
    else {
        return false;
    };
    let Some(Node { work: Work::Heads(next), .. }) = graph.nodes.get(index + 1) else {
        return false;
    };
    let HeadsLaunch { query: Some(_), stored: Some(stored), dim, .. } = *next else {
        return false;
    };
    let heads = graph.value(stored.value).columns / dim;
    let fits = stored.value == normed
        && !stored.value_norm
        && (norm.heads, epsilon) == (heads, next.epsilon)
        && graph.readers(normed) == 1;
    if fits {
        let stored = Some(Stored { value: norm.query, value_norm: true, ..stored });
        graph.nodes[index + 1].work = Work::Heads(HeadsLaunch { stored, ..*next });
        graph.nodes.remove(index);
    }
    fits
}

/// Lets the work before attention take the values from the rows of the keys, of which they are a
/// copy: it reads both before it changes anything but queries.
fn values_are_keys(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Heads(launch) = graph.nodes[index].work else { return false };
    let HeadsLaunch { query: Some(_), stored: Some(stored), .. } = launch else { return false };
    let Some(maker) = graph.maker(index, stored.value) else { return false };
    let Work::Sum(SumLaunch { terms, added: None, finish: None, .. }) = &graph.nodes[maker].work
    else {
        return false;
    };
    let fits = terms[..] == [SumTerm::of(stored.key, 1.0)]
        && graph.readers(stored.value) == 1
        && graph.is_kept(maker + 1..index, stored.key);
    if fits {
        let stored = Some(Stored { value: stored.key, ..stored });
        graph.nodes[index].work = Work::Heads(HeadsLaunch { stored, ..launch });
        graph.nodes.remove(maker);
    }
    fits
}

/// Lets one launch norm and rotate heads.
fn queries_turn(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Some((normed, factors)) = graph.nodes[index].work.head_norm() else { return false };
    let Work::Heads(HeadsLaunch { query: Some(norm), epsilon, .. }) = graph.nodes[index].work
    else {
        return false;
    };
    let Some(Node { work: Work::Heads(next), .. }) = graph.nodes.get(index + 1) else {
        return false;
    };
    let HeadsLaunch { query: Some(query), stored: None, rope: Some(_), .. } = *next else {
        return false;
    };
    let fits = query.query_norm.is_none()
        && query.query == normed
        && norm.heads == query.heads
        && graph.readers(normed) == 1;
    if fits {
        let query = Some(Rotated { query: norm.query, query_norm: Some(factors), ..query });
        graph.nodes[index + 1].work = Work::Heads(HeadsLaunch { query, epsilon, ..*next });
        graph.nodes.remove(index);
    }
    fits
}

/// Lets attention norm and rotate its queries itself, if their keys are in the cache.
fn attention_turns(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Heads(HeadsLaunch {
        query: Some(turn),
        stored: None,
        rope: Some(rope),
        side: 0,
        epsilon,
        ..
    }) = graph.nodes[index].work
    else {
        return false;
    };
    let Some(Factors::Of(weight)) = turn.query_norm else { return false };
    if graph.readers(turn.turned) != 1 {
        return false;
    }
    let Some(next) = graph.nodes.get_mut(index + 1) else { return false };
    match &mut next.work {
        Work::AttendRows(DecodeLaunch { query, fused: fused @ None, .. })
            if *query == turn.turned =>
        {
            let (query_norm, rope) = (Some(weight), Some(rope));
            *fused = Some(Fused { query_norm, rope, epsilon, own: None });
            *query = turn.query;
        }
        _ => return false,
    }
    graph.nodes.remove(index);
    true
}

/// Lets attention do the work on the heads, if each row is of another sequence, so that no row sees
/// what another one stores.
fn attention_prepares(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let Work::Heads(HeadsLaunch {
        query: Some(turn),
        stored: Some(stored),
        rope,
        side: 0,
        epsilon,
        ..
    }) = graph.nodes[index].work
    else {
        return false;
    };
    let Some(Factors::Of(weight)) = turn.query_norm else { return false };
    if graph.attended != Attended::Sequences || graph.readers(turn.turned) != 1 {
        return false;
    }
    let Some(next) = graph.nodes.get_mut(index + 1) else { return false };
    match &mut next.work {
        Work::AttendRows(DecodeLaunch { query, cache, fused: fused @ None, .. })
            if *query == turn.turned && *cache == stored.cache =>
        {
            let Stored { key, value, key_norm, value_norm, .. } = stored;
            let own = Some(OwnRows { key, value, key_norm, value_norm });
            *fused = Some(Fused { query_norm: Some(weight), rope, epsilon, own });
            *query = turn.query;
        }
        _ => return false,
    }
    graph.nodes.remove(index);
    true
}

/// Puts a product of one row with a small matrix of floats before a product that it does not need.
/// Beside the launch before that, such as attention, there is room for it, while large workgroups
/// would have to end first.
fn small_products_first(graph: &mut Graph, index: usize, _: &Selection) -> bool {
    let [first, second, ..] = &graph.nodes[index..] else { return false };
    let (Work::Product(large), Work::Product(small)) = (&first.work, &second.work) else {
        return false;
    };
    let mut needs = false;
    first.work.touches(&mut |touch| {
        needs |= matches!(touch, Touch::Write(form) if second.work.reads(form.id()));
    });
    let one_row = [small, large].iter().all(|work| work.product.width == 1);
    let Output::Segments(segments) = small.product.output else { return false };
    let rows: usize = segments.iter().map(|segment| segment.rows).sum();
    let [small, large] = [small, large].map(|work| &work.product.matrix);
    let is_small = small.format.is_float() && rows * small.columns <= CHAINED_ELEMENTS_MAX;
    let fits = one_row && !needs && is_small && !large.format.is_float();
    if fits {
        graph.nodes.swap(index, index + 1);
    }
    fits
}

#[cfg(test)]
mod tests;
