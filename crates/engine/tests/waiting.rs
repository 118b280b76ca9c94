//! Which requests wait for another one or for a picture, and which go ahead of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::fake::{Fake, options};
use crate::greedy::greedy;
use crate::looks::{BAD, BUDGET, Gated, engine, joined, picture, request, seen, until};
use crate::texts::prompt;
use trine_backend::ProgramOptions;
use trine_engine::disk::{NotRead, Origin, PageKey, PageName, PageStore, Spill, StoreCounts};
use trine_engine::{
    Engine, EngineError, Event, Finish, Logprobs, Request, SequenceId, Service, Update,
};

/// Runs some steps. Adds the tokens of sequences to their lists.
#[track_caller]
fn steps(engine: &mut Engine, count: usize, lists: &mut [(SequenceId, Vec<u32>)]) {
    for _ in 0..count {
        for Event { sequence, update } in engine.step().expect("the device works") {
            let list = lists.iter_mut().find(|(id, _)| *id == sequence);
            if let (Update::Token { token, .. }, Some((_, tokens))) = (update, list) {
                tokens.push(token);
            }
        }
        engine.check_integrity().expect("the books agree");
    }
}

/// A prompt whose rings have lost what it shares with another does not keep it waiting.
#[test]
fn a_request_waits_for_no_prompt_that_has_nothing_more_for_it() {
    let mut engine = engine(16, 4, 8);
    let system = prompt(7, 100);
    let [long, short] =
        [(1, 140), (2, 40)].map(|(seed, own)| joined(&[&system, &prompt(seed, own)]));
    let first = engine.submit(Request::new(long.clone(), 5)).expect("it is sound");
    let mut lists = vec![(first, Vec::new())];
    steps(&mut engine, 13, &mut lists);
    let second = engine.submit(Request::new(short.clone(), 5)).expect("it is sound");
    lists.push((second, Vec::new()));
    steps(&mut engine, 1, &mut lists);
    assert_eq!((engine.status().running, lists[0].1.len()), (2, 0), "the first one is being read");
    steps(&mut engine, 30, &mut lists);
    assert_eq!(lists[0].1, greedy(&long, 5));
    assert_eq!(lists[1].1, greedy(&short, 5));
}

/// The same if that prompt has run up to its picture, and waits.
#[test]
fn a_text_goes_ahead_of_a_prompt_that_waits_for_its_picture() {
    for (running, slots) in [(2, 4), (1, 3)] {
        let gated = Gated::new(BUDGET);
        let mut engine = engine(80, running, slots);
        engine.set_waker(|| {});
        let system = prompt(7, 80);
        let codes = joined(&[&system, &prompt(2, 120), &picture(5), &[3]]);
        let first = engine.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
        let mut lists = vec![(first, Vec::new())];
        steps(&mut engine, 5, &mut lists);
        let plain = joined(&[&system, &prompt(9, 10)]);
        let second = engine.submit(Request::new(plain.clone(), 5)).expect("it is sound");
        lists.push((second, Vec::new()));
        steps(&mut engine, 20, &mut lists);
        assert_eq!(lists[1].1, greedy(&plain, 5), "{running} may run");
        gated.paint();
        steps(&mut engine, 20, &mut lists);
        assert_eq!(lists[0].1, greedy(&seen(&codes), 5), "{running} may run");
    }
}

/// A store without pages that lets something happen when it is asked for one.
struct Told(Box<dyn Fn() + Send>);

impl PageStore for Told {
    fn has(&self, _: &PageName) -> bool {
        self.0();
        false
    }

    fn expects(&self, _: &PageName) -> bool {
        true
    }

    fn takes(&self, _: usize) -> bool {
        false
    }

    fn write(&mut self, _: Spill) {}

    fn read(&mut self, _: Vec<PageKey>) {}

    fn poll(&mut self) -> Option<Result<Vec<u8>, NotRead>> {
        None
    }

    fn read_seconds(&self, _: usize) -> Option<f64> {
        None
    }

    fn settle(&mut self) {}

    fn counts(&self) -> StoreCounts {
        StoreCounts::default()
    }
}

