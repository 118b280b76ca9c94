//! The launches of all passes of a Program, before anything has an address.

use rayon::prelude::*;
use trine_backend::ProgramOptions;
use trine_model::Plan;

use super::graph::{Graph, Placement};
use super::loans::lent_keys;
use super::lower::lower_lent;
use super::passes::PassKey;
use super::selection::Selection;
use crate::error::GpuError;

/// The Plans of a Program.
#[derive(Clone, Copy)]
pub(super) struct Plans<'a> {
    pub(super) plan: &'a Plan,
    /// The Plan as it is lent to a partner, if it is.
    pub(super) lent: Option<&'a Plan>,
    pub(super) options: &'a ProgramOptions,
}

/// A pass's launches and the memory of their values.
pub(super) struct Lowered {
    pub(super) key: PassKey,
    /// How many rows that are no bulk rows a pass beside a partner has room for; `None` for a pass
    /// of the device alone.
    pub(super) exact: Option<usize>,
    pub(super) graph: Graph,
    pub(super) placement: Placement,
}

impl<'a> Plans<'a> {
    /// Returns the Plan of a pass.
    pub(super) fn of(&self, exact: Option<usize>) -> &'a Plan {
        exact.and(self.lent).unwrap_or(self.plan)
    }

    /// Returns the launches of a pass, beside a partner if it says how many rows are `exact`.
    ///
    /// # Errors
    /// If the Plan cannot be lowered.
    pub(super) fn lower(
        &self,
        key: PassKey,
        exact: Option<usize>,
        selection: &Selection,
    ) -> Result<Lowered, GpuError> {
        let graph = lower_lent(self.of(exact), key, exact.unwrap_or(0), selection)?;
        let placement = graph.place(selection.capabilities());
        Ok(Lowered { key, exact, graph, placement })
    }

    /// Returns the launches of the passes with these keys, and after them those of the passes
    /// beside the partner, if there is one.
    ///
    /// # Errors
    /// As [`Plans::lower`].
    pub(super) fn lower_all(
        &self,
        keys: Vec<PassKey>,
        selection: &Selection,
    ) -> Result<Vec<Lowered>, GpuError> {
        let beside = self.lent.map_or(Vec::new(), |_| lent_keys(&keys, self.options));
        let beside = beside.into_iter().map(|(key, exact)| (key, Some(exact)));
        let keys: Vec<_> = keys.into_iter().map(|key| (key, None)).chain(beside).collect();
        // Passes of deep models take long enough to be lowered by several threads. The first error
        // in their order counts.
        let lower = |(key, exact)| self.lower(key, exact, selection);
        let all: Vec<Result<Lowered, GpuError>> = keys.into_par_iter().map(lower).collect();
        all.into_iter().collect()
    }
}
