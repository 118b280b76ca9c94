//! Texts whose constraints are worked on by other threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::fake::{Fake, options};
use trine_engine::{Constraint, Engine, Request, SequenceId, Update, Waker};

/// Is ready once it is told so.
#[derive(Clone, Default)]
struct Gate {
    /// Whether it says before a step that it takes long.
    is_costly: bool,
    is_open: Arc<AtomicBool>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl Constraint for Gate {
    fn allowed(&mut self, words: usize, mask: &mut Vec<u32>) -> Result<(), String> {
        mask.resize(words, u32::MAX);
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> Result<(), String> {
        self.is_open.store(false, Ordering::Relaxed);
        *self.waker.lock().unwrap() = None;
        Ok(())
    }

    fn begin(&mut self, _guesses: &[u32], waker: &Waker) {
        *self.waker.lock().unwrap() = Some(Arc::clone(waker));
    }

    fn is_ready(&mut self, _until: Option<Instant>) -> bool {
        self.waker.lock().unwrap().is_none() || self.is_open.load(Ordering::Relaxed)
    }

    fn is_costly(&self) -> bool {
        self.is_costly
    }
}

/// Makes a step. Returns the tokens of a text.
fn step(engine: &mut Engine, id: SequenceId) -> Vec<u32> {
    let events = engine.step().expect("the device works");
    engine.check_integrity().expect("the books agree");
    let token = |update: &Update| match *update {
        Update::Token { token, .. } => Some(token),
        _ => None,
    };
    let own = events.iter().filter(|event| event.sequence == id);
    own.filter_map(|event| token(&event.update)).collect()
}

fn request(first: u32, max_tokens: usize) -> Request {
    Request::new((first..first + 10).collect(), max_tokens)
}

#[test]
fn others_go_on_while_a_constraint_is_not_ready() {
    let mut engine = Engine::from_program(Box::new(Fake::new(options(128, 2, 16), &[5, 20])));
    let alone = engine.submit(request(2, 4)).unwrap();
    let expected: Vec<u32> = (0..10).flat_map(|_| step(&mut engine, alone)).collect();
    assert_eq!(expected.len(), 4);
    engine.forget();

    engine.set_waker(|| {});
    for is_costly in [true, false] {
        let gate = Gate { is_costly, ..Gate::default() };
        let constraint = Some(Box::new(gate.clone()) as Box<dyn Constraint>);
        let before = engine.status().generated_tokens;
        let held = engine.submit(Request { constraint, ..request(2, 4) }).unwrap();
        engine.submit(request(3, 30)).unwrap();
        let mut text: Vec<u32> = (0..40).flat_map(|_| step(&mut engine, held)).collect();
        let generated = engine.status().generated_tokens - before;
        assert_eq!(generated as usize, 30 + text.len(), "the other text is whole");
        for count in 0..4 {
            assert_eq!((text.len(), step(&mut engine, held)), (count, Vec::new()));
            assert!(engine.is_stalled() && !engine.is_idle());
            gate.is_open.store(true, Ordering::Relaxed);
            gate.waker.lock().unwrap().clone().unwrap()();
            assert!(!engine.is_stalled(), "it was woken");
            (0..3).for_each(|_| text.extend(step(&mut engine, held)));
        }
        assert_eq!(text, expected);
        assert!(engine.is_idle());
        engine.forget();
    }
}

/// It goes on after the step in flight, and does not wait for another one behind that.
#[test]
fn no_piece_follows_another_beside_a_text_that_waits_for_its_constraint() {
    let fake = Fake::new(options(128, 2, 16), &[20]).with_silent_depth(2);
    let log = Arc::clone(&fake.log);
    let mut engine = Engine::from_program(Box::new(fake));
    engine.set_waker(|| {});
    let gate = Gate { is_costly: true, ..Gate::default() };
    let constraint = Some(Box::new(gate.clone()) as Box<dyn Constraint>);
    let held = engine.submit(Request { constraint, ..request(2, 4) }).unwrap();
    (0..3).for_each(|_| drop(step(&mut engine, held)));
    assert!(engine.is_stalled());
    log.lock().unwrap().clear();
    let prompt = Request::new((0..40).collect(), 1);
    engine.submit(prompt).unwrap();
    (0..4).for_each(|_| drop(step(&mut engine, held)));
    let pieces = [0, 16, 32].map(|first| [("submit", first), ("wait", first)]);
    assert_eq!(*log.lock().unwrap(), pieces.concat());
}
