//! Runs steps on the device: submits them, and applies what they gave their sequences.

use std::sync::Arc;
use std::time::Duration;

use trine_backend::{BLOCK, Facts, SequenceView};
use trine_model::Goal;

use super::Engine;
use super::drafting::running;
use super::flight::{Flight, Landed, StepOutcome, Times};
use super::picture_state::Borders;
use super::place::SlotState;
use super::sequence::Sequence;
use crate::drafts::GUESSES_MAX;
use crate::error::EngineError;
use crate::events::{Event, Finish, Update};
use crate::scheduler::Pick;
use crate::sharing::{Beginning, Sharing};

impl Engine {
    /// Submits as many steps as the Program takes at the same time.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device failed.
    pub(super) fn submit_steps(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let Facts { depth, silent_depth, .. } = *self.program.facts();
        let most = depth.max(silent_depth);
        // A draft of the same Program needs the device, and hidden states of a text's last step.
        let is_apart = !self.takes_states() || !self.scheduler.has_text();
        let overlaps = most > 1 && is_apart && self.may_overlap(most)?;
        // Each step takes only a part of the sequences, so that some are left for the next one.
        let decodes =
            if overlaps { self.scheduler.sequences().div_ceil(depth) } else { usize::MAX };
        while self.flights.is_empty() || (overlaps && self.flights.len() < self.most_flights()) {
            self.ask_constraints();
            let prompts = self.scheduler.prompts() + self.queue.len();
            let prompt_rows = if self.is_paced { self.pace.rows(prompts) } else { usize::MAX };
            let (columns, follow) = (self.picture_wait.columns, self.queue.is_empty());
            let cuts = Borders { places: &self.places, kv: &self.kv, columns, follow };
            let goal = self.scheduler.next_step(decodes, prompt_rows, &cuts, &mut self.picks);
            let drafting = self.draft()?;
            if let Some(oldest) = self.flights.front_mut() {
                oldest.times.overlapped += drafting;
            }
            self.reserve(events)?;
            if self.picks.is_empty() {
                break;
            }
            // Making room copies pages for the store, which does not count as time of the step.
            let since = (self.clock)();
            let beginning = self.sharing.as_ref().map(Sharing::begin);
            self.gather();
            // A device that computes on this thread runs the step while it is submitted.
            let is_beside = self.program.facts().has_layers_on_gpus();
            if !is_beside {
                self.begin_constraints();
            }
            let (kv, picks) = (&self.kv, &self.picks);
            let is_safe = picks.iter().all(|pick| kv.can_write(pick.slot, pick.after + pick.rows));
            assert!(is_safe, "a step would write into blocks that were not reserved for it");
            let view =
                |pick: &Pick| SequenceView { slot: pick.slot as u32, blocks: kv.blocks(pick.slot) };
            let step = self.rows.submit(self.program.as_mut(), picks.iter().map(view), goal)?;
            if is_beside {
                self.begin_constraints();
            }
            let spare = self.spare_picks.pop().unwrap_or_default();
            let picks = std::mem::replace(&mut self.picks, spare);
            let times = Times { since, drafting, overlapped: 0.0, beginning };
            self.flights.push_back(Flight { step, picks, goal, times });
        }
        Ok(())
    }

    /// Returns how many steps may be in flight with the next one. A text that has no row in them
    /// waits for its constraint, and may go on after the first one: it does not wait for two.
    fn most_flights(&self) -> usize {
        let Facts { depth, silent_depth, .. } = *self.program.facts();
        let are_silent = self.flights.iter().all(Flight::is_silent);
        let may_follow = are_silent && !self.scheduler.has_text();
        if may_follow { depth.max(silent_depth) } else { depth }
    }

    /// Lets the constraints of the picked sequences find out which tokens may come after the step.
    fn begin_constraints(&mut self) {
        let waker = &self.picture_wait.waker;
        for pick in self.picks.iter().filter(|pick| pick.outputs > 0) {
            if let Some(sequence) = self.places[pick.slot].running_mut() {
                sequence.begin_constraint(waker);
            }
        }
    }

