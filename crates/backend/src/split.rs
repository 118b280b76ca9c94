//! Two devices that share a model: the first layers on one, the rest and the output matrix on the other.

use trine_model::{Model, Plan, cut};

use crate::batch::ProgramOptions;
use crate::device::Device;
use crate::error::BackendError;
use crate::parts::Parts;
use crate::program::Program;

/// What is tried where the second device has less memory than it said, in eighths of the layers that should have fitted.
const ATTEMPTS: [usize; 5] = [7, 6, 4, 2, 0];

/// How many layers the second device gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerChoice {
    /// As many as fit into its free memory, fewer where it turns out to have less.
    Fitting,
    /// This number, or all where the model has fewer; if they do not fit, that is an error.
    Exactly(usize),
}

/// Two devices that share a model where the second one has no room for all of it.
///
/// A model that only the second device holds is loaded there as if there were no other, one of which it holds no layer
/// is loaded on the first. What is between is cut in two: see [`cut`](mod@cut).
pub struct SplitDevice {
    first: Box<dyn Device>,
    second: Box<dyn Device>,
    choice: LayerChoice,
}

impl SplitDevice {
    /// The embedding and the first layers go to `first`, the rest to `second`.
    pub fn new(first: Box<dyn Device>, second: Box<dyn Device>, choice: LayerChoice) -> Self {
        Self { first, second, choice }
    }

    /// The most layers of a Plan that fit into the second device's free memory together with the output matrix.
    fn fitting(&self, plan: &Plan, options: &ProgramOptions) -> usize {
        let Some(free) = self.second.free_memory() else { return plan.layers() };
        cut::last_layers_that_fit(plan, |part| self.second.forecast(part, options).total() <= free)
    }

    /// Loads a Plan with `layers` layers on the second device.
    fn load_with(
        &self,
        model: &Model,
        plan: &Plan,
        options: &ProgramOptions,
        layers: usize,
    ) -> Result<Box<dyn Program>, Failure> {
        let all = plan.layers();
        if layers >= all {
            return self.second.load_plan(model, plan.clone(), options).map_err(Failure::Second);
        }
        if layers == 0 {
            return self.first.load_plan(model, plan.clone(), options).map_err(Failure::First);
        }
        let Some([first, second]) = cut::cut(plan, all - layers) else {
            let what = format!("it cannot be cut after layer {}", all - layers);
            let device = format!("{} with {}", self.first.name(), self.second.name());
            return Err(Failure::First(BackendError::Unsupported { device, what }));
        };
        // The device that may have too little memory comes first: the other one's work would be for nothing.
        let free = [self.first.free_memory(), self.second.free_memory()];
        let second = self.second.load_plan(model, second, options).map_err(Failure::Second)?;
        let first = self.first.load_plan(model, first, &without_outputs(options));
        let parts = vec![first.map_err(Failure::First)?, second];
        let vocabulary = model.config().vocabulary;
        Ok(Box::new(Parts::new(plan, parts, *options, vocabulary, &free)))
    }
}

/// Whose failure it is.
enum Failure {
    First(BackendError),
    Second(BackendError),
}

/// What the first part is made for: its rows go on to the second, and only that one knows whose logits are wanted.
fn without_outputs(options: &ProgramOptions) -> ProgramOptions {
    let mut options = *options;
    options.width.outputs = 0;
    options
}

impl Device for SplitDevice {
    fn name(&self) -> String {
        format!("{}, beside it {}", self.second.name(), self.first.name())
    }

    fn own_memory(&self) -> u64 {
        self.first.own_memory().saturating_add(self.second.own_memory())
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        let (wanted, attempts) = match self.choice {
            LayerChoice::Fitting => (self.fitting(&plan, options), &ATTEMPTS[..]),
            LayerChoice::Exactly(layers) => (layers.min(plan.layers()), &ATTEMPTS[..0]),
        };
        let mut layers = wanted;
        let mut fewer = attempts.iter().map(|eighths| wanted * eighths / 8);
        loop {
            match self.load_with(model, &plan, options, layers) {
                Err(Failure::Second(error @ BackendError::OutOfMemory { .. })) => {
                    if self.choice != LayerChoice::Fitting {
                        // Not as missing memory, for which others try a shorter context: somebody asked for just this.
                        let what = format!("{layers} of its layers do not fit: {error}");
                        let device = self.second.name();
                        return Err(BackendError::Unsupported { device, what });
                    }
                    let Some(next) = fewer.find(|next| *next < layers) else { return Err(error) };
                    tracing::warn!(
                        "{} has less free memory than it says: {layers} layers do not fit, {next} are tried",
                        self.second.name()
                    );
                    layers = next;
                }
                Ok(program) => {
                    if layers == 0 && plan.layers() > 0 && self.choice == LayerChoice::Fitting {
                        tracing::warn!(
                            "no layer fits into the free memory of {}: {} runs the whole model",
                            self.second.name(),
                            self.first.name()
                        );
                    }
                    return Ok(program);
                }
                Err(Failure::First(error) | Failure::Second(error)) => return Err(error),
            }
        }
    }
}
