//! The devices of a machine that is not here: they tell what they would hold and run, and load
//! nothing.

use std::sync::Arc;

use trine_backend::{BackendError, Device, DeviceMemory, Memory, Program, ProgramOptions};
use trine_model::{Model, Plan, Width, Workload};
use trine_vulkan::Outline;
use trine_vulkan::capabilities::Capabilities;

use crate::device::{Opened, layer_choice};

/// Memory assumed of a machine whose GPU shares it: that of the usual machines that run models.
const SHARED_BYTES: u64 = 32 << 30;

/// A processor that is not here.
struct AbsentProcessor(DeviceMemory);

/// A GPU that is not here.
struct AbsentGpu {
    outline: Outline,
    memory: DeviceMemory,
}

/// Returns the GPU with these capabilities and free bytes of memory.
pub(super) fn gpu(capabilities: Capabilities, is_invariant: bool, free: u64) -> Arc<dyn Device> {
    let outline = Outline::new(capabilities, is_invariant);
    let memory = outline.memory(free);
    Arc::new(AbsentGpu { outline, memory })
}

/// Returns the devices of a machine with a GPU that runs `layers` layers, if that was chosen.
/// `bytes` is its memory: the GPU's own or, if it shares the processor's, that of both. The GPU can
/// then have half of it, as on Linux unless somebody changes that.
pub(crate) fn machine(
    capabilities: Capabilities,
    is_invariant: bool,
    bytes: Option<u64>,
    layers: Option<usize>,
) -> Opened {
    let bytes = bytes.unwrap_or(SHARED_BYTES);
    let is_shared = capabilities.is_unified();
    let gpu = gpu(capabilities, is_invariant, if is_shared { bytes / 2 } else { bytes });
    // The processor's memory beside a GPU with memory of its own is not known. Shared memory is all
    // free before anything is loaded.
    Opened::absent(processor(is_shared.then_some(bytes)), vec![gpu], layer_choice(layers))
}

/// Returns the processor with these bytes of memory, if they are known.
pub(crate) fn processor(bytes: Option<u64>) -> Arc<dyn Device> {
    Arc::new(AbsentProcessor(DeviceMemory::host(bytes)))
}

fn not_here(device: &dyn Device) -> BackendError {
    let what = "it is not in this machine".to_owned();
    BackendError::Unsupported { device: device.name(), what }
}

impl Device for AbsentProcessor {
    fn name(&self) -> String {
        "cpu".to_owned()
    }

    fn load_plan(
        &self,
        _model: &Model,
        _plan: Plan,
        _options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        Err(not_here(self))
    }

    fn memory(&self) -> DeviceMemory {
        self.0
    }
}

impl Device for AbsentGpu {
    fn name(&self) -> String {
        self.outline.capabilities().label()
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        Some(self.outline.capabilities().uuid)
    }

    fn load_plan(
        &self,
        _model: &Model,
        _plan: Plan,
        _options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        Err(not_here(self))
    }

    fn memory(&self) -> DeviceMemory {
        self.memory
    }

    fn most_rows(&self) -> Option<usize> {
        self.outline.most_rows()
    }

    fn most_context(&self) -> Option<usize> {
        self.outline.most_context()
    }

    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        self.outline.forecast(plan, options)
    }

    fn launches(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        workload: Workload,
    ) -> Result<usize, BackendError> {
        self.outline.launches(plan, options, workload)
    }

    fn explain(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        width: Width,
        is_lone: bool,
    ) -> Result<Option<String>, BackendError> {
        self.outline.explain(plan, options, width, is_lone).map(Some)
    }

    fn step_seconds(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        workload: Workload,
    ) -> Option<f64> {
        self.outline.step_seconds(plan, options, workload)
    }
}
