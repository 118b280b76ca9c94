//! Guesses with a model that reads the caches and hidden states of the one it guesses for.

use trine_backend::{BackendError, Facts, Program, SequenceView};
use trine_model::Goal;

use super::{Ask, Drafter, Target};
use crate::kv::KvBooks;
use crate::rows::{BatchBuffers, StepLogits};
use crate::sampling::{SamplerState, Workspace};

/// Guesses with the draft of the Program that it guesses for: it has no Program and no caches of
/// its own, so a text is never read for it.
pub struct ReadingDrafter {
    rows: BatchBuffers,
    workspace: Workspace,
    /// The most sequences in a step.
    sequences: usize,
    /// Columns of logits and of hidden states.
    columns: [usize; 2],
    /// Hidden states of the rows of a step; kept for its memory.
    states: Vec<f32>,
    parties: Vec<Party>,
    /// Whether logits were not finite.
    is_broken: bool,
}

/// A sequence in a draft.
struct Party {
    /// Index in what is asked.
    ask: usize,
    /// The random numbers that the sequence will use.
    sampler: SamplerState,
    /// The hidden state for the next guess.
    state: Vec<f32>,
}

impl ReadingDrafter {
    /// Returns a drafter for a Program; `None` if its Plan has no draft.
    pub fn of(facts: &Facts) -> Option<Self> {
        let Facts { plan, options, .. } = facts;
        if !plan.has_goal(Goal::Draft) {
            return None;
        }
        let outputs = plan.outputs_of(Goal::Draft);
        let columns = [outputs[0], outputs[1]].map(|id| plan.buffer(id).columns);
        let sequences = options.sequences.min(options.width.tokens).min(options.width.outputs);
        Some(Self {
            rows: BatchBuffers::new(sequences, sequences, sequences),
            workspace: Workspace::new(columns[0]),
            sequences,
            columns,
            states: Vec::with_capacity(sequences * columns[1]),
            parties: Vec::with_capacity(sequences),
            is_broken: false,
        })
    }

