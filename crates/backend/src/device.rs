//! A device as the engine sees it.

use trine_model::{Model, Plan, Scratch, WeightPlace};

use crate::batch::ProgramOptions;
use crate::error::BackendError;
use crate::program::{Memory, Program};

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

    /// Bytes that Programs can take of the device's memory as it is: what is free, less a reserve. None where nobody tells.
    fn free_memory(&self) -> Option<u64> {
        None
    }

    /// The part of [`Device::free_memory`] that is the device's own: 0 for a device that works from the processor's memory.
    fn own_memory(&self) -> u64 {
        0
    }

    /// Memory that a Program of the Plan would hold. Nothing is allocated.
    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        Memory {
            weights: plan.bytes_at(WeightPlace::Device),
            mapped: plan.bytes_at(WeightPlace::File),
            caches: plan.caches.iter().map(|cache| options.cache_bytes(cache)).sum(),
            scratch: Scratch::place(plan, options.width).bytes as u64,
        }
    }
}
