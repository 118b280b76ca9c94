//! Rounds of guesses by a goal of the Program that is guessed for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::fake::{Fake, options};
use crate::texts::{drafts, prompt, run};
use trine_engine::{Engine, Event, Finish, ReadingDrafter, Request, SamplingParams, Update};

const WINDOWS: [usize; 2] = [5, 20];
const TOKENS: usize = 60;

/// A device for three sequences whose Program guesses in series of up to `1 + most` steps.
fn device(most: usize) -> Fake {
    let mut sizes = options(128, 3, 16);
    sizes.width.outputs = 12;
    Fake::new(sizes, &WINDOWS).with_draft(most)
}

/// An engine in whose steps each sequence has a number of guesses, as far as rows are free.
fn engine(device: Fake, guesses: usize) -> Engine {
    let drafter = ReadingDrafter::of(&device.facts).expect("it has a draft");
    let mut engine = Engine::from_program(Box::new(device));
    engine.set_drafts(drafts(drafter));
    engine.set_guesses(Some(guesses));
    engine
}

/// Requests of different lengths.
fn requests(temperature: f32, stop_ids: &[u32]) -> Vec<Request> {
    let request = |seed: u64| Request {
        sampling: SamplingParams { temperature, top_k: 20, seed, ..SamplingParams::greedy() },
        stop_ids: stop_ids.to_vec(),
        ..Request::new(prompt(seed, 10 + 13 * seed as usize), TOKENS - 7 * seed as usize)
    };
    (0..5).map(request).collect()
}

/// Guesses of a device are right wherever they are the model's own words: also where sequences want
/// different numbers of guesses, and where the device makes fewer than are wanted.
#[test]
fn a_round_takes_one_series() {
    for (temperature, most, stop_ids) in
        [(0.0, 15, &[][..]), (0.0, 15, &[3, 7, 11]), (0.0, 2, &[]), (0.0, 0, &[]), (1.0, 15, &[])]
    {
        let mut plain = Engine::from_program(Box::new(device(0)));
        let expected = run(&mut plain, requests(temperature, stop_ids));
        let fake = device(most);
        let (series, runs) = (Arc::clone(&fake.series), Arc::clone(&fake.runs));
        let mut engine = engine(fake, 4);
        let found = run(&mut engine, requests(temperature, stop_ids));
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!((&found.tokens, found.end), (&expected.tokens, expected.end), "{index}");
        }
        let status = engine.status();
        let wrong = status.drafted_tokens - status.accepted_tokens;
        assert!(status.accepted_tokens > 25, "{status:?}");
        assert_eq!(wrong, 0, "{temperature}, {stop_ids:?}");
        let series = series.load(Ordering::Relaxed);
        match temperature == 0.0 && most > 0 {
            true => assert!(series > 0 && series < runs.load(Ordering::Relaxed) / 2),
            false => assert_eq!(series, 0, "{temperature}, at most {most}"),
        }
    }
}

/// A token after which logits are no numbers ends the text with drafts as without.
#[test]
fn logits_that_are_no_numbers_are_no_guess() {
    for (temperature, most) in [(0.0, 15), (0.0, 0), (1.0, 0)] {
        let broken = |mut device: Fake| {
            device.poison = Some(9);
            device
        };
        let mut plain = Engine::from_program(Box::new(broken(device(0))));
        let expected = run(&mut plain, requests(temperature, &[]));
        let mut engine = engine(broken(device(most)), 4);
        let found = run(&mut engine, requests(temperature, &[]));
        assert!(expected.iter().any(|text| text.tokens.contains(&9)));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found.tokens, found.end), (&expected.tokens, expected.end));
        }
    }
}

/// Starts a request and goes on until it has written a token.
fn begin(engine: &mut Engine, seed: u64) {
    engine.submit(Request::new(prompt(seed, 20), TOKENS)).expect("it is sound");
    let is_token = |event: &Event| matches!(event.update, Update::Token { .. });
    let has_begun = |_| engine.step().expect("the device works").iter().any(is_token);
    assert!((0..20).any(has_begun), "it writes a token");
}

/// What the caches hold is lost with the device, whoever ran the step: the fake device fails the
/// test if a row sees what it has not.
#[test]
fn a_device_that_fails_in_a_draft_ends_the_texts() {
    for most in [15, 0] {
        for after in 1..5 {
            let mut fake = device(most);
            // The prompt takes two steps; guesses follow.
            fake.fails_at = vec![2 + after];
            let mut engine = engine(fake, 4);
            begin(&mut engine, 1);
            let failed = (0..4).find_map(|_| engine.step().err());
            assert!(failed.is_some(), "run {after} of a draft fails");
            let events = engine.step().expect("it works again");
            let end = events.iter().find_map(|event| match event.update {
                Update::Finished { finish, .. } => Some(finish),
                _ => None,
            });
            assert_eq!((end, engine.status().device_failures), (Some(Finish::DeviceFailed), 1));
            let (request, mut plain) = (prompt(2, 30), Engine::from_program(Box::new(device(0))));
            let [found, expected] = [&mut engine, &mut plain].map(|engine| {
                run(engine, vec![Request::new(request.clone(), TOKENS)]).remove(0).tokens
            });
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_draft_that_is_stopped_leaves_the_caches() {
    for most in [15, 0] {
        let mut fake = device(most);
        // The first run of a draft.
        fake.endless_at = 3;
        let runs: Arc<AtomicUsize> = Arc::clone(&fake.runs);
        let mut engine = engine(fake, 4);
        let stop = Arc::new(AtomicBool::new(false));
        engine.stop_on(Arc::clone(&stop));
        begin(&mut engine, 1);
        let raise = Arc::clone(&stop);
        let raised = std::thread::spawn(move || {
            let begin = Instant::now();
            while runs.load(Ordering::Relaxed) < 3 {
                assert!(begin.elapsed() < Duration::from_secs(120), "no draft has begun");
                std::thread::sleep(Duration::from_millis(1));
            }
            raise.store(true, Ordering::Relaxed);
        });
        let events = engine.step().expect("a stopped step is no failure");
        raised.join().expect("it raises the flag");
        let is_end = |event: &Event| {
            matches!(event.update, Update::Finished { finish: Finish::Cancelled, .. })
        };
        assert!(events.iter().any(is_end), "{events:?}");
        engine.check_integrity().expect("the books agree");
        stop.store(false, Ordering::Relaxed);
        let text = run(&mut engine, vec![Request::new(prompt(1, 20), 30)]).remove(0);
        assert_eq!((text.tokens.len(), engine.status().device_failures), (30, 0));
    }
}
