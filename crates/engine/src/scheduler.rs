//! Chooses the rows of the next step. Pure: it sees slots and counts, no tokens, no clock, no
//! device.
//!
//! Every decoding sequence gets one row, then prompts get the rest of the width in the order in
//! which they were put. So a running stream never waits for more than one step's share of a prompt:
//! a step beside one in flight that has a stream's row takes no more of them either.
//! If the width or the number of rows with logits is too small for all, decoding sequences take
//! turns, and a prompt that was left out comes first in the next step.
//!
//! The rows of a picture run in one step ([`Cuts`]). They may exceed a step's share of prompts. If
//! the step has no room for them, they come first in the next one, before decoding sequences. If
//! a step of several sequences may not have as many rows, the picture has a step for itself. A text
//! whose rows see one another in both directions is such a picture as a whole.

use trine_model::{Goal, Width};

/// The rows of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pick {
    /// The sequence's slot.
    pub slot: usize,
    /// Its next rows, at least one.
    pub rows: usize,
    /// For how many of the last rows logits are wanted: none, one, or all.
    pub outputs: usize,
    /// Whether these are rows of a prompt instead of a generated token.
    pub prefill: bool,
    /// How many rows of its prompt are in earlier steps that have not landed.
    pub after: usize,
}

/// The rows of a prompt for which logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// None, because the prompt only fills the cache or more of it follows.
    Nothing,
    /// The last one, from which the first generated token is sampled.
    Last,
    /// All rows.
    All,
}

/// Says where the rows of prompts may be cut into steps, and which sequences wait.
pub trait Cuts {
    /// Returns how many of the next rows of a slot's prompt, at most `rows`, a step may run: fewer
    /// where the last ones would be a part of a picture, or would wait for one.
    fn most(&self, slot: usize, rows: usize) -> usize;

    /// Returns how many of these rows a step must run if it runs any: the rows of the picture that
    /// comes next, or one. 0 if the rows have to wait.
    fn least(&self, slot: usize) -> usize;

    /// Returns whether a decoding sequence has to wait.
    fn waits(&self, _slot: usize) -> bool {
        false
    }

    /// Returns whether a step may run rows of a prompt while those before them are in flight.
    fn follows(&self, _slot: usize) -> bool {
        true
    }
}

/// Prompts without pictures.
#[derive(Debug, Clone, Copy)]
pub struct Anywhere;

impl Cuts for Anywhere {
    fn most(&self, _slot: usize, rows: usize) -> usize {
        rows
    }

    fn least(&self, _slot: usize) -> usize {
        1
    }
}

/// What is left of a step.
#[derive(Debug, Clone, Copy)]
struct Budget {
    /// Rows that prompts may have beside decoding sequences.
    share: usize,
    /// Rows, `share` among them.
    rows: usize,
    /// Rows with logits.
    outputs: usize,
}

/// The state of a sequence between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no sequence in this slot.
    Absent,
    /// Rows of its prompt are still to be run.
    Prefill {
        /// The number of these rows, at least one.
        left: usize,
        /// The rows whose logits are wanted.
        wanted: Wanted,
    },
    /// Its latest token is to be run.
    Decode,
    /// All rows of its prompt are in steps that were picked. [`Scheduler::resume`],
    /// [`Scheduler::extend`] or [`Scheduler::remove`] must follow.
    Waiting,
    /// Its latest token is in a step that was picked. [`Scheduler::resume`] or
    /// [`Scheduler::remove`] must follow.
    Decoding,
}

/// Picks the rows of each step.
#[derive(Debug, Clone)]
pub struct Scheduler {
    /// The most rows and outputs of a step with several sequences.
    width: Width,
    /// The most rows of a step that runs one picture.
    unit_rows: usize,
    phases: Vec<Phase>,
    /// By slot: the goal that its rows are for. A step has one goal.
    goals: Vec<Goal>,
    /// The goal whose rows were left out of the last step, if any.
    passed_over: Option<Goal>,
    /// By slot: how many rows of it were picked for steps that have not
    /// [landed](Scheduler::land).
    flying: Vec<usize>,
    /// Slots in [`Phase::Prefill`], in their order.
    queue: Vec<usize>,
    /// The slot that has the first turn among the decoding ones.
    turn: usize,
    /// Whether prompts waited in the last step and got no row.
    starved: bool,
    /// The slot of a prompt whose picture the last step had no room for.
    due: Option<usize>,
}

