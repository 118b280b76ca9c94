//! Chooses the rows of the next step. Pure: it sees slots and counts, no tokens, no clock, no
//! device.
//!
//! Every decoding sequence gets one row, then prompts get the rest of the width in the order of
//! their arrival. So a running stream never waits for more than one step's share of a prompt. If
//! the width or the number of rows with logits is too small for all, decoding sequences take turns,
//! and a prompt that was left out comes first in the next step.

use trine_model::Width;

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

/// The state of a sequence between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no sequence in this slot.
    Absent,
    /// Rows of its prompt are still to be run.
    Prefill {
        /// The number of these rows, at least one.
        left: usize,
        /// For which of them logits are wanted.
        wanted: Wanted,
    },
    /// Its latest token is to be run.
    Decode,
    /// All its rows are in a step that was picked. [`Scheduler::resume`], [`Scheduler::extend`] or
    /// [`Scheduler::remove`] must follow.
    Waiting,
}

/// Picks the rows of each step.
#[derive(Debug, Clone)]
pub struct Scheduler {
    width: Width,
    phases: Vec<Phase>,
    /// By slot: the goal that its rows are for. A step has one goal.
    goals: Vec<usize>,
    /// The goal whose rows were left out of the last step, if any.
    passed_over: Option<usize>,
    /// By slot: whether rows of it are in a step that was picked and has not
    /// [landed](Scheduler::land).
    flying: Vec<bool>,
    /// Slots in [`Phase::Prefill`], in order of arrival.
    queue: Vec<usize>,
    /// The slot that has the first turn among the decoding ones.
    turn: usize,
    /// Whether prompts waited in the last step and got no row.
    starved: bool,
}

impl Scheduler {
    /// Creates a scheduler for `slots` sequences and steps of at most `width` rows (both numbers at
    /// least 1).
    pub fn new(slots: usize, width: Width) -> Self {
        Self {
            width,
            phases: vec![Phase::Absent; slots],
            goals: vec![0; slots],
            passed_over: None,
            flying: vec![false; slots],
            queue: Vec::with_capacity(slots),
            turn: 0,
            starved: false,
        }
    }

    /// Adds a sequence with `rows` rows of prompt to run (at least one), after the other prompts.
    /// `goal` is what its rows are for ([`Batch::goal`](trine_backend::Batch::goal)); only those of
    /// goal 0 go on with further tokens.
    pub fn admit(&mut self, slot: usize, rows: usize, wanted: Wanted, goal: usize) {
        debug_assert!(
            rows > 0 && self.phases[slot] == Phase::Absent,
            "slot {slot} is taken or has no rows"
        );
        self.phases[slot] = Phase::Prefill { left: rows, wanted };
        self.goals[slot] = goal;
        self.queue.push(slot);
    }

    /// Gives a sequence whose rows have all been run more rows of its prompt (at least one), ahead
    /// of the other prompts.
    pub fn extend(&mut self, slot: usize, rows: usize, wanted: Wanted) {
        debug_assert!(
            rows > 0 && self.phases[slot] == Phase::Waiting,
            "slot {slot} has rows to run or gets no rows"
        );
        self.phases[slot] = Phase::Prefill { left: rows, wanted };
        self.queue.insert(0, slot);
    }

    /// Picks the rows of the next step and counts them as run. `picks` is empty if there is nothing
    /// to do. Picks at most `decodes` decoding sequences, and next to any at most `prompt_rows`
    /// rows of prompts (both at least one). Passes over a sequence with rows in another step that
    /// has not [landed](Scheduler::land). Returns the goal of the step; if sequences of several
    /// goals wait, the goals take turns.
    pub fn next_step(
        &mut self,
        decodes: usize,
        prompt_rows: usize,
        picks: &mut Vec<Pick>,
    ) -> usize {
        picks.clear();
        let goal = self.next_goal();
        if goal == 0 {
            self.pick_texts(decodes, prompt_rows, picks);
        } else {
            // Running texts wait for this step as they do for a prompt's piece.
            let most = if self.has_decode() { prompt_rows.max(1) } else { usize::MAX };
            let mut budget = Width { tokens: self.width.tokens.min(most), ..self.width };
            self.pick_prompts(goal, &mut budget, picks);
        }
        picks.iter().for_each(|pick| self.flying[pick.slot] = true);
        goal
    }

