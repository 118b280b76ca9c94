//! Steps of a few sequences, row by row.

use super::*;

/// Picks a step, which lands at once.
fn next(scheduler: &mut Scheduler, prompt_rows: usize, picks: &mut Vec<Pick>) {
    scheduler.next_step(usize::MAX, prompt_rows, &Anywhere, picks);
    picks.iter().for_each(|pick| scheduler.land(pick));
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
    Pick { slot, rows, outputs: usize::from(output), prefill: true, after: 0 }
}

fn decode(slot: usize) -> Pick {
    Pick { slot, rows: 1, outputs: 1, prefill: false, after: 0 }
}

#[test]
fn decoding_comes_first_and_prompts_fill_the_width() {
    let mut scheduler = Scheduler::new(3, Width { tokens: 8, outputs: 3 });
    scheduler.admit(1, 5, Wanted::Last, Goal::Main, usize::MAX);
    assert_eq!(step(&mut scheduler), [prompt(1, 5, true)]);
    scheduler.admit(2, 10, Wanted::Last, Goal::Main, usize::MAX);
    scheduler.admit(0, 2, Wanted::Last, Goal::Main, usize::MAX);
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
    scheduler.admit(0, 1, Wanted::Last, Goal::Main, usize::MAX);
    step(&mut scheduler);
    scheduler.admit(1, 3, Wanted::Last, Goal::Main, usize::MAX);
    assert_eq!(step(&mut scheduler), [decode(0), prompt(1, 2, false)]);
    assert_eq!(step(&mut scheduler), [decode(0)]);
    assert_eq!(step(&mut scheduler), [prompt(1, 1, true)], "it was left out once");
    assert_eq!(step(&mut scheduler), [decode(1)], "they take turns");
    assert_eq!(step(&mut scheduler), [decode(0)]);
}

#[test]
fn width_one_serves_everybody_in_turn() {
    let mut scheduler = Scheduler::new(2, Width { tokens: 1, outputs: 1 });
    scheduler.admit(0, 1, Wanted::Last, Goal::Main, usize::MAX);
    step(&mut scheduler);
    scheduler.admit(1, 2, Wanted::Last, Goal::Main, usize::MAX);
    let slots: Vec<_> = (0..8).map(|_| step(&mut scheduler)[0].slot).collect();
    assert_eq!(slots, [0, 1, 0, 1, 1, 0, 1, 0]);
}

#[test]
fn prefill_alone_asks_for_no_logits() {
    let mut scheduler = Scheduler::new(1, Width { tokens: 4, outputs: 1 });
    scheduler.admit(0, 6, Wanted::Nothing, Goal::Main, usize::MAX);
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
    scheduler.admit(0, 4, Wanted::All, Goal::Main, usize::MAX);
    scheduler.admit(1, 5, Wanted::Last, Goal::Main, usize::MAX);
    let all = |rows: usize| Pick { slot: 0, rows, outputs: rows, prefill: true, after: 0 };
    let mut picks = Vec::new();
    next(&mut scheduler, usize::MAX, &mut picks);
    assert_eq!(picks, [all(3), prompt(1, 4, false)], "the other's last row waits for an output");
    next(&mut scheduler, usize::MAX, &mut picks);
    assert_eq!(picks, [all(1), prompt(1, 1, true)]);
    scheduler.resume(1);
    scheduler.extend(0, 9, Wanted::Nothing);
    scheduler.check_integrity().unwrap();
    next(&mut scheduler, 2, &mut picks);
    assert_eq!(picks, [decode(1), prompt(0, 2, false)], "no more than allowed beside others");
}

