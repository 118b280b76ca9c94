//! Chooses the rows of the next step. Pure: it sees slots and counts, no tokens, no clock, no
//! device.
//!
//! Every decoding sequence gets one row, then prompts get the rest of the width in the order of
//! their arrival. So a running stream never waits for more than one step's share of a prompt. If
//! the width or the number of rows with logits is too small for all, decoding sequences take turns,
//! and a prompt that was left out comes first in the next step.
//!
//! The rows of a picture run in one step ([`Cuts`]). They may exceed a step's share of prompts. If
//! the step has no room for them, they come first in the next one, before decoding sequences.

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

/// Says where the rows of prompts may be cut into steps.
pub trait Cuts {
    /// Returns how many of the next rows of a slot's prompt, at most `rows`, a step may run: fewer
    /// where the last ones would be a part of a picture, or would wait for one.
    fn most(&self, slot: usize, rows: usize) -> usize;

    /// Returns how many of them a step must run if it runs any: those of the picture that comes
    /// next, or one. 0 if they have to wait.
    fn least(&self, slot: usize) -> usize;
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
    /// The slot of a prompt whose picture the last step had no room for.
    due: Option<usize>,
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
            due: None,
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
    /// has not [landed](Scheduler::land), and over a prompt that `cuts` makes wait. Returns the
    /// goal of the step; if sequences of several goals wait, the goals take turns.
    pub fn next_step(
        &mut self,
        decodes: usize,
        prompt_rows: usize,
        cuts: &dyn Cuts,
        picks: &mut Vec<Pick>,
    ) -> usize {
        picks.clear();
        let goal = self.next_goal(cuts);
        if goal == 0 {
            self.pick_texts(decodes, prompt_rows, cuts, picks);
        } else {
            // Running texts wait for this step as they do for a prompt's piece.
            let most = if self.has_decode() { prompt_rows.max(1) } else { usize::MAX };
            let Width { tokens: rows, outputs } = self.width;
            let mut budget = Budget { share: rows.min(most), rows, outputs };
            self.pick_prompts(goal, &mut budget, cuts, picks);
        }
        picks.iter().for_each(|pick| self.flying[pick.slot] = true);
        goal
    }

    /// Returns the goal of the next step: that of sequences that were passed over in the last one,
    /// or of the first prompt.
    fn next_goal(&mut self, cuts: &dyn Cuts) -> usize {
        let first = |but: Option<usize>| {
            let prompts = self.queue.iter().filter(|&&slot| self.can_run(slot, cuts));
            let mut goals = prompts.map(|&slot| self.goals[slot]);
            let decode = self.has_decode().then_some(0);
            goals.find(|goal| Some(*goal) != but).or(decode.filter(|goal| Some(*goal) != but))
        };
        let due = self.passed_over.filter(|due| self.has_rows(*due, cuts));
        let goal = due.or_else(|| first(None)).unwrap_or(0);
        self.passed_over = first(Some(goal));
        goal
    }

    fn has_rows(&self, goal: usize, cuts: &dyn Cuts) -> bool {
        (goal == 0 && self.has_decode()) || self.has_prompt_to_run(goal, cuts)
    }

    /// Returns whether rows of a slot's prompt may be picked.
    fn can_run(&self, slot: usize, cuts: &dyn Cuts) -> bool {
        !self.flying[slot] && cuts.least(slot) > 0
    }

