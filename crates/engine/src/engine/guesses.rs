//! Adds guesses to steps, and takes note of what became of them.

use trine_backend::Facts;

use super::Engine;
use super::drafting::Drafting;
use super::sequence::Sequence;
use crate::drafts::{Drafts, Target};
use crate::error::EngineError;

impl Engine {
    /// Sets what guesses tokens; without any, each step gives a sequence one token. Guesses change
    /// how fast tokens come, never which (`docs/decisions/034-drafts.md`), and take only rows that
    /// steps have free: the Program's most rows with logits bound them.
    pub fn set_drafts(&mut self, drafts: Drafts) {
        let guesses = drafts.lookup || drafts.drafter.is_some();
        let rows = self.most_rows();
        let (slots, vocabulary) = (self.places.len(), self.limits.vocabulary);
        let drafting = || Box::new(Drafting::new(drafts, slots, rows, vocabulary));
        self.drafting = guesses.then(drafting);
    }

    /// Sets how many guesses each sequence gets in every step, as far as rows are free: for
    /// measurements. `None`, the default, is as many as pay. What was learnt is kept.
    pub fn set_guesses(&mut self, guesses: Option<usize>) {
        if let Some(drafting) = &mut self.drafting {
            drafting.depths.fix(guesses);
        }
    }

    /// Returns the seconds of a step with this many sequences that decode without guesses; `None`
    /// if that is not known.
    pub(super) fn plain_seconds(&self, decodes: usize) -> Option<f64> {
        let seconds = self.drafting.as_ref()?.depths.step_seconds(decodes);
        (seconds > 0.0).then_some(seconds)
    }

    /// Adds guesses to the picks of decoding sequences. Steps with rows of prompts get none, so
    /// that these add what [`Pace`](crate::pace::Pace) expects. Returns the seconds that a drafter
    /// took.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the Program's device failed in a step of the drafter.
    pub(super) fn draft(&mut self) -> Result<f64, EngineError> {
        let rows = self.most_rows();
        let Some(drafting) = &mut self.drafting else { return Ok(0.0) };
        if self.picks.iter().any(|pick| pick.prefill) {
            return Ok(0.0);
        }
        let free = rows.saturating_sub(self.picks.len());
        let (context, clock) = (self.limits.context, self.clock.as_ref());
        let mut target = Target { program: self.program.as_mut(), kv: &self.kv, failure: None };
        let seconds =
            drafting.guess(&mut self.places, &self.picks, free, context, clock, &mut target);
        if let Some(failure) = target.failure {
            return Err(failure.into());
        }
        self.status.draft_seconds += seconds;
        self.status.draft_lost = drafting.has_lost_model();
        for pick in &mut self.picks {
            let guesses = self.places[pick.slot].running().map_or(0, |s| s.guesses().len());
            pick.rows += guesses;
            pick.outputs += guesses;
        }
        Ok(seconds)
    }

    /// Returns whether steps give hidden states that a drafter takes: not without one, nor once its
    /// weights are void.
    pub(super) fn takes_states(&self) -> bool {
        let has_drafter = || self.drafting.as_ref().is_some_and(|own| own.has_model());
        self.state_columns > 0 && has_drafter()
    }

    /// Returns the most rows of a step of which each has logits.
    fn most_rows(&self) -> usize {
        let Facts { options, mixed_rows, .. } = self.program.facts();
        options.width.outputs.min(*mixed_rows)
    }

    /// Drops all guesses of the picked step. Returns whether there were any.
    pub(super) fn drop_guesses(&mut self) -> bool {
        let mut had_some = false;
        for pick in &mut self.picks {
            let Some(sequence) = self.places[pick.slot].running_mut() else { continue };
            let guesses = sequence.guesses().len();
            pick.rows -= guesses;
            pick.outputs -= guesses;
            had_some |= sequence.drop_guesses();
        }
        had_some
    }

    /// Learns from a step that has landed. `plain` are its rows and its time in seconds, `None` if
    /// it had rows of prompts.
    pub(super) fn note_guesses(&mut self, plain: Option<(usize, f64)>) {
        let Some(drafting) = &mut self.drafting else { return };
        if let Some((rows, busy)) = plain {
            drafting.depths.note_step(rows, busy);
        }
        for (pick, landed) in self.picks.iter().zip(&self.landings) {
            let Some(sequence) = self.places[pick.slot].running_mut() else { continue };
            drafting.note(sequence, landed);
            self.status.drafts += u64::from(landed.guessed > 0);
            self.status.drafted_tokens += landed.guessed as u64;
            self.status.accepted_tokens += landed.confirmed as u64;
        }
    }

    /// Keeps the answer of a sequence that has ended, if there is one, for guesses.
    pub(super) fn learn(&mut self, sequence: &Sequence) {
        if sequence.is_silent() {
            return;
        }
        let lookup = self.drafting.as_mut().and_then(|drafting| drafting.lookup.as_mut());
        if let Some(lookup) = lookup {
            lookup.learn(sequence.scope, &sequence.tokens, sequence.prompt);
        }
    }

    /// Gives back what is kept to guess for the sequence in a slot.
    pub(super) fn stop_guessing(&mut self, slot: usize) {
        if let Some(sequence) = self.places[slot].running_mut() {
            sequence.drop_guesses();
        }
        let lookup = self.drafting.as_mut().and_then(|drafting| drafting.lookup.as_mut());
        if let Some(lookup) = lookup {
            lookup.end(slot);
        }
    }
}

#[cfg(test)]
mod tests;
