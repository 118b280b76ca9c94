//! Which kernels a Program compiles, found out without its device: the passes are lowered and
//! turned into dispatches as for a device, over addresses where nothing is.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use trine_backend::ProgramOptions;
use trine_backend::rates::{ATTENTION_FACTOR, Rates};
use trine_model::Plan;

use super::caches::cache_bytes;
use super::emit::Emitter;
use super::frame::FrameLayout;
use super::graph::{Graph, Node, Work};
use super::lowered::{Lowered, Plans};
use super::passes::PassKey;
use super::ropes::Ropes;
use super::sampler::sample_launch;
use super::selection::Selection;
use super::series::choose_launch;
use super::top_memory::top_launch;
use super::tuning::Survey;
use crate::chain;
use crate::compiler::Described;
use crate::dispatch::{Dispatch, Span};
use crate::error::GpuError;
use crate::kernels::embed::EmbedLaunch;
use crate::kernels::matmul::probe;
use crate::kernels::product::Product;
use crate::kernels::sample::SampleLaunch;
use crate::raw::pipeline::KernelKey;
use crate::weights::Weights;

/// Where everything begins that launches touch. No two parts are compared, so all begin here.
const NOWHERE: u64 = 1 << 40;

/// A kernel that Programs compile.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogued {
    /// What it is compiled from.
    pub key: KernelKey,
    /// Whether it is compiled only to be measured: a shape that tuning may choose.
    pub is_trial: bool,
    /// Its largest launch, if it is one of a pass or tried in place of one.
    pub launch: Option<LaunchFacts>,
}

/// What a launch of a pass does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchFacts {
    /// The label of the Plan's step.
    pub label: String,
    /// Rows of the pass.
    pub tokens: usize,
    /// Bytes of weights, keys and values that it reads and writes, at the end of the longest
    /// sequence.
    pub memory_bytes: u64,
    /// Bytes of other values that it reads and writes.
    pub activation_bytes: u64,
    /// Additions and multiplications of products and attention.
    pub operations: u64,
    /// Whether it attends.
    pub attends: bool,
}

impl LaunchFacts {
    /// Returns the facts of one of a node's launches.
    fn of(plans: &Plans<'_>, lowered: &Lowered, node: &Node, launches: usize) -> Self {
        let Lowered { key, exact, graph, .. } = lowered;
        let plan = plans.of(*exact);
        let (memory_bytes, operations) = match &node.work {
            Work::Product(work) => {
                let Product { matrix, width, .. } = &work.product;
                let rows = matrix.weights.iter().map(|id| plan.weight(*id).rows).sum::<usize>();
                let row = matrix.format.row_bytes(matrix.columns).total();
                (rows as u64 * row, 2 * (rows * matrix.columns * width) as u64)
            }
            work if work.attends().is_some() => {
                let workload = key.workload(plans.options);
                let cost = plan.step_cost(&plan.steps[node.step], workload);
                (cost.cache_bytes, cost.operations)
            }
            Work::Embed(EmbedLaunch { table, side, .. }) => {
                let weight = plan.weight(*table);
                // A place takes two.
                let rows = if *side > 0 { 2 } else { 1 } * graph.width.of(node.rows) as u64;
                (weight.bytes() / weight.rows.max(1) as u64 * rows, 0)
            }
            _ => (0, 0),
        };
        let launches = launches.max(1) as u64;
        Self {
            label: node.label.clone(),
            tokens: key.width.tokens,
            memory_bytes: memory_bytes / launches,
            activation_bytes: touched_bytes(graph, node) / launches,
            operations: operations / launches,
            attends: node.work.attends().is_some(),
        }
    }

    /// Returns the facts of a launch beside the Plan's steps.
    fn beside(key: PassKey, dispatch: &Dispatch) -> Self {
        let spans = dispatch.reads.iter().chain(&dispatch.writes);
        Self {
            label: dispatch.label.clone(),
            tokens: key.width.tokens,
            memory_bytes: 0,
            activation_bytes: spans.map(|span| span.bytes).sum(),
            operations: 0,
            attends: false,
        }
    }

