//! A device as the engine sees it.

use trine_model::{Model, Plan};

use crate::batch::ProgramOptions;
use crate::device_memory::{DeviceMemory, MemoryKind};
use crate::error::BackendError;
use crate::program::{Memory, Program};

/// How many layers go to the devices that are not the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerChoice {
    /// As many as fit into their free memory, fewer where they turn out to have less.
    Fitting,
    /// This number, or all where the model has fewer; if they do not fit, that is an error. Without
    /// the processor the first device takes the others.
    Exactly(usize),
}

/// Devices that share a model.
pub struct Members<'a> {
    /// In the order in which they run layers; the processor comes first, if it takes part.
    pub devices: Vec<&'a dyn Device>,
    /// How many layers those after the processor take together.
    pub layers: LayerChoice,
}

/// Something that runs Plans.
pub trait Device {
    /// Name and kind, for people: `cpu (avx2, 2 threads)`.
    fn name(&self) -> String;

    /// Binds a Plan of a model to this device: uploads or repacks weights, allocates caches and
    /// scratch memory. Nothing is allocated after that.
    ///
    /// # Errors
    /// [`BackendError`] if memory runs out or the device cannot run the model.
    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError>;

    /// Binds the model's own Plan, as [`Device::load_plan`] does.
    ///
    /// # Errors
    /// As [`Device::load_plan`].
    fn load(
        &self,
        model: &Model,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        self.load_plan(model, model.plan(), options)
    }

    /// Returns the device's memory as it is. The processor's, of which nobody knows how much is
    /// free, unless a device says otherwise.
    fn memory(&self) -> DeviceMemory {
        DeviceMemory { kind: MemoryKind::Host, free: None }
    }

    /// Returns the most rows in a step that suit the device, if that matters for its speed.
    fn most_rows(&self) -> Option<usize> {
        None
    }

    /// Returns the devices that this one stands for, if it stands for several.
    fn members(&self) -> Option<Members<'_>> {
        None
    }

    /// Memory that a Program of the Plan would hold. Nothing is allocated.
    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        Memory::of_plan(plan, options)
    }
}
