//! A Vulkan device and how it makes Programs.

use std::sync::{Arc, Mutex, PoisonError};

use trine_backend::Partner;

use crate::capabilities::Capabilities;
use crate::error::GpuError;
use crate::kernels::matmul::probe;
use crate::program::outline::Outline;
use crate::program::tuning::{Tuner, Tuning};
use crate::raw::gpu::{DeviceSelector, Gpu};
use crate::raw::module::Loops;
use crate::raw::pipeline::PipelineCache;
use crate::weights::Progress;

/// A GPU, or Vulkan in software.
#[derive(Clone)]
pub struct VulkanDevice {
    shared: Arc<Shared>,
    tuner: Arc<Tuner>,
    is_invariant: bool,
    partner: Option<Arc<dyn Partner>>,
}

struct Shared {
    opening: Opening,
    progress: Option<Progress>,
    label: String,
    gpu: Mutex<Arc<Gpu>>,
}

/// How a device is opened, again after it was lost.
#[derive(Default)]
pub(crate) struct Opening {
    pub(crate) choice: DeviceSelector,
    /// Keeps compiled pipelines.
    pub(crate) cache: Option<PipelineCache>,
    pub(crate) loops: Loops,
}

impl Opening {
    /// Opens the device and finds out what only kernels that run on it can tell.
    pub(crate) fn open(&self) -> Result<Arc<Gpu>, GpuError> {
        let gpu = Gpu::open(&self.choice, self.cache.clone(), self.loops)?;
        gpu.set_fragments(probe::is_known(&gpu));
        Ok(gpu)
    }
}

/// Opens a device and finds out what only kernels that run on it can tell. `cache` keeps compiled
/// pipelines.
///
/// # Errors
/// [`GpuError`] if there is no such device, it lacks a feature, or the driver fails.
pub fn open_gpu(
    choice: &DeviceSelector,
    cache: Option<PipelineCache>,
) -> Result<Arc<Gpu>, GpuError> {
    Opening { choice: choice.clone(), cache, ..Opening::default() }.open()
}

impl VulkanDevice {
    /// Opens a device. `cache` keeps compiled pipelines; `progress` is called while weights are
    /// loaded.
    ///
    /// # Errors
    /// [`GpuError`] if there is no such device or it lacks a feature.
    pub fn open(
        choice: DeviceSelector,
        cache: Option<PipelineCache>,
        progress: Option<Progress>,
    ) -> Result<Self, GpuError> {
        Self::opened(Opening { choice, cache, ..Opening::default() }, progress)
    }

    pub(crate) fn opened(opening: Opening, progress: Option<Progress>) -> Result<Self, GpuError> {
        Ok(Self::of(opening.open()?, opening, progress))
    }

    /// Opens a device that says it has other capabilities, for tests of what Programs ask of a
    /// device that is not there: they can be loaded, but their kernels are stand-ins that must not
    /// run. So it has to be one whose Programs run nothing while they are loaded: one without
    /// chains.
    ///
    /// # Errors
    /// As [`VulkanDevice::open`].
    pub fn with_other_capabilities(
        choice: DeviceSelector,
        capabilities: Capabilities,
    ) -> Result<Self, GpuError> {
        let opening = Opening { choice, ..Opening::default() };
        let gpu = Gpu::open(&opening.choice, None, opening.loops)?;
        gpu.pose(capabilities);
        Ok(Self::of(gpu, opening, None))
    }

    fn of(gpu: Arc<Gpu>, opening: Opening, progress: Option<Progress>) -> Self {
        let label = gpu.capabilities().label();
        let gpu = Mutex::new(gpu);
        let shared = Arc::new(Shared { opening, progress, label, gpu });
        let tuner = Arc::new(Tuner::new(Tuning::default()));
        Self { shared, tuner, is_invariant: false, partner: None }
    }

    /// Returns the same device, which chooses the shapes of its kernels in this way. Without this
    /// call they come from the static tables.
    pub fn tuned(self, tuning: Tuning) -> Self {
        Self { tuner: Arc::new(Tuner::new(tuning)), ..self }
    }

    /// Returns the same device, whose Programs compute the same bits for a row whatever other rows
    /// are in its step ([`Facts::is_invariant`](trine_backend::Facts::is_invariant)): every step
    /// of up to [`INVARIANT_ROWS`](crate::INVARIANT_ROWS) runs the kernels of the widest of these.
    /// A step of a single row takes as long as that. Wider steps are for units of pictures only
    /// ([`Facts::mixed_rows`](trine_backend::Facts::mixed_rows)).
    pub fn batch_invariant(self) -> Self {
        Self { is_invariant: true, ..self }
    }

    /// Lends a part of the products of bulk rows to a partner, in steps of more rows than a short
    /// prompt has. Programs that are [invariant](VulkanDevice::batch_invariant) lend nothing: their
    /// steps have fewer rows.
    #[must_use]
    pub fn with_partner(self, partner: Arc<dyn Partner>) -> Self {
        Self { partner: Some(partner), ..self }
    }

    /// Returns the partner of Programs, if they can have one.
    pub(crate) fn partner(&self) -> Option<&Arc<dyn Partner>> {
        self.partner.as_ref().filter(|_| !self.is_invariant)
    }

    /// Returns whether its Programs are [invariant](VulkanDevice::batch_invariant).
    pub fn is_invariant(&self) -> bool {
        self.is_invariant
    }

    /// Returns the opened device.
    pub fn gpu(&self) -> Arc<Gpu> {
        self.shared.gpu.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what can be decided about the device without loading anything.
    pub fn outline(&self) -> Outline {
        let outline = Outline::new(self.gpu().capabilities().clone(), self.is_invariant);
        outline.beside(self.partner())
    }

    /// Returns the UUID of the device, which no other device of this machine has.
    pub fn uuid(&self) -> [u8; 16] {
        self.gpu().capabilities().uuid
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
        let gpu = self.shared.opening.open()?;
        *self.shared.gpu.lock().unwrap_or_else(PoisonError::into_inner) = gpu.clone();
        Ok(gpu)
    }
}