    /// Returns the microseconds that the launch would take at some rates: of reading and writing,
    /// as if no value stayed in a cache, and of arithmetic. They overlap; the gap after the launch
    /// does not.
    pub fn times(&self, rates: &Rates) -> [f64; 2] {
        let bytes = (self.memory_bytes + self.activation_bytes) as f64;
        let factor = if self.attends { ATTENTION_FACTOR } else { 1.0 };
        let operations = factor * self.operations as f64;
        [bytes / (rates.gbps * 1e3), operations / (rates.tops(self.tokens) * 1e6)]
    }

    /// What the launches of a kernel are ordered by.
    fn size(&self) -> (u64, u64) {
        (self.operations, self.memory_bytes + self.activation_bytes)
    }
}

/// Returns the bytes of the values that a node reads and writes.
fn touched_bytes(graph: &Graph, node: &Node) -> u64 {
    let mut bytes = 0;
    node.work.touches(&mut |touch| {
        bytes += graph.value(touch.id()).bytes.iter().map(|&bytes| bytes as u64).sum::<u64>();
    });
    bytes
}

/// Kernels in the order in which they were first needed.
#[derive(Default)]
struct Catalogue {
    kernels: Vec<Catalogued>,
    places: HashMap<KernelKey, usize>,
}

impl Catalogue {
    fn add(&mut self, key: KernelKey, is_trial: bool, launch: Option<LaunchFacts>) {
        let Some(&place) = self.places.get(&key) else {
            self.places.insert(key.clone(), self.kernels.len());
            self.kernels.push(Catalogued { key, is_trial, launch });
            return;
        };
        let known = &mut self.kernels[place];
        // What a pass launches says more than what may be tried in its place.
        let is_first = known.is_trial && !is_trial;
        let size = |launch: &Option<LaunchFacts>| launch.as_ref().map(LaunchFacts::size);
        if is_first || (known.is_trial == is_trial && size(&launch) > size(&known.launch)) {
            *known = Catalogued { key, is_trial, launch };
        }
    }
}

/// Returns the kernels that a Program with these Plans and passes compiles on a device: those that
/// it launches by the static tables, and, with `trials`, those that tuning may try.
///
/// # Errors
/// If a launch has no room on the device.
pub(super) fn catalogue(
    plans: Plans<'_>,
    graphs: &[Lowered],
    selection: &Selection,
    trials: bool,
) -> Result<Vec<Catalogued>, GpuError> {
    let capabilities = selection.capabilities();
    let mut catalogue = Catalogue::default();
    let chained = chain::suits(capabilities.kind).then(|| chain::probe_key(capabilities));
    for key in probe::key_for(capabilities).into_iter().chain(chained) {
        catalogue.add(key, false, None);
    }
    let device = Arc::new(Described::new(capabilities.clone()));
    let places = DryAddresses::of(&plans, &device, selection)?;
    let survey = RefCell::new(Survey::listing(device.clone()));
    for lowered in graphs {
        let emitter = places.emitter(&plans, lowered);
        let shows = Emitter { survey: Some(&survey), ..places.emitter(&plans, lowered) };
        for node in &lowered.graph.nodes {
            let mut dispatches = Vec::new();
            emitter.node(node, &mut dispatches)?;
            let launch = LaunchFacts::of(&plans, lowered, node, dispatches.len());
            for key in device.take() {
                catalogue.add(key, false, Some(launch.clone()));
            }
            if trials && matches!(node.work, Work::Product(_)) {
                shows.node(node, &mut dispatches)?;
                for key in survey.borrow_mut().take_listed() {
                    catalogue.add(key, true, Some(launch.clone()));
                }
            }
        }
        let top = top_launch(&emitter, [places.nothing; 3]);
        let dispatches = top.map(|launch| launch.dispatches(&device, 0)).transpose()?;
        for (key, dispatch) in device.take().into_iter().zip(dispatches.iter().flatten()) {
            catalogue.add(key, false, Some(LaunchFacts::beside(lowered.key, dispatch)));
        }
    }
    let sample = sample_launch(plans.plan, plans.options.width.outputs, [places.nothing; 3]);
    // The longest run has all kernels.
    let run = SampleLaunch::RUNS - 1;
    sample.map(|launch| launch.dispatches(&device, 1, run)).transpose()?;
    device.take().into_iter().for_each(|key| catalogue.add(key, false, None));
    let changing = FrameLayout::new(plans.options).changing(NOWHERE);
    for goal in plans.plan.goals() {
        let spans = [places.nothing; 2];
        let choose = choose_launch(plans.plan, plans.options, goal, changing, spans);
        choose.map(|launch| launch.dispatch(&device)).transpose()?;
        device.take().into_iter().for_each(|key| catalogue.add(key, false, None));
    }
    Ok(catalogue.kernels)
}