impl Scheduler {
    /// Creates a scheduler for `slots` sequences and steps of at most `width` rows (both numbers at
    /// least 1).
    pub fn new(slots: usize, width: Width) -> Self {
        Self {
            width,
            unit_rows: width.tokens,
            phases: vec![Phase::Absent; slots],
            goals: vec![Goal::Main; slots],
            passed_over: None,
            flying: vec![0; slots],
            queue: Vec::with_capacity(slots),
            turn: 0,
            starved: false,
            due: None,
        }
    }

    /// Lets steps have up to `rows` rows if they are those of a picture, or of several without a
    /// token between them, and no others.
    #[must_use]
    pub fn with_units(self, rows: usize) -> Self {
        Self { unit_rows: rows.max(self.width.tokens), ..self }
    }

    /// Adds a sequence with `rows` rows of prompt to run (at least one), after `place` other
    /// prompts ([`Scheduler::prompt_slots`]).
    /// `goal` is what its rows are for ([`Batch::goal`](trine_backend::Batch::goal)); only those of
    /// the main goal go on with further tokens.
    pub fn admit(&mut self, slot: usize, rows: usize, wanted: Wanted, goal: Goal, place: usize) {
        assert!(
            rows > 0 && self.phases[slot] == Phase::Absent,
            "slot {slot} is taken or has no rows"
        );
        self.phases[slot] = Phase::Prefill { left: rows, wanted };
        self.goals[slot] = goal;
        self.queue.insert(place.min(self.queue.len()), slot);
    }

    /// Gives a sequence whose rows have all been run more rows of its prompt (at least one), ahead
    /// of the other prompts.
    pub fn extend(&mut self, slot: usize, rows: usize, wanted: Wanted) {
        assert!(
            rows > 0 && self.phases[slot] == Phase::Waiting,
            "slot {slot} has rows to run or gets no rows"
        );
        self.phases[slot] = Phase::Prefill { left: rows, wanted };
        self.queue.insert(0, slot);
    }

    /// Picks the rows of the next step and counts them as run. `picks` is empty if there is nothing
    /// to do. Picks at most `decodes` decoding sequences, and at most `prompt_rows` rows of prompts
    /// next to any, or behind any in flight (both at least one). Passes over what `cuts` makes
    /// wait. Returns the goal of the step; if sequences of several goals wait, the goals take
    /// turns.
    pub fn next_step(
        &mut self,
        decodes: usize,
        prompt_rows: usize,
        cuts: &dyn Cuts,
        picks: &mut Vec<Pick>,
    ) -> Goal {
        picks.clear();
        let goal = self.next_goal(cuts);
        if goal == Goal::Main {
            self.pick_texts(decodes, prompt_rows, cuts, picks);
        } else {
            // Running texts wait for this step as they do for a prompt's piece.
            let is_beside_text = self.has_decode(cuts) || self.has_flying_text();
            let most = if is_beside_text { prompt_rows.max(1) } else { usize::MAX };
            let Width { tokens: rows, outputs } = self.width;
            let mut budget = Budget { share: rows.min(most), rows, outputs };
            // Where rows see one another in both directions a text is one unit. One that is wider
            // than rows of several sequences may be has a step for itself.
            let mut prompts = self.queue.iter().copied();
            let first = prompts.find(|&slot| self.goals[slot] == goal && self.can_run(slot, cuts));
            match first.filter(|&slot| cuts.least(slot) > rows) {
                Some(slot) => self.pick_unit(slot, cuts, picks),
                None => drop(self.pick_prompts(goal, &mut budget, cuts, picks)),
            }
        }
        self.launch(goal, picks);
        goal
    }