    /// Collects the row of one guess for each party, and its hidden state.
    fn push_rows(&mut self, asks: &[Ask<'_>], guesses: &[Vec<u32>]) {
        self.rows.clear();
        self.states.clear();
        for (index, party) in self.parties.iter().enumerate() {
            let (ask, guessed) = (&asks[party.ask], &guesses[party.ask]);
            let Some(last) = guessed.last().or(ask.tokens.last()) else { continue };
            // All guesses stand where the first will; their rows look from the position before it.
            let position = ask.tokens.len() - 2;
            self.rows.push(index as u32, [&[*last], &[]], position, 1, false);
            self.states.extend_from_slice(&party.state);
        }
    }

    /// Runs one guess for each party and appends it.
    fn guess(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        guesses: &mut [Vec<u32>],
    ) -> Result<(), BackendError> {
        self.push_rows(asks, guesses);
        let Target { program, kv, .. } = target;
        let views = views(kv, &self.parties, asks);
        let step = self.rows.submit_with(&mut **program, views, Goal::Draft, &[&self.states])?;
        let Facts { plan, finds_top, .. } = program.facts();
        let (first, finds_top) = (plan.outputs_for(Goal::Draft).start, *finds_top);
        let results = program.wait(step)?;
        let mut logits = StepLogits::new(&mut *results, (first, self.columns[0]), finds_top);
        let mut found = Vec::with_capacity(self.parties.len());
        for (row, party) in self.parties.iter_mut().enumerate() {
            found.push(party.sampler.guess(&mut logits, row, &mut self.workspace)?);
        }
        let states = results.output(first + 1)?.chunks_exact(self.columns[1]);
        for ((party, guess), state) in self.parties.iter_mut().zip(&found).zip(states) {
            party.state.copy_from_slice(state);
            guesses[party.ask].extend(guess);
        }
        self.note(&mut **program, found.iter().all(Option::is_some));
        Ok(())
    }

    /// Appends up to `count` guesses for each party, which the device makes in one series. What a
    /// party asks for less than that costs next to nothing: it is left out.
    fn guess_series(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        guesses: &mut [Vec<u32>],
        count: usize,
    ) -> Result<(), BackendError> {
        self.push_rows(asks, guesses);
        let Target { program, kv, .. } = target;
        let views = views(kv, &self.parties, asks);
        let series = (Goal::Draft, count - 1);
        let step = self.rows.submit_series(&mut **program, views, series, &[&self.states])?;
        let chosen = program.wait(step)?.chosen()?;
        let mut are_numbers = true;
        for index in 0..self.parties.len() {
            let ask = self.parties[index].ask;
            let own = chosen.iter().skip(index).step_by(self.parties.len());
            for &guess in own.take(asks[ask].most) {
                are_numbers &= guess.is_some();
                // What the device went on with is no guess.
                let Some(guess) = guess else { break };
                guesses[ask].push(guess);
                if asks[ask].stop_ids.contains(&guess) {
                    break;
                }
            }
        }
        self.note(&mut **program, are_numbers);
        Ok(())
    }

    /// Warns of the first guesses of which one was not made because logits were not finite.
    fn note(&mut self, program: &mut dyn Program, are_numbers: bool) {
        if are_numbers {
            return;
        }
        // Taken each time, so that no error about the model tells of its draft.
        let place = program.overflow(Goal::Draft);
        if !std::mem::replace(&mut self.is_broken, true) {
            tracing::warn!(
                place,
                "the draft's logits are not finite, so it guesses nothing; its file may be \
                 damaged: download it again, or choose another with --draft"
            );
        }
    }

    /// Does the work of [`Drafter::draft`].
    fn try_draft(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        guesses: &mut [Vec<u32>],
    ) -> Result<(), BackendError> {
        self.parties.clear();
        for (index, ask) in asks.iter().enumerate().take(self.sequences) {
            if self.most(ask) > 0 {
                let (sampler, state) = (ask.sampler.clone(), ask.state.to_vec());
                self.parties.push(Party { ask: index, sampler, state });
            }
        }
        let deepest = self.parties.iter().map(|party| asks[party.ask].most).max().unwrap_or(0);
        let most = 1 + target.program.facts().series_for(Goal::Draft);
        if most > 1 && deepest > 0 && self.parties.iter().all(|p| p.sampler.guesses_largest()) {
            return self.guess_series(target, asks, guesses, deepest.min(most));
        }
        for depth in 0..deepest {
            self.parties.retain(|party| {
                let (ask, guesses) = (&asks[party.ask], &guesses[party.ask]);
                let is_end = guesses.last().is_some_and(|guess| ask.stop_ids.contains(guess));
                ask.most > depth && guesses.len() == depth && !is_end
            });
            if self.parties.is_empty() {
                break;
            }
            self.guess(target, asks, guesses)?;
        }
        Ok(())
    }
}

/// Returns where the sequences of a draft keep keys and values.
fn views<'a>(
    kv: &'a KvBooks,
    parties: &'a [Party],
    asks: &'a [Ask<'_>],
) -> impl Iterator<Item = SequenceView<'a>> {
    let slots = parties.iter().map(|party| asks[party.ask].slot);
    slots.map(|slot| SequenceView { slot: slot as u32, blocks: kv.blocks(slot) })
}

impl Drafter for ReadingDrafter {
    fn sequences(&self) -> usize {
        self.sequences
    }

    fn most(&self, ask: &Ask<'_>) -> usize {
        let is_ready = ask.state.len() == self.columns[1] && ask.tokens.len() > 1;
        if is_ready { ask.most } else { 0 }
    }

    fn draft(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        _readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        match self.try_draft(target, asks, guesses) {
            Ok(()) => Ok(0),
            // Nothing has changed a cache.
            Err(error @ (BackendError::Stopped | BackendError::BadBatch { .. })) => Err(error),
            Err(error) => {
                guesses.iter_mut().for_each(Vec::clear);
                target.failure = Some(error);
                Ok(0)
            }
        }
    }
}
