//! What can go wrong on a device.

use thiserror::Error;
use trine_model::ModelError;
use trine_weights::WeightsError;

/// Why a device could not do what was asked.
#[derive(Debug, Error)]
pub enum BackendError {
    /// The batch breaks a rule. The engine is at fault, and nothing was run.
    #[error("bad batch: {what}")]
    BadBatch {
        /// The rule.
        what: String,
    },
    /// The device does not have enough memory.
    #[error(
        "{what} needs {needed} bytes, which {device} could not allocate; use a shorter --context \
         or a smaller model"
    )]
    OutOfMemory {
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        needed: u64,
        /// Name of the device.
        device: String,
    },
    /// The memory that keys and values may take does not hold those of one sequence.
    #[error(
        "the KV cache of one request of {positions} tokens takes {needed} bytes, more than the \
         {budget} that --kv-memory allows; give at least that, or a shorter --context"
    )]
    KvBudget {
        /// Positions of the sequence.
        positions: usize,
        /// Bytes that they take.
        needed: u64,
        /// The most bytes that all sequences may take.
        budget: u64,
    },
    /// The device cannot run a model of this kind.
    #[error("{device} cannot run this model: {what}")]
    Unsupported {
        /// Name of the device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// The device failed while running.
    #[error("{device} failed: {what}")]
    Failed {
        /// Name of the device.
        device: String,
        /// What happened.
        what: String,
    },
    /// The step was [stopped](crate::Program::stop_on) by the caller that waits for it.
    #[error("the step was stopped")]
    Stopped,
    /// The model file was cut short or replaced while it was in use.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The model could not be understood.
    #[error(transparent)]
    Model(#[from] ModelError),
}
