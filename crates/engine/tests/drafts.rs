//! Guesses change how many steps a text takes, and nothing else.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
mod timed;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Fake, VOCABULARY, next_logits, options};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use timed::{Cost, Timed, costs};
use trine_backend::{BackendError, Batch, Facts, Flights, InFlight, Memory, Program, Results};
use trine_engine::{
    Ask, Constraint, Drafter, Drafts, Engine, Finish, Logprobs, ModelDrafter, Request,
    SamplingParams, SequenceId, Statistics, Update,
};

/// Longer than one step of the drafter.
const PROMPT: usize = 40;
const TOKENS: usize = 150;

fn prompt(seed: u64, tokens: usize) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..tokens).map(|_| (random.next_u64() % VOCABULARY as u64) as u32).collect()
}

/// An engine for two sequences, and the steps that its device has run. Each takes a millisecond by
/// the engine's clock, and guesses take no time, so that these pay.
fn engine() -> (Engine, Arc<AtomicUsize>) {
    let mut options = options(256, 2, 16);
    options.width.outputs = 12;
    let fake = Fake::new(options, &[5, 20]);
    let runs = Arc::clone(&fake.runs);
    let mut engine = Engine::from_program(Box::new(fake));
    let clock = Arc::clone(&runs);
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed) as u64));
    (engine, runs)
}

/// A drafter that runs the same model.
fn knowing() -> Box<dyn Drafter> {
    let fake = Fake::new(options(300, 2, 16), &[5, 20]);
    Box::new(ModelDrafter::new(Box::new(fake)))
}

/// A text, its log-probabilities if they were asked for, its end and its cost.
struct Text {
    tokens: Vec<u32>,
    logprobs: Vec<Logprobs>,
    end: Option<(Finish, Option<u32>)>,
    statistics: Statistics,
}

/// Runs requests to their ends and returns their texts, in order.
fn run(engine: &mut Engine, requests: Vec<Request>) -> Vec<Text> {
    let ids: Vec<_> =
        requests.into_iter().map(|r| engine.submit(r).expect("a sound request")).collect();
    let text = |_: &SequenceId| Text {
        tokens: Vec::new(),
        logprobs: Vec::new(),
        end: None,
        statistics: Statistics::default(),
    };
    let mut texts: Vec<Text> = ids.iter().map(text).collect();
    while !engine.is_idle() {
        for event in engine.step().expect("the device does not fail") {
            let at = ids.iter().position(|id| *id == event.sequence).expect("it was submitted");
            let text = &mut texts[at];
            match event.update {
                Update::Token { token, logprobs, .. } => {
                    text.tokens.push(token);
                    text.logprobs.extend(logprobs.map(|logprobs| *logprobs));
                }
                Update::Finished { finish, stop, statistics } => {
                    text.end = Some((finish, stop));
                    text.statistics = statistics;
                }
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    texts
}

#[track_caller]
fn assert_same(found: &Text, expected: &Text, request: usize) {
    assert_eq!(found.tokens, expected.tokens, "request {request}");
    assert_eq!(found.logprobs, expected.logprobs, "request {request}");
    assert_eq!(found.end, expected.end, "request {request}");
    assert_eq!(found.statistics.generated_tokens, expected.statistics.generated_tokens);
    assert_eq!(found.statistics.reused_tokens, expected.statistics.reused_tokens);
}

/// Allows a token if its number and that of the tokens before differ in their last bit.
#[derive(Debug)]
struct Alternating {
    accepted: u32,
    /// The tokens that were accepted, of all requests.
    count: Arc<AtomicUsize>,
}

impl Constraint for Alternating {
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        mask.fill(if self.accepted.is_multiple_of(2) { 0xAAAA_AAAA } else { 0x5555_5555 });
        Ok(())
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
    let constraint = Alternating { accepted: 0, count: Arc::clone(&count) };
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
    (requests, count)
}

#[test]
fn a_model_that_knows_the_text_is_always_right() {
    let (mut plain, plain_runs) = engine();
    let (mut drafted, drafted_runs) = engine();
    drafted.set_drafts(Drafts { lookup: false, drafter: Some(knowing()) });
    let expected = run(&mut plain, requests().0);
    let (requests, accepted) = requests();
    let found = run(&mut drafted, requests);
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_same(found, expected, index);
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

/// A model whose context is shorter than texts, and has few blocks.
#[test]
fn texts_may_outgrow_the_drafters_context() {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    let mut sizes = options(96, 2, 16);
    sizes.blocks = 4;
    let fake = Fake::new(sizes, &[5, 20]);
    let drafter = Sound(ModelDrafter::new(Box::new(fake)));
    drafted.set_drafts(Drafts { lookup: false, drafter: Some(Box::new(drafter)) });
    let (expected, found) = (run(&mut plain, requests().0), run(&mut drafted, requests().0));
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_same(found, expected, index);
    }
    let accepted: usize = found.iter().map(|text| text.statistics.accepted_tokens).sum();
    assert!(accepted > 100, "{accepted} guesses accepted");
}

#[test]
fn texts_may_have_tokens_that_the_drafter_does_not_know() {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    let mut fake = Fake::new(options(256, 2, 16), &[5, 20]);
    fake.facts.plan.buffers[0].columns = VOCABULARY - 1;
    let drafter = Sound(ModelDrafter::new(Box::new(fake)));
    drafted.set_drafts(Drafts { lookup: false, drafter: Some(Box::new(drafter)) });
    let (expected, found) = (run(&mut plain, requests().0), run(&mut drafted, requests().0));
    let unknown = VOCABULARY as u32 - 1;
    assert!(expected.iter().any(|text| text.tokens.contains(&unknown)), "all are known");
    for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_same(found, expected, index);
    }
    let accepted: usize = found.iter().map(|text| text.statistics.accepted_tokens).sum();
    assert!(accepted > 10, "{accepted} guesses accepted");
}

/// A drafter that must not fail.
struct Sound(ModelDrafter);

impl Drafter for Sound {
    fn unread(&self, ask: &Ask<'_>) -> usize {
        self.0.unread(ask)
    }

    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        let read = self.0.draft(asks, readable, guesses);
        Ok(read.expect("it is never asked for what it has no room for"))
    }
}

/// Guesses that are wrong in every way, with ids that the model does not have.
struct Wrong(ChaCha8Rng);

impl Drafter for Wrong {
    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        _: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        for (ask, guesses) in asks.iter().zip(guesses) {
            let count = self.0.next_u64() as usize % (ask.most + 1);
            guesses.extend((0..count).map(|_| self.0.next_u64() as u32 % (VOCABULARY as u32 + 2)));
        }
        Ok(0)
    }
}

