//! Vulkan compute: runs Plans on a GPU.
//!
//! ```text
//! Plan -> lower -> graph of launches -> rules -> emit -> dispatches -> bound -> recordings
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`VulkanDevice`], `load` | a GPU as a device: its facts, its memory, loading |
//! | [`capabilities`] | what a GPU can do, also of one that is not here |
//! | [`raw`] | the calls of the driver: memory, pipelines, recordings |
//! | [`dispatch`], `chain` | launches with addresses, barriers, and launches that wait without any |
//! | [`kernels`], [`shaders`] | each kernel's arguments and shapes; the compiled shaders |
//! | [`pack`], `weights` | weights in the device's layout, joined where they are multiplied as one |
//! | [`compiler`], `files` | where kernels come from; the cache folder |
//! | [`testing`] | helpers of tests and examples |
//!
//! In `program`, which binds a Plan to a GPU:
//!
//! | module | says |
//! |---|---|
//! | `passes`, `frame` | which widths are recorded; what the host writes for a step |
//! | `selection`, `refusals`, `tuning` | which kernel does what; what none can do; in which shape |
//! | `ahead`, `catalogue` | what a start does at the same time; which kernels a Program compiles |
//! | `outline`, `forecast` | all but shapes, for a device that need not be here; its memory |
//! | `series`, `sampler` | steps without the host between them; draws |
//! | `lent`, `loans` | what a GPU does beside a guest: a partner, or the processor's experts |

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
pub use raw::gpu::{Description, DeviceSelector, Gpu, Injected, best_device, devices};
pub use raw::pipeline::PipelineCache;
pub use weights::{Progress, Reach};
