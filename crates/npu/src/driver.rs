//! The driver of an XDNA1 NPU: buffers, a context, commands. Never run on silicon.
//!
//! ```text
//! Device -> HostBuffer --to_device--> DeviceBuffer --to_host--> HostBuffer
//!                      --poison-----> PoisonedBuffer --Context::execute--> Executed
//! dma-buf -------import------> DeviceBuffer --export--> DmaBuf
//! Stream + Verifier -> ProvenStream -> Device::load -> Program
//! ```
//!
//! The device does not see the caches of the processor. Each arrow between buffers is a flush, and
//! only what has been flushed can be named in a command.
//!
//! [`Executed`] means that the kernel counted as many completions as there were commands, that each
//! packet says so, and that every word of each result was overwritten. A command that times out, is
//! given up or is not answered ends the use of the NPU for the process: every later call returns
//! [`DriverError::Quarantined`].
//!
//! Commands are submitted one by one: one firmware was seen to drop parts of lists of them.
//!
//! Everything is given back to the kernel when it is dropped, whatever has failed; in quarantine
//! nothing is, until the process ends. What the device still writes then lands in memory that
//! nothing else has.

mod buffer;
mod context;
mod contexts;
mod device;
mod error;
mod handle;
mod hardware;
mod heap;
mod proven;
mod version;

pub use self::buffer::{DeviceBuffer, DmaBuf, Exports, HostBuffer, PoisonedBuffer};
pub use self::context::{Context, Executed, Program, Run};
pub(crate) use self::contexts::contexts;
pub use self::device::{DEVICE_PATH, Device};
pub use self::error::DriverError;
pub use self::hardware::WATCHDOG;
pub use self::proven::{ProvenStream, Unproven};
pub(crate) use self::version::{DRM_DRIVER, DriverVersion};
