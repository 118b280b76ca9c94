//! Which models of the catalogue suit this machine: those that fit, and how fast they would be.
//! [`Suited::best`] is the one rule for the model that is recommended, wherever one is named. It
//! reads memory and the kind of the device only: what is measured differs from call to call.

use anyhow::Result;
use trine_hub::catalog::{self, CatalogModel, Known};
use trine_hub::{EntryState, StoreEntry};

use crate::device::{DeviceChoice, GpuOptions};
use crate::finding::embedded::Embedded;
use crate::finding::fitting::{CONTEXT, Room};
use crate::gpus::{self, DeviceKind};
use crate::library::ModelLibrary;
use crate::placing::forecast::{Machine, Work};
use crate::{measuring::measured, words};

/// The context in tokens at which speed is forecast: a few questions and answers.
const SPOKEN: u64 = 2048;
/// The tokens per second of a model that is recommended: about as fast as people read.
const READING: f64 = 5.0;
/// The families of the catalogue that are made for chats.
const CHATTING: [&str; 3] = ["gemma3", "gemma3n", "gemma4"];
/// The bytes per second at which a machine's memory is taken to be read. An assumption: two
/// channels of DDR4-3200 have 51.2 GB/s, and a processor reads at about four fifths of that.
const USUAL_READS: f64 = 40e9;
/// The same for the memory of a GPU. An assumption: small ones, with 128 bits of GDDR6, have about
/// this.
const USUAL_GPU_READS: f64 = 200e9;

/// A machine as models meet it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Suited {
    /// Its memory.
    pub room: Room,
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
    /// Bytes per second that it reads, if that was measured.
    rate: Option<f64>,
    /// Whether its memory is the machine's.
    is_shared: bool,
}

impl Suited {
    /// Looks at the memory and the GPU's name, which takes no time that people notice.
    pub fn unmeasured(library: &ModelLibrary) -> Self {
        Self::of(Room::now(), None, GpuRoom::unmeasured(library))
    }

    /// Does the same and measures how fast memory is read, which takes a second or two.
    ///
    /// # Errors
    /// Returns an error if there is no memory to measure with.
    pub fn measured(library: &ModelLibrary) -> Result<Self> {
        let cpu = DeviceChoice::Cpu.open(library, None, None, GpuOptions::kept())?;
        let processor = measured::processor_reads(library, cpu.threads)?.usual;
        drop(cpu);
        Ok(Self::of(Room::now(), Some(processor), GpuRoom::measured(library)))
    }

    /// Returns the same machine with the memory that is free now.
    pub fn now(&self) -> Self {
        Self { room: Room { free: Room::now().free, ..self.room }, ..self.clone() }
    }

    /// Returns whether its devices were measured.
    pub fn is_measured(&self) -> bool {
        self.processor.is_some()
    }

    fn of(room: Room, processor: Option<f64>, gpu: Option<GpuRoom>) -> Self {
        let beside = gpu.as_ref().filter(|gpu| !gpu.is_shared).map_or(0, |gpu| gpu.bytes);
        Self { room: Room { beside, ..room }, processor, gpu }
    }

    /// Forecasts the tokens per second of a model; `None` if nothing was measured.
    pub fn rate(&self, model: &CatalogModel) -> Option<f64> {
        let gpu = self.gpu.as_ref().map_or(Some(0.0), |gpu| gpu.rate)?;
        Some(self.forecast(model, self.processor?, gpu))
    }

    /// Returns whether a machine of these devices usually writes as fast as people read.
    fn is_usually_fast(&self, model: &CatalogModel) -> bool {
        let is_shared = self.gpu.as_ref().is_some_and(|gpu| gpu.is_shared);
        let gpu = if is_shared { USUAL_READS } else { USUAL_GPU_READS };
        self.forecast(model, USUAL_READS, gpu) >= READING
    }

    /// Forecasts the tokens per second where the processor and the GPU read so many bytes per
    /// second.
    fn forecast(&self, model: &CatalogModel, processor: f64, gpu_rate: f64) -> f64 {
        let demand = model.demand(SPOKEN);
        let work = Work {
            weight_bytes: demand.weight_bytes,
            cache_bytes: demand.cache_bytes,
            product_operations: demand.operations,
            rows: 1,
            ..Work::default()
        };
        let seconds = |rate: f64| Machine::of_reads(rate / 1e9).seconds(&work).total();
        let processor = seconds(processor);
        let Some(gpu) = &self.gpu else { return 1.0 / processor };
        // Layers that the GPU has no room for run on the processor, one after the other.
        let share = (gpu.bytes as f64 / model.demand(CONTEXT).memory_bytes as f64).min(1.0);
        1.0 / (share * seconds(gpu_rate) + (1.0 - share) * processor)
    }

