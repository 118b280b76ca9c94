//! The run of draws on a device.

use trine_backend::sampling::{Draw, Drawn, NoToken};

use super::bound::{Bound, Track};
use super::sampler::Sampler;
use crate::error::GpuError;

impl Bound {
    /// Draws from rows of an output of the pass that ran last, and appends what was drawn. Returns
    /// whether it has: otherwise the host has to.
    pub(super) fn draw(
        &mut self,
        (track, index): (Track, usize),
        vocabulary: usize,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<bool, GpuError> {
        let Some((sampler, logits)) = self.sampler_of((track, index), vocabulary)? else {
            return Ok(false);
        };
        sampler.draw(logits, draws, drawn)?;
        Ok(true)
    }

    /// Begins to draw from rows of an output of a pass that was begun, right after it.
    /// [`Bound::end_draws`] has to follow.
    pub(super) fn begin_draws(
        &mut self,
        (track, index): (Track, usize),
        vocabulary: usize,
        draws: &[Draw],
    ) -> Result<(), GpuError> {
        // What the host has to submit yet would come after the draws.
        if draws.is_empty() || !self.is_submitted(track) {
            return Ok(());
        }
        match self.sampler_of((track, index), vocabulary)? {
            Some((sampler, logits)) => sampler.begin(logits, draws),
            None => Ok(()),
        }
    }

    /// Ends what [`Bound::begin_draws`] began with the same draws, and appends what was drawn.
    /// Returns how many draws that are, from the first on.
    pub(super) fn end_draws(
        &mut self,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<usize, GpuError> {
        self.sampler.as_mut().map_or(Ok(0), |sampler| sampler.finish(draws, drawn))
    }

    /// Returns what draws from an output of a pass, and the address of its logits; `None` if the
    /// host has to draw.
    fn sampler_of(
        &mut self,
        (Track { pass, side }, index): (Track, usize),
        vocabulary: usize,
    ) -> Result<Option<(&mut Sampler, u64)>, GpuError> {
        let fetch = self.passes[pass].sides[side].fetch[index].as_ref();
        let logits =
            fetch.map_or_else(|| self.outputs[index].address(), |copy| copy.from.address());
        let sampler = self.sampler.as_mut().filter(|own| own.vocabulary() == vocabulary);
        let Some(sampler) = sampler else { return Ok(None) };
        Ok(sampler.is_right(&self.gpu)?.then_some((sampler, logits)))
    }
}
