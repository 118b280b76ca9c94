//! A device with memory that is set aside for something that is loaded later.

use trine_backend::{
    BackendError, Device, DeviceMemory, LoadAside, Members, Memory, Program, ProgramOptions,
};
use trine_model::{Model, Plan, Workload};

/// A device that says that it has less free memory than it has.
pub(crate) struct Reserved {
    device: Box<dyn Device>,
    bytes: u64,
}

impl Reserved {
    /// Sets `bytes` of a device's memory aside.
    pub(crate) fn new(device: Box<dyn Device>, bytes: u64) -> Self {
        Self { device, bytes }
    }
}

impl Device for Reserved {
    fn memory(&self) -> DeviceMemory {
        let memory = self.device.memory();
        DeviceMemory { free: memory.free.map(|free| free.saturating_sub(self.bytes)), ..memory }
    }

    fn name(&self) -> String {
        self.device.name()
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        self.device.load_plan(model, plan, options)
    }

    fn hands_over(&self) -> bool {
        self.device.hands_over()
    }

    fn load_beside(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
        aside: LoadAside<'_>,
    ) -> Result<Box<dyn Program>, BackendError> {
        self.device.load_beside(model, plan, options, aside)
    }

    fn adapt(&self, plan: Plan) -> Plan {
        self.device.adapt(plan)
    }

    fn most_rows(&self) -> Option<usize> {
        self.device.most_rows()
    }

    fn most_context(&self) -> Option<usize> {
        self.device.most_context()
    }

    fn members(&self) -> Option<Members<'_>> {
        self.device.members()
    }

    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        self.device.forecast(plan, options)
    }

    fn launches(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        workload: Workload,
    ) -> Result<usize, BackendError> {
        self.device.launches(plan, options, workload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of which only the memory counts.
    struct Small(Option<u64>);

    impl Device for Small {
        fn name(&self) -> String {
            "small".to_owned()
        }

        fn memory(&self) -> DeviceMemory {
            DeviceMemory::host(self.0)
        }

        fn load_plan(
            &self,
            _: &Model,
            _: Plan,
            _: &ProgramOptions,
        ) -> Result<Box<dyn Program>, BackendError> {
            Err(BackendError::Unsupported { device: self.name(), what: "nothing".to_owned() })
        }
    }

    #[test]
    fn what_is_set_aside_is_not_free() {
        let free = |free, bytes| Reserved::new(Box::new(Small(free)), bytes).memory().free;
        assert_eq!(free(Some(5000), 1200), Some(3800));
        assert_eq!(free(Some(5000), 9000), Some(0));
        assert_eq!(free(None, 9000), None);
    }
}