#[test]
fn wrong_guesses_leave_no_trace() {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    let wrong = Wrong(ChaCha8Rng::seed_from_u64(5));
    drafted.set_drafts(Drafts { lookup: false, drafter: Some(Box::new(wrong)) });
    for _ in 0..3 {
        // From the second time on prompts are in the cache.
        let (expected, found) = (run(&mut plain, requests().0), run(&mut drafted, requests().0));
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_same(found, expected, index);
        }
    }
}

/// A device whose logits depend on the last token only, so that the distribution of what follows
/// each token is known. It has no caches.
struct Chain {
    facts: Facts,
    /// (states, vocabulary).
    logits: Vec<Vec<f32>>,
    flights: Flights<Vec<f32>>,
    given: Vec<f32>,
    runs: Arc<AtomicUsize>,
}

/// The tokens of [`Chain`] that follow one another; the others never come.
const STATES: usize = 8;

impl Chain {
    fn new(context: usize) -> Self {
        let mut options = options(context, 1, 16);
        options.width.outputs = 16;
        let facts = Fake::new(options, &[]).facts;
        let mut random = ChaCha8Rng::seed_from_u64(11);
        let mut logit = |id: usize| match id < STATES {
            true => (random.next_u64() % 400) as f32 / 100.0 - 2.0,
            false => -1e9,
        };
        let logits = (0..STATES).map(|_| (0..VOCABULARY).map(&mut logit).collect()).collect();
        Self { facts, logits, flights: Flights::new(1), given: Vec::new(), runs: Arc::default() }
    }

    /// (state, next token): probabilities at temperature 1.
    fn probabilities(&self) -> Vec<Vec<f64>> {
        let row = |logits: &Vec<f32>| {
            let weights: Vec<f64> = logits[..STATES].iter().map(|&l| f64::from(l).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.iter().map(|weight| weight / sum).collect()
        };
        self.logits.iter().map(row).collect()
    }
}

impl Program for Chain {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        batch.check(&self.facts.options, &self.facts.plan, VOCABULARY)?;
        self.flights.check_room()?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        let token = |&row: &u32| batch.tokens[row as usize] as usize;
        let rows = batch.outputs.iter().map(token);
        Ok(self.flights.begin(rows.flat_map(|token| self.logits[token].clone()).collect()))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.given = self.flights.end(step)?;
        Ok(self)
    }

