//! Vulkan compute: runs Plans on a GPU.

#![deny(unsafe_code)]

pub mod capabilities;
mod chain;
pub mod compiler;
mod device;
pub mod dispatch;
mod error;
mod files;
pub mod kernels;
mod load;
pub mod pack;
mod program;
#[allow(unsafe_code, reason = "calls the Vulkan driver")]
pub mod raw;
pub mod shaders;
pub mod testing;
mod weights;

pub use device::{VulkanDevice, open_gpu};
pub use error::GpuError;
pub use kernels::read::ReadSpeed;
pub use program::catalogue::{Catalogued, LaunchFacts};
pub use program::outline::Outline;
pub use program::passes::INVARIANT_ROWS;
pub use program::tuning::{Settled, Tuning, TuningMode, TuningProgress, TuningState, tuning_state};
pub use raw::gpu::{Choice, Description, Gpu, Injected, best_device, devices};
pub use raw::pipeline::PipelineCache;
pub use weights::{Progress, Reach};
