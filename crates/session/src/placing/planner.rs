//! Where a model runs, and the draft model and the vision tower beside it: one decision from what
//! devices say of their memory, before anything is loaded. A partner shares the model's device
//! ([decision 086](../../../../docs/decisions/086-one-planner.md)).

#[cfg(test)]
mod tests;

use std::fmt::Display;

use trine_backend::placement::decide;
use trine_backend::{BackendError, Demand, Device, Memory, MemoryKind, Placement, ProgramOptions};
use trine_model::{Plan, Workload};

use crate::device::Opened;
use crate::words;

/// The devices that a model and what goes with it run on, here or in another machine.
pub struct Devices {
    /// The model's, with its partner for prompts if it has one.
    pub model: Opened,
    /// The same ones without a partner: a draft model reads few rows at once, and has no part in
    /// one; nor has a tower.
    pub plain: Opened,
    /// The devices that a draft model has for itself.
    pub own: Option<Opened>,
}

/// What is to be placed.
pub struct Asked<'a> {
    /// The Plan of a draft model and its sizes.
    pub draft: Option<(Plan, Demand)>,
    /// The model's Plan, with a draft that reads its caches only if that was named.
    pub model: Plan,
    /// The sizes of the model.
    pub demand: Demand,
    /// The model's Plans with drafts that were found, each with its number; the one to be
    /// preferred comes first.
    pub found: &'a mut dyn Iterator<Item = (usize, Plan)>,
    /// The vision tower.
    pub tower: Option<&'a TowerNeed>,
}

/// What a vision tower needs.
pub struct TowerNeed {
    /// Its Plan.
    pub plan: Plan,
    /// The sizes of its Program.
    pub options: ProgramOptions,
    /// The rows of the largest picture.
    pub largest: Workload,
}

/// Where a model and what goes with it run.
pub struct Placements {
    /// The draft model's place.
    pub draft: Option<Result<Placement, BackendError>>,
    /// The number of the draft that the model runs with, of those that were found.
    pub found: Option<usize>,
    /// Drafts that the model would lose by.
    pub left_out: Vec<LeftOut>,
    /// The tower's place.
    pub tower: Option<TowerDevice>,
    /// The bytes that the draft model takes of each of the model's devices.
    taken: Vec<u64>,
    /// The bytes that the tower will take of each of them when it is loaded, which is after the
    /// model.
    pub reserved: Vec<u64>,
}

/// A draft that the model would lose by.
#[derive(Debug)]
pub struct LeftOut {
    /// Its number among those that were found.
    pub number: usize,
    /// What it would lose.
    pub what: String,
    /// Whether the model can be loaded with it.
    pub can_be_named: bool,
}

/// The device of a tower.
#[derive(Debug, PartialEq, Eq)]
pub enum TowerDevice {
    /// The model's first GPU.
    Gpu,
    /// The processor, or the device that is neither that nor a GPU; and why not a GPU, if there is
    /// one.
    Processor(Option<String>),
}

impl TowerNeed {
    /// Returns what a tower takes of the first GPU, if there is one, or why it cannot run there.
    pub fn on_gpu(&self, opened: &Opened) -> Option<Result<Memory, BackendError>> {
        let Self { plan, options, largest } = self;
        let gpu = opened.gpus.first()?;
        Some(gpu.launches(plan, options, *largest).map(|_| gpu.forecast(plan, options)))
    }
}

impl Devices {
    /// Returns the devices of a model without a partner and a draft model of its own.
    pub fn of(plain: Opened) -> Self {
        Self { model: plain.clone(), plain, own: None }
    }

    /// Returns the device of a draft model: one of its own, or where the model is, on its first GPU
    /// if there are several or the processor was given layers too. Each guess reads all of it and
    /// waits for the one before, so that it should not be spread over several, and should not wait
    /// for the processor.
    pub fn for_draft(&self) -> &dyn Device {
        match (&self.own, self.plain.gpus.first()) {
            (Some(own), _) => own.device.as_ref(),
            (None, Some(gpu)) if self.is_draft_on_first() => gpu.as_ref(),
            (None, _) => self.plain.device.as_ref(),
        }
    }

    fn is_draft_on_first(&self) -> bool {
        self.own.is_none() && (self.plain.gpus.len() > 1 || self.plain.has_chosen_layers())
    }

    /// Decides where everything runs. The draft model goes first, because it is the smallest and
    /// every token waits for it; then the model with the first draft by which it loses nothing; a
    /// tower is on the GPU if the model loses nothing by that either.
    pub fn plan(&self, asked: Asked<'_>) -> Placements {
        let Asked { draft, mut model, demand, found, tower: asked_tower } = asked;
        let none = vec![0; sites(&self.model).len()];
        let draft = draft.map(|(plan, sizes)| decide(&plan, self.for_draft(), &sizes, &[]));
        let taken = match &draft {
            Some(Ok(placement)) => self.taken_by_draft(placement),
            Some(Err(_)) | None => none.clone(),
        };
        let (found_at, left_out, tower) = (None, Vec::new(), None);
        let mut places =
            Placements { draft, found: found_at, left_out, tower, taken, reserved: none };
        // Where the model runs beside what has its place; where nothing is to be chosen, nobody
        // asks.
        let mut alone = None;
        for (number, with) in found {
            let alone = alone.get_or_insert_with(|| self.place(&model, &demand, &places));
            let own = self.place(&with, &demand, &places);
            let can_be_named = own.is_ok();
            if let Some(what) = loses(own.as_ref(), alone.as_ref()) {
                places.left_out.push(LeftOut { number, what, can_be_named });
                continue;
            }
            (model, *alone, places.found) = (with, own, Some(number));
            break;
        }
        if let Some(need) = asked_tower {
            self.place_tower(need, (&model, &demand), alone, &mut places);
        }
        places
    }

