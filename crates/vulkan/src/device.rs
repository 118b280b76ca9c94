//! A Vulkan device and how Programs on it are made.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::GpuError;
use crate::kernels::matmul::probe;
use crate::program::outline::Outline;
use crate::program::tuning::{Tuner, Tuning};
use crate::raw::gpu::{Choice, Gpu};
use crate::raw::pipeline::PipelineCache;
use crate::weights::Progress;

/// A GPU, or Vulkan in software.
#[derive(Clone)]
pub struct VulkanDevice {
    shared: Arc<Shared>,
    tuner: Arc<Tuner>,
    is_invariant: bool,
}

struct Shared {
    choice: Choice,
    cache: Option<PipelineCache>,
    progress: Option<Progress>,
    label: String,
    gpu: Mutex<Arc<Gpu>>,
}

/// Opens a device and finds out what only kernels that run on it tell. `cache` keeps compiled
/// pipelines.
///
/// # Errors
/// [`GpuError`] if there is no such device, it lacks a feature, or the driver fails.
pub fn open_gpu(choice: &Choice, cache: Option<PipelineCache>) -> Result<Arc<Gpu>, GpuError> {
    let gpu = Gpu::open(choice, cache)?;
    gpu.set_fragments(probe::is_known(&gpu));
    Ok(gpu)
}

impl VulkanDevice {
    /// Opens a device. `cache` keeps compiled pipelines; `progress` is called while weights are
    /// loaded.
    ///
    /// # Errors
    /// [`GpuError`] if there is no such device or it lacks a feature.
    pub fn open(
        choice: Choice,
        cache: Option<PipelineCache>,
        progress: Option<Progress>,
    ) -> Result<Self, GpuError> {
        let gpu = open_gpu(&choice, cache.clone())?;
        let label = gpu.capabilities().label();
        let gpu = Mutex::new(gpu);
        let shared = Arc::new(Shared { choice, cache, progress, label, gpu });
        let tuner = Arc::new(Tuner::new(Tuning::default()));
        Ok(Self { shared, tuner, is_invariant: false })
    }

    /// The same device, with shapes of kernels chosen in this way. Without this they are those of
    /// the static tables.
    pub fn tuned(self, tuning: Tuning) -> Self {
        Self { tuner: Arc::new(Tuner::new(tuning)), ..self }
    }

    /// The same device, whose Programs give a row the same bits whatever other rows are in its step
    /// ([`Program::is_invariant`]): every step runs the kernels of the widest one. A row takes as
    /// long alone as that does, so the width should be as small as the rows of a usual step; from
    /// 65 rows on prompts are not quicker for each of their rows.
    pub fn batch_invariant(self) -> Self {
        Self { is_invariant: true, ..self }
    }

    pub(crate) fn is_invariant(&self) -> bool {
        self.is_invariant
    }

    /// The opened device.
    pub fn gpu(&self) -> Arc<Gpu> {
        self.shared.gpu.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is decided of it without loading anything.
    pub fn outline(&self) -> Outline {
        Outline::new(self.gpu().capabilities().clone(), self.is_invariant)
    }

    pub(crate) fn progress(&self) -> Option<Progress> {
        self.shared.progress.clone()
    }

    pub(crate) fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    pub(crate) fn label(&self) -> String {
        self.shared.label.clone()
    }

    /// Opens the device again after it was lost.
    pub(crate) fn reopen(&self) -> Result<Arc<Gpu>, GpuError> {
        let gpu = open_gpu(&self.shared.choice, self.shared.cache.clone())?;
        *self.shared.gpu.lock().unwrap_or_else(PoisonError::into_inner) = gpu.clone();
        Ok(gpu)
    }
}
