//! Helpers of this crate's tests and examples.

pub mod towers;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytemuck::Pod;

use crate::capabilities::DeviceKind;
use crate::device::{Opening, VulkanDevice};
use crate::dispatch::Dispatch;
use crate::raw::commands::Recording;
use crate::raw::copies::Copy;
use crate::raw::gpu::{DeviceSelector, Gpu};
use crate::raw::memory::{Buffer, MemoryUse};
use crate::raw::module::Loops;
use crate::weights::BEFORE_VECTOR;

#[cfg(test)]
pub(crate) use inside::{poisoned, run};

/// Environment variable with a part of the name of the device that the tests run on.
const DEVICE_VARIABLE: &str = "TRINE_TEST_VULKAN";

/// What a test says without a device.
const NEEDED: &str = "the tests need a Vulkan device (cargo xtask drivers installs one)";

/// Returns the device of the tests: the one that the environment names, otherwise the best one,
/// software included.
///
/// # Panics
/// If there is none: the tests need one, and `cargo xtask drivers` installs a software one.
pub fn gpu() -> Arc<Gpu> {
    static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
    GPU.get_or_init(own_gpu).clone()
}

/// The same, opened for the caller only: other tests run on theirs at the same time.
///
/// # Panics
/// As [`gpu`].
pub(crate) fn own_gpu() -> Arc<Gpu> {
    opening().open().unwrap_or_else(|error| panic!("{NEEDED}: {error}"))
}

/// Returns the choice of the tests' device.
pub fn choice() -> DeviceSelector {
    std::env::var(DEVICE_VARIABLE).map_or(DeviceSelector::Any, DeviceSelector::Named)
}

fn opening() -> Opening {
    Opening { choice: choice(), cache: None, loops: Loops::Kept }
}

/// Returns whether the tests' device runs the case of this number: a GPU runs all, software one in
/// `share`, because it takes seconds to compile a kernel. If `share` has no divisor in common with
/// the counts of what is varied, every value of each is tested.
///
/// # Panics
/// If there is no device.
pub fn takes(number: usize, share: usize) -> bool {
    gpu().capabilities().kind != DeviceKind::Processor || number.is_multiple_of(share)
}

/// Returns the sizes of pieces, of a prompt of `length` tokens, that the tests' device runs of the
/// model of this number. A GPU runs the whole, single tokens, few and many. Software runs one or
/// two of them, others for each model: with matrix units a size that uses them, since software
/// without them runs the rest.
///
/// # Panics
/// If there is no device.
pub fn pieces(number: usize, length: usize) -> Vec<usize> {
    let capabilities = gpu().capabilities().clone();
    if capabilities.kind == DeviceKind::Processor && !capabilities.cooperative.is_empty() {
        return vec![[length, 32][number % 2]];
    }
    let all = [length, 1, 7, 32].into_iter().enumerate();
    all.filter(|(at, _)| takes(4 * number + at, 3)).map(|(_, size)| size).collect()
}