/// A picture is made, or fails, while another request is looked for that takes its prompt's place.
#[test]
fn a_picture_that_comes_meanwhile_starts_no_sequence_too_many() {
    for number in [42, BAD[0]] {
        let gated = Arc::new(Gated::new(BUDGET));
        let is_armed = Arc::new(AtomicBool::new(false));
        let mut engine = engine(80, 1, 3);
        engine.set_waker(|| {});
        let (own, armed) = (Arc::clone(&gated), Arc::clone(&is_armed));
        let store = Told(Box::new(move || {
            if armed.swap(false, Ordering::SeqCst) {
                own.paint();
            }
        }));
        let origin = Origin::new([0; 32], engine.program().facts()).expect("it gives pages");
        engine.set_page_store(Box::new(store), origin);
        let codes = joined(&[&prompt(2, 70), &picture(number), &[3]]);
        engine.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
        engine.step().expect("the device works");
        engine.step().expect("the device works");
        is_armed.store(true, Ordering::SeqCst);
        engine.submit(Request::new(prompt(1, 40), 5)).expect("it is sound");
        while !engine.is_idle() {
            engine.step().expect("the device works");
            engine.check_integrity().expect("the books agree");
            assert!(engine.status().running <= 1);
        }
        assert!(!is_armed.load(Ordering::SeqCst), "the store was asked");
    }
}

/// Of requests for one picture only the first has asked for it when it fails: the others come to
/// their turn with a picture that is neither made nor waited for.
#[test]
fn requests_that_find_a_failure_end() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 1, 4);
    engine.set_waker(|| {});
    let bad = joined(&[&picture(BAD[0]), &[3]]);
    let ask = |engine: &mut Engine| {
        engine.submit(request(&gated.tower, &bad, 5)).expect("it is sound");
    };
    ask(&mut engine);
    engine.step().expect("the device works");
    let plain = prompt(1, 20);
    engine.submit(Request::new(plain.clone(), 5)).expect("it is sound");
    engine.step().expect("the device works");
    (0..3).for_each(|_| ask(&mut engine));
    gated.paint();
    // On another thread, so that one that never ends fails the test.
    let (sender, ends) = channel();
    let thread = std::thread::spawn(move || {
        while !engine.is_idle() {
            for event in engine.step().expect("the device works") {
                event.finish().into_iter().for_each(|finish| sender.send(finish).unwrap());
            }
            engine.check_integrity().expect("the books agree");
        }
    });
    let next = || ends.recv_timeout(Duration::from_secs(120)).expect("requests end");
    let found: [Finish; 5] = std::array::from_fn(|_| next());
    let mut expected = [Finish::PictureFailed; 5];
    expected[1] = Finish::Length;
    assert_eq!(found, expected);
    thread.join().unwrap();
}

/// A started prompt that leaves its place to another waits again.
#[test]
fn requests_that_are_set_aside_count_in_the_queue_of_a_service() {
    let gated = Gated::new(BUDGET);
    let mut engine = engine(80, 1, 4);
    engine.set_queue(2, 4096);
    let service = Service::start(engine).expect("there is a thread");
    let codes = |seed| joined(&[&prompt(seed, 40), &picture(42), &[3]]);
    let ask = |seed| service.submit(request(&gated.tower, &codes(seed), 5));
    // Each takes the place of the one before it.
    let begun = [0, 1, 2].map(|seed| {
        let mut generation = ask(seed).expect("there is room");
        let update = generation.blocking_next();
        assert!(matches!(update, Some(Update::Started { .. })), "{update:?}");
        generation
    });
    let status = service.status();
    assert_eq!((status.waiting, status.waiting_tokens), (2, 2 * codes(0).len()));
    let error = ask(3).expect_err("the queue is full");
    assert!(matches!(error, EngineError::QueueFull { waiting: 2, .. }), "{error}");
    drop(begun);
    until(|| service.status().waiting == 0);
    assert_eq!(service.status().waiting_tokens, 0);
    drop(ask(4).expect("there is room"));
}

/// An engine for `running` sequences with 8 blocks.
fn small_engine(running: usize, slots: usize) -> Engine {
    let sizes = ProgramOptions { blocks: 8, ..options(256, slots, 80) };
    let mut engine =
        Engine::with_running(Box::new(Fake::new(sizes, &[20]).with_pictures()), running);
    engine.set_waker(|| {});
    engine
}

