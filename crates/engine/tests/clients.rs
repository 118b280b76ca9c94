//! Clients that share an engine.

use std::collections::HashMap;

use crate::fake::{Fake, options};
use trine_backend::ProgramOptions;
use trine_engine::{ClientId, Engine, Finish, Request, SamplingParams, SequenceId, Update};

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

/// An engine with long contexts, `running` places and `kept` slots beside them.
fn house(running: usize, kept: usize) -> Engine {
    let program = Fake::new(options(1024, running + kept, 32), &[5, 20]);
    Engine::with_running(Box::new(program), running)
}

fn drawn(client: u64, seed: u32, length: u32, max_tokens: usize) -> Request {
    let sampling =
        SamplingParams { temperature: 1.0, seed: seed.into(), ..SamplingParams::greedy() };
    Request { sampling, ..request(client, seed, length, max_tokens) }
}

/// A prompt that comes into a full house has its text before those that run have theirs, whoever
/// sent it, and all texts are what they are alone.
#[test]
fn a_prompt_in_a_full_house_waits_for_no_text_to_end() {
    let requests: Vec<_> = (0..3).map(|seed| (seed, 20 + 150 * (seed / 2), 300)).collect();
    let mut expected = Vec::new();
    for &(seed, length, most) in &requests {
        let (mut alone, mut log) = (house(1, 1), Log::default());
        let id = alone.submit(drawn(0, seed, length, most)).unwrap();
        finish(&mut alone, &mut log);
        expected.push(log.texts.remove(&id).unwrap());
    }
    for clients in [[1, 1, 1], [1, 2, 3], [1, 2, 2]] {
        for kept in [0, 4] {
            let (mut engine, mut log) = (house(2, kept), Log::default());
            let submit = |engine: &mut Engine, at: usize, most: usize| {
                let (seed, length, _) = requests[at];
                engine.submit(drawn(clients[at], seed, length, most)).unwrap()
            };
            let long = [0, 1].map(|at| submit(&mut engine, at, 300));
            steps(&mut engine, &mut log, 100);
            let short = submit(&mut engine, 2, 40);
            // With a slot that keeps it, a text has had its turn; else it has after as many tokens
            // as it had before.
            let patience = if kept > 0 { 60 } else { 200 };
            let mut waited = 0;
            while !log.ended.contains(&short) {
                steps(&mut engine, &mut log, 1);
                waited += 1;
                assert!(waited < patience, "{clients:?} {kept}");
            }
            assert_eq!(log.ended, [short], "{clients:?} {kept}");
            finish(&mut engine, &mut log);
            for (id, expected) in long.iter().zip(&expected) {
                assert_eq!(log.texts[id], *expected, "{clients:?} {kept}");
            }
            assert_eq!(log.texts[&short][..], expected[2][..40]);
            assert!(engine.status().preemptions <= 2, "{}", engine.status().preemptions);
        }
    }
}

/// Clients with a text each share fewer places than they are: none waits for another's end, and
/// places change seldom.
#[test]
fn clients_share_fewer_places() {
    let (mut engine, mut log) = (house(3, 3), Log::default());
    let ids: Vec<_> = (0..6)
        .map(|client| engine.submit(drawn(client, client as u32, 20, 300)).unwrap())
        .collect();
    steps(&mut engine, &mut log, 200);
    assert!(log.ended.is_empty());
    let written: Vec<usize> = ids.iter().map(|id| log.texts[id].len()).collect();
    assert!(written.iter().all(|&tokens| tokens >= 60), "{written:?}");
    finish(&mut engine, &mut log);
    let changes = engine.status().preemptions;
    assert!((6..40).contains(&changes), "{changes}");
}

/// Texts of one client change places a few times each, in the order of their priorities.
#[test]
fn texts_of_one_client_share_its_places() {
    let (mut engine, mut log) = (house(2, 2), Log::default());
    let submit = |engine: &mut Engine, seed: u32, priority: i32| {
        engine.submit(Request { priority, ..drawn(1, seed, 20, 300) }).unwrap()
    };
    let ids: Vec<_> = (0..4).map(|seed| submit(&mut engine, seed, 0)).collect();
    let later = submit(&mut engine, 9, 1);
    steps(&mut engine, &mut log, 200);
    let written = |log: &Log, id| log.texts.get(id).map_or(0, Vec::len);
    assert!(ids.iter().all(|id| written(&log, id) >= 60) && written(&log, &later) == 0);
    finish(&mut engine, &mut log);
    assert_eq!(log.ended.last(), Some(&later));
    let changes = engine.status().preemptions;
    assert!((2..=12).contains(&changes), "{changes}");
}

/// A prompt that has no room even in the place of another text takes none.
#[test]
fn a_prompt_without_room_takes_no_place() {
    let few = ProgramOptions { blocks: 34, ..options(1024, 3, 32) };
    let program = Fake::new(few, &[5, 20]);
    let mut engine = Engine::with_running(Box::new(program), 2);
    let mut log = Log::default();
    for client in 0..2 {
        engine.submit(drawn(client, client as u32, 300, 200)).unwrap();
    }
    steps(&mut engine, &mut log, 150);
    engine.submit(drawn(3, 9, 800, 5)).unwrap();
    steps(&mut engine, &mut log, 20);
    assert_eq!((engine.status().running, engine.status().preemptions), (2, 0));
    finish(&mut engine, &mut log);
    assert_eq!(log.ended.len(), 3);
}
