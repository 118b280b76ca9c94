//! The vision tower of a loaded model: where it runs, and pictures for prompts
//! ([decision 050](../../../docs/decisions/050-pictures-in-prompts.md)).
//!
//! A tower is loaded by its own thread when the first picture comes: texts do not wait for it. Its
//! memory is set aside when the model is placed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use trine_backend::{BackendError, Device, Memory, ProgramOptions, TowerProgram};
use trine_cpu::CpuDevice;
use trine_engine::{PictureHandle, RunsTower, Tower, TowerInput};
use trine_model::{KvType, Model, TowerConfig, Width, Workload};
use trine_pictures::Preparation;
use trine_server::tower_input;

use crate::device::Opened;
use crate::finding::picture_file::{Input, PictureFile};
use crate::library::ModelLibrary;
use crate::placing::planner::{TowerDevice, TowerNeed};
use crate::tower;

/// The most bytes of rows of pictures that are kept: those of some dozen pictures.
const KEPT_BYTES: usize = 128 << 20;
/// How a tower keeps keys and values.
const KV: KvType = KvType::F16;

/// Where a tower will run, and what it will take there.
pub struct TowerPlacement {
    device: Arc<dyn Device>,
    /// Threads of the processor, for a tower that a GPU turns out not to run.
    threads: usize,
    memory: Memory,
    is_on_gpu: bool,
}

/// Returns the sizes of a tower's Program.
pub fn options(config: &TowerConfig) -> ProgramOptions {
    TowerProgram::options(config, KV)
}

/// Returns the rows of the largest picture.
pub fn workload(config: &TowerConfig) -> Workload {
    let Width { tokens, outputs } = options(config).width;
    Workload { sequences: 1, tokens, context: 0, outputs, kv: KV }
}

/// Returns what a model's tower needs, if it has one.
pub fn need(model: &Model) -> Option<TowerNeed> {
    let config = model.tower()?.config();
    let (options, largest) = (options(config), workload(config));
    Some(TowerNeed { plan: model.tower_plan(false), options, largest })
}

impl TowerPlacement {
    /// Puts a tower in its place among the devices of its model.
    ///
    /// # Errors
    /// Returns an error if the processor cannot be used.
    pub fn new(need: &TowerNeed, place: &TowerDevice, opened: &Opened) -> Result<Self> {
        let gpu = opened.gpus.first().filter(|_| *place == TowerDevice::Gpu).cloned();
        let (is_on_gpu, threads) = (gpu.is_some(), opened.threads);
        if let TowerDevice::Processor(Some(why)) = place {
            tracing::info!("images are read on the CPU: {why}");
        }
        let device = gpu.map_or_else(|| opened.processor(), Ok)?;
        let memory = device.forecast(&need.plan, &need.options);
        Ok(Self { device, threads, memory, is_on_gpu })
    }

    /// Chooses the device of a tower that has the machine for itself.
    ///
    /// # Errors
    /// Returns an error if the processor cannot be used.
    ///
    /// # Panics
    /// If the model has no tower.
    pub fn fastest(library: &ModelLibrary, model: &Model, opened: &Opened) -> Result<Self> {
        let need = need(model).expect("the model has a tower");
        let place = match need.on_gpu(opened) {
            Some(Ok(_)) => TowerDevice::Gpu,
            refused => {
                if let Some(Err(error)) = refused {
                    library.note(format!("the image is read on the CPU: {error}"));
                }
                TowerDevice::Processor(None)
            }
        };
        Self::new(&need, &place, opened)
    }

    /// Returns the device's name.
    pub fn name(&self) -> String {
        self.device.name()
    }

    /// Returns the device.
    pub fn device(&self) -> &dyn Device {
        self.device.as_ref()
    }

    /// Loads a model's tower: on the processor if the GPU turns out not to run it.
    ///
    /// # Errors
    /// As [`TowerProgram::load`].
    pub fn load(&self, model: &Model) -> Result<TowerProgram, BackendError> {
        let load = |device: &dyn Device| TowerProgram::load(device, model, KV, false);
        load(self.device()).or_else(|error| {
            if !self.is_on_gpu {
                return Err(error);
            }
            tracing::warn!("images are read on the CPU: {error}");
            load(&CpuDevice::new(Some(self.threads), None)?)
        })
    }
}

