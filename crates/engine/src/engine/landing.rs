//! Waits for steps and hands their rows to the sequences.

use std::ops::Range;
use std::time::{Duration, Instant};

use trine_backend::{BackendError, Facts, InFlight, Program};

use super::Engine;
use super::drafting::running;
use super::draws::{Draws, RowUse};
use super::flight::{Landed, StepOutcome};
use super::place::SlotState;
use super::sequence::Sequence;
use crate::error::EngineError;
use crate::events::{Event, Finish};
use crate::kv::KvBooks;
use crate::request::RequestLimits;
use crate::rows::{self, StepLogits};
use crate::sampling::Workspace;
use crate::scheduler::Pick;

impl Engine {
    /// Waits for a step and samples. Leaves what each sequence got in `landings`.
    pub(super) fn wait_and_sample(
        &mut self,
        step: InFlight,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        let takes_states = self.takes_states();
        let states = takes_states.then_some(&mut self.states);
        let program = self.program.as_mut();
        let step_of = (&self.picks[..], &self.kv);
        let logits = wait(program, (step, states), &mut self.draws, step_of, &mut self.places)?;
        let (draws, workspace, limits) = (&mut self.draws, &mut self.workspace, &self.limits);
        let mut landing = Landing { logits, draws, workspace, limits, events };
        let mut outputs = 0..0;
        self.landings.clear();
        for pick in &self.picks {
            outputs = outputs.end..outputs.end + pick.outputs;
            let context = self.kv.length(pick.slot);
            let sequence = running(&mut self.places, pick);
            let guessed = sequence.guesses().len();
            let known = context + pick.rows - guessed;
            let is_last = self.scheduler.rows_in_flight(pick.slot) <= pick.rows;
            let outcome = sequence.outcome_of(known, is_last);
            let is_late = outcome == StepOutcome::Late;
            let kept = pick.rows - guessed - usize::from(is_late);
            self.kv.advance(pick.slot, kept);
            if pick.prefill {
                landing.events.extend(sequence.progress(known));
            }
            landing.tell(sequence, outputs.clone())?;
            let mut landed = Landed::without_tokens(outcome, context);
            if !is_late {
                (landed.guessed, landed.origin) = (guessed, sequence.guess_origin);
                let state = landing.sample(sequence, outputs.clone(), &mut landed)?;
                if let Some(row) = state.filter(|_| takes_states) {
                    sequence.take_state(&self.states, self.state_columns, row);
                }
            }
            sequence.drop_guesses();
            self.kv.advance(pick.slot, landed.confirmed);
            self.kv.overwrite(pick.slot, pick.rows - kept - landed.confirmed);
            self.landings.push(landed);
        }
        Ok(())
    }

    /// Waits for a step and pools its hidden states. Leaves what each sequence got in `landings`.
    pub(super) fn wait_and_pool(
        &mut self,
        step: InFlight,
        events: &mut Vec<Event>,
    ) -> Result<(), EngineError> {
        // Every row has hidden states, in the order of the rows.
        let states = rows::wait_for_states(self.program.as_mut(), step)?;
        let dimensions = self.limits.dimensions.unwrap_or(1);
        let mut states = states.chunks_exact(dimensions);
        self.landings.clear();
        for pick in &self.picks {
            let first = self.kv.length(pick.slot);
            let length = first + pick.rows;
            self.kv.advance(pick.slot, pick.rows);
            let sequence = running(&mut self.places, pick);
            for position in first..length {
                let state = states.next().ok_or_else(too_few)?;
                if let Some(pool) = &mut sequence.pool {
                    pool.add(position, state);
                }
            }
            events.extend(sequence.progress(length));
            let is_whole = length == sequence.tokens.len();
            let is_last = self.scheduler.rows_in_flight(pick.slot) <= pick.rows;
            let embedded = (is_whole && !sequence.is_cancelled).then(|| sequence.embedding(events));
            let outcome = match embedded {
                _ if sequence.is_cancelled && is_last => StepOutcome::Ended(Finish::Cancelled),
                None => StepOutcome::Unfinished,
                Some(None) => StepOutcome::Filled,
                Some(Some(finish)) => StepOutcome::Ended(finish),
            };
            self.landings.push(Landed::without_tokens(outcome, first));
        }
        Ok(())
    }
}

/// A step that has run.
struct Landing<'a, 'step> {
    logits: StepLogits<'step>,
    draws: &'a mut Draws,
    workspace: &'a mut Workspace,
    limits: &'a RequestLimits,
    events: &'a mut Vec<Event>,
}

