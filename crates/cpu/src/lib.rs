//! The CPU backend: SIMD kernels and a thread pool that run Plans.
//!
//! | module | holds |
//! |---|---|
//! | [`CpuDevice`] | the processor as a device: its memory, its rates, loading |
//! | `program` | a Plan bound to the processor, and the walk over its steps |
//! | [`matmul`] | packed weights and their products |
//! | [`attention`] | the KV cache and the online softmax; rows of pictures have a kernel of their own |
//! | [`vector`], [`quantize`] | kernels over rows; activations as 8-bit blocks |
//! | [`pool`], [`shared`] | the threads, and one buffer in parts for them |
//! | [`isa`] | the instruction sets, one of which is chosen at run time |
//!
//! Operations are interpreted: no code here knows the family of a model.

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