    fn has_decode(&self) -> bool {
        self.phases.contains(&Phase::Decode)
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
            self.is_prefilling(slot) && self.goals[slot] == 0 && self.can_run(slot, cuts)
        };
        let due = self.due.filter(is_due).filter(|_| self.has_decode());
        self.due = None;
        if let Some(slot) = due {
            budget.share = cuts.least(slot);
            self.pick_prompt(slot, &mut budget, cuts, picks);
            self.leave_queue();
        }
        let first = picks.len();
        let starves = first == 0 && self.starved && self.has_prompt_to_run(0, cuts);
        let held = usize::from(starves);
        budget.rows -= held;
        budget.outputs -= held;
        self.pick_decodes(decodes.max(1), &mut budget, picks);
        budget.rows += held;
        budget.outputs += held;
        let decodes = picks.len() - first;
        let share = if decodes == 0 { usize::MAX } else { prompt_rows.max(1) };
        budget.share = budget.rows.min(share);
        if first == 0 {
            self.pick_prompts(0, &mut budget, cuts, picks);
        }
        self.starved = picks.len() == decodes && self.has_prompt_to_run(0, cuts);
    }

    fn has_prompt_to_run(&self, goal: usize, cuts: &dyn Cuts) -> bool {
        self.queue.iter().any(|&slot| self.goals[slot] == goal && self.can_run(slot, cuts))
    }

    fn pick_decodes(&mut self, most: usize, budget: &mut Budget, picks: &mut Vec<Pick>) {
        let (slots, before) = (self.phases.len(), picks.len());
        let first = self.turn;
        for slot in (0..slots).map(|offset| (first + offset) % slots) {
            if budget.rows == 0 || budget.outputs == 0 || picks.len() - before == most {
                break;
            }
            if self.phases[slot] == Phase::Decode {
                self.phases[slot] = Phase::Waiting;
                picks.push(Pick { slot, rows: 1, outputs: 1, prefill: false });
                budget.rows -= 1;
                budget.outputs -= 1;
                self.turn = (slot + 1) % slots;
            }
        }
    }

    fn pick_prompts(
        &mut self,
        goal: usize,
        budget: &mut Budget,
        cuts: &dyn Cuts,
        picks: &mut Vec<Pick>,
    ) {
        let mut is_first = true;
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
                self.due = Some(slot);
            }
            is_first = false;
        }
        self.leave_queue();
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
        budget.share -= rows;
        budget.rows -= rows;
        budget.outputs -= outputs;
        picks.push(Pick { slot, rows, outputs, prefill: true });
        true
    }

    /// Takes the prompts out of the queue of which no rows are left.
    fn leave_queue(&mut self) {
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
        scheduler.next_step(usize::MAX, prompt_rows, &Anywhere, picks);
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
            scheduler.next_step(2, 5, &Anywhere, &mut picks);
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

    /// A prompt in slot 1 of which `done` rows have run, with a picture in some of them.
    struct WithPicture {
        done: usize,
        picture: std::ops::Range<usize>,
        is_ready: bool,
    }

    impl Cuts for WithPicture {
        fn most(&self, slot: usize, rows: usize) -> usize {
            let Self { done, ref picture, is_ready } = *self;
            let end = done + rows;
            let is_cut =
                if is_ready { picture.contains(&(end - 1)) && end < picture.end } else { true };
            let after = end > picture.start && done < picture.end;
            if slot == 1 && after && is_cut { picture.start - done } else { rows }
        }

        fn least(&self, slot: usize) -> usize {
            match slot == 1 && self.done == self.picture.start {
                true if self.is_ready => self.picture.len(),
                true => 0,
                false => 1,
            }
        }
    }

    #[test]
    fn a_picture_is_not_cut_and_exceeds_the_share_of_prompts() {
        let mut scheduler = Scheduler::new(2, Width { tokens: 8, outputs: 2 });
        scheduler.admit(0, 1, Wanted::Last, 0);
        step(&mut scheduler);
        scheduler.admit(1, 15, Wanted::Last, 0);
        let mut cuts = WithPicture { done: 0, picture: 3..10, is_ready: true };
        let mut picks = Vec::new();
        let mut next = |scheduler: &mut Scheduler, cuts: &mut WithPicture| {
            scheduler.next_step(usize::MAX, 4, cuts, &mut picks);
            for pick in &picks {
                scheduler.land(pick.slot);
                cuts.done += if pick.slot == 1 { pick.rows } else { 0 };
                if pick.outputs > 0 {
                    scheduler.resume(pick.slot);
                }
            }
            scheduler.check_integrity().unwrap();
            picks.clone()
        };
        assert_eq!(next(&mut scheduler, &mut cuts), [decode(0), prompt(1, 3, false)]);
        cuts.is_ready = false;
        assert_eq!(next(&mut scheduler, &mut cuts), [decode(0)]);
        assert_eq!(next(&mut scheduler, &mut cuts), [decode(0)], "nothing is held for it");
        cuts.is_ready = true;
        assert_eq!(next(&mut scheduler, &mut cuts), [decode(0), prompt(1, 7, false)]);
        assert_eq!(next(&mut scheduler, &mut cuts), [decode(0), prompt(1, 4, false)]);
        assert_eq!(next(&mut scheduler, &mut cuts), [decode(0), prompt(1, 1, true)]);
    }

    #[test]
    fn a_picture_without_room_is_first_in_the_next_step() {
        let mut scheduler = Scheduler::new(3, Width { tokens: 8, outputs: 8 });
        scheduler.admit(0, 1, Wanted::Last, 0);
        step(&mut scheduler);
        scheduler.admit(1, 8, Wanted::Last, 0);
        scheduler.admit(2, 6, Wanted::Last, 0);
        let cuts = WithPicture { done: 0, picture: 0..8, is_ready: true };
        let mut picks = Vec::new();
        scheduler.next_step(usize::MAX, 4, &cuts, &mut picks);
        assert_eq!(picks, [decode(0), prompt(2, 4, false)], "others have its share");
        scheduler.land(0);
        scheduler.land(2);
        scheduler.resume(0);
        scheduler.next_step(usize::MAX, 4, &cuts, &mut picks);
        assert_eq!(picks, [prompt(1, 8, true)]);
        scheduler.land(1);
        scheduler.resume(1);
        let cuts = WithPicture { done: 8, ..cuts };
        scheduler.next_step(usize::MAX, 4, &cuts, &mut picks);
        assert_eq!(picks, [decode(1), decode(0), prompt(2, 2, true)]);
        scheduler.check_integrity().unwrap();
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
            let goal = scheduler.next_step(usize::MAX, 5, &Anywhere, &mut picks);
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
