//! Which models of the catalogue suit this machine: those that fit, and how fast they would be.

use anyhow::Result;
use trine_hub::catalog::{self, CatalogModel};
use trine_vulkan::TuningMode;
use trine_vulkan::capabilities::DeviceKind;

use crate::device::{DeviceChoice, GpuOptions};
use crate::fitting::{CONTEXT, Room};
use crate::forecast::{Machine, Work};
use crate::measured;

/// The context in tokens at which speed is forecast: a few questions and answers.
const SPOKEN: u64 = 2048;
/// The tokens per second of a model that is recommended: about as fast as people read.
const READING: f64 = 5.0;

/// A machine as models meet it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Suited {
    /// Its memory.
    pub(crate) room: Room,
    /// Bytes per second that the processor reads, if that was measured.
    processor: Option<f64>,
    /// The GPU that models run on.
    gpu: Option<GpuRoom>,
}

/// A GPU as models meet it.
#[derive(Debug, Clone, PartialEq)]
struct GpuRoom {
    /// The name, for people.
    name: String,
    /// Bytes that a model may take.
    bytes: u64,
    /// Bytes per second that it reads.
    rate: f64,
    /// Whether its memory is the machine's.
    is_shared: bool,
}

impl Suited {
    /// Looks at the memory only, which takes no time.
    pub(crate) fn unmeasured() -> Self {
        Self { room: Room::now(), ..Self::default() }
    }

    /// Does the same and measures how fast memory is read, which takes a second or two.
    ///
    /// # Errors
    /// Returns an error if there is no memory to measure with.
    pub(crate) fn measured() -> Result<Self> {
        let cpu = DeviceChoice::Cpu.open(None, None, GpuOptions::tuned(TuningMode::Off))?;
        let processor = measured::processor_reads(cpu.threads)?.usual;
        drop(cpu);
        Ok(Self::of(Room::now(), processor, gpu()))
    }

    /// Returns the same machine with the memory that is free now.
    pub(crate) fn now(&self) -> Self {
        Self { room: Room { free: Room::now().free, ..self.room }, ..self.clone() }
    }

    /// Returns whether its devices were measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.processor.is_some()
    }

    fn of(room: Room, processor: f64, gpu: Option<GpuRoom>) -> Self {
        let beside = gpu.as_ref().filter(|gpu| !gpu.is_shared).map_or(0, |gpu| gpu.bytes);
        Self { room: Room { beside, ..room }, processor: Some(processor), gpu }
    }

    /// Forecasts the tokens per second of a model; `None` if nothing was measured.
    pub(crate) fn rate(&self, model: &CatalogModel) -> Option<f64> {
        let demand = model.demand(SPOKEN);
        let work = Work {
            weight_bytes: demand.weight_bytes,
            cache_bytes: demand.cache_bytes,
            product_operations: demand.operations,
            rows: 1,
            ..Work::default()
        };
        let seconds = |rate: f64| Machine::of_reads(rate / 1e9).seconds(&work).total();
        let processor = seconds(self.processor?);
        let Some(gpu) = &self.gpu else { return Some(1.0 / processor) };
        // Layers that the GPU has no room for run on the processor, one after the other.
        let share = (gpu.bytes as f64 / model.demand(CONTEXT).memory_bytes as f64).min(1.0);
        Some(1.0 / (share * seconds(gpu.rate) + (1.0 - share) * processor))
    }

    /// Returns the recommended model: the largest that fits and writes as fast as people read, else
    /// the usual one.
    pub(crate) fn best(&self) -> &'static CatalogModel {
        let suits = |model: &&CatalogModel| {
            let is_fast = self.rate(model).is_some_and(|rate| rate >= READING);
            is_fast && self.room.fits(model) == Some(true)
        };
        catalog::offered().into_iter().rev().find(suits).unwrap_or_else(|| self.room.usual())
    }

    /// Returns the largest recommended model that fits but is slow without a GPU, and how fast it
    /// would be.
    pub(crate) fn slow(&self) -> Option<(&'static CatalogModel, f64)> {
        let fits = |model: &&CatalogModel| self.room.fits(model) == Some(true);
        let largest = catalog::offered().into_iter().rev().find(fits)?;
        let is_slow = largest.bytes > self.best().bytes && self.gpu.is_none();
        is_slow.then(|| Some((largest, self.rate(largest)?)))?
    }

    /// Returns where models run, for people.
    pub(crate) fn device(&self) -> String {
        self.gpu.as_ref().map_or_else(|| "the CPU".to_owned(), |gpu| gpu.name.clone())
    }
}

/// Measures the GPU that models run on, if there is one that can be used.
fn gpu() -> Option<GpuRoom> {
    let found = trine_vulkan::open_gpu(&trine_vulkan::Choice::Best, None).ok()?;
    let capabilities = found.capabilities();
    let reads = measured::gpu_reads(&found).ok()?;
    Some(GpuRoom {
        name: capabilities.name.clone(),
        bytes: reads.memory_bytes?,
        rate: reads.usual,
        is_shared: capabilities.kind == DeviceKind::Integrated,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(free: u64, processor: f64) -> Suited {
        Suited::of(Room { free: Some(free), beside: 0 }, processor, None)
    }

    #[test]
    fn the_recommended_model_fits_and_writes_as_fast_as_people_read() {
        // A laptop of 16 GB with two channels, one of 8 GB, a workstation, two small boards.
        for (free, processor, best) in [
            (13 << 30, 60e9, "gemma4:12b"),
            (6 << 30, 40e9, "gemma4:e2b"),
            (60 << 30, 200e9, "gemma4:31b"),
            (24 << 30, 60e9, "gemma4:26b"),
            (2 << 30, 8e9, "gemma3:1b"),
            (1 << 30, 4e9, "gemma3:270m"),
        ] {
            assert_eq!(machine(free, processor).best().name(), best, "{free} {processor}");
        }
        assert_eq!(Suited::default().best(), catalog::usual(), "nobody knows");
        assert_eq!(machine(24 << 30, 60e9).slow().unwrap().0.name(), "gemma4:31b");
        assert_eq!(machine(60 << 30, 200e9).slow(), None);
    }

    #[test]
    fn speed_follows_from_the_bytes_that_a_token_reads() {
        let model = *catalog::offered().last().unwrap();
        let demand = model.demand(SPOKEN);
        let bytes = (demand.weight_bytes + demand.cache_bytes) as f64;
        let near = |found: f64, wanted: f64| {
            assert!((found / wanted - 1.0).abs() < 1e-6, "{found} {wanted}");
        };
        let with = |free, bytes, is_shared| {
            let gpu = GpuRoom { name: "gpu".to_owned(), bytes, rate: 500e9, is_shared };
            Suited::of(Room { free: Some(free), beside: 0 }, 50e9, Some(gpu))
        };
        near(machine(64 << 30, 50e9).rate(model).unwrap(), 50e9 / bytes);
        near(with(64 << 30, 80 << 30, false).rate(model).unwrap(), 500e9 / bytes);
        let half = with(64 << 30, model.demand(CONTEXT).memory_bytes / 2, false);
        near(half.rate(model).unwrap(), 1.0 / (0.5 * bytes / 50e9 + 0.5 * bytes / 500e9));
        assert_eq!(Suited::unmeasured().rate(model), None);
        assert_eq!(with(8 << 30, 16 << 30, false).room.fits(model), Some(true));
        assert_eq!(with(8 << 30, 16 << 30, true).room.fits(model), Some(false), "it is the same");
    }
}
