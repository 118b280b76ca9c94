//! What can go wrong on a GPU.

use ash::vk;
use thiserror::Error;
use trine_backend::BackendError;

/// Why a Vulkan device could not be opened or used.
#[derive(Debug, Clone, Error)]
pub enum GpuError {
    /// There is no Vulkan loader on this machine, or no driver for it.
    #[error(
        "no Vulkan device can be used ({reason}); install your GPU's driver (Debian: libvulkan1 \
         and mesa-vulkan-drivers), or unset VK_DRIVER_FILES if it is set"
    )]
    NoLoader {
        /// What the system's linker said.
        reason: String,
    },
    /// No device matches what was asked for.
    #[error("no Vulkan device {wanted}; {found}")]
    NoDevice {
        /// What was asked for.
        wanted: String,
        /// The devices found.
        found: String,
    },
    /// The device lacks something that trine needs.
    #[error("{device} lacks {what}; update its driver or use another --device")]
    Missing {
        /// Name of the device.
        device: String,
        /// The features, joined.
        what: String,
    },
    /// A launch is larger than the device or the kernel can count.
    #[error(
        "{what} is more than one launch on {device} can do; use shorter pieces of prompts \
         (--chunk) or another --device"
    )]
    TooWide {
        /// Name of the device.
        device: String,
        /// What was to be launched.
        what: String,
    },
    /// A Plan reads a buffer that it has not written.
    #[error("the Plan reads {buffer} before anything has written it")]
    Unwritten {
        /// The Plan's name of the buffer.
        buffer: String,
    },
    /// A Plan has an operation without kernels.
    #[error("it has no kernel for the operation {operation}; use --device cpu")]
    NoKernel {
        /// Name of the operation.
        operation: &'static str,
    },
    /// No recording has room for a step.
    #[error("no step of the Program has {tokens} tokens and {outputs} of logits")]
    NoPass {
        /// Tokens of the step.
        tokens: usize,
        /// Tokens whose logits are wanted.
        outputs: usize,
    },
    /// Memory ran out.
    #[error("{what} needs {bytes} bytes of GPU memory, which could not be allocated")]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A file of shared memory is too short.
    #[error("the shared memory has {found} bytes, and {bytes} are needed; share all of the buffer")]
    Short {
        /// Bytes that are needed.
        bytes: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// The driver gave up the device: a crash, a hang, a reset or an unplugged device.
    #[error("the GPU was lost while {during}")]
    Lost {
        /// What was being done.
        during: String,
    },
    /// The device did not finish in time.
    #[error("the GPU did not finish within {seconds} s while {during}")]
    Timeout {
        /// Seconds waited.
        seconds: u64,
        /// What was being done.
        during: String,
    },
    /// Any other failure of a Vulkan call.
    #[error("{call} failed: {result}")]
    Call {
        /// The function.
        call: String,
        /// Its result.
        result: vk::Result,
    },
}

impl GpuError {
    /// Converts to an error of a backend, on the device of this name.
    pub(crate) fn on(self, device: &str) -> BackendError {
        let device = device.to_owned();
        match self {
            GpuError::OutOfMemory { what, bytes } => {
                BackendError::OutOfMemory { what, needed: bytes, device }
            }
            error @ GpuError::NoKernel { .. } => {
                BackendError::Unsupported { device, what: error.to_string() }
            }
            error => BackendError::Failed { device, what: error.to_string() },
        }
    }

    /// Returns the error of a call whose result is not success.
    pub(crate) fn of(call: &str, result: vk::Result) -> Self {
        match result {
            vk::Result::ERROR_DEVICE_LOST => GpuError::Lost { during: call.to_owned() },
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
                GpuError::OutOfMemory { what: call.to_owned(), bytes: 0 }
            }
            result => GpuError::Call { call: call.to_owned(), result },
        }
    }
}

/// Names the call in an error.
pub(crate) trait During<T> {
    /// Returns the value, or the error of the named call.
    fn during(self, call: &str) -> Result<T, GpuError>;
}

impl<T> During<T> for Result<T, vk::Result> {
    fn during(self, call: &str) -> Result<T, GpuError> {
        self.map_err(|result| GpuError::of(call, result))
    }
}
