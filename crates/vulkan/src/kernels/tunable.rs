//! Launches whose layout on the device is chosen by measuring.

use crate::capabilities::Capabilities;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::raw::gpu::Gpu;

/// A launch that can be laid out in several ways, which differ in speed and in the last bits of their sums.
pub trait Tunable: Sync {
    /// A way to lay it out.
    type Shape: Copy + Send + Sync;

    /// What the best shape depends on: kernel, format, rows x columns of the matrix, rows of activations (w), where they come
    /// from and where the products go. Launches with one key take the same time in the same shape.
    fn key(&self) -> String;

    /// The shapes that the device can run, at least one; the first is the one to take before anything is measured.
    fn offer(&self, capabilities: &Capabilities) -> Vec<Self::Shape>;

    /// The numbers that tell a shape from the others.
    fn parameters(shape: &Self::Shape) -> Vec<u32>;

    /// Bytes of memory that it moves at least, and additions and multiplications that it does.
    fn cost(&self) -> (u64, u64);

    /// The dispatch of the launch in a shape.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    fn dispatch(
        &self,
        gpu: &Gpu,
        shape: Self::Shape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError>;
}
