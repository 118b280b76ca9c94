//! What a tower is given, and what runs it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thiserror::Error;
use trine_backend::{BackendError, TowerProgram};

/// A picture as a vision tower reads it.
#[derive(Clone, PartialEq)]
pub struct TowerInput {
    /// The digest of its pixels and of how they were prepared. Pictures with equal ones have equal
    /// patches.
    pub digest: [u8; 32],
    /// (patches, values of a patch), row by row of the picture.
    pub patches: Vec<f32>,
    /// Columns and rows of its patches.
    pub grid: (usize, usize),
    /// The number of rows that the tower makes of it, at least one.
    pub soft_tokens: usize,
}

impl std::fmt::Debug for TowerInput {
    /// Does not print the patches, which are many and belong to somebody.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("TowerInput");
        shown.field("grid", &self.grid).field("soft_tokens", &self.soft_tokens);
        shown.finish_non_exhaustive()
    }
}

/// Makes rows of pictures: a vision tower with its device.
pub trait RunsTower: Send {
    /// Returns the rows of a picture: (soft tokens, hidden size of the text model), row by row of
    /// the picture.
    ///
    /// # Errors
    /// Returns [`BackendError`] if the picture does not fit the tower or the device failed.
    fn rows(&mut self, picture: &TowerInput) -> Result<Vec<f32>, BackendError>;

    /// Says where values first were not finite in the last run, whose rows are not.
    fn overflow(&mut self) -> String {
        "it is not known where".to_owned()
    }

    /// Sets the flag that stops the next run on the way, before each run
    /// ([`Program::stop_on`](trine_backend::Program::stop_on)).
    fn stop_on(&mut self, _stop: Arc<AtomicBool>) {}
}

impl RunsTower for TowerProgram {
    fn rows(&mut self, picture: &TowerInput) -> Result<Vec<f32>, BackendError> {
        Ok(self.run(&picture.patches, picture.grid)?.rows)
    }

    fn overflow(&mut self) -> String {
        TowerProgram::overflow(self)
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        TowerProgram::stop_on(self, stop);
    }
}

/// Why a picture has no rows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PictureError {
    /// The tower or its device failed.
    #[error("the vision tower failed: {what}")]
    Failed {
        /// What the device says.
        what: String,
    },
    /// The tower made rows of another number.
    #[error("the vision tower made {found} values for {soft_tokens} soft tokens")]
    OtherRows {
        /// Values that it made.
        found: usize,
        /// Rows that were expected.
        soft_tokens: usize,
    },
    /// The tower made values that are infinite or not numbers.
    #[error(
        "the vision tower made values that are not finite ({place}); its file is damaged or its \
         values overflow"
    )]
    NotFinite {
        /// Where values first were not finite.
        place: String,
    },
    /// The tower was stopped before it came to the picture.
    #[error("the vision tower was stopped")]
    Stopped,
}
