//! Guesses change how many steps a text takes, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::fake::{Fake, VOCABULARY, options};
use crate::texts::{Rule, Text, assert_same, drafts, prompt, run};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::BackendError;
use trine_engine::{
    Ask, Constraint, Drafter, Drafts, Engine, Finish, ModelDrafter, Request, SamplingParams,
    Statistics, Target, Waker,
};
use trine_weights::WeightsError;

/// Longer than one step of the drafter.
const PROMPT: usize = 40;
const TOKENS: usize = 150;

/// An engine for two sequences, and the steps that its device has run. Each takes a millisecond by
/// the engine's clock, and guesses take no time, so that these pay.
fn engine() -> (Engine, Arc<AtomicUsize>) {
    engine_on(device())
}

fn device() -> Fake {
    let mut options = options(256, 2, 16);
    options.width.outputs = 12;
    Fake::new(options, &[5, 20])
}

fn engine_on(fake: Fake) -> (Engine, Arc<AtomicUsize>) {
    let runs = Arc::clone(&fake.runs);
    let mut engine = Engine::from_program(Box::new(fake));
    let clock = Arc::clone(&runs);
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed) as u64));
    (engine, runs)
}

/// A drafter that runs the same model.
fn knowing() -> ModelDrafter {
    ModelDrafter::new(Box::new(Fake::new(options(300, 2, 16), &[5, 20])))
}

/// Allows a token if its number and that of the tokens before differ in their last bit.
#[derive(Debug, Clone)]
struct Alternating {
    accepted: u32,
    /// The tokens that were accepted, of all requests.
    count: Arc<AtomicUsize>,
    /// The most guesses after which it knows what may come.
    ahead: usize,
    /// The guesses of the step.
    guesses: usize,
}

impl Alternating {
    fn write(&self, guesses: usize, words: usize, mask: &mut Vec<u32>) {
        let is_even = (self.accepted as usize + guesses).is_multiple_of(2);
        mask.resize(words, if is_even { 0xAAAA_AAAA } else { 0x5555_5555 });
    }
}

impl Constraint for Alternating {
    fn allowed(&mut self, words: usize, mask: &mut Vec<u32>) -> Result<(), String> {
        self.write(0, words, mask);
        Ok(())
    }

    fn allowed_after(&mut self, guesses: usize, words: usize, mask: &mut Vec<u32>) -> bool {
        assert!((1..=self.guesses).contains(&guesses), "after {guesses} of {}", self.guesses);
        let is_known = guesses <= self.ahead;
        if is_known {
            self.write(guesses, words, mask);
        }
        is_known
    }

    fn begin(&mut self, guesses: &[u32], _: &Waker) {
        self.guesses = guesses.len();
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert_ne!(token % 2, self.accepted % 2);
        self.accepted += 1;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn follow(&mut self, guesses: &[u32]) -> usize {
        let next = self.accepted..;
        guesses.iter().zip(next).take_while(|(guess, next)| *guess % 2 != next % 2).count()
    }
}

fn sampled(seed: u64) -> SamplingParams {
    let greedy = SamplingParams::greedy();
    SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.9, seed, ..greedy }
}

/// Requests of every kind of sampling, and the number of tokens that constraints accepted.
fn requests() -> (Vec<Request>, Arc<AtomicUsize>) {
    let penalised = SamplingParams { repetition_penalty: 1.3, ..sampled(3) };
    let unbounded = SamplingParams { top_k: 0, top_p: 1.0, ..sampled(4) };
    let all = [SamplingParams::greedy(), sampled(1), sampled(2), penalised, unbounded];
    let request =
        |(index, sampling)| Request { sampling, ..Request::new(prompt(index, PROMPT), TOKENS) };
    let mut requests: Vec<Request> = (0..).zip(all).map(request).collect();
    let count: Arc<AtomicUsize> = Arc::default();
    let constraint = Alternating { accepted: 0, count: Arc::clone(&count), ahead: 0, guesses: 0 };
    requests.push(Request {
        sampling: sampled(5),
        logprobs: Some(3),
        constraint: Some(Box::new(constraint)),
        ..Request::new(prompt(5, PROMPT), 40)
    });
    let stops = |min_tokens| Request {
        sampling: sampled(6),
        stop_ids: vec![3, 7, 11],
        min_tokens,
        ..Request::new(prompt(6, PROMPT), TOKENS)
    };
    requests.extend([stops(0), stops(30)]);
    // The context ends before the text.
    requests.push(Request::new(prompt(7, 220), TOKENS));
    // None takes the place of an earlier one: with guesses that would be at other times.
    for (priority, request) in (0..).zip(&mut requests) {
        request.priority = priority;
    }
    (requests, count)
}

