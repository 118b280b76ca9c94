//! What clients are told of errors of the store.

use trine_hub::HubError;
use trine_server::{LibraryError, Refusal};

/// Turns an error of the store into one for clients. Paths go only to the log.
pub(super) fn told(error: HubError) -> LibraryError {
    let refusal = match &error {
        HubError::InvalidName { .. }
        | HubError::InvalidPreset { .. }
        | HubError::Ambiguous { .. }
        | HubError::NoMatch { .. }
        | HubError::Unusable { .. } => Refusal::Invalid,
        HubError::RepositoryNotFound { .. }
        | HubError::FileNotFound { .. }
        | HubError::NotLocal { .. } => Refusal::Unknown,
        HubError::Cancelled => Refusal::Cancelled,
        HubError::Refused { reason, .. } => {
            tracing::warn!(%error, "refused");
            return LibraryError::new(Refusal::Busy, format!("it is not removed: {reason}"));
        }
        HubError::File { .. } | HubError::NoSpace { .. } => {
            tracing::error!(%error, "the folder of downloaded models failed");
            let message = "the folder of downloaded models cannot be read or written; the server's \
                log says why";
            return LibraryError::new(Refusal::Failed, message);
        }
        _ => Refusal::Failed,
    };
    LibraryError::new(refusal, error.to_string())
}
