//! What a device does of its own while no request is there.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::fake::{Fake, failed, options};
use crate::greedy::greedy;
use crate::texts::read;
use trine_engine::{Engine, Idle, Leisure, Request, Service};

const AT_ONCE: Leisure = Leisure { after_start: Duration::ZERO, after_work: Duration::ZERO };
const LONG: Duration = Duration::from_secs(20);

fn fake() -> Fake {
    Fake::new(options(256, 4, 16), &[20])
}

fn start(fake: Fake, leisure: Leisure) -> Service {
    Service::start_with(Engine::from_program(Box::new(fake)), leisure).expect("there is a thread")
}

fn prompt() -> Vec<u32> {
    (0..40).map(|at| at * 5 % 48).collect()
}

fn tokens(service: &Service) -> Vec<u32> {
    read(&mut service.submit(Request::new(prompt(), 20)).expect("there is room")).0
}

/// Pieces of work that say when they begin, with the number of steps before, and last until they
/// are told what is left.
fn pieces(fake: &mut Fake) -> (Receiver<usize>, Sender<Idle>) {
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let runs = fake.runs.clone();
    fake.idle = Box::new(move || {
        // The test may have ended.
        let _ = begin.send(runs.load(Ordering::Relaxed));
        Ok(ended.recv_timeout(LONG).unwrap_or(Idle::Done))
    });
    (begun, end)
}

#[test]
fn a_request_waits_for_one_piece_and_none_is_done_beside_it() {
    let mut fake = fake();
    let (begun, end) = pieces(&mut fake);
    let service = start(fake, AT_ONCE);
    for _ in 0..3 {
        assert_eq!(begun.recv_timeout(LONG), Ok(0));
        end.send(Idle::More).unwrap();
    }
    assert_eq!(begun.recv_timeout(LONG), Ok(0), "a piece is being done");
    let mut generation = service.submit(Request::new(prompt(), 20)).unwrap();
    end.send(Idle::More).unwrap();
    assert_eq!(read(&mut generation).0, greedy(&prompt(), 20));
    let steps = begun.recv_timeout(LONG).unwrap();
    assert!(steps >= 20, "the next piece comes after the whole request: {steps} steps");
    end.send(Idle::More).unwrap();
    begun.recv_timeout(LONG).unwrap();
    end.send(Idle::Done).unwrap();
    service.stop();
}

#[test]
fn what_is_done_is_not_asked_for_again_before_a_request() {
    let mut fake = fake();
    let (begun, end) = pieces(&mut fake);
    let service = start(fake, AT_ONCE);
    assert_eq!(begun.recv_timeout(LONG), Ok(0));
    end.send(Idle::Later(Duration::from_millis(1))).unwrap();
    assert_eq!(begun.recv_timeout(LONG), Ok(0));
    end.send(Idle::Done).unwrap();
    assert_eq!(tokens(&service), greedy(&prompt(), 20));
    assert!(begun.recv_timeout(LONG).unwrap() > 0, "nothing came between");
    end.send(Idle::Done).unwrap();
    service.stop();
}

#[test]
fn nothing_is_done_soon_after_the_start_or_a_request() {
    let wait = Duration::from_millis(150);
    let never = Duration::MAX;
    let cases = [
        (Leisure { after_start: wait, after_work: Duration::ZERO }, true),
        (Leisure { after_start: Duration::ZERO, after_work: wait }, true),
        (Leisure { after_start: never, after_work: Duration::ZERO }, false),
        (Leisure { after_start: Duration::ZERO, after_work: never }, false),
    ];
    for (leisure, ever) in cases {
        let mut fake = fake();
        let (begun, end) = pieces(&mut fake);
        let before = Instant::now();
        let service = start(fake, leisure);
        if ever {
            begun.recv_timeout(LONG).unwrap();
            assert!(before.elapsed() >= wait, "{leisure:?}");
            end.send(Idle::Done).unwrap();
        }
        let before = Instant::now();
        assert_eq!(tokens(&service), greedy(&prompt(), 20));
        if ever {
            assert!(begun.recv_timeout(LONG).unwrap() > 0);
            assert!(before.elapsed() >= leisure.after_work, "{leisure:?}");
            end.send(Idle::Done).unwrap();
        } else {
            assert!(begun.try_recv().is_err(), "{leisure:?}");
        }
        service.stop();
    }
}

#[test]
fn a_device_that_fails_meanwhile_costs_what_was_kept_and_no_more() {
    let mut fake = fake();
    let mut calls = 0;
    let (begin, begun) = mpsc::channel();
    fake.idle = Box::new(move || {
        calls += 1;
        let _ = begin.send(calls);
        if calls == 2 { Err(failed()) } else { Ok(Idle::Done) }
    });
    let service = start(fake, AT_ONCE);
    assert_eq!(begun.recv_timeout(LONG), Ok(1));
    for call in [2, 3] {
        assert_eq!(tokens(&service), greedy(&prompt(), 20));
        assert_eq!(begun.recv_timeout(LONG), Ok(call));
    }
    assert_eq!(service.status().device_failures, 1);
    service.stop();
}

#[test]
fn a_service_ends_between_pieces() {
    let mut fake = fake();
    fake.idle = Box::new(|| Ok(Idle::More));
    let service = start(fake, AT_ONCE);
    service.stop();
    assert!(!service.is_alive());
    let mut fake = self::fake();
    fake.idle = Box::new(|| Ok(Idle::Later(Duration::MAX / 4)));
    start(fake, AT_ONCE).stop();
}
