//! What a Program would take of a device's memory, before anything is allocated.

use std::cmp::Reverse;

use rayon::prelude::*;
use trine_backend::{Memory, ProgramOptions};
use trine_model::{Plan, WeightPlace, Width};

use super::caches::cache_bytes;
use super::frame::FrameLayout;
use super::graph::{Graph, allocated};
use super::loans::{lent_keys, loan_bytes};
use super::lower::lower_lent;
use super::passes::{Attended, PassKey, is_two_sided};
use super::sampler::sampler_bytes;
use super::selection::Selection;
use super::top_memory::top_bytes;
use crate::capabilities::Capabilities;
use crate::chain::{self, ChainMemory};
use crate::raw::memory::blocks_bytes;
use crate::weights;

/// Returns the memory of a Plan's Program, which may be `lent` to a partner. Recordings and
/// compiled kernels are not included, nor the memory that weights pass through on their way.
pub(crate) fn memory(
    capabilities: &Capabilities,
    plan: &Plan,
    lent: Option<&Plan>,
    options: &ProgramOptions,
    keys: &[PassKey],
) -> Memory {
    let mut caches: Vec<u64> =
        plan.caches.iter().map(|cache| cache_bytes(options, cache)).collect();
    caches.sort_by_key(|&bytes| Reverse(bytes));
    Memory {
        weights: weights::forecast(capabilities, plan, lent),
        mapped: plan.bytes_at(WeightPlace::File),
        caches: blocks_bytes(caches.iter().sum(), &caches),
        scratch: scratch(capabilities, plan, lent, options, keys),
    }
}

/// Returns the working memory: that of the widest pass, and what the host reads and writes.
fn scratch(
    capabilities: &Capabilities,
    plan: &Plan,
    lent: Option<&Plan>,
    options: &ProgramOptions,
    keys: &[PassKey],
) -> u64 {
    let selection = Selection::new(capabilities, plan, options);
    let Width { tokens, outputs } = options.width;
    let widest = Width { tokens, outputs: outputs.min(tokens) };
    // The widest of each kind of attention, for each goal.
    let last =
        |goal, attended| keys.iter().rfind(|key| (key.goal, key.attended) == (goal, attended));
    let ways = [Attended::Sequences, Attended::Rows, Attended::Tiles];
    let widest_keys: Vec<PassKey> = plan
        .goals()
        .into_iter()
        .flat_map(|goal| ways.into_iter().filter_map(move |attended| last(goal, attended)))
        .copied()
        .collect();
    // A Plan that cannot be lowered is refused when it is loaded.
    let alone = widest_keys.iter().map(|&key| (plan, key, 0));
    let beside = lent.into_iter().flat_map(|lent| {
        let keys = lent_keys(&widest_keys, options).into_iter();
        keys.map(move |(key, exact)| (lent, key, exact))
    });
    let all: Vec<_> = alone.chain(beside).collect();
    let lowered = |(plan, key, exact)| lower_lent(plan, key, exact, &selection).ok();
    let graphs: Vec<Graph> = all.into_par_iter().filter_map(lowered).collect();
    let passes = graphs
        .iter()
        .map(|graph| graph.place(capabilities).scratch.bytes as u64)
        .max()
        .unwrap_or(0);
    let two_sided = match lent {
        None => keys.iter().filter(|key| is_two_sided(plan, key)).count(),
        Some(_) => 0,
    };
    let sides = if two_sided > 0 { 2 } else { 1 };
    let launches = graphs.iter().map(|graph| graph.nodes.len()).max().unwrap_or(0);
    let chains = match chain::suits(capabilities.kind) {
        true => ChainMemory::most_bytes(launches) * (keys.len() + two_sided) as u64,
        false => 0,
    };
    let loans = loan_bytes(lent.unwrap_or(plan), widest);
    let rows_bytes = |id: trine_model::BufferId| {
        let buffer = plan.buffer(id);
        4 * (allocated(widest.of(buffer.rows)) * buffer.columns) as u64
    };
    let inputs = plan.inputs.iter().map(|input| rows_bytes(input.buffer));
    let frame = FrameLayout::new(options).bytes as u64;
    let side: Vec<u64> = inputs.chain([frame]).collect();
    let outputs_bytes = plan.outputs.iter().copied().map(rows_bytes);
    let parts = std::iter::repeat_n(side, sides).flatten().chain(outputs_bytes);
    let parts = parts.chain([passes, selection.split_bytes(), chains]).chain(top_bytes(outputs));
    let others = sampler_bytes(plan, outputs).into_iter().chain(loans.into_iter().flatten());
    let parts = parts.chain(others.filter(|bytes| *bytes > 0));
    parts.map(|bytes| blocks_bytes(bytes, &[bytes])).sum()
}