#[test]
fn prompts_go_on_in_flight_and_texts_do_not() {
    let mut scheduler = Scheduler::new(4, Width { tokens: 8, outputs: 4 });
    (0..3).for_each(|slot| scheduler.admit(slot, 1, Wanted::Last, Goal::Main, usize::MAX));
    step(&mut scheduler);
    scheduler.admit(3, 17, Wanted::Last, Goal::Main, usize::MAX);
    let next = |scheduler: &mut Scheduler| {
        let mut picks = Vec::new();
        scheduler.next_step(2, 5, &Anywhere, &mut picks);
        scheduler.check_integrity().unwrap();
        picks
    };
    assert_eq!(next(&mut scheduler), [decode(0), decode(1), prompt(3, 5, false)]);
    assert!(scheduler.is_flying(3) && !scheduler.is_flying(2));
    let after = |after: usize, pick: Pick| Pick { after, ..pick };
    assert_eq!(next(&mut scheduler), [decode(2), after(5, prompt(3, 5, false))]);
    assert_eq!(scheduler.rows_in_flight(3), 10);
    scheduler.land(&prompt(3, 5, false));
    scheduler.land(&decode(0));
    scheduler.resume(0);
    assert_eq!(next(&mut scheduler), [decode(0), after(5, prompt(3, 5, false))]);
    assert_eq!(next(&mut scheduler), [after(10, prompt(3, 2, true))], "its last rows");
    assert_eq!(next(&mut scheduler), []);
    (0..2).for_each(|_| scheduler.land(&prompt(3, 5, false)));
    assert!(scheduler.is_flying(3) && scheduler.is_waiting(3));
    scheduler.remove(1);
    assert!(!scheduler.is_flying(1));
}

/// A text's next row waits for the step that is picked while its last one is in flight.
#[test]
fn prompts_have_as_few_rows_behind_a_text_in_flight_as_beside_it() {
    let mut scheduler = Scheduler::new(3, Width { tokens: 8, outputs: 3 });
    scheduler.admit(0, 1, Wanted::Last, Goal::Main, usize::MAX);
    step(&mut scheduler);
    scheduler.admit(1, 30, Wanted::Last, Goal::Main, usize::MAX);
    let next = |scheduler: &mut Scheduler| {
        let mut picks = Vec::new();
        scheduler.next_step(1, 3, &Anywhere, &mut picks);
        scheduler.check_integrity().unwrap();
        picks
    };
    let after = |after: usize, pick: Pick| Pick { after, ..pick };
    assert_eq!(next(&mut scheduler), [decode(0), prompt(1, 3, false)]);
    assert_eq!(next(&mut scheduler), [after(3, prompt(1, 3, false))]);
    scheduler.admit(2, 9, Wanted::Nothing, Goal::States, 0);
    assert_eq!(next(&mut scheduler), [prompt(2, 3, false)], "whatever the step is for");
    scheduler.land(&decode(0));
    scheduler.remove(0);
    assert_eq!(next(&mut scheduler), [after(6, prompt(1, 8, false))], "the text has ended");
}

/// A prompt in slot 1 of which `done` rows have run, with a picture in some of them.
struct WithPicture {
    done: usize,
    picture: std::ops::Range<usize>,
    is_ready: bool,
}

impl WithPicture {
    /// Runs a step with at most `prompt_rows` rows of prompts, and goes on with those of slot 1.
    fn step(&mut self, scheduler: &mut Scheduler, prompt_rows: usize) -> Vec<Pick> {
        let mut picks = Vec::new();
        scheduler.next_step(usize::MAX, prompt_rows, self, &mut picks);
        for pick in &picks {
            scheduler.land(pick);
            self.done += if pick.slot == 1 { pick.rows } else { 0 };
            if pick.outputs > 0 {
                scheduler.resume(pick.slot);
            }
        }
        scheduler.check_integrity().unwrap();
        picks
    }
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
    scheduler.admit(0, 1, Wanted::Last, Goal::Main, usize::MAX);
    step(&mut scheduler);
    scheduler.admit(1, 15, Wanted::Last, Goal::Main, usize::MAX);
    let mut cuts = WithPicture { done: 0, picture: 3..10, is_ready: true };
    assert_eq!(cuts.step(&mut scheduler, 4), [decode(0), prompt(1, 3, false)]);
    cuts.is_ready = false;
    assert_eq!(cuts.step(&mut scheduler, 4), [decode(0)]);
    assert_eq!(cuts.step(&mut scheduler, 4), [decode(0)], "nothing is held for it");
    cuts.is_ready = true;
    assert_eq!(cuts.step(&mut scheduler, 4), [decode(0), prompt(1, 7, false)]);
    assert_eq!(cuts.step(&mut scheduler, 4), [decode(0), prompt(1, 4, false)]);
    assert_eq!(cuts.step(&mut scheduler, 4), [decode(0), prompt(1, 1, true)]);
}