    /// Returns the recommended model: the largest that fits and usually writes as fast as people
    /// read, else the smallest one; the usual one if nobody knows the memory.
    pub fn best(&self) -> &'static CatalogModel {
        if self.room.free.is_none() {
            return catalog::usual();
        }
        let smallest = || catalog::offered().first().copied().unwrap_or_else(catalog::usual);
        self.best_below(u64::MAX).unwrap_or_else(smallest)
    }

    /// Returns the largest model below `bytes` that fits and usually writes as fast as people read.
    fn best_below(&self, bytes: u64) -> Option<&'static CatalogModel> {
        let suits = |model: &&CatalogModel| {
            model.bytes < bytes
                && self.room.fits(model) == Some(true)
                && self.is_usually_fast(model)
        };
        catalog::offered().into_iter().rev().find(suits)
    }

    /// Returns whether a model's file loses least among the files of its size that fit and usually
    /// write as fast as people read. None does where none of them fits so.
    pub fn loses_least(&self, model: &'static CatalogModel) -> bool {
        let suits = |model: &&CatalogModel| {
            self.room.fits(model) == Some(true) && self.is_usually_fast(model)
        };
        let same = catalog::same_size(model).into_iter().filter(suits);
        same.min_by_key(|model| (model.loss(), model.bytes)) == Some(model)
    }

    /// Returns what there is to say before a download of a model that has no memory here; `None` if
    /// it fits, or nobody knows. `what` is the model in the sentence, `bytes` the size of its
    /// files.
    pub fn misfit(&self, what: &str, model: Option<&CatalogModel>, bytes: u64) -> Option<String> {
        let needed = model.map_or(bytes, |model| model.demand(CONTEXT).memory_bytes);
        if self.room.has(needed)? {
            return None;
        }
        Some(format!(
            "{what} needs about {} of memory, and this machine has {} free: it will not run, or \
             very slowly.{}",
            words::bytes(needed),
            words::bytes(self.room.free?),
            self.best_below(bytes).map_or(String::new(), |model| format!(
                " `{}` fits ({}).",
                model.name(),
                words::about_bytes(model.bytes)
            )),
        ))
    }

    /// Returns the largest recommended model that fits but is slow without a GPU, and how fast it
    /// would be.
    pub fn slow(&self) -> Option<(&'static CatalogModel, f64)> {
        let fits = |model: &&CatalogModel| self.room.fits(model) == Some(true);
        let largest = catalog::offered().into_iter().rev().find(fits)?;
        let rate = self.rate(largest).filter(|rate| *rate < READING)?;
        let is_slow = largest.bytes > self.best().bytes && self.gpu.is_none();
        is_slow.then_some((largest, rate))
    }

    /// Returns the largest model that writes as fast as people read where the recommended one was
    /// measured to write at less than half of that, and how fast that one would be.
    pub fn faster(&self) -> Option<(&'static CatalogModel, f64)> {
        let best = self.best();
        self.rate(best).filter(|rate| *rate < READING / 2.0)?;
        let mut smaller =
            catalog::offered().into_iter().rev().filter(|model| model.bytes < best.bytes);
        smaller.find_map(|model| Some((model, self.rate(model).filter(|rate| *rate >= READING)?)))
    }

    /// Returns the largest model to chat with among those on this machine that fits and usually
    /// writes as fast as people read.
    pub fn best_here<'a>(&self, here: &'a [StoreEntry]) -> Option<&'a StoreEntry> {
        let suits = |model: &CatalogModel| {
            CHATTING.iter().any(|family| model.name().split(':').next() == Some(family))
                && self.room.fits(model) != Some(false)
                && self.is_usually_fast(model)
        };
        let whole = here.iter().filter(|entry| entry.state == EntryState::Complete);
        let suiting = whole.filter(|entry| {
            matches!(catalog::find(&entry.short), Some(Known::Model(model)) if suits(model))
        });
        suiting.max_by_key(|entry| entry.bytes)
    }

    /// Returns where models run, for people.
    pub fn device(&self) -> String {
        self.gpu.as_ref().map_or_else(|| "the CPU".to_owned(), |gpu| gpu.name.clone())
    }
}

