//! One pass through the device.

use trine_backend::{BackendError, SequenceView};

use super::Engine;
use super::rows::RowLogits;
use super::sequence::Sequence;
use crate::error::EngineError;
use crate::request::{Event, Finish};
use crate::scheduler::Pick;

impl Engine {
    /// Writes the picked rows into the buffers, bulk rows after the others.
    pub(super) fn gather(&mut self) {
        let (places, kv) = (&self.places, &self.kv);
        let is_bulk = |pick: &Pick| {
            let position = kv.length(pick.slot);
            places[pick.slot].running().is_some_and(|sequence| sequence.is_bulk(position))
        };
        // Stable: in order of rank within each kind.
        self.picks.sort_by_key(is_bulk);
        self.rows.clear();
        for (index, pick) in self.picks.iter().enumerate() {
            let first = self.kv.length(pick.slot);
            let tokens = &self.places[pick.slot].tokens()[first..first + pick.rows];
            self.rows.push(index as u32, tokens, first, pick.outputs, is_bulk(pick));
        }
    }

    /// Runs the picked rows and samples. What it means for each sequence is left in `outcomes`.
    pub(super) fn run_and_sample(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let (kv, places) = (&self.kv, &self.places);
        let views = self
            .picks
            .iter()
            .map(|pick| SequenceView { slot: pick.slot as u32, blocks: kv.blocks(pick.slot) });
        let takes_top = self
            .picks
            .iter()
            .filter(|pick| pick.outputs > 0)
            .all(|pick| places[pick.slot].running().is_some_and(Sequence::takes_top));
        let logits = self.rows.run(self.program.as_mut(), views, takes_top)?;
        let mut logits = logits.rows(self.limits.vocabulary);
        self.outcomes.clear();
        for pick in &self.picks {
            self.kv.advance(pick.slot, pick.rows);
            let length = self.kv.length(pick.slot);
            let sequence =
                self.places[pick.slot].running_mut().expect("a picked slot has a sequence");
            if pick.prefill {
                events.extend(sequence.progress(length));
            }
            let is_whole = length == sequence.tokens.len();
            let mut outcome = match is_whole {
                false => Outcome::Unfinished,
                true if sequence.only_fills() => Outcome::Filled,
                true => Outcome::Goes,
            };
            let mut known = Vec::new();
            for row in length - pick.outputs..length {
                let logits = logits.next().ok_or_else(too_few)?;
                if let RowLogits::All(logits) = logits {
                    known.extend(sequence.prompt_logprobs(row + 1, logits));
                }
                if row + 1 < length {
                    continue;
                }
                if !known.is_empty() {
                    events.push(sequence.report_logprobs(std::mem::take(&mut known)));
                }
                if outcome == Outcome::Goes {
                    let (limits, workspace) = (&self.limits, &mut self.workspace);
                    let finish = sequence.next_token(logits, limits, workspace, events);
                    outcome = finish.map_or(Outcome::Goes, Outcome::Ended);
                }
            }
            self.outcomes.push(outcome);
        }
        Ok(())
    }

    /// Runs the picked rows and pools their hidden states. What it means for each sequence is left in `outcomes`.
    pub(super) fn run_and_pool(
        &mut self,
        dimensions: usize,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let kv = &self.kv;
        let views = self
            .picks
            .iter()
            .map(|pick| SequenceView { slot: pick.slot as u32, blocks: kv.blocks(pick.slot) });
        // Every row has one, in the order of the rows.
        let states = self.rows.run(self.program.as_mut(), views, false)?;
        let mut states = states.rows(dimensions);
        self.outcomes.clear();
        for pick in &self.picks {
            let first = self.kv.length(pick.slot);
            let length = first + pick.rows;
            self.kv.advance(pick.slot, pick.rows);
            let sequence =
                self.places[pick.slot].running_mut().expect("a picked slot has a sequence");
            for position in first..length {
                let Some(RowLogits::All(state)) = states.next() else {
                    return Err(too_few().into());
                };
                if let Some(pool) = &mut sequence.pool {
                    pool.add(position, state);
                }
            }
            events.extend(sequence.progress(length));
            let is_whole = length == sequence.tokens.len();
            self.outcomes.push(match is_whole.then(|| sequence.embedding(events)) {
                None => Outcome::Unfinished,
                Some(None) => Outcome::Filled,
                Some(Some(finish)) => Outcome::Ended(finish),
            });
        }
        Ok(())
    }