#[test]
fn a_model_that_knows_the_text_is_always_right() {
    let (mut plain, plain_runs) = engine();
    let (mut drafted, drafted_runs) = engine();
    drafted.set_drafts(drafts(knowing()));
    let expected = run(&mut plain, requests().0);
    let (requests, accepted) = requests();
    let found = run(&mut drafted, requests);
    assert_same(&found, &expected);
    for (index, found) in found.iter().enumerate() {
        let Statistics { drafted_tokens, accepted_tokens, generated_tokens, .. } = found.statistics;
        // It guesses without penalties and constraints.
        if [3, 5].contains(&index) {
            assert!(drafted_tokens > 0, "request {index}");
        } else {
            let compared = drafted_tokens - accepted_tokens;
            let ends = found.end.is_some_and(|(finish, _)| finish == Finish::Stop);
            assert!(compared == 0 || ends, "request {index}: {compared} guesses were wrong");
            // Short texts end before times are known.
            let is_short = generated_tokens < 100;
            assert!(
                is_short || 2 * accepted_tokens > generated_tokens,
                "request {index}: {accepted_tokens} of {generated_tokens}"
            );
        }
    }
    assert_eq!(accepted.load(Ordering::Relaxed), 40, "wrong guesses do not reach a constraint");
    let runs = |runs: &AtomicUsize| runs.load(Ordering::Relaxed);
    assert!(2 * runs(&drafted_runs) < runs(&plain_runs), "{}", runs(&drafted_runs));
}

/// Runs requests without guesses and with those of a device, and returns how many were right.
fn accepted(device: Fake, requests: impl Fn() -> Vec<Request>) -> usize {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    drafted.set_drafts(drafts(Sound(ModelDrafter::new(Box::new(device)))));
    let (expected, found) = (run(&mut plain, requests()), run(&mut drafted, requests()));
    assert_same(&found, &expected);
    found.iter().map(|text| text.statistics.accepted_tokens).sum()
}

/// The requests of every kind, all at temperature 0 as well.
fn of_two_kinds() -> [fn() -> Vec<Request>; 2] {
    let greedy = || {
        let mut requests = requests().0;
        requests.iter_mut().for_each(|request| request.sampling.temperature = 0.0);
        requests
    };
    [|| requests().0, greedy]
}

/// A model whose context is shorter than texts, and has few blocks.
#[test]
fn texts_may_outgrow_the_drafters_context() {
    let mut sizes = options(96, 2, 16);
    sizes.blocks = 4;
    for (requests, series_max) in of_two_kinds().into_iter().zip([0, 15]) {
        let fake = Fake::new(sizes, &[5, 20]).with_series(series_max);
        let series = Arc::clone(&fake.series);
        let accepted = accepted(fake, requests);
        assert!(accepted > 50, "{accepted} guesses accepted");
        assert_eq!(count(&series) > 0, series_max > 0);
    }
}

#[test]
fn texts_may_have_tokens_that_the_drafter_does_not_know() {
    for (requests, series_max) in of_two_kinds().into_iter().zip([0, 15]) {
        let mut fake = Fake::new(options(256, 2, 16), &[5, 20]).with_series(series_max);
        fake.facts.plan.buffers[0].columns = VOCABULARY - 1;
        let series = Arc::clone(&fake.series);
        let (mut plain, _) = engine();
        let unknown = VOCABULARY as u32 - 1;
        let texts = run(&mut plain, requests());
        assert!(texts.iter().any(|text| text.tokens.contains(&unknown)), "all are known");
        let accepted = accepted(fake, requests);
        assert!(accepted > 10, "{accepted} guesses accepted");
        assert_eq!(count(&series) > 0, series_max > 0);
    }
}

fn greedy(requests: usize, stop_ids: &[u32]) -> Vec<Request> {
    let request = |seed| Request {
        sampling: SamplingParams::greedy(),
        stop_ids: stop_ids.to_vec(),
        // The first one is short enough for one step with its guesses.
        ..Request::new(prompt(seed, 12 + 40 * seed as usize), TOKENS)
    };
    (0..requests as u64).map(request).collect()
}

/// What the drafter's device has run: series, and steps of these and others.
struct Ran {
    series: Arc<AtomicUsize>,
    steps: Arc<AtomicUsize>,
}

/// A sound drafter that knows the text, on a device with series of up to `1 + most` steps of at
/// most `width` rows each.
fn in_series(width: usize, most: usize) -> (Drafts, Ran) {
    let fake = Fake::new(options(300, 2, width), &[5, 20]).with_series(most);
    let ran = Ran { series: Arc::clone(&fake.series), steps: Arc::clone(&fake.runs) };
    (drafts(Sound(ModelDrafter::new(Box::new(fake)))), ran)
}

fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::Relaxed)
}

#[test]
fn guesses_in_series_are_the_same_guesses() {
    for (width, most) in [(64, 15), (16, 3), (16, 15)] {
        for guesses in [None, Some(1), Some(6), Some(15)] {
            for requests in [1, 2] {
                let texts = |drafts: Drafts| {
                    let (mut engine, _) = engine();
                    engine.set_drafts(drafts);
                    engine.set_guesses(guesses);
                    run(&mut engine, greedy(requests, &[3]))
                };
                let (stepwise, single) = in_series(width, 0);
                let (drafts, ran) = in_series(width, most);
                let (expected, found) = (texts(stepwise), texts(drafts));
                assert_same(&found, &expected);
                for (found, expected) in found.iter().zip(&expected) {
                    let [found, expected] = [found, expected].map(|text| &text.statistics);
                    assert_eq!(found.drafted_tokens, expected.drafted_tokens);
                    assert_eq!(found.accepted_tokens, expected.accepted_tokens);
                }
                assert_eq!(count(&single.series), 0);
                let drafted: usize = found.iter().map(|text| text.statistics.drafted_tokens).sum();
                assert!(drafted > 0 && count(&ran.series) > 0, "{width} {most} {guesses:?}");
            }
        }
    }
}

/// The drafter has what it guesses from one submission, also where it reads a prompt first.
#[test]
fn a_draft_of_a_greedy_text_is_one_series() {
    for requests in [1, 2] {
        let (mut engine, _) = engine();
        let (drafts, ran) = in_series(16, 15);
        engine.set_drafts(drafts);
        engine.set_guesses(Some(4));
        let texts = run(&mut engine, greedy(requests, &[]));
        let drafted: usize = texts.iter().map(|text| text.statistics.drafted_tokens).sum();
        let series = count(&ran.series);
        assert!(drafted > 100, "{drafted} guesses");
        // At the end of a text fewer guesses are of use.
        let least = drafted / (4 * requests);
        assert!((least..=least + 4 * requests).contains(&series), "{series} for {drafted}");
        // Other steps read prompts.
        let others = count(&ran.steps) - drafted.div_ceil(requests);
        assert!(others < 20 * requests, "{others} steps beyond those of guesses");
    }
}

/// A text whose guesses are wrong from some token on, and one that begins with the same block: what
/// the rings have lost to wrong guesses is not used for it.
#[test]
fn what_a_series_overwrites_is_not_used_again() {
    for seed in 0..60 {
        let mut fake = Fake::new(options(300, 2, 16), &[5, 20]).with_series(15);
        fake.facts.plan.buffers[0].columns = VOCABULARY - 1;
        let (mut engine, _) = engine();
        engine.set_drafts(drafts(Sound(ModelDrafter::new(Box::new(fake)))));
        engine.set_guesses(Some(15));
        let first = prompt(seed, PROMPT);
        let second = [&first[..PROMPT - 4], &[1, 2, 3, 4]].concat();
        run(&mut engine, vec![Request::new(first, 70)]);
        run(&mut engine, vec![Request::new(second, 20)]);
    }
}

/// A series chooses the largest logits, so texts that are drawn are guessed step by step.
#[test]
fn sampled_texts_are_not_guessed_in_series() {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    let (drafts, ran) = in_series(16, 15);
    drafted.set_drafts(drafts);
    let requests = || {
        let request = |seed| Request {
            sampling: sampled(seed),
            ..Request::new(prompt(seed, PROMPT), TOKENS)
        };
        vec![request(1), request(2)]
    };
    let (expected, found) = (run(&mut plain, requests()), run(&mut drafted, requests()));
    assert_same(&found, &expected);
    for (index, found) in found.iter().enumerate() {
        let Statistics { drafted_tokens, accepted_tokens, .. } = found.statistics;
        assert!(drafted_tokens > 0 && drafted_tokens == accepted_tokens, "request {index}");
    }
    assert_eq!(count(&ran.series), 0);
}

