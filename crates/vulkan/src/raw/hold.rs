//! Submissions that are held back, for tests of runs that fail.

use std::sync::Arc;

use ash::vk;

use super::gpu::Gpu;
use crate::error::{During, GpuError};

/// Holds a submission back on purpose until it is released, as a device that hangs does.
pub(super) struct Hold {
    gpu: Arc<Gpu>,
    /// A timeline semaphore: submissions wait for its value 1.
    pub(super) semaphore: vk::Semaphore,
}

impl Hold {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the structures live until the call returns.
        let semaphore =
            unsafe { gpu.device.create_semaphore(&info, None) }.during("vkCreateSemaphore")?;
        Ok(Self { gpu: gpu.clone(), semaphore })
    }

    pub(super) fn release(&self) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.semaphore).value(1);
        // SAFETY: the structure lives until the call returns; nothing else signals the semaphore.
        let released = unsafe { self.gpu.device.signal_semaphore(&info) };
        released.expect("a host signals a timeline without the device");
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // SAFETY: the handle is this value's own; what waited for it was waited for.
        unsafe { self.gpu.device.destroy_semaphore(self.semaphore, None) };
    }
}