impl Landing<'_, '_> {
    /// Reports the log-probabilities of the prompt that a sequence's output rows give.
    fn tell(&mut self, sequence: &mut Sequence, rows: Range<usize>) -> Result<(), BackendError> {
        if sequence.is_cancelled {
            return Ok(());
        }
        let mut told = Vec::new();
        for row in rows {
            if let RowUse::Given(token) = self.draws.use_of(row) {
                told.push(sequence.prompt_logprobs(token, (&mut self.logits, row), self.draws)?);
            }
        }
        if !told.is_empty() {
            self.events.push(sequence.report_logprobs(told));
        }
        Ok(())
    }

    /// Samples the tokens that a sequence's output rows give. Returns the last row that gave one.
    fn sample(
        &mut self,
        sequence: &mut Sequence,
        rows: Range<usize>,
        landed: &mut Landed,
    ) -> Result<Option<usize>, BackendError> {
        let before = sequence.statistics.generated_tokens;
        sequence.statistics.drafted_tokens += landed.guessed;
        let mut last = None;
        for row in rows {
            // A row after a wrong guess, or after the end, belongs to no text.
            let is_due = match self.draws.use_of(row) {
                _ if landed.outcome != StepOutcome::Goes => false,
                RowUse::Nothing | RowUse::Given(_) => false,
                RowUse::Next => true,
                RowUse::AfterGuess(guess) => {
                    let is_right = guess == landed.confirmed && sequence.is_confirmed(guess);
                    landed.confirmed += usize::from(is_right);
                    sequence.statistics.accepted_tokens += usize::from(is_right);
                    is_right
                }
            };
            if is_due {
                let buffers = (&mut *self.draws, &mut *self.workspace);
                let at = (&mut self.logits, row);
                let finish = sequence.next_token(at, self.limits, buffers, self.events)?;
                landed.outcome = finish.map_or(StepOutcome::Goes, StepOutcome::Ended);
                last = Some(row);
            }
        }
        landed.sampled = sequence.statistics.generated_tokens - before;
        Ok(last)
    }
}

/// How long the texts of a step wait for the constraints of others, while it runs and after it.
const PATIENCE: Duration = Duration::from_millis(1);

/// Waits for a step, and draws from its rows what takes more than their largest logits.
fn wait<'a>(
    program: &'a mut dyn Program,
    (step, states): (InFlight, Option<&mut Vec<f32>>),
    draws: &mut Draws,
    step_of: (&[Pick], &KvBooks),
    places: &mut [SlotState],
) -> Result<StepLogits<'a>, BackendError> {
    let Facts { plan, finds_top, .. } = program.facts();
    let of_logits = (plan.output(0).columns, *finds_top);
    draws.begin();
    for (pick, rows) in output_rows(step_of) {
        let sequence = running(places, pick);
        rows.for_each(|position| draws.add_row(sequence.use_of(position)));
    }
    ask(draws, step_of, places, of_logits, |_| true);
    let mut logits = draws.wait(program, step, states)?;
    // Their constraints may be ready by now.
    ask(draws, step_of, places, of_logits, |sequence| sequence.is_late);
    draws.draw(&mut logits)?;
    Ok(logits)
}

/// Returns the picks of a step, each with the positions of its output rows.
fn output_rows<'a>(
    (picks, kv): (&'a [Pick], &'a KvBooks),
) -> impl Iterator<Item = (&'a Pick, Range<usize>)> {
    picks.iter().map(|pick| {
        let end = kv.length(pick.slot) + pick.rows;
        (pick, end - pick.outputs..end)
    })
}

/// Adds what is drawn from the rows that some sequences have in a step, as far as their largest
/// logits are not enough and nothing was added before, and notes which of them cannot draw yet.
/// `of_logits` has the vocabulary, and whether the device finds the largest logits.
fn ask(
    draws: &mut Draws,
    step_of: (&[Pick], &KvBooks),
    places: &mut [SlotState],
    of_logits: (usize, bool),
    is_asked: impl Fn(&Sequence) -> bool,
) {
    let until = Instant::now() + PATIENCE;
    let mut output = 0;
    for (pick, rows) in output_rows(step_of) {
        let first = output;
        output += pick.outputs;
        let sequence = running(places, pick);
        if !sequence.is_cancelled && is_asked(sequence) {
            sequence.ask_draws(rows, first, of_logits, until, draws);
        }
    }
}

fn too_few() -> BackendError {
    BackendError::Failed {
        device: "the program".to_owned(),
        what: "it gave fewer rows than were asked for".to_owned(),
    }
}