/// A tower that is loaded when it is first run.
struct Lazy<F> {
    load: F,
    /// What came of it, or why nothing did; `None` before.
    loaded: Option<Result<Box<dyn RunsTower>, String>>,
    /// The name of the tower's device.
    device: String,
    stop: Option<Arc<AtomicBool>>,
}

impl<F: FnMut() -> Result<Box<dyn RunsTower>, BackendError> + Send> RunsTower for Lazy<F> {
    fn rows(&mut self, picture: &TowerInput) -> Result<Vec<f32>, BackendError> {
        let Self { load, loaded, device, stop } = self;
        // It would fail again, and take as long for each picture.
        let loaded = loaded.get_or_insert_with(|| {
            let mut program = load().map_err(|error| match error {
                BackendError::Failed { what, .. } => what,
                error => error.to_string(),
            })?;
            if let Some(stop) = stop {
                program.stop_on(Arc::clone(stop));
            }
            Ok(program)
        });
        match loaded {
            Ok(program) => program.rows(picture),
            Err(what) => Err(BackendError::Failed { device: device.clone(), what: what.clone() }),
        }
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        if let Some(Ok(program)) = &mut self.loaded {
            program.stop_on(Arc::clone(&stop));
        }
        self.stop = Some(stop);
    }
}

/// What reads pictures for a loaded model.
pub struct Vision {
    /// Makes rows of pictures.
    pub tower: Tower,
    /// How pictures are prepared for it.
    pub preparation: Preparation,
    /// The device that runs it, for people.
    pub device: String,
    /// The memory that it takes once a picture has come.
    pub memory: Memory,
    /// Whether that is a GPU's.
    pub is_on_gpu: bool,
}

impl Vision {
    /// Starts the tower of a model.
    ///
    /// # Errors
    /// Returns an error if the system gives no thread, or the tower's numbers contradict one
    /// another.
    ///
    /// # Panics
    /// If the model has no tower.
    pub fn start(place: TowerPlacement, model: &Model) -> Result<Self> {
        let own = model.tower().expect("a tower was given its place");
        let identity = model.tower_fingerprint().expect("a tower was given its place");
        let preparation = tower::preparation(own.config())?;
        let (device, memory, is_on_gpu) = (place.name(), place.memory, place.is_on_gpu);
        let model = model.clone();
        let load = move || Ok(Box::new(place.load(&model)?) as Box<dyn RunsTower>);
        let lazy = Lazy { load, loaded: None, device: device.clone(), stop: None };
        let tower = Tower::start(lazy, identity, KEPT_BYTES);
        let tower = tower.context("the system gives no thread for the vision tower")?;
        Ok(Self { tower, preparation, device, memory, is_on_gpu })
    }

    /// Reads a picture's file.
    ///
    /// # Errors
    /// As [`PictureFile::read`].
    pub fn look(&self, path: &Path, input: Input) -> Result<Looked> {
        let PictureFile { size, prepared } = PictureFile::read(path, input, &self.preparation)?;
        let handle = self.tower.handle(tower_input(&prepared));
        Ok(Looked { size, digest: prepared.digest().to_string(), handle })
    }
}

/// A picture that was read from a file.
#[derive(Debug, Clone)]
pub struct Looked {
    /// Pixels from left to right and from top to bottom, as they are in the file.
    pub size: (u32, u32),
    /// The digest of the prepared picture, in hexadecimal digits.
    pub digest: String,
    /// The picture for a prompt.
    pub handle: PictureHandle,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tower_that_cannot_be_loaded_is_tried_once() {
        let mut times = 0;
        let load = || {
            times += 1;
            Err(BackendError::Failed { device: "gpu".to_owned(), what: "it is damaged".to_owned() })
        };
        let mut lazy = Lazy { load, loaded: None, device: "the tower".to_owned(), stop: None };
        let picture =
            TowerInput { digest: [0; 32], patches: Vec::new(), grid: (1, 1), soft_tokens: 1 };
        for _ in 0..2 {
            let error = lazy.rows(&picture).unwrap_err().to_string();
            assert_eq!(error, "the tower failed: it is damaged");
        }
        drop(lazy);
        assert_eq!(times, 1);
    }
}