    /// Returns the goal of the next step: that of sequences that were passed over in the last one,
    /// or of the first prompt.
    fn next_goal(&mut self) -> usize {
        let first = |but: Option<usize>| {
            let prompts = self.queue.iter().filter(|&&slot| !self.flying[slot]);
            let mut goals = prompts.map(|&slot| self.goals[slot]);
            let decode = self.has_decode().then_some(0);
            goals.find(|goal| Some(*goal) != but).or(decode.filter(|goal| Some(*goal) != but))
        };
        let due = self.passed_over.filter(|due| self.has_rows(*due));
        let goal = due.or_else(|| first(None)).unwrap_or(0);
        self.passed_over = first(Some(goal));
        goal
    }

    fn has_rows(&self, goal: usize) -> bool {
        (goal == 0 && self.has_decode()) || self.has_prompt_to_run(goal)
    }

    fn has_decode(&self) -> bool {
        self.phases.contains(&Phase::Decode)
    }

    fn pick_texts(&mut self, decodes: usize, prompt_rows: usize, picks: &mut Vec<Pick>) {
        let held = usize::from(self.starved && self.has_prompt_to_run(0));
        let mut budget =
            Width { tokens: self.width.tokens - held, outputs: self.width.outputs - held };
        self.pick_decodes(decodes.max(1), &mut budget, picks);
        budget.tokens += held;
        budget.outputs += held;
        let decodes = picks.len();
        if decodes > 0 {
            budget.tokens = budget.tokens.min(prompt_rows.max(1));
        }
        self.pick_prompts(0, &mut budget, picks);
        self.starved = picks.len() == decodes && self.has_prompt_to_run(0);
    }

    fn has_prompt_to_run(&self, goal: usize) -> bool {
        self.queue.iter().any(|&slot| !self.flying[slot] && self.goals[slot] == goal)
    }

    fn pick_decodes(&mut self, most: usize, budget: &mut Width, picks: &mut Vec<Pick>) {
        let slots = self.phases.len();
        let first = self.turn;
        for slot in (0..slots).map(|offset| (first + offset) % slots) {
            if budget.tokens == 0 || budget.outputs == 0 || picks.len() == most {
                break;
            }
            if self.phases[slot] == Phase::Decode {
                self.phases[slot] = Phase::Waiting;
                picks.push(Pick { slot, rows: 1, outputs: 1, prefill: false });
                budget.tokens -= 1;
                budget.outputs -= 1;
                self.turn = (slot + 1) % slots;
            }
        }
    }

    fn pick_prompts(&mut self, goal: usize, budget: &mut Width, picks: &mut Vec<Pick>) {
        for &slot in &self.queue {
            let Phase::Prefill { left, wanted } = self.phases[slot] else { continue };
            if self.flying[slot] || self.goals[slot] != goal {
                continue;
            }
            let mut rows = left.min(budget.tokens);
            // Rows wait for a step that has room for their logits.
            match wanted {
                Wanted::Nothing => {}
                Wanted::Last if rows == left && budget.outputs == 0 => rows -= 1,
                Wanted::Last => {}
                Wanted::All => rows = rows.min(budget.outputs),
            }
            if rows == 0 {
                continue;
            }
            let ends = rows == left;
            self.phases[slot] =
                if ends { Phase::Waiting } else { Phase::Prefill { left: left - rows, wanted } };
            let outputs = match wanted {
                Wanted::Nothing => 0,
                Wanted::Last => usize::from(ends),
                Wanted::All => rows,
            };
            budget.tokens -= rows;
            budget.outputs -= outputs;
            picks.push(Pick { slot, rows, outputs, prefill: true });
        }
        let phases = &self.phases;
        self.queue.retain(|&slot| matches!(phases[slot], Phase::Prefill { .. }));
    }

    /// Notes that the step with a slot's rows has run: the slot can be picked again.
    pub fn land(&mut self, slot: usize) {
        self.flying[slot] = false;
    }

    /// Returns whether rows of a slot's sequence are in a step that has not landed.
    pub fn is_flying(&self, slot: usize) -> bool {
        self.flying[slot]
    }

    /// Lets a sequence whose rows have all been run go on with one more token.
    pub fn resume(&mut self, slot: usize) {
        debug_assert_eq!(self.phases[slot], Phase::Waiting, "slot {slot} has rows to run");
        self.phases[slot] = Phase::Decode;
    }