    /// Counts a step's time for all that took part in it.
    pub(super) fn note_time(&mut self, seconds: f64) {
        let (mut decodes, mut prompt_rows) = (0, 0);
        let mut bytes = self.traffic.weights(self.picks.iter().any(|pick| pick.outputs > 0));
        for pick in &self.picks {
            bytes += self.traffic.cache(pick.rows, self.kv.length(pick.slot) - pick.rows);
            let sequence =
                self.places[pick.slot].running_mut().expect("a picked slot has a sequence");
            let statistics = &mut sequence.statistics;
            if pick.prefill {
                prompt_rows += pick.rows;
                statistics.prefill_steps += 1;
                statistics.prefill_seconds += seconds;
            } else {
                decodes += 1;
                statistics.decode_steps += 1;
                statistics.decode_seconds += seconds;
            }
        }
        self.pace.note(decodes, prompt_rows, seconds);
        if let Some(prefixes) = self.prefixes.as_mut().filter(|_| prompt_rows > 0) {
            prefixes.note_time(decodes + prompt_rows, seconds);
        }
        let status = &mut self.status;
        status.steps += 1;
        status.busy_seconds += seconds;
        status.bytes += bytes as f64;
        status.width = decodes + prompt_rows;
        status.step_sequences = self.picks.len();
        status.generated_tokens +=
            self.outcomes.iter().filter(|outcome| outcome.sampled()).count() as u64;
    }

    /// Does what the outcomes say.
    ///
    /// # Errors
    /// [`EngineError::Backend`] if the device cannot copy rings.
    pub(super) fn settle(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        for at in 0..self.picks.len() {
            let slot = self.picks[at].slot;
            match self.outcomes[at] {
                Outcome::Goes => self.scheduler.resume(slot),
                Outcome::Filled => {
                    let sequence = self.end(slot, true);
                    events.push(sequence.finished(Finish::Length));
                }
                Outcome::Ended(finish) => {
                    // A cache that gives such logits is worth nothing.
                    let sequence = self.end(slot, finish != Finish::NonFiniteLogits);
                    events.push(sequence.finished(finish));
                }
                Outcome::Unfinished if self.scheduler.is_waiting(slot) => self.go_on(slot)?,
                Outcome::Unfinished => {}
            }
        }
        Ok(())
    }

    /// The rows of a prompt up to one of its borders have been run.
    fn go_on(&mut self, slot: usize) -> Result<(), EngineError> {
        let length = self.kv.length(slot);
        let sequence = self.places[slot].running_mut().expect("a picked slot has a sequence");
        let (rows, wanted) = sequence.next_rows(length);
        self.scheduler.extend(slot, rows, wanted);
        if sequence.branch == length { self.keep_branch(slot) } else { Ok(()) }
    }
}

/// What a step means for a sequence that took part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It has rows of its prompt left.
    Unfinished,
    /// It has one more token.
    Goes,
    /// Its prompt was run, and that was all.
    Filled,
    /// It has ended.
    Ended(Finish),
}

impl Outcome {
    /// Whether a token was sampled.
    fn sampled(self) -> bool {
        match self {
            Outcome::Goes => true,
            Outcome::Unfinished | Outcome::Filled => false,
            Outcome::Ended(finish) => {
                matches!(finish, Finish::Stop | Finish::Length | Finish::Context)
            }
        }
    }
}

fn too_few() -> BackendError {
    BackendError::Failed {
        device: "the program".to_owned(),
        what: "it gave fewer rows than were asked for".to_owned(),
    }
}