    fn copy_slot(&mut self, _: u32, _: u32, _: usize) -> Result<(), BackendError> {
        self.flights.check_idle()
    }

    fn profile(&mut self, _: bool) -> Vec<f64> {
        Vec::new()
    }
}

impl Results for Chain {
    fn output(&mut self, _: usize) -> Result<&[f32], BackendError> {
        Ok(&self.given)
    }
}

/// Draws guesses from the right distribution, but with random numbers of its own, or from another.
struct Drawing {
    probabilities: Vec<Vec<f64>>,
    random: ChaCha8Rng,
    /// Share of guesses that are drawn evenly.
    even: f64,
}

impl Drawing {
    fn next(&mut self, last: u32) -> u32 {
        let mut uniform = || (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let (kind, mut at) = (uniform(), uniform());
        if kind < self.even {
            return (at * STATES as f64) as u32;
        }
        let row = &self.probabilities[last as usize];
        let found = row.iter().position(|probability| {
            at -= probability;
            at < 0.0
        });
        found.unwrap_or(STATES - 1) as u32
    }
}

impl Drafter for Drawing {
    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        _: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        for (ask, guesses) in asks.iter().zip(guesses) {
            let mut last = *ask.tokens.last().expect("there is a token");
            for _ in 0..ask.most.min(4) {
                last = self.next(last);
                guesses.push(last);
            }
        }
        Ok(0)
    }
}

/// Guesses what the chain says most likely, a number of times, and then nothing.
struct Falling {
    next: Vec<u32>,
    left: usize,
}

impl Drafter for Falling {
    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        _: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return Ok(0);
        }
        for (ask, guesses) in asks.iter().zip(guesses) {
            let mut last = *ask.tokens.last().expect("there is a token");
            for _ in 0..ask.most {
                last = self.next[last as usize];
                guesses.push(last);
            }
        }
        Ok(0)
    }
}

/// The most likely text of a chain repeats itself, so that guesses are found in it.
#[test]
fn what_is_found_serves_where_a_drafter_gives_nothing() {
    let chain = Chain::new(4000);
    let largest = |row: &Vec<f64>| (0..STATES).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let next = chain.probabilities().iter().map(|row| largest(row).unwrap_or(0) as u32).collect();
    let clock = Arc::clone(&chain.runs);
    let mut engine = Engine::from_program(Box::new(chain));
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed) as u64));
    let drafter = Falling { next, left: 40 };
    engine.set_drafts(Drafts { lookup: true, drafter: Some(Box::new(drafter)) });
    let text = run(&mut engine, vec![Request::new(vec![0], 3000)]).remove(0);
    let accepted = text.statistics.accepted_tokens;
    assert!(accepted > 2400, "{accepted} of {} tokens were guessed", text.tokens.len());
}

/// Pearson's statistic of the pairs in a text against the chain's probabilities. With 56 degrees of
/// freedom it is 56 on average, with a standard deviation of 10.6.
fn deviation(text: &[u32], probabilities: &[Vec<f64>]) -> f64 {
    let mut counts = vec![[0.0; STATES]; STATES];
    text.windows(2).for_each(|pair| counts[pair[0] as usize][pair[1] as usize] += 1.0);
    let mut sum = 0.0;
    for (counts, probabilities) in counts.iter().zip(probabilities) {
        let total: f64 = counts.iter().sum();
        for (count, probability) in counts.iter().zip(probabilities) {
            let expected = total * probability;
            sum += (count - expected).powi(2) / expected;
        }
    }
    sum
}

const DRAWS: usize = 40_000;
/// Beyond this, a text does not follow the distribution: five standard deviations.
const DEVIATION_MAX: f64 = 56.0 + 5.0 * 10.6;

/// A sampled text and the share of its tokens that were guessed.
fn drawn(even: f64) -> (Vec<u32>, f64) {
    let chain = Chain::new(DRAWS + 64);
    let probabilities = chain.probabilities();
    let clock = Arc::clone(&chain.runs);
    let mut engine = Engine::from_program(Box::new(chain));
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed) as u64));
    let drawing = Drawing { probabilities, random: ChaCha8Rng::seed_from_u64(9), even };
    engine.set_drafts(Drafts { lookup: false, drafter: Some(Box::new(drawing)) });
    let sampling =
        SamplingParams { temperature: 1.0, top_k: 0, seed: 21, ..SamplingParams::greedy() };
    let request = Request { sampling, ..Request::new(vec![0], DRAWS) };
    let Text { tokens, statistics, .. } = run(&mut engine, vec![request]).remove(0);
    (tokens, statistics.accepted_tokens as f64 / DRAWS as f64)
}

