//! The device that runs the model.

use std::sync::Arc;

use anyhow::{Context, Result};
use etcetera::BaseStrategy;
use trine_backend::reference::ReferenceDevice;
use trine_backend::{Device, DeviceGroup, LayerChoice, Partner};
use trine_cpu::CpuDevice;
pub use trine_vulkan::INVARIANT_ROWS;
use trine_vulkan::{DeviceSelector, PipelineCache, Tuning, TuningMode, VulkanDevice};

use crate::failure::usage;
use crate::library::ModelLibrary;
use crate::words;

/// A device as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The best GPU that Vulkan offers, and without one the processor.
    #[default]
    Auto,
    /// The scalar reference: slow and exact.
    Reference,
    /// SIMD kernels and a thread pool.
    Cpu,
    /// Vulkan devices; several share a model.
    Vulkan(Vec<DeviceSelector>),
    /// A machine by a name that was not looked up; it may be another than this one. Nothing runs on
    /// it.
    Machine(String),
}

/// Whether kernels are tuned for the GPU, as typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tune {
    /// Measures once what is not known yet, while the model has nothing to do.
    #[default]
    Auto,
    /// Measures the same when the model is loaded. It cannot be typed.
    AtLoad,
    /// Measures nothing, and uses no earlier measurements.
    Off,
    /// Measures everything that the model needs again.
    Again,
}

impl Tune {
    /// Reads `auto`, `off` or `again`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Tune::Auto),
            "off" => Ok(Tune::Off),
            "again" => Ok(Tune::Again),
            _ => Err("choose auto, off or again".to_owned()),
        }
    }

    /// Returns the same for a program that times the model and ends: what it measures has to be of
    /// use to it.
    pub fn at_load(self) -> Self {
        if self == Tune::Auto { Tune::AtLoad } else { self }
    }
}

impl From<Tune> for TuningMode {
    fn from(tune: Tune) -> Self {
        match tune {
            Tune::Auto => TuningMode::Idle,
            Tune::AtLoad => TuningMode::Missing,
            Tune::Off => TuningMode::Off,
            Tune::Again => TuningMode::Again,
        }
    }
}

/// Returns the name, for people, of another way to drive a GPU that a text begins with.
fn foreign(text: &str) -> Option<&'static str> {
    let word = text.split([':', ',']).next().unwrap_or_default().to_ascii_lowercase();
    Some(match &*word {
        "cuda" | "nvidia" | "cublas" => "CUDA",
        "rocm" | "hip" | "amd" | "hipblas" => "ROCm",
        "metal" | "mps" => "Metal",
        "sycl" | "intel" | "xpu" | "oneapi" => "SYCL",
        "opencl" | "clblast" => "OpenCL",
        "directml" | "dml" | "d3d12" => "DirectML",
        _ => return None,
    })
}