/// A prompt that waits for its picture gives up blocks where the next request has no room without
/// them. Requests start in order then, and it goes on once it has its picture, whatever comes.
#[test]
fn blocks_of_a_prompt_that_waits_for_its_picture_go_to_others() {
    for (running, slots) in [(3, 4), (3, 3), (1, 3)] {
        let gated = Gated::new(BUDGET);
        let mut engine = small_engine(running, slots);
        let holder = joined(&[&prompt(2, 150), &picture(42), &[3]]);
        let first = engine.submit(request(&gated.tower, &holder, 5)).expect("it is sound");
        let mut lists = vec![(first, Vec::new())];
        steps(&mut engine, 5, &mut lists);
        assert_eq!(engine.status().blocks_running, 5);
        let texts = [prompt(3, 120), prompt(4, 20)];
        for text in &texts {
            let id = engine.submit(Request::new(text.clone(), 5)).expect("it is sound");
            lists.push((id, Vec::new()));
        }
        steps(&mut engine, 1, &mut lists);
        assert_eq!(engine.status().running, running.min(2), "they start in order");
        steps(&mut engine, 30, &mut lists);
        for (text, (_, tokens)) in texts.iter().zip(&lists[1..]) {
            assert_eq!(tokens, &greedy(text, 5), "{running} may run");
        }
        gated.paint();
        for seed in 10..40 {
            engine.submit(Request::new(prompt(seed, 100), 20)).expect("it is sound");
            steps(&mut engine, 1, &mut lists);
        }
        assert_eq!(lists[0].1, greedy(&seen(&holder), 5), "{running} may run");
    }
}

/// It keeps them where they are too few for that request.
#[test]
fn blocks_that_are_of_no_use_to_others_are_kept() {
    let gated = Gated::new(BUDGET);
    let mut engine = small_engine(3, 4);
    let running = prompt(5, 100);
    let text = engine.submit(Request::new(running.clone(), 20)).expect("it is sound");
    let codes = joined(&[&prompt(2, 40), &picture(5), &[3]]);
    engine.submit(request(&gated.tower, &codes, 5)).expect("it is sound");
    let mut lists = vec![(text, Vec::new())];
    steps(&mut engine, 5, &mut lists);
    engine.submit(Request::new(prompt(3, 200), 5)).expect("it is sound");
    steps(&mut engine, 1, &mut lists);
    let status = engine.status();
    assert_eq!((status.running, status.waiting, status.blocks_running), (2, 1, 6));
    steps(&mut engine, 30, &mut lists);
    assert_eq!(lists[0].1, greedy(&running, 20));
    let status = engine.status();
    assert_eq!((status.running, status.waiting), (0, 1), "the large one has ended");
}

/// Runs steps of an engine. Adds each request's log-probabilities of its prompt to `found`, and the
/// steps that its prompt took.
#[track_caller]
fn follow(engine: &mut Engine, steps: usize, found: &mut [(SequenceId, Vec<Logprobs>, usize)]) {
    for _ in 0..steps {
        for Event { sequence, update } in engine.step().expect("the device works") {
            let Some(own) = found.iter_mut().find(|own| own.0 == sequence) else { continue };
            match update {
                Update::PromptLogprobs(logprobs) => own.1.extend(logprobs),
                Update::Finished { statistics, .. } => own.2 = statistics.prefill_steps,
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
}

/// The log-probabilities of a prompt that was set aside come once, and what it has in the cache is
/// not run again for them.
#[test]
fn a_prompt_with_logprobs_that_was_set_aside_goes_on_where_it_was() {
    let codes = joined(&[&prompt(2, 70), &picture(42), &prompt(4, 9)]);
    let run = |is_set_aside: bool| {
        let gated = Gated::new(BUDGET);
        let mut engine = engine(80, 1, 3);
        engine.set_waker(|| {});
        let asked = request(&gated.tower, &codes, 5);
        let id = engine.submit(Request { prompt_logprobs: Some(1), ..asked }).expect("it is sound");
        let mut found = [(id, Vec::new(), 0)];
        follow(&mut engine, 30, &mut found);
        assert_eq!(found[0].1.len(), 69, "what is before the image is run");
        if is_set_aside {
            engine.submit(Request::new(prompt(1, 20), 5)).expect("it is sound");
            follow(&mut engine, 20, &mut found);
            let status = engine.status();
            assert_eq!((status.running, status.waiting), (0, 1), "the text has ended");
        }
        gated.paint();
        follow(&mut engine, 30, &mut found);
        assert!(engine.is_idle());
        let [(_, logprobs, steps)] = found;
        (logprobs, steps)
    };
    let expected = run(false);
    assert_eq!(expected.0.len(), 69 + 9);
    assert_eq!(run(true), expected);
}
