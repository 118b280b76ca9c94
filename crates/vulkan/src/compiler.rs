//! Where dispatches get their kernels: from a device, or from nothing but its description.

use std::sync::{Arc, Mutex, PoisonError};

use crate::capabilities::Capabilities;
use crate::error::GpuError;
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::{Kernel, KernelKey};

/// What a launch needs to become a dispatch.
pub trait Compiler: Send + Sync {
    /// Returns what the device can do.
    fn capabilities(&self) -> &Capabilities;

    /// Returns a kernel for a dispatch.
    ///
    /// # Errors
    /// If the device refuses it.
    fn kernel(&self, key: &KernelKey) -> Result<Kernel, GpuError>;
}

impl Compiler for Gpu {
    fn capabilities(&self) -> &Capabilities {
        Gpu::capabilities(self)
    }

    fn kernel(&self, key: &KernelKey) -> Result<Kernel, GpuError> {
        Gpu::kernel(self, key)
    }
}

impl<C: Compiler + ?Sized> Compiler for Arc<C> {
    fn capabilities(&self) -> &Capabilities {
        C::capabilities(self)
    }

    fn kernel(&self, key: &KernelKey) -> Result<Kernel, GpuError> {
        C::kernel(self, key)
    }
}

/// A device of which only the capabilities are known. It compiles nothing: it notes which kernels
/// its dispatches ask for, which can never run.
pub struct Described {
    capabilities: Capabilities,
    asked: Mutex<Vec<KernelKey>>,
}

impl Described {
    /// Describes the device with these capabilities.
    pub fn new(capabilities: Capabilities) -> Self {
        Self { capabilities, asked: Mutex::default() }
    }

    /// Returns the keys of the kernels that were asked for since the last call, in this order, as
    /// often as they were.
    pub fn take(&self) -> Vec<KernelKey> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Compiler for Described {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn kernel(&self, key: &KernelKey) -> Result<Kernel, GpuError> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(key.clone());
        Ok(Kernel::null())
    }
}