    /// Notes which sequences wait for their constraints.
    fn ask_constraints(&mut self) {
        let waker = &self.picture_wait.waker;
        let running = self.places.iter_mut().filter_map(SlotState::running_mut);
        running.for_each(|sequence| sequence.ask_constraint(waker));
    }

    /// Returns whether up to `most` steps may be in flight together. They may not if a sequence
    /// might have to give way, pages might have to be read, or a branch is to be kept, because
    /// these change the caches.
    ///
    /// With a store of prefixes their rows need free blocks: taking one of an ended sequence reads
    /// its pages. If there are too few, the oldest ended sequences go to the store while
    /// nothing is in flight.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device fails to export pages.
    fn may_overlap(&mut self, most: usize) -> Result<bool, EngineError> {
        if self.scheduler.sequences() < 2 && self.scheduler.prompts() == 0 {
            // A text has a row in one step at a time.
            return Ok(false);
        }
        let needed = self.blocks_of_steps(most);
        let available = self.kv.total_blocks() - self.kv.running_blocks();
        let has_branch = |slot: usize| {
            let sequence = self.places[slot].running();
            sequence.is_some_and(|sequence| sequence.branch > self.kv.length(slot))
        };
        if available < needed || (0..self.places.len()).any(has_branch) {
            return Ok(false);
        }
        if self.prefixes.is_none() || self.kv.free_blocks() >= needed {
            return Ok(true);
        }
        if !self.flights.is_empty() {
            return Ok(false);
        }
        // Twice as many, so that steps overlap for a while before this is due again.
        self.kv.make_free(available.min(2 * needed));
        self.spill_lost()?;
        Ok(true)
    }

    /// Returns the most blocks that running sequences may take for `count` more steps.
    fn blocks_of_steps(&self, count: usize) -> usize {
        let most = count * self.program.facts().options.width.tokens;
        let guesses = if self.drafting.is_some() { GUESSES_MAX } else { 0 };
        let needed = |slot: usize| {
            let guesses = if self.scheduler.is_prefilling(slot) { 0 } else { guesses };
            let picked = self.scheduler.rows_to_pick(slot).min(most) + guesses;
            let rows = self.scheduler.rows_in_flight(slot) + picked;
            let end = self.kv.length(slot) + rows;
            end.div_ceil(BLOCK).saturating_sub(self.kv.blocks(slot).len())
        };
        (0..self.places.len()).filter(|&slot| self.kv.is_running(slot)).map(needed).sum()
    }

    /// Waits for the oldest step in flight and applies its results.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device failed.
    pub(super) fn land(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let Flight { step, picks, goal, times } = flight;
        self.spare_picks.push(std::mem::replace(&mut self.picks, picks));
        if goal == Goal::Main {
            self.wait_and_sample(step, events)?;
        } else {
            self.wait_and_pool(step, events)?;
        }
        self.picks.iter().for_each(|pick| self.scheduler.land(pick));
        if let Some(beginning) = times.beginning {
            self.note_shared(beginning, events);
        }
        let now = (self.clock)();
        let Times { since, drafting, overlapped, .. } = times;
        // A step that overlaps with the one before keeps the device busy from the end of that one.
        // Drafts that were made meanwhile count for the steps that they were made for.
        let since = since.max(std::mem::replace(&mut self.landed, now));
        let busy = (now.saturating_sub(since).as_secs_f64() - overlapped).max(0.0);
        self.status.busy_seconds += busy + drafting;
        self.note_times((times.since, now), drafting, busy, goal);
        self.settle(goal, events)
    }

    /// Waits for all steps in flight, so that nothing changes the caches.
    ///
    /// # Errors
    /// Same as [`Engine::land`].
    pub(super) fn land_all(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        while !self.flights.is_empty() {
            self.land(events)?;
        }
        Ok(())
    }