    /// Notes that a step with these picks is under way, after it has proved that a Program takes
    /// it.
    fn launch(&mut self, goal: Goal, picks: &[Pick]) {
        let (mut rows, mut outputs) = (0, 0);
        for pick in picks {
            let is_next = self.flying[pick.slot] == pick.after;
            let is_own = self.goals[pick.slot] == goal && is_next;
            assert!(is_own, "slot {} is picked twice or for another goal", pick.slot);
            assert!(pick.rows > 0 && pick.outputs <= pick.rows, "{pick:?}");
            self.flying[pick.slot] += pick.rows;
            rows += pick.rows;
            outputs += pick.outputs;
        }
        let most = if picks.len() == 1 { self.unit_rows } else { self.width.tokens };
        assert!(rows <= most, "{rows} rows of {} sequences, at most {most}", picks.len());
        assert!(outputs <= self.width.outputs, "{outputs} rows of logits");
    }

    /// Returns the goal of the next step: that of sequences that were passed over in the last one,
    /// or of the first prompt.
    fn next_goal(&mut self, cuts: &dyn Cuts) -> Goal {
        let first = |but: Option<Goal>| {
            let prompts = self.queue.iter().filter(|&&slot| self.can_run(slot, cuts));
            let mut goals = prompts.map(|&slot| self.goals[slot]);
            let decode = self.has_decode(cuts).then_some(Goal::Main);
            goals.find(|goal| Some(*goal) != but).or(decode.filter(|goal| Some(*goal) != but))
        };
        let due = self.passed_over.filter(|due| self.has_rows(*due, cuts));
        let goal = due.or_else(|| first(None)).unwrap_or_default();
        self.passed_over = first(Some(goal));
        goal
    }

    fn has_rows(&self, goal: Goal, cuts: &dyn Cuts) -> bool {
        (goal == Goal::Main && self.has_decode(cuts)) || self.has_prompt_to_run(goal, cuts)
    }

    /// Returns whether rows of a slot's prompt may be picked.
    fn can_run(&self, slot: usize, cuts: &dyn Cuts) -> bool {
        cuts.least(slot) > 0 && (self.flying[slot] == 0 || cuts.follows(slot))
    }

    fn has_decode(&self, cuts: &dyn Cuts) -> bool {
        (0..self.phases.len()).any(|slot| self.can_decode(slot, cuts))
    }

    /// Returns whether a sequence goes on with its latest token.
    pub fn has_text(&self) -> bool {
        self.phases.contains(&Phase::Decode)
    }

    /// Returns whether the latest token of a sequence is in a step in flight. Its next row waits
    /// for that of the step that is picked now.
    fn has_flying_text(&self) -> bool {
        self.phases.contains(&Phase::Decoding)
    }

    fn can_decode(&self, slot: usize, cuts: &dyn Cuts) -> bool {
        self.phases[slot] == Phase::Decode && !cuts.waits(slot)
    }

    fn pick_texts(
        &mut self,
        decodes: usize,
        prompt_rows: usize,
        cuts: &dyn Cuts,
        picks: &mut Vec<Pick>,
    ) {
        let Width { tokens: rows, outputs } = self.width;
        let mut budget = Budget { share: rows, rows, outputs };
        let is_due = |&slot: &usize| {
            self.is_prefilling(slot) && self.goals[slot] == Goal::Main && self.can_run(slot, cuts)
        };
        // With only prompts it is first in the queue, and needs a step of its own only if it is too
        // wide for one with others.
        let needs_turn = |&slot: &usize| self.has_decode(cuts) || cuts.least(slot) > rows;
        let due = self.due.filter(is_due).filter(needs_turn);
        self.due = None;
        if let Some(slot) = due {
            if cuts.least(slot) > rows {
                self.pick_unit(slot, cuts, picks);
                return;
            }
            budget.share = cuts.least(slot);
            self.pick_prompt(slot, &mut budget, cuts, picks);
            self.leave_queue();
        }
        let first = picks.len();
        let starves = first == 0 && self.starved && self.has_prompt_to_run(Goal::Main, cuts);
        let held = usize::from(starves);
        budget.rows -= held;
        budget.outputs -= held;
        self.pick_decodes(decodes.max(1), &mut budget, cuts, picks);
        budget.rows += held;
        budget.outputs += held;
        let decodes = picks.len() - first;
        // Among those in flight are the ones of this step.
        let share = if self.has_flying_text() { prompt_rows.max(1) } else { usize::MAX };
        budget.share = budget.rows.min(share);
        if first == 0 {
            self.due = self.pick_prompts(Goal::Main, &mut budget, cuts, picks);
        }
        self.starved = picks.len() == decodes && self.has_prompt_to_run(Goal::Main, cuts);
        if picks.is_empty()
            && let Some(slot) = self.due.take()
        {
            self.pick_unit(slot, cuts, picks);
        }
    }