#[test]
fn texts_with_guesses_follow_the_models_distribution() {
    let probabilities = Chain::new(64).probabilities();
    for even in [0.0, 0.5] {
        let (text, guessed) = drawn(even);
        let found = deviation(&text, &probabilities);
        assert!(guessed > 0.1, "{guessed} of the tokens were guessed");
        assert!(found < DEVIATION_MAX, "{found} with {even} of the guesses drawn evenly");
    }
}

/// What the test above would find if guesses were accepted by another rule.
#[test]
fn a_broken_rule_is_found() {
    let probabilities = Chain::new(64).probabilities();
    // A guess is accepted with its own probability, and drawn again by the model if it is not: the
    // quotient's rule without its correction.
    let mut model = Drawing {
        probabilities: probabilities.clone(),
        random: ChaCha8Rng::seed_from_u64(1),
        even: 0.0,
    };
    let mut guesser = Drawing {
        probabilities: probabilities.clone(),
        random: ChaCha8Rng::seed_from_u64(2),
        even: 0.5,
    };
    let mut text = vec![0];
    while text.len() < DRAWS {
        let last = text[text.len() - 1];
        let guess = guesser.next(last);
        let confirming = model.next(last);
        text.push(if confirming == guess { guess } else { model.next(last) });
    }
    let found = deviation(&text, &probabilities);
    assert!(found > 2.0 * DEVIATION_MAX, "{found}");
}

/// The time in which streams write their texts, in nanoseconds.
fn taken(cost: Cost, streams: usize, drafts: Drafts) -> u64 {
    const TEXT: usize = 1200;
    let mut options = options(TEXT + 64, streams, 64);
    options.width.outputs = 64;
    let (mut engine, clock) = Timed::engine(Fake::new(options, &[]), cost);
    engine.set_drafts(drafts);
    let request = |seed| Request::new(prompt(seed, 10), TEXT);
    let texts = run(&mut engine, (0..streams as u64).map(request).collect());
    assert!(texts.iter().all(|text| text.tokens.len() == TEXT));
    clock.load(Ordering::Relaxed)
}

/// Guesses what the device will say, and is wrong in some of all cases.
struct Informed {
    wrong_percent: u64,
    random: ChaCha8Rng,
}

impl Drafter for Informed {
    fn draft(
        &mut self,
        asks: &[Ask<'_>],
        _: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        for (ask, guesses) in asks.iter().zip(guesses) {
            let mut tokens = ask.tokens.to_vec();
            for _ in 0..ask.most {
                let logits = next_logits(&tokens);
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let right = logits.iter().position(|&logit| logit == largest).expect("one is");
                let is_wrong = self.random.next_u64() % 100 < self.wrong_percent;
                let guess = if is_wrong { (right + 1) % VOCABULARY } else { right };
                guesses.push(guess as u32);
                tokens.push(guess as u32);
            }
        }
        Ok(0)
    }
}

fn informed(wrong_percent: u64) -> Drafts {
    let random = ChaCha8Rng::seed_from_u64(31);
    Drafts { lookup: false, drafter: Some(Box::new(Informed { wrong_percent, random })) }
}

/// On a device on which rows cost something, texts in which two tokens in a row say nothing about
/// the next.
#[test]
fn texts_that_cannot_be_guessed_hardly_take_longer() {
    for cost in costs() {
        for streams in [1, 8, 32] {
            let plain = taken(cost, streams, Drafts::default());
            for drafts in [Drafts { lookup: true, drafter: None }, informed(98)] {
                let drafted = taken(cost, streams, drafts);
                let ratio = drafted as f64 / plain as f64;
                assert!(ratio < 1.03, "{cost:?}, {streams} streams: {ratio:.3} of the time");
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
        let plain = taken(cost, 1, Drafts::default());
        let ratio = plain as f64 / taken(cost, 1, informed(wrong_percent)) as f64;
        assert!(ratio > least, "{cost:?}, {wrong_percent} % wrong: {ratio:.2} times as fast");
    }
}
