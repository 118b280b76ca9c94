//! Guesses that pay save time, and others hardly cost any.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::fake::{Fake, VOCABULARY, next_logits, options};
use crate::texts::{prompt, run};
use crate::timed::{Cost, Timed, costs};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::{BLOCK, BackendError};
use trine_engine::{Ask, Constraint, Drafter, Drafts, Engine, Request, Target};

/// The tokens of a text.
const TEXT: usize = 1200;
/// A machine on which rows are cheap and a pass of the drafters of [`PASS`] is not.
const CHEAP: Cost = Cost { weights: 10_000_000, row: 50_000, hidden: 0, noise: 5 };
/// The nanoseconds of a drafter's pass.
const PASS: u64 = 2_000_000;

/// The token with the largest logit after some tokens.
fn greedy(tokens: &[u32]) -> u32 {
    let logits = next_logits(tokens);
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&logit| logit == largest).expect("one is") as u32
}

/// Guesses what a rule says, and takes its time.
struct Ruled<F> {
    /// Returns the guess after the known tokens of a sequence and some guesses, if there is one.
    rule: F,
    /// Nanoseconds of a pass.
    pass: u64,
    clock: Arc<AtomicU64>,
}

impl<F: FnMut(&Ask<'_>, &[u32]) -> Option<u32> + Send> Drafter for Ruled<F> {
    fn draft(
        &mut self,
        _: &mut Target<'_>,
        asks: &[Ask<'_>],
        _: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        for (ask, guesses) in asks.iter().zip(&mut *guesses) {
            let mut tokens = ask.tokens.to_vec();
            while guesses.len() < ask.most {
                let Some(guess) = (self.rule)(ask, &tokens) else { break };
                guesses.push(guess);
                tokens.push(guess);
            }
        }
        // To find nothing takes time too.
        let passes = guesses.iter().map(Vec::len).max().unwrap_or(0).max(1) as u64;
        self.clock.fetch_add(self.pass * passes, Ordering::Relaxed);
        Ok(0)
    }
}

/// Returns an engine for this many streams in simulated time, and its clock in nanoseconds.
fn engine(cost: Cost, streams: usize) -> (Engine, Arc<AtomicU64>) {
    let mut options = options(TEXT + 64, streams, 64);
    options.width.outputs = 64;
    Timed::engine(Fake::new(options, &[]), cost)
}

fn requests(streams: usize) -> Vec<Request> {
    (0..streams as u64).map(|seed| Request::new(prompt(seed, 10), TEXT)).collect()
}

/// The time in which texts are written, in nanoseconds. `drafts` returns what guesses, given the
/// clock.
fn taken(
    cost: Cost,
    requests: Vec<Request>,
    drafts: impl FnOnce(&Arc<AtomicU64>) -> Drafts,
) -> u64 {
    let (mut engine, clock) = engine(cost, requests.len());
    engine.set_drafts(drafts(&clock));
    let texts = run(&mut engine, requests);
    assert!(texts.iter().all(|text| text.tokens.len() == TEXT));
    clock.load(Ordering::Relaxed)
}

fn plain(_: &Arc<AtomicU64>) -> Drafts {
    Drafts::default()
}

fn lookup(_: &Arc<AtomicU64>) -> Drafts {
    Drafts { lookup: true, drafter: None }
}

/// A drafter with a rule, whose passes take this many nanoseconds.
fn ruled(
    pass: u64,
    rule: impl FnMut(&Ask<'_>, &[u32]) -> Option<u32> + Send + 'static,
) -> impl FnOnce(&Arc<AtomicU64>) -> Drafts {
    move |clock| {
        let drafter = Ruled { rule, pass, clock: Arc::clone(clock) };
        Drafts { lookup: false, drafter: Some(Box::new(drafter)) }
    }
}

/// Guesses what the device will say, and is wrong in some of all cases.
fn informed(pass: u64, wrong_percent: u64) -> impl FnOnce(&Arc<AtomicU64>) -> Drafts {
    let mut random = ChaCha8Rng::seed_from_u64(31);
    ruled(pass, move |_, tokens| {
        let is_wrong = random.next_u64() % 100 < wrong_percent;
        let right = greedy(tokens);
        Some(if is_wrong { (right + 1) % VOCABULARY as u32 } else { right })
    })
}

/// On a device on which rows cost something, texts in which two tokens in a row say nothing about
/// the next, and a drafter that is hardly ever right or says nothing.
#[test]
fn texts_that_cannot_be_guessed_hardly_take_longer() {
    for cost in costs() {
        for streams in [1, 8, 32] {
            let base = taken(cost, requests(streams), plain) as f64;
            let mut drafted = vec![
                ("lookup", taken(cost, requests(streams), lookup)),
                ("free", taken(cost, requests(streams), informed(0, 98))),
            ];
            if streams < 32 {
                drafted.extend([
                    ("wrong", taken(cost, requests(streams), informed(PASS, 98))),
                    ("silent", taken(cost, requests(streams), ruled(PASS, |_, _| None))),
                ]);
            }
            for (drafts, drafted) in drafted {
                let ratio = drafted as f64 / base;
                assert!(ratio < 1.03, "{drafts}, {cost:?}, {streams}: {ratio:.3} of the time");
            }
        }
    }
}

#[test]
fn right_guesses_of_cheap_rows_save_time() {
    for (row, hidden, wrong_percent, least) in
        [(300_000, 0, 30, 1.8), (50_000, 0, 30, 2.2), (5_000, 0, 10, 4.0), (900_000, 8, 30, 2.2)]
    {
        let cost = Cost { weights: 10_000_000, row, hidden, noise: 5 };
        let base = taken(cost, requests(1), plain);
        let ratio = base as f64 / taken(cost, requests(1), informed(0, wrong_percent)) as f64;
        assert!(ratio > least, "{cost:?}, {wrong_percent} % wrong: {ratio:.2} times as fast");
    }
}

/// Takes at most a number of guesses, and every token.
#[derive(Debug, Default)]
struct Refusing {
    most: usize,
    /// The times that it was asked about guesses.
    asked: Arc<AtomicU64>,
}

impl Refusing {
    /// Returns a request with this constraint.
    fn request(self, prompt: Vec<u32>) -> Request {
        Request { constraint: Some(Box::new(self)), ..Request::new(prompt, TEXT) }
    }
}

impl Constraint for Refusing {
    fn allowed(&mut self, words: usize, mask: &mut Vec<u32>) -> Result<(), String> {
        mask.resize(words, u32::MAX);
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn follow(&mut self, guesses: &[u32]) -> usize {
        self.asked.fetch_add(1, Ordering::Relaxed);
        guesses.len().min(self.most)
    }
}

/// Guesses that are cut count as wrong, so that the drafter is not run for more of them.
#[test]
fn guesses_that_a_constraint_refuses_are_not_made_again() {
    let constrained = |most| vec![Refusing { most, ..Refusing::default() }.request(prompt(0, 10))];
    let base = taken(CHEAP, constrained(0), plain) as f64;
    for (count, most) in [(0, 1.03), (1, 0.75)] {
        let ratio = taken(CHEAP, constrained(count), informed(PASS, 0)) as f64 / base;
        assert!(ratio < most, "{count} guesses are taken: {ratio:.3} of the time");
    }
}

/// What a constraint says about guesses takes time.
#[test]
fn a_constraint_is_asked_only_about_guesses_that_are_chosen() {
    for (guesses, is_asked) in [(0, false), (4, true)] {
        let constraint = Refusing { most: 4, ..Refusing::default() };
        let asked = Arc::clone(&constraint.asked);
        let (mut engine, clock) = engine(CHEAP, 1);
        engine.set_drafts(lookup(&clock));
        engine.set_guesses(Some(guesses));
        run(&mut engine, vec![constraint.request(prompt(0, 10))]);
        assert_eq!(asked.load(Ordering::Relaxed) > 0, is_asked, "{guesses} guesses");
    }
}

/// Texts that a client takes back at a stop string, or that are too late, are found in later ones.
#[test]
fn answers_that_were_cut_short_are_learnt() {
    let late = Instant::now() + Duration::from_secs(1);
    for deadline in [None, Some(late)] {
        let (mut engine, clock) = engine(CHEAP, 1);
        engine.set_drafts(lookup(&clock));
        engine.set_guesses(Some(4));
        let request = Request { deadline, ..Request::new(prompt(0, 10), TEXT) };
        let id = engine.submit(request).expect("a sound request");
        while engine.status().generated_tokens < 100 {
            assert!(!engine.is_idle(), "the text has ended");
            engine.step().expect("the device does not fail");
        }
        match deadline {
            None => assert!(engine.cancel(id).is_some()),
            Some(late) => std::thread::sleep(late.saturating_duration_since(Instant::now())),
        }
        while !engine.is_idle() {
            engine.step().expect("the device does not fail");
        }
        assert!(engine.status().generated_tokens < TEXT as u64, "the text was written");
        let again = run(&mut engine, vec![Request::new(prompt(0, 10), 90)]);
        let accepted = again[0].statistics.accepted_tokens;
        assert!(accepted > 45, "{accepted} of 90 tokens were found");
    }
}

/// A drafter that wants to end a text that may not end yet.
#[test]
fn stop_ids_that_may_not_come_are_not_guessed_again() {
    let stop = VOCABULARY as u32 - 1;
    let unending = || {
        let request = Request::new(prompt(0, 10), TEXT);
        vec![Request { stop_ids: vec![stop], min_tokens: TEXT, ..request }]
    };
    let base = taken(CHEAP, unending(), plain) as f64;
    let drafted = taken(CHEAP, unending(), ruled(PASS, move |_, _| Some(stop)));
    let ratio = drafted as f64 / base;
    assert!(ratio < 1.03, "{ratio:.3} of the time");
}

/// Two texts whose guesses are wrong for a while. Then there are none for the first text, and right
/// ones for the second.
#[test]
fn looks_go_past_a_text_for_which_there_are_no_guesses() {
    const WRONG: usize = 300;
    let mut requests = requests(2);
    requests[0].prompt[0] = 0;
    requests[1].prompt[0] = 1;
    let rule = |ask: &Ask<'_>, tokens: &[u32]| match greedy(tokens) {
        right if ask.tokens.len() < WRONG => Some((right + 1) % VOCABULARY as u32),
        right => (ask.tokens[0] == 1).then_some(right),
    };
    // Two looks cost twice as much as one, so only one is made at a time.
    let cost = Cost { weights: 10_000_000, row: 900_000, hidden: 0, noise: 5 };
    let (mut engine, clock) = engine(cost, 2);
    engine.set_drafts(ruled(0, rule)(&clock));
    let texts = run(&mut engine, requests);
    let accepted = texts[1].statistics.accepted_tokens;
    assert!(accepted > (TEXT - WRONG) / 4, "{accepted} guesses were right");
}

/// A block that only a wrong guess needed goes to another sequence before any gives way.
#[test]
fn no_sequence_gives_way_for_what_wrong_guesses_left() {
    let mut options = options(4 * BLOCK, 2, 2 * BLOCK);
    options.width.outputs = 2 * BLOCK;
    options.blocks = 3;
    let preemptions = |drafts: fn(&Arc<AtomicU64>) -> Drafts| {
        let (mut engine, clock) = Timed::engine(Fake::new(options, &[]), CHEAP);
        engine.set_drafts(drafts(&clock));
        engine.set_guesses(Some(15));
        let requests = vec![
            // It needs a second block after the other has ended.
            Request::new(prompt(1, BLOCK - 12), 30),
            // It needs one soon.
            Request::new(prompt(2, BLOCK - 4), 8),
        ];
        let texts = run(&mut engine, requests);
        texts.iter().map(|text| text.statistics.preemptions).sum::<usize>()
    };
    // The wrong guesses of the first text's third token and no others.
    let once = |clock: &Arc<AtomicU64>| {
        let rule = |ask: &Ask<'_>, tokens: &[u32]| {
            let is_due = ask.tokens.len() == BLOCK - 10;
            is_due.then(|| (greedy(tokens) + 1) % VOCABULARY as u32)
        };
        ruled(0, rule)(clock)
    };
    assert_eq!(preemptions(plain), 0);
    assert_eq!(preemptions(once), 0, "a sequence gave way");
}

/// While a draft is made for one step, the device runs another.
#[test]
fn drafts_beside_a_step_are_not_counted_as_its_time() {
    let mut options = options(TEXT + 64, 2, 64);
    options.width.outputs = 64;
    let (mut engine, clock) = Timed::engine(Fake::new(options, &[]).with_depth(2), CHEAP);
    engine.set_drafts(informed(PASS, 50)(&clock));
    engine.set_guesses(Some(4));
    run(&mut engine, requests(2));
    let status = engine.status();
    let passed = clock.load(Ordering::Relaxed) as f64 / 1e9;
    assert!(status.draft_seconds > 0.1 * passed, "{} s of guessing", status.draft_seconds);
    let counted = status.busy_seconds;
    assert!((counted / passed - 1.0).abs() < 1e-6, "{counted} s counted, {passed} s passed");
}

/// Rows of a prompt may add three quarters of the time of a step without guesses.
#[test]
fn steps_with_guesses_leave_no_more_room_for_prompts() {
    let cost = Cost { weights: 10_000_000, row: 300_000, hidden: 0, noise: 0 };
    let (mut engine, clock) = engine(cost, 2);
    engine.set_drafts(informed(0, 0)(&clock));
    engine.submit(Request::new(prompt(0, 10), TEXT)).expect("a sound request");
    while engine.status().generated_tokens < 600 {
        engine.step().expect("the device does not fail");
    }
    assert!(engine.status().accepted_tokens > 300, "nothing is guessed");
    engine.submit(Request::new(prompt(1, 900), 1)).expect("a sound request");
    let (before, mut widest) = (engine.status().generated_tokens, 0);
    while engine.status().requests == 2 && engine.status().prompt_tokens < 910 {
        engine.step().expect("the device does not fail");
    }
    while engine.status().running == 2 {
        widest = widest.max(engine.status().width);
        engine.step().expect("the device does not fail");
    }
    assert!(engine.status().generated_tokens > before, "the text goes on");
    assert!((20..=28).contains(&widest), "{widest} rows beside a token");
}
