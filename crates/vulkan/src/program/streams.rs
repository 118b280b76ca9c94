//! Launches over several rows at once: weighted sums, mixes of streams, and mixes with a router.

use trine_model::WeightId;

use super::values::{Made, Touch, ValueId, read, write};

/// A norm of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowNorm {
    pub(super) weight: WeightId,
    pub(super) epsilon: f32,
}

/// A term of a sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SumTerm {
    pub(super) values: ValueId,
    pub(super) factor: f32,
    /// The shares with which the parts of a row are added: `values` has one for each column of
    /// these. Otherwise a row is one part.
    pub(super) shares: Option<ValueId>,
    /// Its norm is added.
    pub(super) norm: Option<RowNorm>,
}

impl SumTerm {
    /// A term of whole rows.
    pub(super) fn of(values: ValueId, factor: f32) -> Self {
        Self { values, factor, shares: None, norm: None }
    }
}

/// What the norm of a sum is added to, before the factor `scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SumAdd {
    pub(super) norm: RowNorm,
    pub(super) target: ValueId,
    pub(super) scale: f32,
}

/// A weighted sum.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SumWork {
    pub(super) terms: Vec<SumTerm>,
    /// If there is one, the result is `(target + norm(sum)) * scale`.
    pub(super) added: Option<SumAdd>,
    pub(super) result: ValueId,
    /// The norm of the result, if the launch gives it too.
    pub(super) norm: Option<(RowNorm, Made)>,
}

/// A stream before and after a mix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StreamValues {
    pub(super) input: ValueId,
    pub(super) output: ValueId,
}

/// Streams to which sources are added with coefficients of each row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MixWork {
    pub(super) streams: Vec<StreamValues>,
    pub(super) sources: Vec<ValueId>,
    pub(super) coefficients: ValueId,
    pub(super) bias: f32,
    pub(super) scale: f32,
}

/// What makes coefficients of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RouterWork {
    pub(super) norm: RowNorm,
    pub(super) router: WeightId,
    pub(super) cap: f32,
    pub(super) coefficients: WeightId,
}

/// What is made of the first stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum First {
    Normed(RowNorm, Made),
    Scaled(WeightId, Made),
}

impl First {
    /// Returns the forms in which the result is made.
    pub(super) fn made(&mut self) -> &mut Made {
        match self {
            First::Normed(_, made) | First::Scaled(_, made) => made,
        }
    }
}

/// A mix with a router, in place. The sources are the streams, of which the first is routed; or the
/// source is the distance of `row`, which is routed, from the first stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RouteWork {
    pub(super) streams: Vec<StreamValues>,
    pub(super) row: Option<ValueId>,
    /// What is normed and added before: to `row`, or else to all streams but the first.
    pub(super) added: Option<(ValueId, RowNorm)>,
    pub(super) router: RouterWork,
    pub(super) bias: f32,
    pub(super) scale: f32,
    pub(super) first: Option<First>,
}

impl SumWork {
    /// Passes each value that the launch reads or writes to `see`, those that it reads first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        for term in &self.terms {
            see(read(term.values));
            term.shares.iter().for_each(|shares| see(read(*shares)));
        }
        self.added.iter().for_each(|added| see(read(added.target)));
        see(write(self.result));
        self.norm.iter().for_each(|(_, made)| made.touches(see));
    }

    /// Returns its norms.
    pub(super) fn norms(&self) -> impl Iterator<Item = RowNorm> + '_ {
        let terms = self.terms.iter().filter_map(|term| term.norm);
        let added = self.added.map(|added| added.norm);
        terms.chain(added).chain(self.norm.map(|(norm, _)| norm))
    }

    /// Returns the weights that it reads.
    pub(super) fn weights(&self) -> Vec<WeightId> {
        self.norms().map(|norm| norm.weight).collect()
    }
}

impl MixWork {
    /// Passes each value that the launch reads or writes to `see`, those that it reads first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        self.streams.iter().for_each(|stream| see(read(stream.input)));
        self.sources.iter().for_each(|&source| see(read(source)));
        see(read(self.coefficients));
        self.streams.iter().for_each(|stream| see(write(stream.output)));
    }
}

impl RouteWork {
    /// Passes each value that the launch reads or writes to `see`, those that it reads first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        self.streams.iter().for_each(|stream| see(read(stream.input)));
        self.row.into_iter().for_each(|row| see(read(row)));
        self.added.iter().for_each(|(added, _)| see(read(*added)));
        self.streams.iter().for_each(|stream| see(write(stream.output)));
        let mut first = self.first;
        first.iter_mut().for_each(|first| first.made().touches(see));
    }

    /// Returns the weights that it reads.
    pub(super) fn weights(&self) -> Vec<WeightId> {
        let RouterWork { norm, router, coefficients, .. } = self.router;
        let added = self.added.map(|(_, norm)| norm.weight);
        let first = self.first.map(|first| match first {
            First::Normed(norm, _) => norm.weight,
            First::Scaled(weight, _) => weight,
        });
        added.into_iter().chain([norm.weight, router, coefficients]).chain(first).collect()
    }
}
