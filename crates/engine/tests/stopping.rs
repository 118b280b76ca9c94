//! Steps that are stopped on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fake::{Fake, options};
use crate::greedy::greedy;
use crate::texts::run;
use trine_engine::{Engine, Event, Finish, Request, Update};

const WINDOWS: [usize; 2] = [5, 20];

/// Tokens of a prompt that shares its first `branch` tokens with that of any other branch.
fn prompt(branch: usize) -> Vec<u32> {
    (0..160).map(|at| (at * at + usize::from(at >= branch)) as u32 % 48).collect()
}

#[test]
fn what_a_stopped_step_has_overwritten_is_not_used() {
    let mut most_reused = 0;
    for branch in 1..96 {
        let fake = Fake::new(options(256, 1, 32), &WINDOWS);
        let mut engine = Engine::from_program(Box::new(fake));
        let stop = Arc::new(AtomicBool::new(false));
        engine.stop_on(Arc::clone(&stop));
        engine.submit(Request::new(prompt(usize::MAX), 8)).expect("it fits");
        for _ in 0..3 {
            engine.step().expect("the device works");
        }
        stop.store(true, Ordering::Relaxed);
        let step = |_| engine.step().expect("a stopped step is no failure");
        let events: Vec<Event> = (0..4).flat_map(step).collect();
        assert_eq!(
            events.iter().filter_map(Event::finish).collect::<Vec<_>>(),
            [Finish::Cancelled]
        );
        let is_token = |event: &Event| matches!(event.update, Update::Token { .. });
        assert!(engine.is_idle() && !events.iter().any(is_token), "{events:?}");
        stop.store(false, Ordering::Relaxed);
        // The fake device fails the test if a row sees what another sequence has left.
        let other = prompt(branch);
        let text = run(&mut engine, vec![Request::new(other.clone(), 8)]).remove(0);
        assert_eq!(text.tokens, greedy(&other, 8), "branch at {branch}");
        assert_eq!(text.end, Some((Finish::Length, None)));
        most_reused = most_reused.max(text.statistics.reused_tokens);
    }
    assert!(most_reused >= 90, "what was whole before is reused: {most_reused}");
}