#[test]
fn a_picture_without_room_is_first_in_the_next_step() {
    let mut scheduler = Scheduler::new(3, Width { tokens: 8, outputs: 8 });
    scheduler.admit(0, 1, Wanted::Last, Goal::Main, usize::MAX);
    step(&mut scheduler);
    scheduler.admit(1, 8, Wanted::Last, Goal::Main, usize::MAX);
    scheduler.admit(2, 6, Wanted::Last, Goal::Main, usize::MAX);
    let cuts = WithPicture { done: 0, picture: 0..8, is_ready: true };
    let mut picks = Vec::new();
    scheduler.next_step(usize::MAX, 4, &cuts, &mut picks);
    assert_eq!(picks, [decode(0), prompt(2, 4, false)], "others have its share");
    scheduler.land(&decode(0));
    scheduler.land(&prompt(2, 4, false));
    scheduler.resume(0);
    scheduler.next_step(usize::MAX, 4, &cuts, &mut picks);
    assert_eq!(picks, [prompt(1, 8, true)]);
    scheduler.land(&prompt(1, 8, true));
    scheduler.resume(1);
    let cuts = WithPicture { done: 8, ..cuts };
    scheduler.next_step(usize::MAX, 4, &cuts, &mut picks);
    assert_eq!(picks, [decode(1), decode(0), prompt(2, 2, true)]);
    scheduler.check_integrity().unwrap();
}

/// Rows of several sequences are at most 4 here, and a picture has 7.
#[test]
fn a_picture_that_is_wider_than_mixed_steps_has_one_for_itself() {
    let mut scheduler = Scheduler::new(3, Width { tokens: 4, outputs: 2 }).with_units(8);
    scheduler.admit(0, 1, Wanted::Last, Goal::Main, usize::MAX);
    step(&mut scheduler);
    scheduler.admit(1, 12, Wanted::Last, Goal::Main, usize::MAX);
    scheduler.admit(2, 5, Wanted::Last, Goal::Main, usize::MAX);
    let mut cuts = WithPicture { done: 0, picture: 2..9, is_ready: true };
    let steps = [
        vec![decode(0), prompt(1, 2, false), prompt(2, 1, false)],
        vec![decode(0), prompt(2, 3, false)],
        vec![prompt(1, 7, false)],
        vec![decode(0), prompt(1, 3, true)],
    ];
    for expected in steps {
        assert_eq!(cuts.step(&mut scheduler, usize::MAX), expected);
    }
    // Nobody else has rows to run.
    let mut scheduler = Scheduler::new(3, Width { tokens: 4, outputs: 2 }).with_units(8);
    scheduler.admit(1, 7, Wanted::Last, Goal::Main, usize::MAX);
    let mut cuts = WithPicture { done: 0, picture: 0..7, is_ready: true };
    assert_eq!(cuts.step(&mut scheduler, usize::MAX), [prompt(1, 7, true)]);
}