    /// Picks the picture that comes next in a prompt, which has more rows than rows of several
    /// sequences may be.
    fn pick_unit(&mut self, slot: usize, cuts: &dyn Cuts, picks: &mut Vec<Pick>) {
        let rows = cuts.least(slot).min(self.unit_rows);
        let mut budget = Budget { share: rows, rows, outputs: self.width.outputs };
        self.pick_prompt(slot, &mut budget, cuts, picks);
        self.leave_queue();
    }

    fn has_prompt_to_run(&self, goal: Goal, cuts: &dyn Cuts) -> bool {
        self.queue.iter().any(|&slot| self.goals[slot] == goal && self.can_run(slot, cuts))
    }

    fn pick_decodes(
        &mut self,
        most: usize,
        budget: &mut Budget,
        cuts: &dyn Cuts,
        picks: &mut Vec<Pick>,
    ) {
        let (slots, before) = (self.phases.len(), picks.len());
        let first = self.turn;
        for slot in (0..slots).map(|offset| (first + offset) % slots) {
            if budget.rows == 0 || budget.outputs == 0 || picks.len() - before == most {
                break;
            }
            if self.can_decode(slot, cuts) {
                self.phases[slot] = Phase::Decoding;
                picks.push(Pick { slot, rows: 1, outputs: 1, prefill: false, after: 0 });
                budget.rows -= 1;
                budget.outputs -= 1;
                self.turn = (slot + 1) % slots;
            }
        }
    }

    /// Picks rows of prompts for a goal. Returns the slot of the first of them if there was no room
    /// for its picture.
    fn pick_prompts(
        &mut self,
        goal: Goal,
        budget: &mut Budget,
        cuts: &dyn Cuts,
        picks: &mut Vec<Pick>,
    ) -> Option<usize> {
        let (mut is_first, mut left_out) = (true, None);
        for at in 0..self.queue.len() {
            let slot = self.queue[at];
            if self.goals[slot] != goal || !self.can_run(slot, cuts) {
                continue;
            }
            let least = cuts.least(slot);
            if is_first && least <= budget.rows {
                // A share may never have room for the picture.
                budget.share = budget.share.max(least);
            }
            if !self.pick_prompt(slot, budget, cuts, picks) && is_first && least > 1 {
                left_out = Some(slot);
            }
            is_first = false;
        }
        self.leave_queue();
        left_out
    }

    /// Picks rows of a prompt. Returns whether there was room for any.
    fn pick_prompt(
        &mut self,
        slot: usize,
        budget: &mut Budget,
        cuts: &dyn Cuts,
        picks: &mut Vec<Pick>,
    ) -> bool {
        let Phase::Prefill { left, wanted } = self.phases[slot] else { return false };
        let room = left.min(budget.share).min(budget.rows);
        let most = |rows: usize| cuts.most(slot, rows);
        // Rows wait for a step that has room for their logits.
        let rows = match (wanted, most(room)) {
            (Wanted::Last, rows) if rows == left && budget.outputs == 0 => most(left - 1),
            (Wanted::Nothing | Wanted::Last, rows) => rows,
            (Wanted::All, rows) => most(rows.min(budget.outputs)),
        };
        if rows == 0 {
            return false;
        }
        let ends = rows == left;
        self.phases[slot] =
            if ends { Phase::Waiting } else { Phase::Prefill { left: left - rows, wanted } };
        let outputs = match wanted {
            Wanted::Nothing => 0,
            Wanted::Last => usize::from(ends),
            Wanted::All => rows,
        };
        let fits = rows <= budget.share.min(budget.rows) && outputs <= budget.outputs;
        assert!(fits, "slot {slot} gets {rows} rows and {outputs} of logits of {budget:?}");
        budget.share -= rows;
        budget.rows -= rows;
        budget.outputs -= outputs;
        picks.push(Pick { slot, rows, outputs, prefill: true, after: self.flying[slot] });
        true
    }

