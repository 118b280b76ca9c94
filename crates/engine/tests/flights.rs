//! Several steps in flight: their times, and results that cannot be read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fake::{Fake, options};
use crate::greedy::greedy;
use trine_backend::BLOCK;
use trine_engine::{Engine, Event, Finish, Request, SequenceId, Statistics, Update};

fn prompt(seed: u32) -> Vec<u32> {
    (0..40).map(|at| (seed * 7 + at * (seed + 3)) % 48).collect()
}

/// What a sequence got.
#[derive(Default)]
struct Got {
    tokens: Vec<u32>,
    end: Option<(Finish, Statistics)>,
}

/// Runs until nothing is left to do. Returns the number of steps that failed.
fn finish(engine: &mut Engine, got: &mut HashMap<SequenceId, Got>) -> usize {
    let mut failures = 0;
    while !engine.is_idle() {
        let Ok(events) = engine.step() else {
            failures += 1;
            engine.check_integrity().expect("the books agree");
            continue;
        };
        for Event { sequence, update } in events {
            let got = got.entry(sequence).or_default();
            match update {
                Update::Token { token, .. } => got.tokens.push(token),
                Update::Finished { finish, statistics, .. } => got.end = Some((finish, statistics)),
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    failures
}

/// A sequence waits for its step from its submission on, though the device has others to run
/// before.
#[test]
fn a_sequence_waits_longer_than_the_device_works_for_it() {
    for depth in 1..=3 {
        let fake = Fake::new(options(256, depth, 64), &[20]).with_depth(depth);
        let mut engine = Engine::from_program(Box::new(fake));
        // Each look at the clock takes a second.
        let time = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&time);
        engine.set_clock(move || Duration::from_secs(clock.fetch_add(1, Ordering::Relaxed)));
        for seed in 0..depth as u32 {
            engine.submit(Request::new(prompt(seed), 100)).expect("it is sound");
        }
        let mut got = HashMap::new();
        assert_eq!(finish(&mut engine, &mut got), 0);
        let all = time.load(Ordering::Relaxed) as f64;
        let busy = engine.status().busy_seconds;
        assert!(busy <= all, "{busy} of {all} s at depth {depth}");
        let mut waited = 0.0;
        for got in got.values() {
            let statistics = got.end.expect("it has ended").1;
            let seconds = statistics.prefill_seconds + statistics.decode_seconds;
            assert!(seconds <= all, "{seconds} of {all} s at depth {depth}");
            waited += seconds;
        }
        // A step has one sequence once all write, so both would be nearly the same.
        let least = if depth == 1 { busy } else { 1.25 * busy };
        assert!(waited >= least, "waited {waited} s, busy {busy} s at depth {depth}");
    }
}

#[test]
fn results_that_cannot_be_read_leave_nothing_in_flight() {
    for depth in 1..=3 {
        let mut fake = Fake::new(options(256, 6, 16), &[20]).with_depth(depth);
        // While prompts are run, and while all sequences write.
        fake.unreadable_at = vec![2, 60];
        let mut engine = Engine::from_program(Box::new(fake));
        let mut got = HashMap::new();
        let ids: Vec<_> = (0..6)
            .map(|seed| engine.submit(Request::new(prompt(seed), 40)).expect("it is sound"))
            .collect();
        assert_eq!(finish(&mut engine, &mut got), 2, "depth {depth}");
        for (seed, id) in ids.iter().enumerate() {
            let (end, text) = (got[id].end, greedy(&prompt(seed as u32), 40));
            match end.expect("it has ended").0 {
                Finish::Length => assert_eq!(got[id].tokens, text),
                Finish::DeviceFailed => assert!(text.starts_with(&got[id].tokens)),
                other => panic!("it ended with {other}"),
            }
        }
        let id = engine.submit(Request::new(prompt(9), 40)).expect("it is sound");
        assert_eq!(finish(&mut engine, &mut got), 0);
        assert_eq!(got[&id].tokens, greedy(&prompt(9), 40));
    }
}

/// A device for steps of 16 rows, two of which may be in flight if the first is silent, and a
/// prompt of three steps.
fn silent() -> (Fake, Vec<u32>) {
    (Fake::new(options(256, 2, 16), &[20]).with_silent_depth(2), prompt(3))
}

/// The rows of a prompt's next piece are there before the device has ended the one before, on a
/// device that takes no other step beside one whose results are read.
#[test]
fn a_piece_of_a_prompt_is_submitted_before_the_one_before_it_is_waited_for() {
    let (fake, prompt) = silent();
    let log = Arc::clone(&fake.log);
    let mut engine = Engine::from_program(Box::new(fake));
    let id = engine.submit(Request::new(prompt.clone(), 3)).expect("it is sound");
    let mut got = HashMap::new();
    assert_eq!(finish(&mut engine, &mut got), 0);
    assert_eq!(got[&id].tokens, greedy(&prompt, 3));
    let expected = [
        ("submit", 0),
        ("submit", 16),
        ("wait", 0),
        ("submit", 32),
        ("wait", 16),
        ("wait", 32),
        ("submit", 40),
        ("wait", 40),
        ("submit", 41),
        ("wait", 41),
    ];
    assert_eq!(*log.lock().expect("it is sound"), expected);
}

/// What waits may begin like the prompt, and has to find its rings as they are.
#[test]
fn no_piece_follows_another_while_requests_wait() {
    let (fake, prompt) = silent();
    let log = Arc::clone(&fake.log);
    let mut engine = Engine::with_running(Box::new(fake), 1);
    for tokens in [prompt.clone(), prompt] {
        engine.submit(Request::new(tokens, 1)).expect("it is sound");
    }
    assert_eq!(finish(&mut engine, &mut HashMap::new()), 0);
    let log = log.lock().expect("it is sound");
    assert_eq!(log[..4], [("submit", 0), ("wait", 0), ("submit", 16), ("wait", 16)]);
}

/// Rings have 64 places and a window of 20, so that of the third piece, which ends at position 120,
/// on a sequence goes on only from position 75 on.
#[test]
fn a_request_does_not_wait_for_what_pieces_in_flight_overwrite() {
    for (shared, is_lost) in [(70, true), (100, false)] {
        let fake = Fake::new(options(512, 3, 40), &[20]).with_depth(3);
        let mut engine = Engine::from_program(Box::new(fake));
        let long: Vec<u32> = (0..320).map(|at| (at * at + 3) % 48).collect();
        let mut other = long[..shared].to_vec();
        other.extend([1, 2, 3]);
        let first = engine.submit(Request::new(long.clone(), 3)).expect("it is sound");
        engine.step().expect("the first piece runs");
        let second = engine.submit(Request::new(other.clone(), 3)).expect("it is sound");
        let mut got = HashMap::new();
        engine.step().expect("the device works");
        assert_eq!(engine.status().running, if is_lost { 2 } else { 1 }, "{shared} are shared");
        assert_eq!(finish(&mut engine, &mut got), 0);
        assert_eq!(got[&first].tokens, greedy(&long, 3));
        assert_eq!(got[&second].tokens, greedy(&other, 3));
        let reused = if is_lost { 0 } else { shared / BLOCK * BLOCK };
        assert_eq!(engine.status().reused_tokens, reused as u64);
    }
}

#[test]
fn a_request_that_ends_in_flight_gets_no_more_rows() {
    for by_deadline in [false, true] {
        let (fake, prompt) = silent();
        let log = Arc::clone(&fake.log);
        let mut engine = Engine::from_program(Box::new(fake));
        let mut request = Request::new(prompt.clone(), 3);
        if by_deadline {
            request.deadline = Some(Instant::now() + Duration::from_millis(300));
        }
        let id = engine.submit(request).expect("it is sound");
        engine.step().expect("the first piece runs");
        if by_deadline {
            std::thread::sleep(Duration::from_millis(310));
        } else {
            engine.cancel(id).expect("it runs");
        }
        let mut got = HashMap::new();
        assert_eq!(finish(&mut engine, &mut got), 0);
        let end = got[&id].end.expect("it has ended").0;
        assert_eq!(end, if by_deadline { Finish::Deadline } else { Finish::Cancelled });
        let expected = [("submit", 0), ("submit", 16), ("wait", 0), ("wait", 16)];
        assert_eq!(*log.lock().expect("it is sound"), expected);
        // What has run is there for the next one.
        let id = engine.submit(Request::new(prompt.clone(), 3)).expect("it is sound");
        finish(&mut engine, &mut got);
        assert_eq!(got[&id].tokens, greedy(&prompt, 3));
        assert_eq!(engine.status().reused_tokens, 32);
    }
}

#[test]
fn a_piece_that_fails_takes_the_one_behind_it_along() {
    // As it is submitted, alone or behind another one; the last piece of the prompt.
    for fails_at in 1..=3 {
        let (mut fake, prompt) = silent();
        fake.fails_at = vec![fails_at];
        let mut engine = Engine::from_program(Box::new(fake));
        let id = engine.submit(Request::new(prompt.clone(), 3)).expect("it is sound");
        let mut got = HashMap::new();
        assert_eq!(finish(&mut engine, &mut got), 1, "run {fails_at}");
        assert_eq!(got[&id].tokens, greedy(&prompt, 3), "it was tried again");
    }
}

/// The device has overwritten what rings held in the places of all rows in flight.
#[test]
fn pieces_that_are_stopped_leave_what_was_there_before() {
    let (mut fake, prompt) = silent();
    fake.endless_at = 3;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut engine = Engine::from_program(Box::new(fake));
    engine.stop_on(Arc::clone(&stop));
    let id = engine.submit(Request::new(prompt.clone(), 3)).expect("it is sound");
    let mut got = HashMap::new();
    engine.step().expect("the first piece runs");
    stop.store(true, Ordering::Relaxed);
    assert_eq!(finish(&mut engine, &mut got), 0);
    assert_eq!(got[&id].end.expect("it has ended").0, Finish::Cancelled);
    stop.store(false, Ordering::Relaxed);
    for prompt in [prompt.clone(), prompt[..20].to_vec()] {
        let id = engine.submit(Request::new(prompt.clone(), 3)).expect("it is sound");
        finish(&mut engine, &mut got);
        assert_eq!(got[&id].tokens, greedy(&prompt, 3));
    }
}
