//! Devices that leave experts to others, or have less memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use trine_backend::{
    Aside, BackendError, Device, DeviceMemory, Memory, MemoryKind, Program, ProgramOptions,
};
use trine_model::{Model, Plan, aside};

/// A device that leaves the experts of its first layers to another one.
pub struct Beside {
    pub own: Box<dyn Device>,
    pub other: Box<dyn Device>,
    /// How many layers with experts these are.
    pub layers: usize,
}

impl Device for Beside {
    fn name(&self) -> String {
        format!("{} beside {}", self.own.name(), self.other.name())
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        let plan = aside::set_aside(&plan, self.layers);
        let Some(others) = aside::others(&plan) else {
            return self.own.load_plan(model, plan, options);
        };
        let sizes = Aside::sizes(options);
        let load = || {
            let memory = self.other.memory();
            Ok(Aside::new(self.other.load_plan(model, others, &sizes)?, memory))
        };
        self.own.load_beside(model, plan, options, Box::new(load))
    }

    fn memory(&self) -> DeviceMemory {
        self.own.memory()
    }
}

/// A device with memory of its own.
pub struct Small {
    pub device: Box<dyn Device>,
    /// The bytes that it says are free.
    pub free: Option<u64>,
    /// The bytes that are free.
    pub has: u64,
    /// How many Plans it was asked to load.
    pub loads: Arc<AtomicUsize>,
}

impl Small {
    fn check(&self, plan: &Plan, options: &ProgramOptions) -> Result<(), BackendError> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let needed = self.forecast(plan, options).total();
        let (what, device) = ("weights".to_owned(), self.name());
        match needed > self.has {
            true => Err(BackendError::OutOfMemory { what, needed, device }),
            false => Ok(()),
        }
    }
}

impl Device for Small {
    fn name(&self) -> String {
        "small".to_owned()
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        self.check(&plan, options)?;
        self.device.load_plan(model, plan, options)
    }

    fn load_beside(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
        aside: trine_backend::LoadAside<'_>,
    ) -> Result<Box<dyn Program>, BackendError> {
        self.check(&plan, options)?;
        self.device.load_beside(model, plan, options, aside)
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory { kind: MemoryKind::Own, free: self.free, largest_buffer: None }
    }

    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        self.device.forecast(plan, options)
    }
}
