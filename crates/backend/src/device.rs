//! A device as the engine sees it.

use trine_model::{Model, Plan, Width, Workload};

use crate::aside::LoadAside;
use crate::batch::ProgramOptions;
use crate::device_memory::DeviceMemory;
use crate::error::BackendError;
use crate::program::{Memory, Program};

/// How many layers go to the devices other than the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerChoice {
    /// As many as fit into their free memory, or fewer if they turn out to have less.
    Fitting,
    /// This number, or all if the model has fewer; it is an error if they do not fit. Without the
    /// processor the first device takes the others.
    Exactly(usize),
}

/// Devices that share a model.
pub struct Members<'a> {
    /// In the order in which they run layers; the processor comes first, if it takes part.
    pub devices: Vec<&'a dyn Device>,
    /// How many layers the devices after the processor take together.
    pub layers: LayerChoice,
}

/// Measures a streaming read of a device's memory, in bytes per second.
pub type Reader = Box<dyn FnMut() -> Result<f64, BackendError>>;

/// Something that runs Plans.
pub trait Device: Send + Sync {
    /// Returns its name and kind, for people: `cpu (avx2, 2 threads)`.
    fn name(&self) -> String;

    /// Returns the UUID of a GPU, which no other device of this machine has.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    /// Returns what measures reads of the device's memory; `None` if a processor reads it.
    ///
    /// # Errors
    /// [`BackendError`] if there is not enough memory to measure with, or the device fails.
    fn reader(&self) -> Result<Option<Reader>, BackendError> {
        Ok(None)
    }

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

    /// Does the same as [`Device::load_plan`] for a Plan some of whose experts are
    /// [aside](mod@trine_model::aside). `aside` loads what computes them.
    ///
    /// # Errors
    /// As [`Device::load_plan`], those of `aside`, and [`BackendError::Unsupported`] unless the
    /// device has such guests, as those do whose memory is not the processor's.
    fn load_beside(
        &self,
        _model: &Model,
        _plan: Plan,
        _options: &ProgramOptions,
        _aside: LoadAside<'_>,
    ) -> Result<Box<dyn Program>, BackendError> {
        let what = "it computes all experts itself".to_owned();
        Err(BackendError::Unsupported { device: self.name(), what })
    }

    /// Returns the device's present memory. Unless a device overrides this, it is the processor's
    /// memory, with an unknown amount free.
    fn memory(&self) -> DeviceMemory {
        DeviceMemory::host(None)
    }

    /// Returns the most rows in a step that suit the device, if that matters for its speed. Steps
    /// for pictures may have more ([`Bounds::unit`](crate::placement::Bounds::unit)).
    fn most_rows(&self) -> Option<usize> {
        None
    }

    /// Returns the most positions of a sequence that the device computes, if more than its memory
    /// bounds them.
    fn most_context(&self) -> Option<usize> {
        None
    }

    /// Returns the devices that this one stands for, if it stands for several.
    fn members(&self) -> Option<Members<'_>> {
        None
    }

    /// Returns the memory that a Program of the Plan would hold. Nothing is allocated.
    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        Memory::of_plan(plan, options)
    }

    /// Returns how many launches, each of which may wait for the one before, a step with the rows
    /// of `workload` would have in a Program of the Plan with these options. Unless a device
    /// overrides this, it runs the steps of a Plan one by one.
    ///
    /// # Errors
    /// [`BackendError`] if the device cannot run the Plan, or the options have no room for such a
    /// step.
    fn launches(
        &self,
        plan: &Plan,
        _options: &ProgramOptions,
        _workload: Workload,
    ) -> Result<usize, BackendError> {
        Ok(plan.steps.len())
    }

    /// Lists the launches of a step, for people. The step has `width.tokens` tokens, of which
    /// `width.outputs` have logits, in a Program of the Plan with these options; `is_lone` says
    /// that each token is of another sequence. `None` if the device runs the steps of a Plan one
    /// by one.
    ///
    /// # Errors
    /// As [`Device::launches`].
    fn explain(
        &self,
        _plan: &Plan,
        _options: &ProgramOptions,
        _width: Width,
        _is_lone: bool,
    ) -> Result<Option<String>, BackendError> {
        Ok(None)
    }

    /// Forecasts the seconds of a step with the rows of `workload` in a Program of the Plan with
    /// these options, from what is known of the device without a measurement; `None` if nothing is.
    fn step_seconds(
        &self,
        _plan: &Plan,
        _options: &ProgramOptions,
        _workload: Workload,
    ) -> Option<f64> {
        None
    }
}
