//! Steps that are stopped on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fake::{Fake, next_logits, options};
use trine_engine::{Engine, Finish, Request, Update};

const WINDOWS: [usize; 2] = [5, 20];

/// Tokens of a prompt that shares its first `branch` tokens with that of any other branch.
fn prompt(branch: usize) -> Vec<u32> {
    (0..160).map(|at| (at * at + usize::from(at >= branch)) as u32 % 48).collect()
}

/// The most likely tokens after a prompt.
fn naive(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = next_logits(&tokens);
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        tokens.push(best.expect("there are logits") as u32);
    }
    tokens.split_off(prompt.len())
}

/// Runs until nothing is left to do; the tokens, how it ended, and how much of the prompt was
/// reused.
fn run(engine: &mut Engine) -> (Vec<u32>, Option<Finish>, usize) {
    let (mut tokens, mut end, mut reused) = (Vec::new(), None, 0);
    while !engine.is_idle() {
        for event in engine.step().expect("a stopped step is no failure") {
            match event.update {
                Update::Token { token, .. } => tokens.push(token),
                Update::Finished { finish, statistics, .. } => {
                    (end, reused) = (Some(finish), statistics.reused_tokens);
                }
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    (tokens, end, reused)
}

#[test]
fn what_a_stopped_step_has_overwritten_is_not_used() {
    let mut most_reused = 0;
    for branch in 1..96 {
        let fake = Fake::new(options(256, 1, 32), &WINDOWS);
        let mut engine = Engine::from_program(Box::new(fake));
        let stop = Arc::new(AtomicBool::new(false));
        engine.heed(Arc::clone(&stop));
        engine.submit(Request::new(prompt(usize::MAX), 8)).expect("it fits");
        for _ in 0..3 {
            engine.step().expect("the device works");
        }
        stop.store(true, Ordering::Relaxed);
        let (tokens, end, _) = run(&mut engine);
        assert_eq!((tokens, end), (vec![], Some(Finish::Cancelled)));
        stop.store(false, Ordering::Relaxed);
        // The fake device fails the test if a row sees what another sequence has left.
        let other = prompt(branch);
        engine.submit(Request::new(other.clone(), 8)).expect("it fits");
        let (tokens, end, reused) = run(&mut engine);
        assert_eq!((tokens, end), (naive(&other, 8), Some(Finish::Length)), "branch at {branch}");
        most_reused = most_reused.max(reused);
    }
    assert!(most_reused >= 90, "what was whole before is reused: {most_reused}");
}