    /// Waits for all steps in flight outside of [`Engine::step_into`], which reports the events the
    /// next time.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device failed.
    pub(super) fn come_to_rest(&mut self) -> Result<(), EngineError> {
        let mut events = Vec::new();
        let landed = self.land_all(&mut events);
        self.ended.append(&mut events);
        landed.inspect_err(|_| self.abandon())
    }

    /// Waits for all steps in flight and drops their results. Returns their picks.
    pub(super) fn cut_short(&mut self) -> Vec<Pick> {
        let mut picks = Vec::new();
        while let Some(flight) = self.flights.pop_front() {
            // It may fail like the one before it, which does not matter.
            let _ = self.program.wait(flight.step);
            picks.extend(flight.picks);
        }
        picks
    }

    /// Writes the picked rows into the buffers, bulk rows after the others.
    fn gather(&mut self) {
        let (places, kv) = (&self.places, &self.kv);
        let precision = |pick: &Pick| {
            let sequence = places[pick.slot].running().expect("a picked slot has a sequence");
            sequence.precision(kv.length(pick.slot) + pick.after)
        };
        // The sort is stable: within each precision the picks stay in the order of rank.
        self.picks.sort_by_key(precision);
        self.rows.clear();
        for (index, pick) in self.picks.iter().enumerate() {
            let first = self.kv.length(pick.slot) + pick.after;
            let place = &self.places[pick.slot];
            let guesses = place.running().map_or(&[][..], Sequence::guesses);
            let known = &place.tokens()[first..first + pick.rows - guesses.len()];
            let is_bulk = precision(pick).is_bulk();
            let row = self.rows.len();
            self.rows.push(index as u32, [known, guesses], first, pick.outputs, is_bulk);
            let Some(sequence) = place.running() else { continue };
            let range = first..first + pick.rows;
            for unit in sequence.spans.units(range.clone()) {
                self.rows.see_ahead(row + unit.start - first..row + unit.end - first);
            }
            for picture in sequence.pictures_in(range) {
                let rows = picture.handle.rows().and_then(|made| made.as_ref().ok());
                self.rows.push_soft(rows.expect("rows of an image that was picked are made"));
            }
        }
        let picked: usize = self.picks.iter().map(|pick| pick.rows).sum();
        assert_eq!(self.rows.len(), picked, "each pick has its rows");
    }

    /// Tells the sequences whose prompts a step ran what the device's partner did of it.
    fn note_shared(&mut self, beginning: Beginning, events: &mut Vec<Event>) {
        let prompts = || self.picks.iter().filter(|pick| pick.prefill);
        let rows = prompts().map(|pick| pick.rows).sum();
        let Some(sharing) = &mut self.sharing else { return };
        let Some(shared) = sharing.end(beginning, rows).map(Arc::new) else { return };
        for pick in prompts() {
            let sequence = self.places[pick.slot].running().expect("a picked slot has a sequence");
            let update = Update::Shared(Arc::clone(&shared));
            events.push(Event { sequence: sequence.id, update });
        }
    }