/// Rows of several sequences are at most 4 here, and a picture has 7.
#[test]
fn a_wide_picture_does_not_wait_until_other_prompts_end() {
    let mut scheduler = Scheduler::new(2, Width { tokens: 4, outputs: 2 }).with_units(8);
    scheduler.admit(1, 7, Wanted::Last, Goal::Main, usize::MAX);
    scheduler.admit(0, 100, Wanted::Last, Goal::Main, usize::MAX);
    let cuts = WithPicture { done: 0, picture: 0..7, is_ready: true };
    let mut picks = Vec::new();
    for expected in [prompt(0, 4, false), prompt(1, 7, true), prompt(0, 4, false)] {
        scheduler.next_step(usize::MAX, usize::MAX, &cuts, &mut picks);
        assert_eq!(picks, [expected]);
        for pick in &picks {
            scheduler.land(pick);
        }
    }
}

/// Texts of which each is one unit, and of which the first is wider than rows of several may be.
#[test]
fn whole_texts_share_steps_or_have_one_for_themselves() {
    struct WholeTexts([usize; 4]);
    impl Cuts for WholeTexts {
        fn most(&self, slot: usize, rows: usize) -> usize {
            if rows < self.0[slot] { 0 } else { self.0[slot] }
        }

        fn least(&self, slot: usize) -> usize {
            self.0[slot]
        }
    }
    let mut scheduler = Scheduler::new(4, Width { tokens: 4, outputs: 2 }).with_units(8);
    let rows = [7, 3, 2, 1];
    for (slot, rows) in rows.into_iter().enumerate() {
        scheduler.admit(slot, rows, Wanted::Nothing, Goal::States, usize::MAX);
    }
    let mut picks = Vec::new();
    let whole = |slot: usize| prompt(slot, rows[slot], false);
    for expected in [vec![whole(0)], vec![whole(1), whole(3)], vec![whole(2)]] {
        let goal = scheduler.next_step(usize::MAX, usize::MAX, &WholeTexts(rows), &mut picks);
        assert_eq!((goal, &picks), (Goal::States, &expected));
        for pick in &picks {
            scheduler.land(pick);
            scheduler.remove(pick.slot);
        }
    }
    assert!(scheduler.is_idle());
}

/// Texts that run and prompts to be embedded: each step is for one of the two, in turn.
#[test]
fn goals_take_turns() {
    let mut scheduler = Scheduler::new(4, Width { tokens: 8, outputs: 4 });
    scheduler.admit(0, 1, Wanted::Last, Goal::Main, usize::MAX);
    step(&mut scheduler);
    scheduler.admit(1, 20, Wanted::Nothing, Goal::States, usize::MAX);
    scheduler.admit(2, 3, Wanted::Nothing, Goal::States, usize::MAX);
    scheduler.admit(3, 6, Wanted::Last, Goal::Main, usize::MAX);
    let next = |scheduler: &mut Scheduler| {
        let mut picks = Vec::new();
        let goal = scheduler.next_step(usize::MAX, 5, &Anywhere, &mut picks);
        for pick in &picks {
            scheduler.land(pick);
            if pick.outputs > 0 {
                scheduler.resume(pick.slot);
            } else if scheduler.is_waiting(pick.slot) {
                scheduler.remove(pick.slot);
            }
        }
        scheduler.check_integrity().unwrap();
        (goal, picks)
    };
    assert_eq!(next(&mut scheduler), (Goal::States, vec![prompt(1, 5, false)]));
    assert_eq!(next(&mut scheduler), (Goal::Main, vec![decode(0), prompt(3, 5, false)]));
    assert_eq!(next(&mut scheduler), (Goal::States, vec![prompt(1, 5, false)]));
    assert_eq!(next(&mut scheduler), (Goal::Main, vec![decode(0), prompt(3, 1, true)]));
    scheduler.remove(0);
    scheduler.remove(3);
    assert_eq!(
        next(&mut scheduler),
        (Goal::States, vec![prompt(1, 8, false)]),
        "the whole width where nothing else waits"
    );
    assert_eq!(
        next(&mut scheduler),
        (Goal::States, vec![prompt(1, 2, false), prompt(2, 3, false)])
    );
    assert_eq!(next(&mut scheduler), (Goal::Main, Vec::new()));
}