impl DeviceChoice {
    /// Reads `auto`, `reference`, `cpu`, `vulkan`, `vulkan:INDEX` or `vulkan:NAME`, where the name
    /// is a part of the device's own or its UUID, or several of the last two separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        check_list(text)?;
        let text = if text == "gpu" { "vulkan" } else { text };
        let named = |name: &str| match name.parse() {
            Ok(index) => Some(DeviceSelector::Index(index)),
            Err(_) if name.trim().is_empty() => None,
            Err(_) => Some(DeviceSelector::Named(name.to_owned())),
        };
        // A name may contain commas.
        let several = |names: &str| names.split(",vulkan:").map(named).collect();
        let choice = match text {
            "auto" => Some(DeviceChoice::Auto),
            "reference" => Some(DeviceChoice::Reference),
            "cpu" => Some(DeviceChoice::Cpu),
            "vulkan" => Some(DeviceChoice::Vulkan(vec![DeviceSelector::Best])),
            _ => text.strip_prefix("vulkan:").and_then(several).map(DeviceChoice::Vulkan),
        };
        if let Some(DeviceChoice::Vulkan(choices)) = &choice
            && let Some(twice) = (1..choices.len()).find(|&at| choices[..at].contains(&choices[at]))
        {
            let name = text.split(",vulkan:").nth(twice).unwrap_or_default();
            return Err(format!("vulkan:{name} is named twice; name each device once"));
        }
        if let Some(foreign) = foreign(text) {
            return Err(format!(
                "trine has no {foreign}; it drives NVIDIA, AMD and Intel GPUs through Vulkan: \
                 --device vulkan"
            ));
        }
        choice.ok_or_else(|| {
            "choose auto, cpu, reference, vulkan[:INDEX or :NAME] or several, such as \
             vulkan:0,vulkan:1; `trine doctor` lists the devices"
                .to_owned()
        })
    }

    /// Reads what [`DeviceChoice::parse`] does, and anything else as the name of a machine.
    pub fn parse_machine(text: &str) -> Result<Self, String> {
        let is_device = text.starts_with("vulkan:") || check_list(text).is_err();
        Self::parse(text).or_else(|reason| match is_device || text.trim().is_empty() {
            true => Err(reason),
            false => Ok(DeviceChoice::Machine(text.to_owned())),
        })
    }

    /// Returns whether it cannot be a GPU.
    pub fn is_processor(&self) -> bool {
        matches!(self, DeviceChoice::Reference | DeviceChoice::Cpu)
    }

    /// Opens the device. `layers` is how many layers a GPU runs, if that was chosen; the processor
    /// runs the others. A GPU chooses its kernels as `gpu` says.
    ///
    /// # Errors
    /// Returns an error if this machine does not have it, or if layers are wanted on a GPU but none
    /// is chosen.
    pub fn open(
        &self,
        library: &ModelLibrary,
        threads: Option<usize>,
        layers: Option<usize>,
        gpu: GpuOptions,
    ) -> Result<Opened> {
        match (self, layers) {
            (DeviceChoice::Reference | DeviceChoice::Cpu, Some(layers @ 1..)) => {
                Err(usage(format!(
                    "--gpu-layers {layers} needs a GPU; choose one with --device, or leave out \
                     --gpu-layers"
                )))
            }
            (DeviceChoice::Machine(name), _) => Err(usage(format!(
                "--device {} is a machine for `explain` and `plan`, which run nothing; \
                 `trine doctor` lists the devices here",
                words::harmless(name)
            ))),
            (DeviceChoice::Reference, _) => Ok(Opened::alone(ReferenceDevice::new(), 1, None)),
            (DeviceChoice::Cpu, _) | (DeviceChoice::Auto | DeviceChoice::Vulkan(_), Some(0)) => {
                let device = CpuDevice::new(threads, None)?;
                let lender = Some(Lender::Processor(device.clone()));
                Ok(Opened::alone(device.clone(), device.threads(), lender))
            }
            (DeviceChoice::Vulkan(choices), layers) => {
                let open = |choice: &DeviceSelector| {
                    VulkanDevice::open(choice.clone(), cache(), library.callbacks.loading())
                        .with_context(|| {
                            format!(
                                "the GPU cannot be used; {} cpu runs on the processor",
                                gpu.option
                            )
                        })
                };
                let devices = choices.iter().map(open).collect::<Result<Vec<_>>>()?;
                let uuids: Vec<_> = devices.iter().map(VulkanDevice::uuid).collect();
                if let Some((first, second)) = same(&uuids) {
                    return Err(usage(format!(
                        "{} and {} are the same device, {}; name each device once",
                        words::harmless(&typed(&choices[first])),
                        words::harmless(&typed(&choices[second])),
                        words::harmless(&devices[first].name()),
                    )));
                }
                Opened::of_gpus(
                    devices.into_iter().map(|found| gpu.apply(library, found)).collect(),
                    threads,
                    layers,
                )
            }
            (DeviceChoice::Auto, layers) => {
                match (
                    VulkanDevice::open(DeviceSelector::Best, cache(), library.callbacks.loading()),
                    layers,
                ) {
                    (Ok(device), layers) => {
                        Opened::of_gpus(vec![gpu.apply(library, device)], threads, layers)
                    }
                    (Err(reason), Some(layers)) => Err(reason).with_context(|| {
                        format!(
                            "--gpu-layers {layers} needs a GPU; leave it out, in the settings too, \
                             to run on the processor"
                        )
                    }),
                    (Err(reason), None) => {
                        tracing::debug!(%reason, "no GPU is used");
                        DeviceChoice::Cpu.open(library, threads, None, gpu)
                    }
                }
            }
        }
    }
}