/// Returns the sentence that says what the model inside the program is, and what to take instead:
/// first of the models that are here.
pub fn about_demo(library: &ModelLibrary, name: &str) -> Option<String> {
    if name != Embedded::Demo.name() {
        return None;
    }
    let machine = Suited::unmeasured(library);
    let about = "demo is a tiny model that only tells short stories. For a real one: trine run";
    if let Some(here) = machine.best_here(&library.all_here()) {
        let size = words::bytes(here.bytes);
        return Some(format!("{about} {} ({size}, on this machine)", here.short));
    }
    let model = machine.best();
    let fits = if machine.room.fits(model) == Some(true) { ", fits this machine" } else { "" };
    Some(format!("{about} {} ({}{fits})", model.name(), words::about_bytes(model.bytes),))
}

impl GpuRoom {
    /// Describes the GPU that models run on, if there is one that can be used.
    fn unmeasured(library: &ModelLibrary) -> Option<Self> {
        let found = library.gpu()?;
        let bytes = gpus::memory(&found)?;
        let is_shared = found.kind == DeviceKind::Integrated;
        Some(Self { name: found.name, bytes, rate: None, is_shared })
    }

    /// Does the same, and measures how fast it reads.
    fn measured(library: &ModelLibrary) -> Option<Self> {
        let reader = gpus::open(None).and_then(|gpu| gpus::reader(&gpu)).ok()?;
        let rate = measured::gpu_reads(reader, None).ok()?.usual;
        Some(Self { rate: Some(rate), ..Self::unmeasured(library)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> &'static CatalogModel {
        match catalog::find(name) {
            Some(catalog::Known::Model(model)) => model,
            other => panic!("{other:?}"),
        }
    }

    fn machine(free: u64, processor: f64) -> Suited {
        Suited::of(Room { free: Some(free), beside: 0 }, Some(processor), None)
    }

    #[test]
    fn the_recommended_model_fits_and_usually_writes_as_fast_as_people_read() {
        // A laptop of 16 GB with two channels, one of 8 GB, a workstation, a small board of 8 GB.
        for (free, processor, best, faster) in [
            (13 << 30, 60e9, "gemma4:12b", None),
            (6 << 30, 40e9, "gemma4:e2b", None),
            (60 << 30, 200e9, "gemma4:26b", None),
            (24 << 30, 60e9, "gemma4:26b", None),
            (7 << 30, 5e9, "gemma4:e4b", Some("gemma3:1b")),
            (1 << 30, 4e9, "gemma3:270m", None),
        ] {
            let machine = machine(free, processor);
            assert_eq!(machine.best().name(), best, "{free} {processor}");
            let told = machine.faster().map(|(model, _)| model.name());
            assert_eq!(told.as_deref(), faster, "{free} {processor}");
        }
        assert_eq!(Suited::default().best(), catalog::usual(), "nobody knows");
        assert_eq!(machine(24 << 30, 60e9).slow().unwrap().0.name(), "gemma4:31b");
        assert_eq!(machine(60 << 30, 200e9).slow(), None);
    }

    #[test]
    fn the_file_with_the_least_loss_fits_and_is_fast_enough() {
        let finest = |free: u64, gpu: Option<u64>| -> Vec<String> {
            let gpu = gpu.map(|gib| GpuRoom {
                name: "gpu".to_owned(),
                bytes: gib << 30,
                rate: None,
                is_shared: false,
            });
            let machine = Suited::of(Room { free: Some(free << 30), beside: 0 }, None, gpu);
            let found = catalog::models().iter().filter(|model| machine.loses_least(model));
            found.map(CatalogModel::name).filter(|name| name.starts_with("gemma4")).collect()
        };
        // One of each model, whatever its names.
        let plenty = Suited::of(Room { free: Some(400 << 30), beside: 0 }, Some(1e12), None);
        let found = catalog::models().iter().filter(|model| plenty.loses_least(model));
        let bits: Vec<_> = found.map(|model| catalog::same_size(model)[0].name()).collect();
        let different: std::collections::BTreeSet<_> = bits.iter().collect();
        assert_eq!(different.len(), bits.len(), "{bits:?}");
        assert_eq!(finest(2, None), [""; 0]);
        // Q8_0 of 12B would be slower than people read there.
        let small = ["e2b-it-q8_0", "e4b-it-q8_0", "12b"];
        assert_eq!(finest(13, None), small.map(|tag| format!("gemma4:{tag}")));
        let large = ["e2b-it-q8_0", "e4b-it-q8_0", "12b-it-bf16", "26b-a4b-it-q8_0", "31b-it-q8_0"];
        assert_eq!(finest(16, Some(48)), large.map(|tag| format!("gemma4:{tag}")));
    }

    /// The welcome, the line about `demo` and the question before a download take no time to
    /// measure, and recommend what `search` and `doctor` do, whatever these measure.
    #[test]
    fn one_model_is_recommended_everywhere() {
        let large = known("gemma3:27b-it-fp16");
        let recommended = |gib: u64| {
            let room = Room { free: Some(gib << 30), beside: 0 };
            let unmeasured = Suited { room, ..Suited::default() };
            let best = unmeasured.best();
            for rate in [4e9, USUAL_READS / 2.0, USUAL_READS, USUAL_READS * 2.0, 400e9] {
                assert_eq!(best, Suited::of(room, Some(rate), None).best(), "{gib} GiB {rate}");
            }
            let told = unmeasured.misfit("It", Some(large), large.bytes).unwrap();
            let fits = room.fits(best) == Some(true);
            assert_eq!(told.contains(&format!("`{}` fits", best.name())), fits, "{told}");
            best.name()
        };
        for (gib, best) in [
            (0, "gemma3:270m"),
            (1, "gemma3:270m"),
            (2, "gemma3:1b"),
            (4, "gemma3:1b"),
            (6, "gemma4:e2b"),
            (8, "gemma4:12b"),
            (13, "gemma4:12b"),
            (16, "gemma4:26b"),
            (24, "gemma4:26b"),
            (48, "gemma4:26b"),
        ] {
            assert_eq!(recommended(gib), best, "{gib} GiB");
        }
        let room = Room { free: Some(2 << 30), beside: 0 };
        for rate in [None, Some(20e9), Some(200e9), Some(2000e9)] {
            let gpu = |bytes, is_shared| {
                let gpu = GpuRoom { name: "gpu".to_owned(), bytes, rate, is_shared };
                Suited::of(room, rate.map(|_| 30e9), Some(gpu)).best().name()
            };
            assert_eq!(gpu(8 << 30, false), "gemma4:12b", "GPU and machine together");
            assert_eq!(gpu(24 << 30, false), "gemma4:31b", "{rate:?}");
            assert_eq!(gpu(24 << 30, true), "gemma3:1b", "the memory is the machine's");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_what_does() {
        let suited = |free| Suited { room: Room { free, beside: 0 }, ..Suited::default() };
        let (machine, model) = (suited(Some(25 << 30)), known("gemma3:27b-it-fp16"));
        let told = machine.misfit("It", Some(model), model.bytes).unwrap();
        let said = ["this machine has 26.8 GB free", "`gemma4:26b` fits (about "];
        assert!(said.iter().all(|said| told.contains(said)), "{told}");
        assert_eq!(machine.misfit("It", Some(known("gemma3:4b")), 3_340_000_000), None);
        assert!(
            machine.misfit("It", None, 30 << 30).is_some()
                && machine.misfit("It", None, 1 << 30).is_none()
        );
        assert_eq!(suited(None).misfit("It", None, 30 << 30), None, "nobody knows");
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
            let rate = Some(500e9);
            let gpu = GpuRoom { name: "gpu".to_owned(), bytes, rate, is_shared };
            Suited::of(Room { free: Some(free), beside: 0 }, Some(50e9), Some(gpu))
        };
        near(machine(64 << 30, 50e9).rate(model).unwrap(), 50e9 / bytes);
        near(with(64 << 30, 80 << 30, false).rate(model).unwrap(), 500e9 / bytes);
        let half = with(64 << 30, model.demand(CONTEXT).memory_bytes / 2, false);
        near(half.rate(model).unwrap(), 1.0 / (0.5 * bytes / 50e9 + 0.5 * bytes / 500e9));
        assert_eq!(Suited::unmeasured(&ModelLibrary::default()).rate(model), None);
        assert_eq!(with(8 << 30, 16 << 30, false).room.fits(model), Some(true));
        assert_eq!(with(8 << 30, 16 << 30, true).room.fits(model), Some(false), "it is the same");
    }
}
