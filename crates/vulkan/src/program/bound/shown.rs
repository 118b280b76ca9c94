//! The passes of a Program as tuning sees them.

use std::cell::RefCell;

use super::{Pass, ShownPasses};
use crate::chain::Order;
use crate::error::GpuError;
use crate::program::emit::{Emitted, Emitter};
use crate::program::lowered::Lowered;
use crate::program::passes::survey_order;
use crate::program::rehearsal::Rehearsals;
use crate::program::tuning::{Passes, Shapes, Survey};

/// Launches of a kernel in the beginning of a step that is run for its time: more layers would
/// only take longer, and the weights of fewer would fit into a cache.
const LAUNCHES: usize = 12;

impl ShownPasses<'_> {
    /// Calls a function with a pass, by its number in their order: those of one row come first,
    /// then those of the longest prompts. Returns `None` if there are not as many.
    fn with<T>(
        &self,
        number: usize,
        call: impl FnOnce(&Lowered) -> Result<T, GpuError>,
    ) -> Result<Option<T>, GpuError> {
        let Self { binding, bound, graphs } = self;
        let most = binding.options.width.tokens;
        if let Some(graphs) = graphs {
            let keys = graphs.iter().map(|lowered| (lowered.key, lowered.exact));
            let at = survey_order(keys, most).get(number).map(|&(at, _)| at);
            return at.map(|at| call(&graphs[at])).transpose();
        }
        let keys = bound.passes.iter().map(|pass| (pass.key, pass.exact));
        let Some(&(_, (key, exact))) = survey_order(keys, most).get(number) else {
            return Ok(None);
        };
        call(&binding.plans().lower(key, exact, &bound.selection)?).map(Some)
    }
}

impl Passes for ShownPasses<'_> {
    fn show(&self, number: usize, survey: &RefCell<Survey>) -> Result<bool, GpuError> {
        let show = |lowered: &Lowered| {
            let emitter = self.binding.emitter(self.bound, lowered, 0);
            Emitter { survey: Some(survey), ..emitter }.survey()
        };
        Ok(self.with(number, show)?.is_some())
    }

    fn rehearsals(
        &self,
        number: usize,
        key: &str,
        trials: usize,
    ) -> Result<Option<Rehearsals>, GpuError> {
        let Self { binding, bound, .. } = self;
        let make = |lowered: &Lowered| {
            let Lowered { key: pass, exact, .. } = *lowered;
            let is_step = pass.width.tokens == 1 && exact.is_none();
            // One whose chains broke was recorded again without them.
            let is_recorded = |own: &&Pass| own.key == pass && own.exact == exact;
            let was_chained =
                bound.passes.iter().find(is_recorded).is_none_or(|own| own.has_chains());
            let has_chains = bound.order != Order::Barriers && binding.suits_chains(lowered);
            if !(is_step && has_chains && was_chained) {
                return Ok(None);
            }
            let survey = RefCell::new(Survey::watching(&bound.gpu, key));
            let watched = Emitter { survey: Some(&survey), ..binding.emitter(bound, lowered, 0) };
            let Some(nodes) = watched.nodes_with_launches(LAUNCHES)? else { return Ok(None) };
            let (plan, options, counters) = (binding.plan, binding.options, bound.zero_between());
            let sizes = (nodes, trials);
            Rehearsals::new(&bound.gpu, plan, options, pass, counters, sizes).map(Some)
        };
        Ok(self.with(number, make)?.flatten())
    }

    fn rehearse(
        &self,
        number: usize,
        shapes: Shapes,
        rehearsals: &mut Rehearsals,
    ) -> Result<bool, GpuError> {
        let Self { binding, bound, .. } = self;
        let record = |lowered: &Lowered| {
            let selection = bound.selection.tuned(shapes);
            let emitter = Emitter {
                selection: &selection,
                frame: rehearsals.frame(),
                caches: rehearsals.caches(),
                ..binding.emitter(bound, lowered, 0)
            };
            let Emitted { dispatches, .. } = emitter.emit_first(rehearsals.nodes)?;
            let cuts = binding.cuts(binding.plan, lowered.key, &dispatches, &bound.gpu);
            rehearsals.record(dispatches, bound.fresh(lowered), cuts)
        };
        Ok(self.with(number, record)?.unwrap_or(false))
    }
}
