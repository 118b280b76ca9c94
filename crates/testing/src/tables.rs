//! Tables of which steps only look rows up.

use trine_backend::{BackendError, Device, DeviceMemory, Memory, Program, ProgramOptions};
use trine_model::{Model, Plan, gather};

/// A device that holds the tables of every Plan that it is given.
pub struct Holding<D>(pub D);

impl<D: Device> Device for Holding<D> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        self.0.load_plan(model, gather::hold(plan), options)
    }

    fn memory(&self) -> DeviceMemory {
        self.0.memory()
    }

    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        self.0.forecast(&gather::hold(plan.clone()), options)
    }
}
