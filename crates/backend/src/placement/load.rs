//! Loads a model as placement decides, and places it again if memory turns out to be short.

use std::borrow::Cow;
use std::sync::Arc;

use trine_model::{Model, Plan, WeightPlace, aside, cut, gather};

use super::place::place;
use super::terms::{CONTEXT_LEAST, CONTEXT_USUAL, Demand, Part, Placement, Site};
use crate::aside::Aside;
use crate::batch::ProgramOptions;
use crate::device::{Device, LayerChoice, Members};
use crate::device_memory::MemoryKind;
use crate::error::BackendError;
use crate::parts::Parts;
use crate::program::Program;

/// Attempts for a device that has less memory than it reported, in eighths of the layers that it
/// was to hold.
const ATTEMPTS: [usize; 5] = [7, 6, 4, 2, 0];

/// Devices that share a model, in the order in which they run its layers: the processor first, if
/// it takes part.
pub struct DeviceGroup {
    members: Vec<Arc<dyn Device>>,
    layers: LayerChoice,
}

impl DeviceGroup {
    /// Creates a group of at least one device. The processor takes the layers that the others have
    /// no room for; `layers` is how many the others take together.
    pub fn new(members: Vec<Box<dyn Device>>, layers: LayerChoice) -> Self {
        Self::sharing(members.into_iter().map(Into::into).collect(), layers)
    }

    /// Does the same with devices that others use too.
    pub fn sharing(members: Vec<Arc<dyn Device>>, layers: LayerChoice) -> Self {
        Self { members, layers }
    }
}

impl Device for DeviceGroup {
    fn name(&self) -> String {
        let names: Vec<String> = self.members.iter().rev().map(|device| device.name()).collect();
        names.join(", with it ")
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        load(model, &plan, self, &Demand::Exactly(*options), &[]).map(|(program, _)| program)
    }

    fn members(&self) -> Option<Members<'_>> {
        let devices = self.members.iter().map(AsRef::as_ref).collect();
        Some(Members { devices, layers: self.layers })
    }
}

/// Loads a Plan of a model on a device, or on those of a group, in the memory that is free, less
/// the bytes of each of them that something else will have `taken`; a device without a number
/// loses none.
///
/// # Errors
/// As [`place`] and [`Device::load_plan`].
pub fn load(
    model: &Model,
    plan: &Plan,
    device: &dyn Device,
    demand: &Demand,
    taken: &[u64],
) -> Result<(Box<dyn Program>, Placement), BackendError> {
    let Members { devices, layers: choice } = members(device);
    let mut sites = sites(&devices, taken);
    let mut shortages = Shortages::new(devices.len());
    let mut demand = *demand;
    let mut plan = Cow::Borrowed(plan);
    loop {
        let placement = match place(&plan, &sites, choice, &demand) {
            Ok(placement) => placement,
            Err(error) => return Err(shortages.first.take().unwrap_or(error)),
        };
        match load_parts(model, &plan, &devices, &placement) {
            Ok(program) => {
                tell(&placement, &sites);
                return Ok((program, placement));
            }
            Err((part, error @ BackendError::OutOfMemory { .. })) => {
                if holds_tables(&placement) {
                    tracing::warn!(
                        "{} has less free memory than it says: tables stay in the file",
                        part.device
                    );
                    plan = Cow::Owned(gather::gather(plan.into_owned()));
                    continue;
                }
                if take_back_places(&placement, &mut demand) {
                    tracing::warn!(
                        "{} has less free memory than it says: fewer requests at once are tried",
                        part.device
                    );
                    continue;
                }
                let context = placement.options.context;
                shortages.note(part, error, (&mut sites, &mut demand), context, choice)?;
            }
            Err((_, error)) => return Err(error),
        }
    }
}

/// Returns whether a placement holds tables that could be read from the file: they go before
/// anything else does.
fn holds_tables(placement: &Placement) -> bool {
    placement.parts.iter().any(|part| part.plan.bytes_at(WeightPlace::Held) > 0)
}

/// Takes the places back that a placement has beyond those that were asked for: they go before
/// the context and layers do. Returns whether it had any.
fn take_back_places(placement: &Placement, demand: &mut Demand) -> bool {
    let Demand::Within(bounds) = demand else { return false };
    let had_further = placement.running > bounds.sequences;
    bounds.further = 0;
    had_further
}

/// Decides where [`load`] would first put a Plan, with the memory that is free now, less what is
/// `taken`. Nothing is loaded. Sites are the members of the device, in their order.
///
/// # Errors
/// As [`place`].
pub fn decide(
    plan: &Plan,
    device: &dyn Device,
    demand: &Demand,
    taken: &[u64],
) -> Result<Placement, BackendError> {
    let Members { devices, layers: choice } = members(device);
    place(plan, &sites(&devices, taken), choice, demand)
}

/// Returns the devices that a device stands for, or the device itself.
fn members(device: &dyn Device) -> Members<'_> {
    let alone = || Members { devices: vec![device], layers: LayerChoice::Fitting };
    device.members().unwrap_or_else(alone)
}

/// Returns the sites of devices, without the bytes that are `taken` of them.
fn sites<'a>(devices: &[&'a dyn Device], taken: &[u64]) -> Vec<Site<'a>> {
    let taken = taken.iter().copied().chain(std::iter::repeat(0));
    devices.iter().zip(taken).map(|(&device, taken)| site(device, taken)).collect()
}

