//! The CPU backend: SIMD kernels and a thread pool that run Plans.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "SIMD loads, and reads of cache rows that the plan has checked")]
pub mod attention;
mod device;
pub mod isa;
pub mod matmul;
#[allow(unsafe_code, reason = "erases the lifetime of the work that threads take part in")]
pub mod pool;
mod program;
pub mod quantize;
#[allow(unsafe_code, reason = "hands out disjoint parts of one buffer to several threads")]
pub mod shared;
#[allow(unsafe_code, reason = "SIMD intrinsics and loads")]
pub mod vector;

pub use device::CpuDevice;