    /// Removes a sequence in any state.
    pub fn remove(&mut self, slot: usize) {
        self.phases[slot] = Phase::Absent;
        self.flying[slot] = false;
        self.queue.retain(|&queued| queued != slot);
    }

    /// Returns whether all rows of a slot's sequence are in a step that was picked.
    pub fn is_waiting(&self, slot: usize) -> bool {
        self.phases[slot] == Phase::Waiting
    }

    /// Returns whether a slot's sequence has rows of its prompt to run.
    pub fn is_prefilling(&self, slot: usize) -> bool {
        matches!(self.phases[slot], Phase::Prefill { .. })
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
            if self.flying[slot] && phase != Phase::Absent {
                continue;
            }
            if matches!(phase, Phase::Waiting | Phase::Prefill { left: 0, .. }) {
                return Err(format!(
                    "slot {slot} has no row to run and was neither resumed nor removed"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Picks a step, which lands at once.
    fn next(scheduler: &mut Scheduler, prompt_rows: usize, picks: &mut Vec<Pick>) {
        scheduler.next_step(usize::MAX, prompt_rows, picks);
        picks.iter().for_each(|pick| scheduler.land(pick.slot));
    }

    fn step(scheduler: &mut Scheduler) -> Vec<Pick> {
        let mut picks = Vec::new();
        next(scheduler, usize::MAX, &mut picks);
        for pick in picks.iter().filter(|pick| pick.outputs > 0) {
            scheduler.resume(pick.slot);
        }
        scheduler.check_integrity().unwrap();
        picks
    }

    fn prompt(slot: usize, rows: usize, output: bool) -> Pick {
        Pick { slot, rows, outputs: usize::from(output), prefill: true }
    }

    fn decode(slot: usize) -> Pick {
        Pick { slot, rows: 1, outputs: 1, prefill: false }
    }

    #[test]
    fn decoding_comes_first_and_prompts_fill_the_width() {
        let mut scheduler = Scheduler::new(3, Width { tokens: 8, outputs: 3 });
        scheduler.admit(1, 5, Wanted::Last, 0);
        assert_eq!(step(&mut scheduler), [prompt(1, 5, true)]);
        scheduler.admit(2, 10, Wanted::Last, 0);
        scheduler.admit(0, 2, Wanted::Last, 0);
        assert_eq!(step(&mut scheduler), [decode(1), prompt(2, 7, false)]);
        assert_eq!(step(&mut scheduler), [decode(1), prompt(2, 3, true), prompt(0, 2, true)]);
        assert_eq!(step(&mut scheduler), [decode(2), decode(0), decode(1)]);
        (0..3).for_each(|slot| scheduler.remove(slot));
        assert!(scheduler.is_idle());
        assert_eq!(step(&mut scheduler), []);
    }

    #[test]
    fn a_prompt_waits_with_its_last_row_for_an_output() {
        let mut scheduler = Scheduler::new(2, Width { tokens: 8, outputs: 1 });
        scheduler.admit(0, 1, Wanted::Last, 0);
        step(&mut scheduler);
        scheduler.admit(1, 3, Wanted::Last, 0);
        assert_eq!(step(&mut scheduler), [decode(0), prompt(1, 2, false)]);
        assert_eq!(step(&mut scheduler), [decode(0)]);
        assert_eq!(step(&mut scheduler), [prompt(1, 1, true)], "it was left out once");
        assert_eq!(step(&mut scheduler), [decode(1)], "they take turns");
        assert_eq!(step(&mut scheduler), [decode(0)]);
    }

    #[test]
    fn width_one_serves_everybody_in_turn() {
        let mut scheduler = Scheduler::new(2, Width { tokens: 1, outputs: 1 });
        scheduler.admit(0, 1, Wanted::Last, 0);
        step(&mut scheduler);
        scheduler.admit(1, 2, Wanted::Last, 0);
        let slots: Vec<_> = (0..8).map(|_| step(&mut scheduler)[0].slot).collect();
        assert_eq!(slots, [0, 1, 0, 1, 1, 0, 1, 0]);
    }

    #[test]
    fn prefill_alone_asks_for_no_logits() {
        let mut scheduler = Scheduler::new(1, Width { tokens: 4, outputs: 1 });
        scheduler.admit(0, 6, Wanted::Nothing, 0);
        let mut picks = Vec::new();
        next(&mut scheduler, usize::MAX, &mut picks);
        assert_eq!(picks, [prompt(0, 4, false)]);
        next(&mut scheduler, usize::MAX, &mut picks);
        assert_eq!(picks, [prompt(0, 2, false)]);
        assert!(scheduler.check_integrity().unwrap_err().contains("slot 0"));
        scheduler.remove(0);
        scheduler.check_integrity().unwrap();
    }

    #[test]
    fn a_prompt_whose_logits_are_all_wanted_takes_what_outputs_are_left() {
        let mut scheduler = Scheduler::new(2, Width { tokens: 8, outputs: 3 });
        scheduler.admit(0, 4, Wanted::All, 0);
        scheduler.admit(1, 5, Wanted::Last, 0);
        let all = |rows: usize| Pick { slot: 0, rows, outputs: rows, prefill: true };
        let mut picks = Vec::new();
        next(&mut scheduler, usize::MAX, &mut picks);
        assert_eq!(
            picks,
            [all(3), prompt(1, 4, false)],
            "the other's last row waits for an output"
        );
        next(&mut scheduler, usize::MAX, &mut picks);
        assert_eq!(picks, [all(1), prompt(1, 1, true)]);
        scheduler.resume(1);
        scheduler.extend(0, 9, Wanted::Nothing);
        scheduler.check_integrity().unwrap();
        next(&mut scheduler, 2, &mut picks);
        assert_eq!(picks, [decode(1), prompt(0, 2, false)], "no more than allowed beside others");
    }

    #[test]
    fn sequences_in_flight_are_passed_over() {
        let mut scheduler = Scheduler::new(4, Width { tokens: 8, outputs: 4 });
        (0..3).for_each(|slot| scheduler.admit(slot, 1, Wanted::Last, 0));
        step(&mut scheduler);
        scheduler.admit(3, 12, Wanted::Last, 0);
        let next = |scheduler: &mut Scheduler| {
            let mut picks = Vec::new();
            scheduler.next_step(2, 5, &mut picks);
            scheduler.check_integrity().unwrap();
            picks
        };
        assert_eq!(next(&mut scheduler), [decode(0), decode(1), prompt(3, 5, false)]);
        assert!(scheduler.is_flying(3) && !scheduler.is_flying(2));
        assert_eq!(next(&mut scheduler), [decode(2)]);
        assert_eq!(next(&mut scheduler), []);
        scheduler.land(3);
        scheduler.land(0);
        scheduler.resume(0);
        assert_eq!(next(&mut scheduler), [decode(0), prompt(3, 5, false)]);
        scheduler.remove(1);
        assert!(!scheduler.is_flying(1));
    }

    /// Texts that run and prompts to be embedded: each step is for one of the two, in turn.
    #[test]
    fn goals_take_turns() {
        let mut scheduler = Scheduler::new(4, Width { tokens: 8, outputs: 4 });
        scheduler.admit(0, 1, Wanted::Last, 0);
        step(&mut scheduler);
        scheduler.admit(1, 20, Wanted::Nothing, 1);
        scheduler.admit(2, 3, Wanted::Nothing, 1);
        scheduler.admit(3, 6, Wanted::Last, 0);
        let next = |scheduler: &mut Scheduler| {
            let mut picks = Vec::new();
            let goal = scheduler.next_step(usize::MAX, 5, &mut picks);
            for pick in &picks {
                scheduler.land(pick.slot);
                if pick.outputs > 0 {
                    scheduler.resume(pick.slot);
                } else if scheduler.is_waiting(pick.slot) {
                    scheduler.remove(pick.slot);
                }
            }
            scheduler.check_integrity().unwrap();
            (goal, picks)
        };
        assert_eq!(next(&mut scheduler), (1, vec![prompt(1, 5, false)]));
        assert_eq!(next(&mut scheduler), (0, vec![decode(0), prompt(3, 5, false)]));
        assert_eq!(next(&mut scheduler), (1, vec![prompt(1, 5, false)]));
        assert_eq!(next(&mut scheduler), (0, vec![decode(0), prompt(3, 1, true)]));
        scheduler.remove(0);
        scheduler.remove(3);
        assert_eq!(
            next(&mut scheduler),
            (1, vec![prompt(1, 8, false)]),
            "the whole width where nothing else waits"
        );
        assert_eq!(next(&mut scheduler), (1, vec![prompt(1, 2, false), prompt(2, 3, false)]));
        assert_eq!(next(&mut scheduler), (0, Vec::new()));
    }
}