fn site(device: &dyn Device, taken: u64) -> Site<'_> {
    let mut memory = device.memory();
    memory.free = memory.free.map(|free| free.saturating_sub(taken));
    Site {
        name: device.name(),
        memory,
        free: memory.free,
        most_rows: device.most_rows(),
        most_context: device.most_context(),
        forecast: Box::new(|plan, options| device.forecast(plan, options)),
        timing: Box::new(|plan, options, workload| device.step_seconds(plan, options, workload)),
    }
}

/// Loads the parts. On a failure, returns which one failed. The last part is loaded first: it is on
/// the device that may have too little memory, in which case the others' work would be wasted.
fn load_parts<'p>(
    model: &Model,
    plan: &Plan,
    devices: &[&dyn Device],
    placement: &'p Placement,
) -> Result<Box<dyn Program>, (&'p Part, BackendError)> {
    let mut programs = Vec::new();
    for part in placement.parts.iter().rev() {
        let device = devices[part.site];
        let mut failed = part;
        let program = match &part.aside {
            None => device.load_plan(model, part.plan.clone(), &part.options),
            Some(other) => {
                let load = || {
                    let host = devices[other.site];
                    let memory = host.memory();
                    let loaded = host.load_plan(model, other.plan.clone(), &other.options);
                    let loaded = loaded.inspect_err(|_| failed = other)?;
                    Ok(Aside::new(loaded, memory))
                };
                device.load_beside(model, part.plan.clone(), &part.options, Box::new(load))
            }
        };
        programs.push(program.map_err(|error| (failed, error))?);
    }
    if programs.len() == 1 {
        return Ok(programs.remove(0));
    }
    programs.reverse();
    let vocabulary = model.config().vocabulary;
    Ok(Box::new(Parts::new(plan, programs, placement, vocabulary)))
}

/// The failures so far.
struct Shortages {
    /// The first error, which is the most informative.
    first: Option<BackendError>,
    /// For each site, the part that it was to hold at first, and the attempts since.
    tried: Vec<Option<(Part, usize)>>,
}

impl Shortages {
    fn new(sites: usize) -> Self {
        Self { first: None, tried: vec![None; sites] }
    }

    /// Assumes less memory for a part that did not fit, for another attempt.
    fn note(
        &mut self,
        part: &Part,
        error: BackendError,
        (sites, demand): (&mut [Site<'_>], &mut Demand),
        context: usize,
        choice: LayerChoice,
    ) -> Result<(), BackendError> {
        if let Demand::Within(bounds) = demand
            && bounds.is_context_open
            && context > CONTEXT_USUAL
        {
            // What lengthened the context goes before layers do.
            bounds.context = (context / 2).max(CONTEXT_USUAL);
            tracing::warn!(
                "{} has less free memory than it says: a context of {} is tried",
                part.device,
                bounds.context
            );
            return Ok(());
        }
        let site = &mut sites[part.site];
        if site.memory.kind == MemoryKind::Host {
            // Layers cannot be taken off the processor, but a shorter context may help.
            let Demand::Within(bounds) = demand else { return Err(error) };
            let shorter = (context / 2).max(CONTEXT_LEAST);
            if !bounds.is_context_open || shorter >= context {
                return Err(error);
            }
            bounds.context = shorter;
            return Ok(());
        }
        if let LayerChoice::Exactly(_) = choice {
            // Not reported as missing memory: exactly this was asked for.
            let what = format!("{} of its layers do not fit: {error}", part.plan.layers());
            return Err(BackendError::Unsupported { device: part.device.clone(), what });
        }
        let tried = &mut self.tried[part.site];
        let (first, attempt) = tried.get_or_insert_with(|| (part.clone(), 0));
        let Some(eighths) = ATTEMPTS.get(*attempt) else {
            return Err(self.first.take().unwrap_or(error));
        };
        *attempt += 1;
        site.free = Some(fraction(site, first, *eighths));
        tracing::warn!(
            "{} has less free memory than it says: {} layers do not fit, less is tried",
            part.device,
            part.plan.layers()
        );
        self.first.get_or_insert(error);
        Ok(())
    }
}

/// Returns the memory that the last layers of a part take, `eighths` eighths of all its layers. Of
/// a part with experts, which leave first, that is `eighths` eighths of its memory.
fn fraction(site: &Site<'_>, part: &Part, eighths: usize) -> u64 {
    if site.hands_over() && aside::layers(&part.plan) > 0 {
        return part.memory.total() / 8 * eighths as u64;
    }
    let all = part.plan.layers();
    match cut::cut(&part.plan, all - all * eighths / 8) {
        Some([_, last]) => (site.forecast)(&last, &part.options).total(),
        None => 0,
    }
}

/// Logs what is less than was asked for.
fn tell(placement: &Placement, sites: &[Site<'_>]) {
    let is_host = |site: usize| sites[site].memory.kind == MemoryKind::Host;
    if sites.iter().any(|site| site.memory.kind != MemoryKind::Host)
        && let [part] = placement.parts.as_slice()
        && is_host(part.site)
        && part.plan.layers() > 0
    {
        tracing::warn!(
            "no layer fits into a GPU's free memory: {} runs the whole model",
            part.device
        );
    }
    let Placement { options, running, full_blocks, .. } = placement;
    if options.blocks < *full_blocks {
        tracing::info!(
            sequences = running,
            context = options.context,
            blocks = options.blocks,
            full = full_blocks,
            "the memory for the KV cache does not hold every request's whole context; requests \
             share it"
        );
    }
}