/// Checks that a list of devices has only Vulkan devices. A name may contain commas, but none of
/// the words that stand for other devices.
fn check_list(text: &str) -> Result<(), String> {
    let mut items = text.split(',').map(str::trim);
    let is_list = text.contains(',');
    let other = items.find(|item| is_list && ["auto", "cpu", "reference", "vulkan"].contains(item));
    match other {
        None => Ok(()),
        Some("cpu") => Err(
            "a list has only GPUs: the CPU takes the layers that they do not run by itself, and \
             --gpu-layers chooses how many they run"
                .to_owned(),
        ),
        Some(other) => Err(format!(
            "{other} cannot be one of several devices; a list has GPUs with index or name, such as \
             vulkan:0,vulkan:1"
        )),
    }
}

/// Returns the indices of two devices that are the same one, if there are any.
fn same(uuids: &[[u8; 16]]) -> Option<(usize, usize)> {
    (1..uuids.len()).find_map(|second| {
        let first = uuids[..second].iter().position(|uuid| *uuid == uuids[second]);
        first.map(|first| (first, second))
    })
}

/// Returns a Vulkan device as it is typed.
fn typed(choice: &DeviceSelector) -> String {
    match choice {
        DeviceSelector::Best | DeviceSelector::Any => "vulkan".to_owned(),
        DeviceSelector::Index(index) => format!("vulkan:{index}"),
        DeviceSelector::Named(name) => format!("vulkan:{name}"),
    }
}

/// How a GPU chooses its kernels, and who asks for it.
#[derive(Debug, Clone, Copy)]
pub struct GpuOptions {
    /// The option that names the device, for messages.
    pub option: &'static str,
    /// Whether they are measured.
    pub tuning: TuningMode,
    /// Whether a row's result is to be the same whatever other rows are in its step.
    pub batch_invariant: bool,
}

impl GpuOptions {
    /// Returns options that choose kernels by measurement, for the device of a model.
    pub fn tuned(tuning: TuningMode) -> Self {
        Self { option: "--device", tuning, batch_invariant: false }
    }

    /// Returns options for what does not run: earlier measurements are used, and none is made.
    pub fn kept() -> Self {
        Self::tuned(TuningMode::Kept)
    }

    fn apply(self, library: &ModelLibrary, device: VulkanDevice) -> VulkanDevice {
        let progress = library.callbacks.tuning(&device.gpu().capabilities().name);
        let (cache, settled) = (cache(), library.settled());
        let tuning = Tuning { mode: self.tuning, cache, progress, settled, ..Tuning::default() };
        let device = device.tuned(tuning);
        if self.batch_invariant { device.batch_invariant() } else { device }
    }
}

/// Returns where compiled pipelines and measurements are kept: the user's cache folder, if there is
/// one.
pub fn cache() -> Option<PipelineCache> {
    let folders = etcetera::choose_base_strategy().ok()?;
    Some(PipelineCache::in_folder(&folders.cache_dir().join("trine").join("pipelines")))
}

/// Returns how many layers GPUs run, as chosen or decided by placement.
pub fn layer_choice(layers: Option<usize>) -> LayerChoice {
    layers.map_or(LayerChoice::Fitting, LayerChoice::Exactly)
}

/// A device, ready to load models.
#[derive(Clone)]
pub struct Opened {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Its GPUs; if there are any, the device is a group of which the processor is the first.
    pub gpus: Vec<Arc<dyn Device>>,
    /// How many layers they run, if that was chosen.
    layers: LayerChoice,
    /// Threads of the processor if it takes part.
    pub threads: usize,
    /// What can have a partner for prompts, if there is such a device.
    lender: Option<Lender>,
    /// What computes a part of prompts beside the processor or the GPU.
    pub npu: Option<Arc<dyn Partner>>,
    /// Whether it is in another machine, and loads nothing.
    pub is_absent: bool,
}

/// A device that can have a partner for prompts.
#[derive(Clone)]
enum Lender {
    Processor(CpuDevice),
    Gpu(VulkanDevice),
}

