//! What can be decided about a device without loading anything on it, and without the device.

use std::sync::Arc;

use trine_backend::rates::Work;
use trine_backend::{
    BULK_ROWS, BackendError, DeviceMemory, Memory, MemoryKind, Partner, ProgramOptions,
};
use trine_model::lend::lend;
use trine_model::{Plan, Weight, WeightPlace, Width, Workload, away, gather};

use super::catalogue::{Catalogued, catalogue};
use super::forecast;
use super::graph::Graph;
use super::lower::lower;
use super::lowered::Plans;
use super::passes::{Attended, INVARIANT_ROWS, PassKey, least, pass_keys};
use super::print::Printed;
use super::refusals;
use super::selection::Selection;
use crate::capabilities::{Capabilities, rates};
use crate::error::GpuError;
use crate::kernels::operand::GROUP;
use crate::pack::device_format;
use crate::raw::memory::ALIGNMENT;

/// A device of which only the capabilities are known: what Programs on it would take and launch.
#[derive(Debug, Clone)]
pub struct Outline {
    capabilities: Capabilities,
    is_invariant: bool,
    partner: Option<Arc<dyn Partner>>,
}

impl Outline {
    /// An outline of the device with these capabilities, or of the same device made
    /// [batch invariant](crate::VulkanDevice::batch_invariant).
    pub fn new(capabilities: Capabilities, is_invariant: bool) -> Self {
        Self { capabilities, is_invariant, partner: None }
    }

    /// Returns the same device beside a partner, if it can have one.
    pub(crate) fn beside(self, partner: Option<&Arc<dyn Partner>>) -> Self {
        Self { partner: partner.cloned(), ..self }
    }

    /// Returns a Plan as Programs run it: the host looks rows up in tables that nothing else reads,
    /// but for those that the Plan holds and the device can.
    pub(crate) fn gathered(&self, plan: Plan) -> Plan {
        let looks_up = |table: &Weight| table.place == WeightPlace::Held && self.holds_table(table);
        gather::gather_unless(plan, looks_up)
    }

    /// Returns whether the device's memory can have a table as it is stored, in one allocation,
    /// with fours of elements that the kernel counts by 31 bits.
    fn holds_table(&self, table: &Weight) -> bool {
        let Weight { rows, columns, dtype, .. } = *table;
        let planes = device_format(dtype).and_then(|format| format.plane_bytes(rows, columns));
        let Some((_, bytes)) = planes.and_then(|planes| planes.layout()) else { return false };
        let fours = rows as u64 * (columns.div_ceil(GROUP) * GROUP / 4) as u64;
        bytes <= self.capabilities.allocation_bytes && fours <= i32::MAX as u64
    }

    /// Returns a gathered Plan with what a partner takes of it lent; `None` if there is nothing,
    /// or no step of a Program with these options is wide enough.
    pub(crate) fn lend(&self, plan: &Plan, options: &ProgramOptions) -> Option<Plan> {
        // A pass meets the host for one guest.
        let is_alone = away::aways(plan).is_empty();
        let is_wide = options.width.tokens > BULK_ROWS;
        let partner = self.partner.as_ref().filter(|_| is_wide && is_alone)?;
        let lent = lend(plan.clone(), &|weight| partner.kept(weight));
        Some(lent).filter(|lent| !away::aways(lent).is_empty())
    }

    /// The device's capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the device's memory if this many bytes are free.
    pub fn memory(&self, free_bytes: u64) -> DeviceMemory {
        let is_shared = self.capabilities.is_unified();
        let kind = if is_shared { MemoryKind::Shared } else { MemoryKind::Own };
        let largest = self.capabilities.allocation_bytes / ALIGNMENT * ALIGNMENT;
        DeviceMemory { kind, free: Some(free_bytes), largest_buffer: Some(largest) }
    }

    /// Returns the most rows in a step that suit the device, if that matters for its speed.
    pub fn most_rows(&self) -> Option<usize> {
        self.is_invariant.then_some(INVARIANT_ROWS)
    }

    /// Returns the most positions of a sequence that the device computes, if more than its memory
    /// bounds them.
    pub fn most_context(&self) -> Option<usize> {
        refusals::most_context(&self.capabilities)
    }

