//! Vulkan compute: runs Plans on a GPU.

#![deny(unsafe_code)]

pub mod capabilities;
pub mod dispatch;
mod error;
pub mod kernels;
pub mod pack;
#[allow(unsafe_code, reason = "calls the Vulkan driver")]
pub mod raw;
pub mod shaders;
pub mod testing;

pub use error::GpuError;
pub use raw::gpu::{Choice, Description, Gpu, devices};