    /// Takes the prompts out of the queue of which no rows are left.
    fn leave_queue(&mut self) {
        let phases = &self.phases;
        self.queue.retain(|&slot| matches!(phases[slot], Phase::Prefill { .. }));
    }

    /// Notes that the step with these rows has run.
    pub fn land(&mut self, pick: &Pick) {
        let flying = &mut self.flying[pick.slot];
        // Guesses came to a text's row after it was picked.
        let rows = if pick.prefill { pick.rows } else { 1 };
        assert!(*flying >= rows, "slot {} has {flying} rows in steps", pick.slot);
        *flying -= rows;
    }

    /// Returns whether rows of a slot's sequence are in a step that has not landed.
    pub fn is_flying(&self, slot: usize) -> bool {
        self.flying[slot] > 0
    }

    /// Returns how many rows of a slot's sequence are in steps that have not landed, without
    /// guesses.
    pub fn rows_in_flight(&self, slot: usize) -> usize {
        self.flying[slot]
    }

    /// Returns how many rows of a slot's sequence can be picked before one of them has landed.
    pub fn rows_to_pick(&self, slot: usize) -> usize {
        match self.phases[slot] {
            Phase::Absent | Phase::Waiting | Phase::Decoding => 0,
            Phase::Prefill { left, .. } => left,
            Phase::Decode => 1,
        }
    }

    /// Lets a sequence whose rows have all been run go on with one more token.
    pub fn resume(&mut self, slot: usize) {
        assert!(self.is_waiting(slot), "slot {slot} has rows to run");
        assert_eq!(self.goals[slot], Goal::Main, "slot {slot} writes no text");
        self.phases[slot] = Phase::Decode;
    }

    /// Removes a sequence in any state.
    pub fn remove(&mut self, slot: usize) {
        self.phases[slot] = Phase::Absent;
        self.flying[slot] = 0;
        self.queue.retain(|&queued| queued != slot);
    }

    /// Returns whether all rows of a slot's sequence are in a step that was picked.
    pub fn is_waiting(&self, slot: usize) -> bool {
        matches!(self.phases[slot], Phase::Waiting | Phase::Decoding)
    }

    /// Returns whether a slot's sequence has rows of its prompt to run.
    pub fn is_prefilling(&self, slot: usize) -> bool {
        matches!(self.phases[slot], Phase::Prefill { .. })
    }

    /// Returns the slots of prompts that have rows to run, in their order.
    pub fn prompt_slots(&self) -> &[usize] {
        &self.queue
    }

    /// Returns the number of prompts that have rows to run.
    pub fn prompts(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of sequences.
    pub fn sequences(&self) -> usize {
        self.phases.iter().filter(|&&phase| phase != Phase::Absent).count()
    }

    /// Returns whether no sequence is left.
    pub fn is_idle(&self) -> bool {
        self.phases.iter().all(|&phase| phase == Phase::Absent)
    }

    /// Returns whether a slot has a sequence.
    pub fn holds(&self, slot: usize) -> bool {
        self.phases[slot] != Phase::Absent
    }

    /// Checks, between steps, that the queue names each waiting prompt once and that every sequence
    /// has something to do: rows to run, or rows in flight.
    ///
    /// # Errors
    /// Returns what is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        for (slot, &phase) in self.phases.iter().enumerate() {
            let queued = self.queue.iter().filter(|&&queued| queued == slot).count();
            let expected = usize::from(matches!(phase, Phase::Prefill { .. }));
            if queued != expected {
                return Err(format!(
                    "slot {slot} is {phase:?} and stands {queued} times in the queue"
                ));
            }
            if self.flying[slot] > 0 && phase != Phase::Absent {
                continue;
            }
            if self.is_waiting(slot) || matches!(phase, Phase::Prefill { left: 0, .. }) {
                return Err(format!(
                    "slot {slot} has no row to run and was neither resumed nor removed"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
