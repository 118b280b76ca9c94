//! What the backend asks of a device: its facts, its memory, and loading.

use trine_backend::{
    BackendError, Device, DeviceMemory, LoadAside, Memory, Program, ProgramOptions, Reader,
};
use trine_model::{Model, Plan, Width, Workload};

use crate::device::VulkanDevice;
use crate::kernels::read::ReadSpeed;
use crate::program::VulkanProgram;

impl Device for VulkanDevice {
    fn name(&self) -> String {
        match self.partner() {
            Some(partner) => format!("{}, with it {} for prompts", self.label(), partner.name()),
            None => self.label(),
        }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        Some(self.gpu().capabilities().uuid)
    }

    fn reader(&self) -> Result<Option<Reader>, BackendError> {
        let name = self.label();
        let mut speed = ReadSpeed::new(&self.gpu()).map_err(|error| error.on(&name))?;
        Ok(Some(Box::new(move || speed.measure().map_err(|error| error.on(&name)))))
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        Ok(Box::new(VulkanProgram::load(self, model, plan, options, None)?))
    }

    fn load_beside(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
        aside: LoadAside<'_>,
    ) -> Result<Box<dyn Program>, BackendError> {
        Ok(Box::new(VulkanProgram::load(self, model, plan, options, Some(aside))?))
    }

    fn memory(&self) -> DeviceMemory {
        self.outline().memory(self.gpu().free_bytes())
    }

    fn most_rows(&self) -> Option<usize> {
        self.outline().most_rows()
    }

    fn most_context(&self) -> Option<usize> {
        self.outline().most_context()
    }

    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        self.outline().forecast(plan, options)
    }

    fn launches(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        workload: Workload,
    ) -> Result<usize, BackendError> {
        self.outline().launches(plan, options, workload)
    }

    fn explain(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        width: Width,
        is_lone: bool,
    ) -> Result<Option<String>, BackendError> {
        self.outline().explain(plan, options, width, is_lone).map(Some)
    }

    fn step_seconds(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        workload: Workload,
    ) -> Option<f64> {
        self.outline().step_seconds(plan, options, workload)
    }
}
