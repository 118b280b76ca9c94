//! Which device runs the model.

use anyhow::{Result, anyhow};
use trine_backend::Device;
use trine_backend::reference::ReferenceDevice;
use trine_cpu::CpuDevice;

/// A device as named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DeviceChoice {
    /// The scalar reference: slow and exact.
    Reference,
    /// SIMD kernels and a thread pool.
    #[default]
    Cpu,
    /// A Vulkan device by its index.
    Vulkan(u32),
}

impl DeviceChoice {
    /// Reads `reference`, `cpu`, `vulkan` or `vulkan:INDEX`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let index = |text: &str| text.parse().map(DeviceChoice::Vulkan).ok();
        let choice = match text {
            "reference" => Some(DeviceChoice::Reference),
            "cpu" => Some(DeviceChoice::Cpu),
            "vulkan" => Some(DeviceChoice::Vulkan(0)),
            _ => text.strip_prefix("vulkan:").and_then(index),
        };
        choice.ok_or_else(|| "choose cpu, reference or vulkan[:INDEX]".to_owned())
    }

    /// Opens the device.
    ///
    /// # Errors
    /// If this build or this machine does not have it.
    pub(crate) fn open(self, threads: Option<usize>) -> Result<Opened> {
        match self {
            DeviceChoice::Reference => {
                Ok(Opened { device: Box::new(ReferenceDevice::new()), threads: 1 })
            }
            DeviceChoice::Cpu => {
                let device = CpuDevice::new(threads, None)?;
                let threads = device.threads();
                Ok(Opened { device: Box::new(device), threads })
            }
            DeviceChoice::Vulkan(_) => Err(anyhow!(
                "this build of trine has no Vulkan device; run on the CPU with --device cpu"
            )),
        }
    }
}

/// A device, ready to load models.
pub(crate) struct Opened {
    /// The device.
    pub(crate) device: Box<dyn Device>,
    /// Threads that it uses.
    pub(crate) threads: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(DeviceChoice::parse("cpu"), Ok(DeviceChoice::Cpu));
        assert_eq!(DeviceChoice::parse("reference"), Ok(DeviceChoice::Reference));
        assert_eq!(DeviceChoice::parse("vulkan"), Ok(DeviceChoice::Vulkan(0)));
        assert_eq!(DeviceChoice::parse("vulkan:3"), Ok(DeviceChoice::Vulkan(3)));
        for wrong in ["", "gpu", "vulkan:", "vulkan:-1", "vulkan:x", "CPU "] {
            assert!(DeviceChoice::parse(wrong).is_err(), "{wrong}");
        }
    }
}
