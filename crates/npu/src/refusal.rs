//! Why a stream may not be submitted.

use std::fmt;

use thiserror::Error;

use crate::tile::Tile;

/// A stream was not proven safe.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct Refusal {
    /// The operation, from 0, and where it begins in the stream's file, in bytes.
    pub operation: Option<(usize, usize)>,
    /// The tile that the operation is about.
    pub tile: Option<Tile>,
    /// What is wrong.
    pub problem: String,
    /// What can be done.
    pub remedy: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((index, offset)) = self.operation {
            write!(f, "operation {index} at byte {offset}")?;
            if let Some(tile) = self.tile {
                write!(f, ", {tile}")?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}. {}", self.problem, self.remedy)
    }
}

/// A problem whose place is not known yet.
#[derive(Debug)]
pub(crate) struct Problem {
    /// The operation at fault, if it is not the present one.
    pub(crate) operation: Option<usize>,
    pub(crate) problem: String,
    pub(crate) remedy: &'static str,
}

/// Advice for streams that were made for something else or are damaged.
pub(crate) const REBUILD: &str = "Fetch or build the stream again";
/// Advice for streams that use what the proof does not cover.
pub(crate) const UNSUPPORTED: &str =
    "Build the stream with plain descriptors, patches, tasks and waits";

impl Problem {
    pub(crate) fn new(problem: impl Into<String>, remedy: &'static str) -> Self {
        Self { operation: None, problem: problem.into(), remedy }
    }
}