/// Where the memory of a Program would be.
struct DryAddresses<'a> {
    device: &'a Arc<Described>,
    selection: &'a Selection,
    weights: Weights,
    ropes: Ropes,
    caches: Vec<Span>,
    inputs: usize,
    nothing: Span,
}

impl<'a> DryAddresses<'a> {
    fn of(
        plans: &Plans<'_>,
        device: &'a Arc<Described>,
        selection: &'a Selection,
    ) -> Result<Self, GpuError> {
        let Plans { plan, options, .. } = *plans;
        let weights = Weights::described(selection.capabilities(), plan, NOWHERE);
        let weights = weights.ok_or_else(|| too_large(device, plan))?;
        let cache = |cache| Span { address: NOWHERE, bytes: cache_bytes(options, cache) };
        Ok(Self {
            device,
            selection,
            weights,
            ropes: Ropes::described(plan, NOWHERE),
            caches: plan.caches.iter().map(cache).collect(),
            inputs: plan.inputs.len(),
            nothing: Span { address: NOWHERE, bytes: 0 },
        })
    }

    fn emitter<'b>(&'b self, plans: &Plans<'b>, lowered: &'b Lowered) -> Emitter<'b> {
        let options: &ProgramOptions = plans.options;
        Emitter {
            compiler: self.device,
            plan: plans.of(lowered.exact),
            options,
            weights: &self.weights,
            caches: self.caches.clone(),
            ropes: &self.ropes,
            selection: self.selection,
            frame: FrameLayout::new(options).addresses(NOWHERE),
            graph: &lowered.graph,
            scratch: &lowered.placement.scratch,
            base: NOWHERE,
            inputs: vec![NOWHERE; self.inputs],
            split_scratch: Span { address: NOWHERE, bytes: self.selection.split_bytes() },
            counters: self.nothing,
            loans: Some([NOWHERE; 2]),
            survey: None,
        }
    }
}

fn too_large(device: &Described, plan: &Plan) -> GpuError {
    let device = crate::compiler::Compiler::capabilities(device).name.clone();
    GpuError::TooWide { device, what: format!("a Plan of {} weights", plan.weights.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::rates::RADEON_780M;

    #[test]
    fn times_follow_from_bytes_and_operations() {
        let launch = LaunchFacts {
            label: "gate".to_owned(),
            tokens: 64,
            memory_bytes: 70_000_000,
            activation_bytes: 3_000_000,
            operations: 10_000_000_000,
            attends: false,
        };
        // 73 GB/s; 5 Top/s up to 64 rows, 7 above.
        let rounded = |launch: &LaunchFacts| launch.times(&RADEON_780M).map(|us| us.round() as u32);
        assert_eq!(rounded(&launch), [1000, 2000]);
        assert_eq!(rounded(&LaunchFacts { tokens: 65, ..launch.clone() }), [1000, 1429]);
        assert_eq!(rounded(&LaunchFacts { attends: true, ..launch }), [1000, 4000]);
    }
}
