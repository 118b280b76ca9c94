//! Whose pictures a tower is run for, and for how long their patches take room.

use crate::looks;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::fake::failed;
use crate::looks::{BUDGET, Gated, engine, joined, picture, request, until};
use trine_backend::BackendError;
use trine_engine::{Event, PromptPicture, Request, RunsTower, Tower, TowerInput};

#[test]
fn requests_take_turns() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 4, 4);
    engine.set_waker(|| {});
    let many = joined(&[&[1], &picture(5), &[2], &picture(11), &[2], &picture(17), &[2]]);
    engine.submit(request(&gated.tower, &many, 1)).expect("it is sound");
    engine.step().expect("the device works");
    assert!(gated.settle());
    // One of its own, and the last one that the other request waits for.
    let codes = [joined(&[&[1], &picture(23), &[3]]), joined(&[&[3], &picture(17), &[3]])];
    let [own, shared] =
        codes.map(|codes| engine.submit(request(&gated.tower, &codes, 1)).expect("it is sound"));
    engine.step().expect("the device works");
    assert_eq!(gated.tower.counts().waiting, 4);
    let mut finishes = Vec::new();
    let mut paint = |count: usize| {
        (0..count).for_each(|_| gated.paint());
        for _ in 0..20 {
            let events = engine.step().expect("the device works");
            finishes.extend(
                events.iter().filter(|event| event.finish().is_some()).map(|event| event.sequence),
            );
        }
        finishes.clone()
    };
    // The first one is being made; then the others have their turns.
    assert_eq!(paint(2), [own]);
    assert_eq!(paint(1), [own, shared]);
    assert_eq!(paint(1).len(), 3);
    assert_eq!(gated.tower.counts().pictures, 4);
}

/// As the answers to one question that are wanted at once.
#[test]
fn requests_that_share_their_pictures_have_one_turn() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 4, 4);
    engine.set_waker(|| {});
    let codes = joined(&[&[1], &picture(5), &[2], &picture(11), &[2]]);
    let first = request(&gated.tower, &codes, 1);
    let pictures = Arc::clone(&first.pictures);
    engine.submit(first).expect("it is sound");
    for _ in 0..2 {
        let own = Request { pictures: Arc::clone(&pictures), ..request(&gated.tower, &codes, 1) };
        engine.submit(own).expect("it is sound");
    }
    engine.step().expect("the device works");
    assert!(gated.settle());
    let other = request(&gated.tower, &joined(&[&[1], &picture(23), &[3]]), 1);
    let other = engine.submit(other).expect("it is sound");
    engine.step().expect("the device works");
    // The run that had begun, and its own.
    gated.paint();
    gated.paint();
    let events: Vec<_> = (0..20).flat_map(|_| engine.step().expect("the device works")).collect();
    let ended: Vec<_> = events.iter().filter(|event| event.finish().is_some()).collect();
    assert_eq!(ended.iter().map(|event| event.sequence).collect::<Vec<_>>(), [other]);
    gated.paint();
    let count =
        |events: Vec<_>| events.iter().filter(|event: &&Event| event.finish().is_some()).count();
    let ended: usize = (0..20).map(|_| count(engine.step().expect("the device works"))).sum();
    assert_eq!((ended, gated.tower.counts().pictures), (3, 3));
}

/// A tower whose runs end only when they are stopped.
#[derive(Default)]
struct Endless {
    begun: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl RunsTower for Endless {
    fn rows(&mut self, _picture: &TowerInput) -> Result<Vec<f32>, BackendError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let begin = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            if begin.elapsed() > Duration::from_secs(120) {
                return Err(failed());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(BackendError::Stopped)
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }
}

#[test]
fn a_run_is_stopped_when_nobody_waits_for_it() {
    let endless = Endless::default();
    let begun = Arc::clone(&endless.begun);
    let tower = Tower::start(endless, [1; 32], BUDGET).expect("there is a thread");
    let mut engine = engine(80, 2, 2);
    engine.set_waker(|| {});
    for runs in 1..4 {
        let codes = joined(&[&[1], &picture(5), &[3]]);
        let ids = [0; 2].map(|_| engine.submit(request(&tower, &codes, 5)).expect("it is sound"));
        engine.step().expect("the device works");
        until(|| begun.load(Ordering::SeqCst) == runs);
        engine.cancel(ids[0]);
        engine.step().expect("the device works");
        assert_eq!(tower.counts().waiting, 1, "the other one waits");
        engine.cancel(ids[1]);
        until(|| tower.counts().pictures == runs as u64);
    }
    assert_eq!(tower.counts().failures, 0);
    // One that is stopped on the way with its tower.
    let codes = joined(&[&[1], &picture(5), &[3]]);
    engine.submit(request(&tower, &codes, 5)).expect("it is sound");
    engine.step().expect("the device works");
    until(|| begun.load(Ordering::SeqCst) == 4);
    tower.stop();
    assert_eq!(tower.counts().pictures, 4);
}

#[test]
fn room_is_given_back_with_the_patches() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 2, 2);
    engine.set_waker(|| {});
    let room = Arc::new(());
    let handle = || gated.tower.handle_in(looks::input(5), Arc::clone(&room));
    let holders = || Arc::strong_count(&room) - 1;
    let first = handle();
    let second = handle();
    assert_eq!(holders(), 1, "they share the patches");
    drop(first);
    assert_eq!(holders(), 1);
    drop(second);
    assert_eq!(holders(), 0);
    let prompt = joined(&[&[1], &picture(5), &[3]]);
    let mut request = request(&gated.tower, &prompt, 200);
    request.pictures = Arc::default();
    request.pictures = Arc::new([PromptPicture { at: 1, handle: handle() }]);
    engine.submit(request).expect("it is sound");
    engine.step().expect("the device works");
    assert!(gated.settle());
    assert_eq!(holders(), 1, "it is run");
    gated.paint();
    assert_eq!(holders(), 0, "its rows are made");
    assert!(!engine.is_idle());
    // The tower has its rows.
    let kept = handle();
    assert_eq!(holders(), 0);
    drop(kept);
}