impl Opened {
    /// Returns a device by itself, with the threads of the processor that it takes.
    fn alone(device: impl Device + 'static, threads: usize, lender: Option<Lender>) -> Self {
        let (device, layers) = (Arc::new(device), LayerChoice::Fitting);
        let gpus = Vec::new();
        Self { device, gpus, layers, threads, lender, npu: None, is_absent: false }
    }

    /// Opens the processor for the layers that GPUs do not run.
    fn of_gpus(
        gpus: Vec<VulkanDevice>,
        threads: Option<usize>,
        layers: Option<usize>,
    ) -> Result<Self> {
        let processor = CpuDevice::new(threads, None)?;
        let threads = processor.threads();
        let lender = if let [gpu] = &gpus[..] { Some(Lender::Gpu(gpu.clone())) } else { None };
        let gpus = gpus.into_iter().map(|gpu| -> Arc<dyn Device> { Arc::new(gpu) }).collect();
        let opened = Self::group(Arc::new(processor), gpus, layer_choice(layers));
        Ok(Self { threads, lender, ..opened })
    }

    fn group(processor: Arc<dyn Device>, gpus: Vec<Arc<dyn Device>>, layers: LayerChoice) -> Self {
        let all = std::iter::once(processor).chain(gpus.iter().cloned()).collect();
        Self { gpus, layers, ..Self::alone(DeviceGroup::sharing(all, layers), 0, None) }
    }

    /// Returns the processor and the GPUs of a machine that is not here.
    pub(crate) fn absent(
        processor: Arc<dyn Device>,
        gpus: Vec<Arc<dyn Device>>,
        layers: LayerChoice,
    ) -> Self {
        Self { is_absent: true, ..Self::group(processor, gpus, layers) }
    }

    /// Returns the device if it is no GPU, else the processor.
    ///
    /// # Errors
    /// Returns an error if the processor cannot be used.
    pub fn processor(&self) -> Result<Arc<dyn Device>> {
        Ok(match self.gpus.is_empty() {
            true => Arc::clone(&self.device),
            false => Arc::new(CpuDevice::new(Some(self.threads), None)?),
        })
    }

    /// Returns whether a number of layers was chosen that its GPUs run.
    pub(crate) fn has_chosen_layers(&self) -> bool {
        !self.gpus.is_empty() && matches!(self.layers, LayerChoice::Exactly(1..))
    }

    /// Returns the device that can have a partner for prompts: the processor, or a single GPU.
    ///
    /// # Errors
    /// Returns an error if there is no such device.
    pub fn lender(&self) -> Result<&dyn Device> {
        match &self.lender {
            Some(Lender::Processor(processor)) => Ok(processor),
            Some(Lender::Gpu(gpu)) if gpu.is_invariant() => Err(usage(
                "--npu has no part in --batch-invariant on a GPU, whose steps are too short for \
                 it; leave out one of them"
                    .to_owned(),
            )),
            Some(Lender::Gpu(gpu)) => Ok(gpu),
            None if self.gpus.is_empty() => Err(usage(
                "--npu helps the CPU or a GPU: add --device cpu, or leave out --npu".to_owned(),
            )),
            None => Err(usage(
                "--npu helps one GPU: name one with --device, or leave out --npu".to_owned(),
            )),
        }
    }

