//! Loads a model where the planner puts it, with what goes with it, and plans again where loading
//! shows what no forecast knew.

use anyhow::Result;
use trine_backend::{BackendError, Program};
use trine_engine::{Engine, EngineError, EngineOptions};

use crate::device::{DeviceChoice, GpuOptions, Opened};
use crate::draft::{Attached, Attempts, Draft, Drafting, Guessing};
use crate::library::ModelLibrary;
use crate::options::Options;
use crate::placing::planner::{Asked, Devices, Placements};
use crate::vision::TowerPlacement;
use crate::{npu, vision};

/// A model on its way to its devices.
pub(super) struct Opening<'a> {
    pub(super) library: &'a ModelLibrary,
    pub(super) name: &'a str,
    pub(super) settings: &'a Options,
    pub(super) drafting: &'a Drafting,
    /// The most sequences at once, and the most rows of a step.
    pub(super) most: (usize, usize),
    pub(super) options: EngineOptions,
}

/// A model on its devices, with what goes with it.
pub(super) struct Loaded {
    pub(super) program: Box<dyn Program>,
    /// The sequences that run at once.
    pub(super) running: usize,
    pub(super) guessing: Guessing,
    /// The number of the draft of the model's Program, of those that were found.
    pub(super) found: Option<usize>,
    pub(super) tower: Option<TowerPlacement>,
    pub(super) devices: Devices,
}

impl Opening<'_> {
    /// Plans and loads, until something runs: what cannot be loaded although it has its place
    /// makes way for the next draft, and a GPU that nobody named for the processor.
    ///
    /// # Errors
    /// Returns an error with a remedy if nothing runs.
    pub(super) fn load(
        &self,
        attached: &mut Attached,
        draft: Option<&Draft>,
        mut plain: Opened,
        own: Option<Opened>,
    ) -> Result<Loaded> {
        let Self { library, settings, drafting, most, options, .. } = *self;
        let demand = options.demand_of(attached.model(None))?;
        let needs = draft.map(|draft| draft.needs(settings, most)).transpose()?;
        let need = vision::need(attached.model(None));
        let mut attempts = Attempts::default();
        loop {
            let npu = settings.npu.as_ref();
            let model = npu::join(library, plain.clone(), npu, attached.model(None))?;
            let devices = Devices { model, plain: plain.clone(), own: own.clone() };
            let places = devices.plan(Asked {
                draft: needs.clone(),
                model: options.plan(attached.model(None)),
                demand,
                found: &mut attached.plans(&options, attempts.from),
                tower: need.as_ref(),
            });
            let Placements { found, left_out, tower, reserved, .. } = places;
            attached.tell_left_out(library, &left_out);
            let guessing = drafting.load(library, draft, settings, most, devices.for_draft())?;
            let device = devices.model.device.as_ref();
            let error = match Engine::load(attached.model(found), device, options, &reserved) {
                Ok((program, running)) => {
                    attached.tell_left_out(library, &attempts.refused);
                    let tower = need.as_ref().zip(tower.as_ref());
                    let tower = tower.map(|(need, place)| TowerPlacement::new(need, place, &plain));
                    let tower = tower.transpose()?;
                    return Ok(Loaded { program, running, guessing, found, tower, devices });
                }
                Err(error) => error,
            };
            if attempts.go_on(found, &error) {
                continue;
            }
            if !may_leave_gpu(settings, &plain) || !is_unsupported(&error) {
                return Err(self.not_loaded(error, &devices, &guessing));
            }
            library.warn(format_args!("{error}; it runs on the CPU"));
            let gpu = GpuOptions::tuned(settings.tune.into());
            plain = DeviceChoice::Cpu.open(library, settings.threads, None, gpu)?;
            attempts = Attempts::default();
        }
    }

    /// Returns the error about a model that was not loaded.
    fn not_loaded(
        &self,
        error: EngineError,
        devices: &Devices,
        guessing: &Guessing,
    ) -> anyhow::Error {
        let is_short = matches!(&error, EngineError::Backend(BackendError::OutOfMemory { .. }));
        let taking = guessing.model.as_ref().filter(|_| is_short);
        let on_gpus = !devices.model.gpus.is_empty();
        let taking = taking.and_then(|(draft, _)| draft.taking(on_gpus));
        let Self { name, settings, .. } = self;
        let what = not_loaded(name, &devices.model.device.name(), settings.gpu_layers, taking);
        anyhow::Error::new(error).context(what)
    }
}

/// Returns whether a device cannot run the model, whatever its memory.
fn is_unsupported(error: &EngineError) -> bool {
    matches!(error, EngineError::Backend(BackendError::Unsupported { .. }))
}

/// Returns whether the processor may take the place of a GPU: nobody named that.
fn may_leave_gpu(settings: &Options, opened: &Opened) -> bool {
    let is_named = settings.device != DeviceChoice::Auto || settings.gpu_layers.is_some();
    !is_named && !opened.gpus.is_empty()
}

/// Returns what is said before the reason that a model was not loaded. `taking` says what part of
/// the memory that it lacks a draft model takes.
fn not_loaded(name: &str, device: &str, layers: Option<usize>, taking: Option<String>) -> String {
    let mut message = match layers {
        Some(layers) => format!(
            "{name} cannot be loaded with --gpu-layers {layers} on {device}; without it as many \
             layers are taken as fit"
        ),
        None => format!("{name} cannot be loaded on {device}"),
    };
    if let Some(taking) = taking {
        message.push_str(&format!("; {taking}"));
    }
    message
}

#[cfg(test)]
mod tests {
    use trine_vulkan::capabilities::presets;

    use super::*;
    use crate::placing::forecast::absent;

    #[test]
    fn a_gpu_that_nobody_named_gives_way_to_the_processor() {
        let refused = || {
            let what = "its heads have 1024 elements".to_owned();
            EngineError::Backend(BackendError::Unsupported { device: "gpu".to_owned(), what })
        };
        let short = EngineError::Backend(BackendError::OutOfMemory {
            what: "weights".to_owned(),
            needed: 1,
            device: "gpu".to_owned(),
        });
        let reason = refused().to_string();
        assert!(reason.contains("gpu cannot run this model: its heads have"), "{reason}");
        assert!(is_unsupported(&refused()) && !is_unsupported(&short), "fewer layers are tried");
        let gpu = absent::machine(presets::h200(), false, None, None);
        let cpu = DeviceChoice::Cpu
            .open(&ModelLibrary::default(), Some(1), None, GpuOptions::kept())
            .unwrap();
        for (device, gpu_layers, opened, expected) in [
            ("auto", None, &gpu, true),
            ("auto", None, &cpu, false),
            ("auto", Some(3), &gpu, false),
            ("vulkan", None, &gpu, false),
            ("vulkan:0", None, &gpu, false),
        ] {
            let device = DeviceChoice::parse(device).unwrap();
            let settings = Options { device, gpu_layers, ..Options::default() };
            assert_eq!(may_leave_gpu(&settings, opened), expected, "{:?}", settings.device);
        }
    }

    #[test]
    fn a_model_without_room_is_told_what_its_draft_takes() {
        assert_eq!(not_loaded("m", "gpu", None, None), "m cannot be loaded on gpu");
        let taking = Some("the draft takes 3 MB".to_owned());
        let message = not_loaded("m", "gpu", Some(7), taking);
        for part in ["m cannot", "--gpu-layers 7 on gpu", "; the draft takes 3 MB"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}