    /// Notes the times of a step: when it was submitted and has landed, and the seconds in which it
    /// was guessed for before and in which it kept the device `busy`. A sequence has waited for it
    /// from its submission, or from the end of its step before, on.
    fn note_times(
        &mut self,
        (since, landed): (Duration, Duration),
        drafting: f64,
        busy: f64,
        goal: Goal,
    ) {
        let (mut decodes, mut decode_rows, mut prompt_rows) = (0, 0, 0);
        let has_outputs = self.picks.iter().any(|pick| pick.outputs > 0);
        let mut bytes = self.traffic.weights(goal, has_outputs);
        for (pick, landing) in self.picks.iter().zip(&self.landings) {
            bytes += self.traffic.cache(pick.rows, landing.context);
            let sequence = running(&mut self.places, pick);
            let since = since.max(std::mem::replace(&mut sequence.landed, landed));
            let waited = drafting + landed.saturating_sub(since).as_secs_f64();
            if pick.prefill {
                let range = landing.context..landing.context + pick.rows;
                let pictures = sequence.pictures_in(range);
                let seconds: f64 = pictures.iter().map(|own| own.handle.seconds()).sum();
                let count = pictures.len();
                sequence.statistics.pictures += count;
                sequence.statistics.tower_seconds += seconds;
            }
            let statistics = &mut sequence.statistics;
            if pick.prefill {
                prompt_rows += pick.rows;
                statistics.prefill_steps += 1;
                statistics.prefill_seconds += waited;
            } else {
                decodes += 1;
                decode_rows += pick.rows;
                statistics.decode_steps += 1;
                statistics.decode_tokens += landing.sampled;
                statistics.decode_seconds += waited;
            }
        }
        // Steps with rows of prompts have no guesses, so that they are compared with steps that
        // have none either.
        let plain = self.plain_seconds(decodes).filter(|_| decode_rows > decodes);
        self.pace.note(decodes, prompt_rows, plain.unwrap_or(busy));
        if let Some(prefixes) = self.prefixes.as_mut().filter(|_| prompt_rows > 0) {
            prefixes.note_time(decodes + prompt_rows, busy);
        }
        let status = &mut self.status;
        status.steps += 1;
        status.bytes += bytes as f64;
        status.width = decode_rows + prompt_rows;
        status.step_sequences = self.picks.len();
        status.generated_tokens +=
            self.landings.iter().map(|landed| landed.sampled as u64).sum::<u64>();
        self.note_guesses((prompt_rows == 0).then_some((decode_rows, busy)));
    }

    /// Applies the outcomes of a step with a goal.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device cannot copy rings.
    fn settle(&mut self, goal: Goal, events: &mut Vec<Event>) -> Result<(), EngineError> {
        // Where values first were not finite: the device tells it once.
        let mut place: Option<String> = None;
        assert_eq!(self.landings.len(), self.picks.len(), "each pick has one outcome");
        for at in 0..self.picks.len() {
            let slot = self.picks[at].slot;
            let Landed { outcome, guessed, confirmed, .. } = self.landings[at];
            assert!(confirmed <= guessed, "slot {slot} has {confirmed} of {guessed} guesses");
            match outcome {
                StepOutcome::Goes | StepOutcome::Late => self.scheduler.resume(slot),
                StepOutcome::Filled => {
                    let sequence = self.end(slot, true);
                    events.push(sequence.finished(Finish::Length));
                }
                StepOutcome::Ended(Finish::NonFiniteLogits) => {
                    let place = place.get_or_insert_with(|| self.program.overflow(goal)).clone();
                    // A cache that produces such logits is of no use, nor is a text.
                    let sequence = self.end(slot, false);
                    events.push(sequence.overflown(place));
                }
                StepOutcome::Ended(finish) => {
                    let sequence = self.end(slot, true);
                    self.learn(&sequence);
                    events.push(sequence.finished(finish));
                }
                StepOutcome::Unfinished if self.has_run(slot) => self.go_on(slot)?,
                StepOutcome::Unfinished => {}
            }
        }
        Ok(())
    }

    /// Returns whether all rows that a sequence was given have run.
    fn has_run(&self, slot: usize) -> bool {
        self.scheduler.is_waiting(slot) && !self.scheduler.is_flying(slot)
    }

    /// Continues a sequence whose rows have been run up to a border of its prompt.
    fn go_on(&mut self, slot: usize) -> Result<(), EngineError> {
        let length = self.kv.length(slot);
        let sequence = self.places[slot].running_mut().expect("a picked slot has a sequence");
        let (rows, wanted) = sequence.next_rows(length);
        self.scheduler.extend(slot, rows, wanted);
        if sequence.branch == length { self.keep_branch(slot) } else { Ok(()) }
    }
}