    /// Gives a tower its place: the first GPU if that can run it and the model loses nothing by it,
    /// else the processor. `alone` is where the model runs without it, if that is known.
    fn place_tower(
        &self,
        need: &TowerNeed,
        (model, demand): (&Plan, &Demand),
        alone: Option<Result<Placement, BackendError>>,
        places: &mut Placements,
    ) {
        let why = match need.on_gpu(&self.plain) {
            Some(Ok(memory)) => {
                let alone = alone.unwrap_or_else(|| self.place(model, demand, places));
                places.reserved[1] = memory.total();
                // It is the processor's memory, too.
                if self.model.gpus[0].memory().kind == MemoryKind::Shared {
                    places.reserved[0] = memory.total();
                }
                loses(self.place(model, demand, places).as_ref(), alone.as_ref())
            }
            Some(Err(error)) => Some(error.to_string()),
            None => None,
        };
        if why.is_none() && !self.plain.gpus.is_empty() {
            places.tower = Some(TowerDevice::Gpu);
            return;
        }
        places.reserved.fill(0);
        let device = self.plain.device.as_ref();
        let members = device.members();
        let host = members.as_ref().map_or(device, |members| members.devices[0]);
        places.reserved[0] = host.forecast(&need.plan, &need.options).total();
        places.tower = Some(TowerDevice::Processor(why));
    }

    /// Decides where the model runs beside all that has its place.
    ///
    /// # Errors
    /// As [`decide`].
    pub fn place(
        &self,
        plan: &Plan,
        demand: &Demand,
        places: &Placements,
    ) -> Result<Placement, BackendError> {
        let taken = places.taken.iter().zip(&places.reserved).map(|(a, b)| a + b);
        decide(plan, self.model.device.as_ref(), demand, &taken.collect::<Vec<_>>())
    }

    /// Returns the bytes that a draft model takes of each device of the model.
    fn taken_by_draft(&self, placement: &Placement) -> Vec<u64> {
        let all = sites(&self.plain);
        let own = match &self.own {
            Some(own) => sites(own),
            None if self.is_draft_on_first() => vec![all[1]],
            None => all.clone(),
        };
        let mut taken = vec![0; all.len()];
        for part in placement.all_parts() {
            let bytes = part.memory.total();
            let site = own.get(part.site).and_then(|own| all.iter().position(|site| site == own));
            if let Some(site) = site {
                taken[site] += bytes;
            }
            if part.device_memory.kind == MemoryKind::Shared {
                taken[0] += bytes;
            }
        }
        taken
    }
}

/// Returns the sites of devices, by the UUIDs of GPUs; the first one is the processor, or a device
/// that is neither.
fn sites(opened: &Opened) -> Vec<Option<[u8; 16]>> {
    std::iter::once(None).chain(opened.gpus.iter().map(|gpu| gpu.uuid())).collect()
}

/// Says what a model loses by something beside it, if it does: a Plan with drafts is not cut, so
/// that one that is too large for a GPU would be on the processor as a whole, and the memory of a
/// draft or of a tower may be the room of experts. `with` and `without` are where the model would
/// run.
fn loses<E: Display>(
    with: Result<&Placement, E>,
    without: Result<&Placement, E>,
) -> Option<String> {
    let without = without.ok()?;
    let with = match with {
        Err(error) => return Some(error.to_string()),
        Ok(with) => with,
    };
    let (own, others) = (OffGpu::of(with), OffGpu::of(without));
    if own.layers > others.layers {
        return Some(
            "the model would have to be on one device with it, and that is not the GPU".to_owned(),
        );
    }
    (own > others).then(|| {
        let fewer = match others.experts {
            0 => "none".to_owned(),
            experts => format!("those of {experts}"),
        };
        let own = words::counted(own.experts, "layer");
        format!("with it the GPU has no room for the experts of {own}, {fewer} without")
    })
}

/// The parts of a model that the processor computes. A larger value takes more of its time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OffGpu {
    /// Whole layers.
    layers: usize,
    /// The layers of which it only computes the experts.
    experts: usize,
}

impl OffGpu {
    fn of(placement: &Placement) -> Self {
        let parts = &placement.parts;
        let host = parts.iter().filter(|part| part.device_memory.kind == MemoryKind::Host);
        Self {
            layers: host.map(|part| part.plan.layers()).sum(),
            experts: (0..parts.len()).map(|part| placement.aside_layers(part).len()).sum(),
        }
    }
}
