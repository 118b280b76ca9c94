//! Work beside a guest (`trine_model::away`) that no kernel describes.

use super::values::{Touch, ValueId, read, write};

/// Work beside a guest.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LentWork {
    /// The host has written the guest's results. No launch: those that follow wait for it.
    Collect { results: Vec<ValueId> },
    /// Rows that are no bulk rows, which the device has computed, replace those of the partner.
    Amend { exact: ValueId, results: ValueId, amended: ValueId },
}

impl LentWork {
    /// Passes each value that is read or written to `see`, those that are read first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        match self {
            LentWork::Collect { results } => results.iter().map(|&id| write(id)).for_each(see),
            LentWork::Amend { exact, results, amended } => {
                [read(*exact), read(*results), write(*amended)].into_iter().for_each(see);
            }
        }
    }

    /// Returns what is launched.
    pub(super) fn name(&self) -> &'static str {
        match self {
            LentWork::Collect { .. } => "collect",
            LentWork::Amend { .. } => "amend",
        }
    }
}
