//! The backend's seam: what a device holds and loads.

use trine_backend::{
    BackendError, Device, DeviceMemory, Memory, MemoryKind, Program, ProgramOptions,
};
use trine_model::{Model, Plan, gather};

use crate::device::{INVARIANT_ROWS, VulkanDevice};
use crate::program::passes::pass_keys;
use crate::program::{VulkanProgram, forecast};

impl Device for VulkanDevice {
    fn name(&self) -> String {
        self.label()
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        Ok(Box::new(VulkanProgram::load(self, model, plan, options)?))
    }

    fn memory(&self) -> DeviceMemory {
        let gpu = self.gpu();
        let is_shared = gpu.capabilities().is_unified();
        let kind = if is_shared { MemoryKind::Shared } else { MemoryKind::Own };
        DeviceMemory { kind, free: Some(gpu.free_bytes()) }
    }

    fn most_rows(&self) -> Option<usize> {
        self.is_invariant().then_some(INVARIANT_ROWS)
    }

    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        let plan = gather::gather(plan.clone());
        let keys = pass_keys(&plan, options, self.is_invariant());
        forecast::memory(self.gpu().capabilities(), &plan, options, &keys)
    }
}
