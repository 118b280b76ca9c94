//! Clients that share an engine.

use std::collections::HashMap;

use crate::fake::{Fake, options};
use trine_backend::ProgramOptions;
use trine_engine::{ClientId, Engine, Finish, Request, SequenceId, Update};

/// Texts and ends by request, and the order in which the requests ended.
#[derive(Default)]
struct Log {
    texts: HashMap<SequenceId, Vec<u32>>,
    ended: Vec<SequenceId>,
}

fn engine(sequences: usize) -> Engine {
    Engine::from_program(Box::new(Fake::new(options(256, sequences, 32), &[5, 20])))
}

fn request(client: u64, first: u32, length: u32, max_tokens: usize) -> Request {
    let prompt = (first..first + length).map(|id| id % 48).collect();
    Request { client: ClientId(client), ..Request::new(prompt, max_tokens) }
}

fn steps(engine: &mut Engine, log: &mut Log, count: usize) {
    for _ in 0..count {
        for event in engine.step().expect("the device works") {
            match event.update {
                Update::Token { token, .. } => {
                    log.texts.entry(event.sequence).or_default().push(token);
                }
                Update::Finished { finish, .. } => {
                    assert_eq!(finish, Finish::Length);
                    log.ended.push(event.sequence);
                }
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
}

fn finish(engine: &mut Engine, log: &mut Log) {
    for _ in 0..10_000 {
        if engine.is_idle() {
            return;
        }
        steps(engine, log, 1);
    }
    panic!("requests are left after 10,000 steps");
}

/// However many texts a client has, another one's begins at once, and all are what they are alone.
#[test]
fn a_client_with_many_texts_leaves_places_to_others() {
    let mut alone = engine(1);
    let mut expected = Log::default();
    let of = |seed: u32| request(1, seed, 12, 40);
    let ids: Vec<SequenceId> = (0..12).map(|seed| alone.submit(of(seed)).unwrap()).collect();
    finish(&mut alone, &mut expected);
    for priority in [0, i32::MIN] {
        let (mut engine, mut log) = (engine(4), Log::default());
        for seed in 0..12 {
            engine.submit(Request { priority, ..of(seed) }).unwrap();
        }
        steps(&mut engine, &mut log, 10);
        assert_eq!(engine.status().running, 4);
        let other = engine.submit(request(2, 7, 12, 3)).unwrap();
        steps(&mut engine, &mut log, 6);
        assert_eq!((log.ended.as_slice(), engine.status().preemptions), (&[other][..], 1));
        finish(&mut engine, &mut log);
        for id in &ids {
            assert_eq!(log.texts[id], expected.texts[id], "{id}");
        }
    }
}

#[test]
fn texts_begin_in_turn() {
    let (mut engine, mut log) = (engine(1), Log::default());
    let mut submit = |client| engine.submit(request(client, 3, 5, 2)).unwrap();
    let first: Vec<SequenceId> = (0..4).map(|_| submit(1)).collect();
    let second: Vec<SequenceId> = (0..2).map(|_| submit(2)).collect();
    finish(&mut engine, &mut log);
    let expected = [first[0], second[0], first[1], second[1], first[2], first[3]];
    assert_eq!(log.ended, expected);
}

#[test]
fn priorities_count_across_clients_where_the_owner_says_so() {
    for is_shared in [false, true] {
        let (mut engine, mut log) = (engine(1), Log::default());
        engine.share_priorities(is_shared);
        let of = |client, priority| Request { priority, ..request(client, 3, 5, 2) };
        let plain: Vec<SequenceId> = (0..2).map(|_| engine.submit(of(1, 0)).unwrap()).collect();
        let urgent: Vec<SequenceId> = (0..2).map(|_| engine.submit(of(2, -5)).unwrap()).collect();
        finish(&mut engine, &mut log);
        let in_turn = vec![plain[0], urgent[0], plain[1], urgent[1]];
        let by_priority = [urgent, plain].concat();
        assert_eq!(log.ended, if is_shared { by_priority } else { in_turn });
    }
}

/// The first prompt of a client is run before the second one of another.
#[test]
fn prompts_run_in_turn() {
    let (mut engine, mut log) = (engine(8), Log::default());
    for seed in 0..6 {
        engine.submit(request(1, seed * 7, 200, 2)).unwrap();
    }
    steps(&mut engine, &mut log, 1);
    let other = engine.submit(request(2, 3, 20, 2)).unwrap();
    finish(&mut engine, &mut log);
    let place = log.ended.iter().position(|id| *id == other).unwrap();
    assert!(place <= 1, "it ended after {place} others");
}

/// A client whose request lacks memory gets that of texts beyond one of another client.
#[test]
fn memory_goes_to_a_client_that_has_none() {
    let few = ProgramOptions { blocks: 20, ..options(256, 4, 32) };
    let program = Fake::new(few, &[5, 20]);
    let (mut engine, mut log) = (Engine::from_program(Box::new(program)), Log::default());
    for seed in 0..3 {
        engine.submit(request(1, seed * 9, 60, 60)).unwrap();
    }
    steps(&mut engine, &mut log, 20);
    let other = engine.submit(request(2, 1, 150, 3)).unwrap();
    // How many steps that takes depends on how fast they are.
    while log.ended.is_empty() {
        steps(&mut engine, &mut log, 1);
    }
    assert_eq!(log.ended, [other]);
    finish(&mut engine, &mut log);
    assert_eq!(log.ended.len(), 4);
}