/// After logits that are no numbers a series goes on with some token.
#[test]
fn a_series_ends_at_logits_that_are_not_finite() {
    let (mut plain, _) = engine();
    let expected = run(&mut plain, greedy(1, &[]));
    let poison = expected[0].tokens[20];
    let texts = |most| {
        let mut fake = Fake::new(options(300, 2, 16), &[5, 20]).with_series(most);
        fake.poison = Some(poison);
        let series = Arc::clone(&fake.series);
        let (mut drafted, _) = engine();
        drafted.set_drafts(drafts(Sound(ModelDrafter::new(Box::new(fake)))));
        drafted.set_guesses(Some(6));
        (run(&mut drafted, greedy(1, &[])), count(&series))
    };
    let ((stepwise, _), (found, series)) = (texts(0), texts(15));
    assert!(series > 0);
    assert_same(&found, &expected);
    assert_same(&stepwise, &expected);
    let drafted = |texts: &[Text]| {
        let Statistics { drafted_tokens, accepted_tokens, .. } = texts[0].statistics;
        (drafted_tokens, accepted_tokens)
    };
    assert_eq!(drafted(&found), drafted(&stepwise), "none is guessed after such a row");
    let (guesses, accepted) = drafted(&found);
    assert_eq!(guesses, accepted, "all others are right");
}

/// A drafter that must not fail, and is asked only for what it can give.
struct Sound(ModelDrafter);

impl Drafter for Sound {
    fn sequences(&self) -> usize {
        self.0.sequences()
    }

    fn most(&self, ask: &Ask<'_>) -> usize {
        self.0.most(ask)
    }

    fn unread(&self, ask: &Ask<'_>) -> usize {
        self.0.unread(ask)
    }

    fn draft(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        for ask in asks {
            assert!(ask.most <= self.0.most(ask), "{} guesses: {ask:?}", ask.most);
        }
        let read = self.0.draft(target, asks, readable, guesses);
        Ok(read.expect("it is never asked for what it has no room for"))
    }
}

/// Guesses that are wrong in every way, with ids that the model does not have.
#[test]
fn wrong_guesses_leave_no_trace() {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    let mut random = ChaCha8Rng::seed_from_u64(5);
    drafted.set_drafts(drafts(Rule(move |ask: &Ask<'_>, guesses: &mut Vec<u32>| {
        let count = random.next_u64() as usize % (ask.most + 1);
        guesses.extend((0..count).map(|_| random.next_u64() as u32 % (VOCABULARY as u32 + 2)));
        Ok(())
    })));
    for _ in 0..3 {
        // From the second time on prompts are in the cache.
        let (expected, found) = (run(&mut plain, requests().0), run(&mut drafted, requests().0));
        assert_same(&found, &expected);
    }
}

/// As far as a constraint knows what may come after guesses, their rows are drawn with the others
/// of the step, and one by one otherwise. Stop ids may not come before their time either way.
#[test]
fn rows_of_guesses_are_drawn_together_under_a_constraint() {
    let request = |ahead| {
        let constraint = Alternating { accepted: 0, count: Arc::default(), ahead, guesses: 0 };
        Request {
            constraint: Some(Box::new(constraint)),
            sampling: SamplingParams { repetition_penalty: 1.3, ..sampled(5) },
            logprobs: Some(3),
            stop_ids: vec![3, 7, 11, 12, 14],
            min_tokens: 30,
            ..Request::new(prompt(5, PROMPT), TOKENS)
        }
    };
    let (mut plain, _) = engine();
    let expected = run(&mut plain, vec![request(0)]);
    for ahead in [0, 2, 15] {
        let fake = device();
        let launches = Arc::clone(&fake.launches);
        let (mut drafted, _) = engine_on(fake);
        let known = expected[0].tokens.clone();
        drafted.set_drafts(drafts(Rule(move |ask: &Ask<'_>, guesses: &mut Vec<u32>| {
            guesses.extend(known.iter().skip(ask.tokens.len() - PROMPT).take(ask.most));
            Ok(())
        })));
        drafted.set_guesses(Some(4));
        let found = run(&mut drafted, vec![request(ahead)]);
        assert_same(&found, &expected);
        let Statistics { accepted_tokens, generated_tokens, .. } = found[0].statistics;
        assert!(2 * accepted_tokens > generated_tokens, "{accepted_tokens} guesses are right");
        let (launches, steps) = (count(&launches), generated_tokens - accepted_tokens);
        match ahead {
            0 => assert_eq!(launches, generated_tokens),
            2 => assert!((steps + 1..generated_tokens).contains(&launches), "{launches}"),
            _ => assert_eq!(launches, steps),
        }
    }
}

#[test]
fn a_drafter_whose_weights_are_void_is_not_asked_again() {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    drafted.set_drafts(drafts(Rule(move |_: &Ask<'_>, _: &mut Vec<u32>| {
        counter.fetch_add(1, Ordering::Relaxed);
        Err(WeightsError::Changed { file: "draft".to_owned(), what: "was cut".to_owned() }.into())
    })));
    assert!(!drafted.status().draft_lost);
    let (expected, found) = (run(&mut plain, requests().0), run(&mut drafted, requests().0));
    assert_same(&found, &expected);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert!(drafted.status().draft_lost);
}