/// Returns the seconds of each dispatch, from timestamps with a barrier between any two.
///
/// # Panics
/// If the device fails.
pub fn timed(gpu: &Arc<Gpu>, dispatches: &[Dispatch]) -> Vec<f64> {
    let recording = Recording::timed(gpu, dispatches, &[]);
    let times = recording.and_then(|mut recording| {
        recording.run("a measurement")?;
        recording.times()
    });
    times.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the wall-clock seconds of each of `runs` runs of a recording, after one that is not
/// counted: the time of a chain of dispatches with the barriers that it needs and no others.
///
/// # Panics
/// If the device fails.
pub fn wall(gpu: &Arc<Gpu>, dispatches: &[Dispatch], runs: usize) -> Vec<f64> {
    let measure = || {
        let mut recording = Recording::record(gpu, dispatches, &[], &[])?;
        recording.run("a measurement")?;
        (0..runs)
            .map(|_| {
                let start = std::time::Instant::now();
                recording.run("a measurement")?;
                Ok(start.elapsed().as_secs_f64())
            })
            .collect::<Result<Vec<f64>, crate::GpuError>>()
    };
    measure().unwrap_or_else(|error| panic!("{error}"))
}

/// Returns a device buffer with these values. Like the vectors of a model, it may be the weights of
/// a norm, which has a word for what it notes.
///
/// # Panics
/// If memory runs out.
pub fn upload<T: Pod>(gpu: &Arc<Gpu>, values: &[T]) -> Buffer {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let length = BEFORE_VECTOR + (bytes.len() as u64).max(1);
    let host = gpu.allocate(length, MemoryUse::Upload, "a test's data");
    let host = host.unwrap_or_else(|error| panic!("{error}"));
    host.write(0, &[0; 4]);
    host.write(BEFORE_VECTOR - 8, bytemuck::bytes_of(&host.address()));
    host.write(BEFORE_VECTOR, bytes);
    host.part(BEFORE_VECTOR, host.bytes() - BEFORE_VECTOR)
}

/// Returns a buffer of these values in the device's own memory, where kernels find their operands.
///
/// # Panics
/// If memory runs out.
pub fn resident<T: Pod>(gpu: &Arc<Gpu>, values: &[T]) -> Buffer {
    let from = upload(gpu, values);
    let to = gpu.allocate(from.bytes(), MemoryUse::Device, "a test's data");
    let to = to.unwrap_or_else(|error| panic!("{error}"));
    copy(gpu, &from, &to);
    to
}

/// Returns the values of a buffer.
///
/// # Panics
/// If the device fails.
pub fn download<T: Pod>(gpu: &Arc<Gpu>, buffer: &Buffer) -> Vec<T> {
    static ONE: Mutex<()> = Mutex::new(());
    let _guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let host = gpu.allocate(buffer.bytes(), MemoryUse::Readback, "a test's results");
    let host = host.unwrap_or_else(|error| panic!("{error}"));
    copy(gpu, buffer, &host);
    host.values::<T>(0, buffer.bytes() as usize / size_of::<T>()).to_vec()
}

fn copy(gpu: &Arc<Gpu>, from: &Buffer, to: &Buffer) {
    let copy = Copy { from: from.clone(), to: to.clone(), bytes: from.bytes() };
    let recording = Recording::record(gpu, &[], &[copy], &[]);
    let result = recording.and_then(|mut recording| recording.run("a test"));
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the device of the tests, as the engine uses it.
///
/// # Panics
/// If there is none.
pub fn device() -> VulkanDevice {
    static DEVICE: OnceLock<VulkanDevice> = OnceLock::new();
    DEVICE.get_or_init(own_device).clone()
}

/// The same, opened for the caller only: other tests run on theirs at the same time.
///
/// # Panics
/// As [`device`].
pub fn own_device() -> VulkanDevice {
    VulkanDevice::opened(opening(), None).unwrap_or_else(|error| panic!("{NEEDED}: {error}"))
}

/// Helpers of the tests beside the code.
#[cfg(test)]
mod inside {
    use std::sync::Arc;

    use super::upload;
    use crate::dispatch::Dispatch;
    use crate::raw::commands::Recording;
    use crate::raw::gpu::Gpu;
    use crate::raw::memory::Buffer;

    /// Runs dispatches one after the other, with the barriers that they need.
    ///
    /// # Panics
    /// If the device fails.
    pub(crate) fn run(gpu: &Arc<Gpu>, dispatches: &[Dispatch]) {
        let recording = Recording::record(gpu, dispatches, &[], &[]);
        let result = recording.and_then(|mut recording| recording.run("a test"));
        result.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns a device buffer in which every f32, and every f16, is a NaN.
    ///
    /// # Panics
    /// If memory runs out.
    pub(crate) fn poisoned(gpu: &Arc<Gpu>, bytes: u64) -> Buffer {
        upload(gpu, &vec![0xFF_u8; bytes.next_multiple_of(4) as usize])
    }
}
