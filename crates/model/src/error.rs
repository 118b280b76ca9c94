//! Errors of opening a model.

use thiserror::Error;
use trine_weights::WeightsError;

/// Why a checkpoint is not a model that trine can run.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The files themselves could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The architecture is not one that trine knows.
    #[error(
        "unsupported architecture {found:?}; trine runs: {supported}. Use a model of these families; a draft of theirs goes to --draft"
    )]
    UnknownArchitecture {
        /// The architecture that the file states.
        found: String,
        /// The supported architectures.
        supported: &'static str,
    },
    /// A required hyper-parameter is absent.
    #[error(
        "{key} is missing from the model's configuration; the file is incomplete, fetch or convert it again"
    )]
    MissingKey {
        /// Name of the key as the file format spells it.
        key: String,
    },
    /// A hyper-parameter has a value that no model can have.
    #[error(
        "{key} is {found}, expected {expected}; the file is damaged or of an unsupported kind: fetch or convert the model again"
    )]
    BadValue {
        /// Name of the key as the file format spells it.
        key: String,
        /// The value found.
        found: String,
        /// The values that would be accepted.
        expected: String,
    },
    /// A draft was made for another model.
    #[error(
        "the draft has {what} {found}, the model {expected}: take the one that was made for this model"
    )]
    OtherDraft {
        /// What differs.
        what: String,
        /// That of the draft.
        found: String,
        /// That of the model.
        expected: String,
    },
    /// A tensor that the architecture needs is not in the files.
    #[error("tensor {name} is missing; the checkpoint is incomplete, fetch or convert it again")]
    MissingTensor {
        /// Name of the tensor as the file format spells it.
        name: String,
    },
    /// A tensor that the architecture needs is stored in a format that trine does not read.
    #[error(
        "tensor {name} is stored as {format}, which trine does not read; use the model's BF16, F16 or GGUF files"
    )]
    UnreadableTensor {
        /// Name of the tensor as the file format spells it.
        name: String,
        /// Format as the file names it.
        format: String,
    },
    /// The files hold more layers than the configuration says.
    #[error(
        "tensor {name} belongs to a layer beyond the {layers} of the configuration; tensors and configuration are not of the same model"
    )]
    ExtraLayer {
        /// Name of the tensor as the file spells it.
        name: String,
        /// Layers that the configuration asks for.
        layers: usize,
    },
    /// A tensor has another shape than the hyper-parameters say.
    #[error(
        "tensor {name} has shape {found:?}, the configuration asks for {expected:?}; \
         tensors and configuration are not of the same model"
    )]
    BadShape {
        /// Name of the tensor as the file spells it.
        name: String,
        /// Shape found, outermost dimension first.
        found: Vec<usize>,
        /// Expected shape, outermost dimension first.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a format that cannot serve its purpose.
    #[error(
        "tensor {name} is stored as {found}, but a norm has to be F32, F16 or BF16; convert the model again"
    )]
    BadDType {
        /// Name of the tensor.
        name: String,
        /// Block format found.
        found: &'static str,
    },
}

impl ModelError {
    /// Makes a [`ModelError::OtherDraft`] from anything printable.
    pub(crate) fn other_draft(
        what: impl ToString,
        found: impl ToString,
        expected: impl ToString,
    ) -> Self {
        ModelError::OtherDraft {
            what: what.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// Makes a [`ModelError::BadValue`] from anything printable.
    pub(crate) fn bad(key: &str, found: impl ToString, expected: impl ToString) -> Self {
        ModelError::BadValue {
            key: key.to_owned(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}