    /// The memory that a Program of a Plan would hold.
    pub fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        let plan = self.gathered(plan.clone());
        let keys = pass_keys(&plan, options, self.is_invariant);
        let lent = self.lend(&plan, options);
        let mut memory = forecast::memory(&self.capabilities, &plan, lent.as_ref(), options, &keys);
        if let (Some(lent), Some(partner)) = (&lent, &self.partner) {
            let ids = away::weights(lent).into_iter().flatten();
            let bytes = ids.map(|id| partner.bytes(lent.weight(id)));
            memory.weights = bytes.fold(memory.weights, u64::saturating_add);
        }
        memory
    }

    /// Returns the launches of a step, one line each, listing those of equal layers once, and the
    /// scratch memory that they share. The step has `width.tokens` tokens, of which `width.outputs`
    /// have logits, in a Program with these options; it runs in the recording for the next larger
    /// width, beside a partner if there is one and the step is wide enough. `is_lone` says that
    /// each token is of another sequence, which is always true of a single one.
    ///
    /// # Errors
    /// [`BackendError`] if the Plan reads a buffer that it has not written, or the options have no
    /// room for such a step.
    pub fn explain(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        width: Width,
        is_lone: bool,
    ) -> Result<String, BackendError> {
        let plan = self.gathered(plan.clone());
        let lent = self.lend(&plan, options).filter(|_| width.tokens > BULK_ROWS && !is_lone);
        let plan = lent.unwrap_or(plan);
        let lowered = self.lowered(&plan, options, width, is_lone);
        let (key, graph) = lowered.map_err(|error| error.on(&self.capabilities.label()))?;
        let rows = match (key.width.tokens, key.attended) {
            (1, _) => "",
            (_, Attended::Sequences) => ", each of another sequence",
            (_, Attended::Rows) => ", attended to one by one",
            (_, Attended::Tiles) => ", attended to in tiles",
        };
        let plural = |number: usize| if number == 1 { "" } else { "s" };
        let Width { tokens, outputs } = key.width;
        Ok(format!(
            "{} launches for {tokens} row{}{rows}; {outputs} row{} with logits; {:.2} MB of \
             scratch memory\n{}",
            graph.nodes.len(),
            plural(tokens),
            plural(outputs),
            graph.place(&self.capabilities).scratch.bytes as f64 / 1e6,
            Printed::new(&graph, &plan).listing(),
        ))
    }
    /// Returns how many launches a step has in a Program with these options
    /// ([`Device::launches`](trine_backend::Device::launches)).
    ///
    /// # Errors
    /// As [`Outline::explain`].
    pub fn launches(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        workload: Workload,
    ) -> Result<usize, BackendError> {
        let Workload { sequences, tokens, outputs, .. } = workload;
        let width = Width { tokens: sequences * tokens, outputs };
        let plan = self.gathered(plan.clone());
        let lowered = self.lowered(&plan, options, width, tokens == 1);
        let (_, graph) = lowered.map_err(|error| error.on(&self.capabilities.label()))?;
        Ok(graph.nodes.len())
    }

    /// Forecasts the seconds of a step in a Program with these options
    /// ([`Device::step_seconds`](trine_backend::Device::step_seconds)).
    pub fn step_seconds(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        workload: Workload,
    ) -> Option<f64> {
        let rates = rates::of(&self.capabilities)?;
        let launches = self.launches(plan, options, workload).ok()?;
        Some(rates.seconds(&Work::of(plan, workload, launches)).total())
    }

    /// Returns the kernels that a Program of a Plan with these options compiles: those that it
    /// launches, by the static tables, and those that tuning may try.
    ///
    /// # Errors
    /// [`GpuError`] if the device cannot run the Plan.
    pub fn kernels(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
    ) -> Result<Vec<Catalogued>, GpuError> {
        let plan = self.gathered(plan.clone());
        let keys = pass_keys(&plan, options, self.is_invariant);
        let lent = self.lend(&plan, options);
        let plans = Plans { plan: &plan, lent: lent.as_ref(), options };
        let selection = Selection::new(&self.capabilities, &plan, options);
        let graphs = plans.lower_all(keys, &selection)?;
        catalogue(plans, &graphs, &selection, true)
    }

    /// Returns the pass of a step and its launches.
    fn lowered(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        width: Width,
        is_lone: bool,
    ) -> Result<(PassKey, Graph), GpuError> {
        let keys = pass_keys(plan, options, self.is_invariant);
        let is_lone = is_lone || width.tokens == 1;
        let goal = plan.first_goal();
        let found = least(keys.iter().copied(), width.tokens, width.outputs, is_lone, goal);
        let key = found.map(|index| keys[index]);
        let key = key.ok_or(GpuError::NoPass { tokens: width.tokens, outputs: width.outputs })?;
        let selection = Selection::new(&self.capabilities, plan, options);
        Ok((key, lower(plan, key, &selection)?))
    }
}
