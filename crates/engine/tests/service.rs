//! The engine on its thread: clients that read, cancel, go away and come in numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::fake::{Fake, options};
use crate::greedy::greedy;
use crate::looks::until;
use crate::texts::read;
use trine_engine::{Engine, EngineError, Finish, Request, Service, Update};

fn service(running: usize, queue: usize) -> Service {
    service_of(Fake::new(options(256, 4, 16), &[20]), running, queue)
}

fn service_of(fake: Fake, running: usize, queue: usize) -> Service {
    let mut engine = Engine::with_running(Box::new(fake), running);
    engine.set_queue(queue, 4096);
    Service::start(engine).expect("there is a thread")
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..40).map(|at| (seed * 7 + at * (seed + 3)) % 48).collect()
}

#[test]
fn many_clients_get_their_own_texts() {
    let service = service(3, 100);
    let clients: Vec<_> = (0..24)
        .map(|seed| {
            let service = service.clone();
            std::thread::spawn(move || {
                let mut generation = service.submit(Request::new(prompt(seed), 30)).unwrap();
                assert_eq!(
                    read(&mut generation),
                    (greedy(&prompt(seed), 30), Some(Finish::Length))
                );
                assert!(generation.blocking_next().is_none());
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    until(|| {
        let status = service.status();
        status.running == 0 && status.waiting == 0 && status.blocks_running == 0
    });
    let status = service.status();
    assert_eq!((status.requests, status.generated_tokens), (24, 24 * 30));
    assert_eq!(status.waiting_tokens, 0);
}

#[test]
fn who_has_an_answer_sees_a_status_that_knows_of_it() {
    let service = service(3, 100);
    for round in 1..=2000 {
        let mut generation = service.submit(Request::new(prompt(1), 1)).unwrap();
        let end = read(&mut generation).1;
        let status = service.status();
        assert_eq!((end, status.generated_tokens), (Some(Finish::Length), round));
        assert_eq!((status.running, status.requests), (0, round));
    }
}

#[test]
fn tokens_say_when_they_were_sampled() {
    let service = service(1, 8);
    let before = Instant::now();
    let mut generation = service.submit(Request::new(prompt(1), 5)).unwrap();
    let (mut times, mut first) = (vec![before], None);
    while let Some(update) = generation.blocking_next() {
        match update {
            Update::Token { at, .. } => times.push(at),
            Update::Finished { statistics, .. } => first = statistics.first_token_seconds,
            _ => {}
        }
    }
    times.push(Instant::now());
    assert!(times.len() == 5 + 2 && times.is_sorted(), "{times:?}");
    // The statistics count from the submission to the engine, a little later.
    let first = first.expect("there was a first token");
    assert!(first > 0.0 && first <= (times[1] - before).as_secs_f64());
}

#[test]
fn stop_ids_are_no_text() {
    let service = service(1, 8);
    let text = greedy(&prompt(5), 10);
    let stop = text[6];
    let length = text.iter().position(|&token| token == stop).unwrap();
    let request = Request { stop_ids: vec![stop], ..Request::new(prompt(5), 10) };
    let found = read(&mut service.submit(request).unwrap());
    assert_eq!(found, (text[..length].to_vec(), Some(Finish::Stop)));
}

#[test]
fn clients_that_go_away_leave_nothing_behind() {
    let service = service(2, 100);
    for round in 0..50 {
        let mut generations: Vec<_> =
            (0..6).map(|seed| service.submit(Request::new(prompt(seed), 200)).unwrap()).collect();
        for generation in generations.iter_mut().take(round % 4) {
            generation.blocking_next();
        }
    }
    until(|| {
        let status = service.status();
        (status.running, status.waiting, status.blocks_running) == (0, 0, 0)
    });
    assert_eq!(
        read(&mut service.submit(Request::new(prompt(1), 5)).unwrap()).0,
        greedy(&prompt(1), 5)
    );
}

#[test]
fn the_queue_is_bounded_in_requests_and_tokens() {
    let service = service(1, 3);
    let generations: Vec<_> =
        (0..40).map(|seed| service.submit(Request::new(prompt(seed), 200))).collect();
    let refused = generations
        .iter()
        .filter(|result| matches!(result, Err(EngineError::QueueFull { .. })))
        .count();
    assert!((30..=37).contains(&refused), "{refused} of 40");
    assert!(service.status().waiting <= 3);
    drop(generations);
    until(|| service.status().waiting == 0);
}

#[test]
fn draining_finishes_what_was_accepted_and_stopping_ends_it() {
    let service = service(1, 8);
    let mut accepted = service.submit(Request::new(prompt(1), 20)).unwrap();
    service.drain();
    assert!(matches!(service.submit(Request::new(prompt(2), 1)), Err(EngineError::Draining)));
    assert_eq!(read(&mut accepted), (greedy(&prompt(1), 20), Some(Finish::Length)));
    assert!(service.is_alive() && service.status().draining);
    service.stop();
    assert!(!service.is_alive());

    // Slow enough that it is at work when it is stopped.
    let mut slow = Fake::new(options(256, 4, 16), &[20]);
    slow.pause = Duration::from_millis(20);
    let service = service_of(slow, 1, 8);
    let mut running = service.submit(Request::new(prompt(1), 200)).unwrap();
    let mut waiting = service.submit(Request::new(prompt(2), 200)).unwrap();
    running.blocking_next();
    service.stop();
    service.stop();
    assert_eq!(read(&mut running).1, Some(Finish::Cancelled));
    assert_eq!(read(&mut waiting).1, Some(Finish::Cancelled));
    assert!(matches!(service.submit(Request::new(prompt(2), 1)), Err(EngineError::Draining)));
}

#[test]
fn all_steps_in_flight_end_with_the_service() {
    let mut slow = Fake::new(options(256, 6, 16), &[20]).with_depth(3);
    slow.pause = Duration::from_millis(5);
    slow.is_deaf = true;
    let overlapped = Arc::clone(&slow.overlapped);
    let service = service_of(slow, 6, 8);
    let mut generations: Vec<_> =
        (0..6).map(|seed| service.submit(Request::new(prompt(seed), 200)).unwrap()).collect();
    until(|| overlapped.load(Ordering::Relaxed) > 6);
    service.stop();
    for generation in &mut generations {
        assert_eq!(read(generation).1, Some(Finish::Cancelled));
    }
    let status = service.status();
    assert_eq!((status.running, status.blocks_running), (0, 0));
}

#[test]
fn stopping_ends_a_long_step() {
    for (endless_at, depth) in [(1, 1), (5, 1), (9, 3)] {
        let mut endless = Fake::new(options(256, 4, 16), &[20]).with_depth(depth);
        endless.endless_at = endless_at;
        let runs = Arc::clone(&endless.runs);
        let service = service_of(endless, 4, 8);
        let mut generations: Vec<_> =
            (0..4).map(|seed| service.submit(Request::new(prompt(seed), 200)).unwrap()).collect();
        until(|| runs.load(Ordering::Relaxed) == endless_at);
        service.stop();
        for generation in &mut generations {
            assert_eq!(read(generation).1, Some(Finish::Cancelled));
        }
    }
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let service = service(2, 8);
    let sleeper = service.submit(Request::new(prompt(3), 200)).unwrap();
    for seed in 0..5 {
        let found = read(&mut service.submit(Request::new(prompt(seed), 40)).unwrap());
        assert_eq!(found.0, greedy(&prompt(seed), 40));
    }
    let mut sleeper = sleeper;
    assert_eq!(read(&mut sleeper).0, greedy(&prompt(3), 200));
}
