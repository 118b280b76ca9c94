//! What can be wrong with tools.

use thiserror::Error;

/// A problem of tools, their choice, or the messages that name them.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{param}: {problem}")]
pub struct ToolError {
    /// The field at fault, such as `tools[2].function.name`.
    pub param: String,
    /// The problem, and what to write instead.
    pub problem: String,
}

impl ToolError {
    pub(super) fn new(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { param: param.into(), problem: problem.into() }
    }
}