    /// Gives the [`lender`](Self::lender) a partner.
    ///
    /// # Errors
    /// Returns an error if there is no lender.
    pub fn with_partner(self, partner: Arc<dyn Partner>) -> Result<Self> {
        self.lender()?;
        let npu = Some(Arc::clone(&partner));
        Ok(match self.lender {
            Some(Lender::Processor(processor)) => Self {
                device: Arc::new(processor.with_partner(partner)),
                npu,
                lender: None,
                ..self
            },
            Some(Lender::Gpu(gpu)) => {
                let gpus: Vec<Arc<dyn Device>> = vec![Arc::new(gpu.with_partner(partner))];
                let processor = Arc::new(CpuDevice::new(Some(self.threads), None)?);
                let group = Self::group(processor, gpus, self.layers);
                Self { threads: self.threads, npu, ..group }
            }
            None => self,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(DeviceChoice::parse("cpu"), Ok(DeviceChoice::Cpu));
        assert_eq!(DeviceChoice::parse("reference"), Ok(DeviceChoice::Reference));
        let vulkan = |choice| Ok(DeviceChoice::Vulkan(vec![choice]));
        assert_eq!(DeviceChoice::parse("auto"), Ok(DeviceChoice::Auto));
        assert_eq!(DeviceChoice::parse("vulkan"), vulkan(DeviceSelector::Best));
        assert_eq!(DeviceChoice::parse("gpu"), vulkan(DeviceSelector::Best));
        for (foreign, called) in
            [("cuda", "CUDA"), ("cuda:0", "CUDA"), ("ROCm", "ROCm"), ("mps", "Metal")]
        {
            let told = DeviceChoice::parse(foreign).unwrap_err();
            assert!(
                told.contains(&format!("trine has no {called}"))
                    && told.contains("--device vulkan"),
                "{told}"
            );
        }
        assert_eq!(DeviceChoice::parse("vulkan:3"), vulkan(DeviceSelector::Index(3)));
        assert_eq!(
            DeviceChoice::parse("vulkan:780M"),
            vulkan(DeviceSelector::Named("780M".to_owned()))
        );
        let both = DeviceChoice::Vulkan(vec![
            DeviceSelector::Index(0),
            DeviceSelector::Named("780M".to_owned()),
        ]);
        assert_eq!(DeviceChoice::parse("vulkan:0,vulkan:780M"), Ok(both));
        let name = "llvmpipe (LLVM 15.0.6, 256 bits)";
        let named = vulkan(DeviceSelector::Named(name.to_owned()));
        assert_eq!(DeviceChoice::parse(&format!("vulkan:{name}")), named);
        let twice = DeviceChoice::parse("vulkan:1,vulkan:0,vulkan:1").unwrap_err();
        assert!(twice.contains("vulkan:1 is named twice"), "{twice}");
        for wrong in
            ["", "vulkan:", "vulkan: ", "vulcan:1", "CPU ", "vulkan:0,vulkan:", "cpu,vulkan:0", ","]
        {
            assert!(DeviceChoice::parse(wrong).is_err(), "{wrong}");
        }
        for list in ["vulkan:0,cpu", "cpu,vulkan:0", "vulkan:0, cpu", "vulkan:0,cpu,vulkan:1"] {
            for parse in [DeviceChoice::parse, DeviceChoice::parse_machine] {
                assert!(parse(list).unwrap_err().contains("--gpu-layers"), "{list}");
            }
        }
        for list in ["vulkan:0,vulkan", "vulkan,vulkan:0", "vulkan:0,auto", "reference,cpu"] {
            assert!(DeviceChoice::parse_machine(list).is_err(), "{list}");
        }
        let machine = DeviceChoice::Machine("h200".to_owned());
        assert_eq!(DeviceChoice::parse_machine("h200"), Ok(machine));
        assert_eq!(DeviceChoice::parse_machine("cpu"), Ok(DeviceChoice::Cpu));
        for wrong in ["", " ", "vulkan:", "vulkan:0,vulkan:0"] {
            assert!(DeviceChoice::parse_machine(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Tune::parse("again").map(TuningMode::from), Ok(TuningMode::Again));
        assert_eq!(Tune::parse("off").map(TuningMode::from), Ok(TuningMode::Off));
        assert_eq!(Tune::parse("auto"), Ok(Tune::default()));
        let modes = [Tune::Auto, Tune::Off, Tune::Again].map(|tune| [tune, tune.at_load()]);
        assert_eq!(
            modes.map(|modes| modes.map(TuningMode::from)),
            [
                [TuningMode::Idle, TuningMode::Missing],
                [TuningMode::Off, TuningMode::Off],
                [TuningMode::Again, TuningMode::Again],
            ]
        );
        assert!(Tune::parse("on").is_err());
    }

    #[test]
    fn a_device_is_the_same_under_any_name() {
        let (a, b) = ([1; 16], [2; 16]);
        assert_eq!(same(&[a, b]), None);
        assert_eq!(same(&[b, a, b]), Some((0, 2)));
        assert_eq!(same(&[a]), None);
        assert_eq!(typed(&DeviceSelector::Index(1)), "vulkan:1");
        assert_eq!(typed(&DeviceSelector::Named("780M".to_owned())), "vulkan:780M");
    }
}
