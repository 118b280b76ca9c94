//! Launches of what is lent to a partner (`trine_model::lend`), or is with another device
//! (`trine_model::aside`): rows go to the host, and what was computed comes back.

use super::values::{Touch, ValueId, read, write};

/// Work beside a partner.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LentWork {
    /// Rows are copied to where the host reads them, before those of the delegation that follows.
    Hand { source: ValueId, handed: ValueId },
    /// Rows are copied to where the host reads them. The partner begins when they are there.
    Delegate { source: ValueId, handed: ValueId },
    /// The host has written the partner's products. No launch: those that follow wait for it.
    Collect { results: Vec<ValueId> },
    /// Rows that are no bulk rows, which the device has computed, replace those of the partner.
    Amend { exact: ValueId, results: ValueId, amended: ValueId },
    /// The columns of one value or two, side by side.
    Join { parts: Vec<ValueId>, result: ValueId },
}

impl LentWork {
    /// Passes each value that is read or written to `see`, those that are read first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        match self {
            LentWork::Hand { source, handed } | LentWork::Delegate { source, handed } => {
                [read(*source), write(*handed)].into_iter().for_each(see);
            }
            LentWork::Collect { results } => results.iter().map(|&id| write(id)).for_each(see),
            LentWork::Amend { exact, results, amended } => {
                [read(*exact), read(*results), write(*amended)].into_iter().for_each(see);
            }
            LentWork::Join { parts, result } => {
                parts.iter().map(|&id| read(id)).chain([write(*result)]).for_each(see);
            }
        }
    }

    /// Returns what is launched.
    pub(super) fn name(&self) -> &'static str {
        match self {
            LentWork::Hand { .. } => "hand",
            LentWork::Delegate { .. } => "delegate",
            LentWork::Collect { .. } => "collect",
            LentWork::Amend { .. } => "amend",
            LentWork::Join { .. } => "join",
        }
    }
}
