//! The GPUs of this machine as Vulkan reports them.

use std::sync::Arc;

pub use trine_vulkan::capabilities::{
    Capabilities, CooperativeShape, DeviceKind, Element, MemoryHeap, MissingFeatures,
};
pub use trine_vulkan::{Description, Gpu, GpuError, TuningState, devices};
use trine_vulkan::{DeviceSelector, ReadSpeed};

use crate::{device, measuring::machine};

/// Opens the GPU with an index among [`devices`], without one the best.
///
/// # Errors
/// [`GpuError`] if there is none, it lacks a feature, or the driver fails.
pub fn open(index: Option<usize>) -> Result<Arc<Gpu>, GpuError> {
    trine_vulkan::open_gpu(&index.map_or(DeviceSelector::Best, DeviceSelector::Index), None)
}

/// Returns the capabilities of the device with this UUID.
pub fn with_uuid(uuid: Option<[u8; 16]>) -> Option<Capabilities> {
    let mut all = devices().ok()?.into_iter().map(|device| device.capabilities);
    all.find(|found| Some(found.uuid) == uuid)
}

/// Returns what is known of a GPU's kernels, if measurements are kept.
pub fn tuning(capabilities: &Capabilities) -> Option<TuningState> {
    device::cache().map(|cache| trine_vulkan::tuning_state(&cache, capabilities))
}

/// Returns what measures the bytes per second of a streaming read.
///
/// # Errors
/// [`GpuError`] if there is not enough memory to measure with.
pub fn reader(gpu: &Arc<Gpu>) -> Result<impl FnMut() -> Result<f64, GpuError> + use<>, GpuError> {
    let mut speed = ReadSpeed::new(gpu)?;
    Ok(move || speed.measure())
}

/// Returns the memory that models can take on a GPU: its own or, if it has none, the part of the
/// machine's that the driver lets it have.
pub fn memory(found: &Capabilities) -> Option<u64> {
    memory_of(found.kind, &found.heaps, machine::total_memory())
}

fn memory_of(kind: DeviceKind, heaps: &[MemoryHeap], machine: Option<u64>) -> Option<u64> {
    let is_discrete = matches!(kind, DeviceKind::Discrete | DeviceKind::Virtual);
    let heaps = heaps.iter().filter(|heap| heap.device_local || !is_discrete);
    let bytes = heaps.fold(0_u64, |sum, heap| sum.saturating_add(heap.bytes));
    let bytes = if is_discrete { bytes } else { machine.map_or(bytes, |all| bytes.min(all)) };
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_gpu_is_its_own_or_its_share() {
        let heap = |bytes, device_local| MemoryHeap { bytes, device_local, host_visible: true };
        let heaps = [heap(10, true), heap(5, false)];
        let of = |kind, machine| memory_of(kind, &heaps, machine);
        assert_eq!(of(DeviceKind::Discrete, Some(4)), Some(10));
        assert_eq!(of(DeviceKind::Integrated, Some(32)), Some(15));
        assert_eq!(of(DeviceKind::Integrated, Some(12)), Some(12));
        assert_eq!(of(DeviceKind::Integrated, None), Some(15));
        assert_eq!(memory_of(DeviceKind::Discrete, &[], Some(4)), None);
        let huge = [heap(u64::MAX, true), heap(u64::MAX, true)];
        assert_eq!(memory_of(DeviceKind::Discrete, &huge, None), Some(u64::MAX));
    }
}
